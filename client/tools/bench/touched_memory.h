// client/tools/bench/touched_memory.h: memory with all pages present, so that a measurement excludes page faults.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <system_error>

#include "base/assert.h"

namespace kv {

/// A shared mapping, like the arena and a lent region, so that both sides of a measurement have pages of one kind.
class TouchedMemory {
 public:
  /// Throws std::system_error.
  explicit TouchedMemory(std::size_t bytes) {
    KV_ASSERT(bytes > 0);
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
    bytes_ = {static_cast<std::byte*>(memory), bytes};
    std::memset(memory, 0x5A, bytes);
  }
  ~TouchedMemory() { ::munmap(bytes_.data(), bytes_.size()); }
  TouchedMemory(const TouchedMemory&) = delete;
  TouchedMemory& operator=(const TouchedMemory&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

/// Cheap random numbers (xorshift64*): choosing a block is negligible beside copying it.
class QuickRandom {
 public:
  explicit QuickRandom(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15 | 1) {}  ///< | 1: 0 would stay 0.
  std::uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1D;
  }
  std::uint64_t below(std::uint64_t bound) { return (next() >> 32) * bound >> 32; }  ///< bound <= 2^32.

 private:
  std::uint64_t state_;
};

}  // namespace kv
