#include "transport/shared_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>

#include "base/assert.h"

namespace kv {
namespace {

constexpr std::uint64_t kPageBytes = 4096;  ///< Every page size is a multiple; unmap_some() rounds to it.

/// Bytes of a file in memory or swap; holes do not count. st_blocks is in units of 512 bytes on every system.
std::uint64_t memory_of(const struct stat& status) { return static_cast<std::uint64_t>(status.st_blocks) * 512; }

}  // namespace

Result<std::unique_ptr<SharedMemory>> SharedMemory::create(std::size_t bytes) {
  if (bytes == 0) return error_code(Errc::kBadRequest);
  Descriptor fd(::memfd_create("kvstore-region", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return last_errno();
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return last_errno();
  // Sealed before it is lent: the node refuses memory that could be cut off under its copies (SIGBUS).
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) return last_errno();
  // Touched now (MAP_POPULATE): a first touch on the data path would cost 50 times the copy.
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (memory == MAP_FAILED) return last_errno();
  return std::unique_ptr<SharedMemory>(
      new SharedMemory(std::move(fd), std::span(static_cast<std::byte*>(memory), bytes)));
}

SharedMemory::~SharedMemory() { KV_ASSERT(::munmap(bytes_.data(), bytes_.size()) == 0); }

/// Each check prevents an attack of a client on the copying node: shrinking the file (SIGBUS), a file system that
/// blocks (FUSE), huge pages (other rules for holes), or untouched memory, which the node's copies would allocate.
Result<std::unique_ptr<MappedRegion>, Failure> MappedRegion::map(const Descriptor& fd, std::uint64_t bytes) {
  const auto fail = [](const std::string& what) { return Failure(Errc::kNoRegion, "region: " + what); };
  if (!fd) return fail("no descriptor came with the request");
  struct statfs filesystem;
  if (::fstatfs(fd.get(), &filesystem) != 0) return fail("the descriptor is not a memfd");
  if (filesystem.f_type == HUGETLBFS_MAGIC) return fail("a memfd of huge pages; one of ordinary pages is due");
  if (filesystem.f_type != TMPFS_MAGIC) return fail("the descriptor is not a memfd of ordinary pages");
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return fail("the memfd is not sealed against shrinking (F_SEAL_SHRINK)");
  // After the seal check the size can only grow, so the mapping below stays inside the file.
  struct stat status;
  if (::fstat(fd.get(), &status) != 0) return fail("fstat: " + last_errno().message());
  if (bytes == 0 || static_cast<std::uint64_t>(status.st_size) < bytes) {
    return fail("bytes: " + std::to_string(bytes) + ", the memfd holds " + std::to_string(status.st_size));
  }
  const std::uint64_t memory_bytes = memory_of(status);
  if (memory_bytes < bytes) {
    return fail("bytes: " + std::to_string(bytes) + ", but only " + std::to_string(memory_bytes) +
                " of the memfd have memory; its owner touches all of it first");
  }
  // A duplicate for find_hole() and has_lost_memory(): the caller closes the frame's descriptor.
  Descriptor own(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!own) return fail("dup: " + last_errno().message());
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return fail("mmap: " + last_errno().message());
  return std::unique_ptr<MappedRegion>(new MappedRegion(std::span(static_cast<std::byte*>(memory), bytes),
                                                        std::move(own), {status.st_dev, status.st_ino}, memory_bytes));
}

/// Takes 50 ms a GiB unless the owner has called unmap_some() down to the end.
MappedRegion::~MappedRegion() {
  while (unmap_some(bytes_.size())) {
  }
}

std::optional<std::uint64_t> MappedRegion::find_hole() const {
  const off_t hole = ::lseek(fd_.get(), 0, SEEK_HOLE);
  KV_ASSERT(hole >= 0);
  if (static_cast<std::uint64_t>(hole) >= bytes_.size()) return std::nullopt;
  return static_cast<std::uint64_t>(hole);
}

/// A client may punch holes after find_hole(): seals cannot forbid that. Comparing totals costs one call.
bool MappedRegion::has_lost_memory() const {
  struct stat status;
  return ::fstat(fd_.get(), &status) != 0 || memory_of(status) < memory_bytes_;
}

void MappedRegion::populate(std::uint64_t offset, std::uint64_t bytes) const {
  KV_ASSERT(offset <= bytes_.size());
  const auto piece = bytes_.subspan(offset, std::min<std::uint64_t>(bytes, bytes_.size() - offset));
  static_cast<void>(::madvise(piece.data(), piece.size(), MADV_POPULATE_WRITE));
}

bool MappedRegion::unmap_some(std::uint64_t bytes) {
  if (bytes_.empty()) return false;
  const std::uint64_t keep = bytes < bytes_.size() ? (bytes_.size() - bytes) / kPageBytes * kPageBytes : 0;
  KV_ASSERT(keep < bytes_.size());
  const auto tail = bytes_.subspan(keep);
  KV_ASSERT(::munmap(tail.data(), tail.size()) == 0);
  bytes_ = bytes_.first(keep);
  return keep > 0;
}

}  // namespace kv
