// transport/shared_memory.h: a region of kind memfd. The client makes it and lends it over a Unix socket; the node maps
// it and copies blocks into or out of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
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

/// A peer's memfd, mapped here. Nothing about it is trusted: its bytes may change at any moment.
class MappedRegion {
 public:
  /// Errors: kNoRegion if it is no memfd on tmpfs, is not sealed against shrinking (F_SEAL_SHRINK), is smaller than
  /// `bytes`, or cannot be mapped writable; `*why` says which. Huge-page memfds are refused: a missing huge page would
  /// be a SIGBUS here.
  static Result<std::unique_ptr<MappedRegion>> map(const Descriptor& fd, std::uint64_t bytes, std::string* why);
  ~MappedRegion();
  MappedRegion(const MappedRegion&) = delete;
  MappedRegion& operator=(const MappedRegion&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedRegion(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes_;
};

}  // namespace kv
