// transport/shared_memory.h: a region of kind memfd. The client lends it over a Unix socket; the node copies blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/result.h"
#include "transport/stream.h"

namespace kv {

/// Memory of this process in a memfd, sealed against shrinking and growing, mapped and touched.
class SharedMemory {
 public:
  /// Errors: system errors; kBadRequest for zero bytes.
  static Result<std::unique_ptr<SharedMemory>> create(std::size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }

 private:
  SharedMemory(Descriptor fd, std::span<std::byte> bytes) : fd_(std::move(fd)), bytes_(bytes) {}
  Descriptor fd_;
  std::span<std::byte> bytes_;
};

/// A peer's memfd, mapped here. It is untrusted: its bytes may change at any moment, and its owner may punch holes into
/// it. The first process to touch a hole is charged for the page, so the node looks for holes before it copies. Thread
/// safety: bytes() and has_lost_memory() from any thread; populate() and unmap_some() from one at a time.
class MappedRegion {
 public:
  /// Errors: kNoRegion if it is no memfd on tmpfs, is not sealed against shrinking (F_SEAL_SHRINK), is smaller than
  /// `bytes`, has fewer bytes of memory than that, or cannot be mapped writable; the text says which. Huge-page memfds
  /// are refused: a missing huge page would be a SIGBUS here. Touches no page; takes microseconds at any size.
  static Result<std::unique_ptr<MappedRegion>, Failure> map(const Descriptor& fd, std::uint64_t bytes);
  ~MappedRegion();
  MappedRegion(const MappedRegion&) = delete;
  MappedRegion& operator=(const MappedRegion&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }
  /// Identity of the file. A file that is mapped twice has its memory once, and is counted once.
  struct File {
    std::uint64_t device = 0, inode = 0;
    auto operator<=>(const File&) const = default;
  };
  const File& file() const { return file_; }
  std::uint64_t lent_bytes() const { return lent_bytes_; }  ///< Size at mapping; unmap_some() does not change it.

  /// The first byte that was never written, if any. 20 ms a GiB. Moves the file offset, which the peer shares.
  std::optional<std::uint64_t> find_hole() const;
  /// Whether holes were punched: the file has less memory than when it was mapped. One system call.
  bool has_lost_memory() const;
  /// Enters the region's pages from `offset` on into this process's page table, so that copies meet no page fault: 100
  /// ms a GiB, so in small pieces. Best effort: before Linux 5.14 the copies meet the faults.
  void populate(std::uint64_t offset, std::uint64_t bytes) const;
  /// Unmaps up to `bytes` from the end; 50 ms a GiB. False when all is unmapped. Requires: the region is unused.
  bool unmap_some(std::uint64_t bytes);

 private:
  MappedRegion(std::span<std::byte> bytes, Descriptor fd, const File& file, std::uint64_t memory_bytes)
      : bytes_(bytes), lent_bytes_(bytes.size()), fd_(std::move(fd)), file_(file), memory_bytes_(memory_bytes) {}
  std::span<std::byte> bytes_;
  std::uint64_t lent_bytes_;
  Descriptor fd_;
  File file_;
  std::uint64_t memory_bytes_;  ///< Of the file, at mapping.
};

}  // namespace kv
