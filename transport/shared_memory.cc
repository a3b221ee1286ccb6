#include "transport/shared_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

#include "base/assert.h"

namespace kv {

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Result<std::unique_ptr<SharedMemory>> SharedMemory::create(std::size_t bytes) {
  if (bytes == 0) return error_code(Errc::kBadRequest);
  Descriptor fd(::memfd_create("kvstore-region", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return last_errno();
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return last_errno();
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) return last_errno();
  // Touched now (MAP_POPULATE): a first touch on the data path would cost 50 times the copy.
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (memory == MAP_FAILED) return last_errno();
  return std::unique_ptr<SharedMemory>(
      new SharedMemory(std::move(fd), std::span(static_cast<std::byte*>(memory), bytes)));
}

SharedMemory::~SharedMemory() { KV_ASSERT(::munmap(bytes_.data(), bytes_.size()) == 0); }

Result<std::unique_ptr<MappedRegion>> MappedRegion::map(const Descriptor& fd, std::uint64_t bytes, std::string* why) {
  const auto fail = [&](std::string what) {
    *why = "region: " + std::move(what);
    return Result<std::unique_ptr<MappedRegion>>(error_code(Errc::kNoRegion));
  };
  if (!fd) return fail("no descriptor came with the request");
  struct statfs filesystem;
  if (::fstatfs(fd.get(), &filesystem) != 0 || filesystem.f_type != TMPFS_MAGIC) {
    return fail("the descriptor is not a memfd of ordinary pages");
  }
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return fail("the memfd is not sealed against shrinking (F_SEAL_SHRINK)");
  // Its size can only grow from here on, so what is mapped below stays backed.
  struct stat status;
  if (::fstat(fd.get(), &status) != 0) return fail("fstat: " + last_errno().message());
  if (bytes == 0 || static_cast<std::uint64_t>(status.st_size) < bytes) {
    return fail("bytes: " + std::to_string(bytes) + ", the memfd holds " + std::to_string(status.st_size));
  }
  // Populated here, where it is bounded by the session's region limit, and not on the data path.
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (memory == MAP_FAILED) return fail("mmap: " + last_errno().message());
  return std::unique_ptr<MappedRegion>(new MappedRegion(std::span(static_cast<std::byte*>(memory), bytes)));
}

MappedRegion::~MappedRegion() { KV_ASSERT(::munmap(bytes_.data(), bytes_.size()) == 0); }

}  // namespace kv
