// client/tools/bench/touched_memory.h: memory with all pages present, so that a measurement excludes page faults.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kv {

/// A shared mapping, like the arena and a lent region, so that both sides of a measurement have pages of one kind.
class TouchedMemory {
 public:
  explicit TouchedMemory(std::size_t bytes);  ///< Throws std::system_error.
  ~TouchedMemory();
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
