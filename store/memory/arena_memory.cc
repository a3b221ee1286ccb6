#include "store/memory/arena_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>

#include "base/assert.h"
#include "base/on_all_processors.h"

namespace kv {
namespace {

constexpr std::size_t kSmallPageBytes = 4096;
constexpr std::size_t kHugePageBytes = 2 * 1024 * 1024;
constexpr std::size_t kTouchStepBytes = 64 * 1024 * 1024;  ///< Between two calls of `progress`.

constexpr std::size_t whole_pages(std::size_t bytes, std::size_t page) { return (bytes + page - 1) / page * page; }

/// Makes the kernel back [data, data + bytes) with pages now. Prefers madvise: it reports a lack of memory as an error,
/// where a write would end in SIGBUS.
error_code touch_pages(std::byte* data, std::size_t bytes, std::size_t page_bytes) {
#ifdef MADV_POPULATE_WRITE
  const int populate = MADV_POPULATE_WRITE;
#else
  const int populate = 23;  // since Linux 5.14; the C library's headers may be older
#endif
  if (madvise(data, bytes, populate) == 0) return {};
  if (errno != EINVAL) return last_errno();
  for (std::size_t at = 0; at < bytes; at += page_bytes) *const_cast<volatile std::byte*>(data + at) = std::byte{0};
  return {};
}

}  // namespace

Result<std::unique_ptr<ArenaMemory>> ArenaMemory::create(const ArenaConfig& config) {
  error_code why;
  for (const bool huge : {true, false}) {
    if (huge && !config.huge_pages) continue;
    std::unique_ptr<ArenaMemory> memory(new ArenaMemory());
    memory->wants_huge_ = config.huge_pages;
    memory->touch_ = config.touch;
    memory->progress_ = config.progress;
    why = memory->reserve(config, huge ? kHugePageBytes : kSmallPageBytes);
    if (!why) why = memory->commit(config.capacity_bytes);
    memory->progress_ = nullptr;  // only for the start
    if (!why) return memory;
    // Huge pages may be too few, which shows in mmap; or forbidden by a control group, which shows in touching.
  }
  return why;
}

ArenaMemory::~ArenaMemory() {
  if (reserved_ != nullptr) munmap(reserved_, reserved_bytes_);
  if (fd_ >= 0) close(fd_);
}

error_code ArenaMemory::reserve(const ArenaConfig& config, std::size_t page_bytes) {
  page_bytes_ = page_bytes;
  const bool is_huge = page_bytes == kHugePageBytes;
  fd_ = memfd_create("kvstore-arena", MFD_CLOEXEC | (is_huge ? MFD_HUGETLB | (21 << 26) : 0));  // 21: pages of 2 MiB
  if (fd_ < 0) return last_errno();
  reserved_bytes_ = whole_pages(config.bytes_max(), page_bytes) + kHugePageBytes;
  void* const mapped =
      mmap(nullptr, reserved_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, 0);
  if (mapped == MAP_FAILED) return last_errno();
  reserved_ = static_cast<std::byte*>(mapped);
  const auto address = reinterpret_cast<std::uintptr_t>(mapped);
  base_ = reserved_ + (whole_pages(address, kHugePageBytes) - address);
  return {};
}

error_code ArenaMemory::commit(std::size_t bytes) {
  const std::size_t before = committed_bytes_, end = whole_pages(bytes, page_bytes_);
  if (end <= before) return {};
  KV_ASSERT(base_ + end <= reserved_ + reserved_bytes_);
  if (ftruncate(fd_, static_cast<off_t>(end)) != 0) return last_errno();
  std::byte* const fresh = base_ + before;
  // A mapping that is refused at a fixed address has lost that address: another thread's may be there the moment after.
  // So the kernel is asked elsewhere first. The file keeps the huge pages it got, and the second mapping takes no more.
  void* const asked = mmap(nullptr, end - before, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, static_cast<off_t>(before));
  if (asked == MAP_FAILED) {
    const error_code why = last_errno();
    KV_ASSERT(ftruncate(fd_, static_cast<off_t>(before)) == 0);
    return why;
  }
  munmap(asked, end - before);
  KV_ASSERT(mmap(fresh, end - before, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_,
                 static_cast<off_t>(before)) != MAP_FAILED);
  // Advice: transparent huge pages, where allowed for shared memory; core files without prompts.
  if (page_bytes_ == kSmallPageBytes && wants_huge_) madvise(fresh, end - before, MADV_HUGEPAGE);
  madvise(fresh, end - before, MADV_DONTDUMP);
  committed_bytes_ = end;
  const error_code why = touch_ ? touch(before, bytes) : error_code();
  if (why && before > 0) discard(before);
  return why;
}

/// Zeroing pages is the cost, and one processor has not the bandwidth. The threads take steps in turn, so that they end
/// together. Memory that is added later is touched by the caller alone: the other processors serve requests.
error_code ArenaMemory::touch(std::size_t from, std::size_t bytes) const {
  const std::size_t to = whole_pages(bytes, page_bytes_);
  std::atomic<std::size_t> next = from, touched = from;
  std::atomic<int> failure = 0;
  std::atomic_flag is_telling;
  const std::size_t steps = (to - from + kTouchStepBytes - 1) / kTouchStepBytes;
  on_all_processors(from == 0 ? steps : 1, [&] {
    for (std::size_t at; failure == 0 && (at = next.fetch_add(kTouchStepBytes)) < to;) {
      const std::size_t step = std::min(kTouchStepBytes, to - at);
      if (const error_code why = touch_pages(base_ + at, step, page_bytes_)) failure = why.value();
      touched += step;
      // One at a time. A thread that finds another telling goes on; the next step's count includes this one.
      if (!progress_ || failure != 0 || is_telling.test_and_set()) continue;
      progress_(std::min(touched.load(), bytes));
      is_telling.clear();
    }
  });
  if (failure != 0) return {failure, boost::system::system_category()};
  if (progress_) progress_(bytes);
  return {};
}

void ArenaMemory::discard(std::size_t bytes) {
  const std::size_t before = committed_bytes_, end = whole_pages(bytes, page_bytes_);
  if (end >= before) return;
  // In one step, so that the addresses stay reserved.
  KV_ASSERT(mmap(base_ + end, before - end, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                 0) != MAP_FAILED);
  KV_ASSERT(ftruncate(fd_, static_cast<off_t>(end)) == 0);  // the pages go with the file's end
  committed_bytes_ = end;
}

}  // namespace kv
