// tests/fuzz/input.h: a fuzzer's bytes as numbers, choices and pieces. An exhausted input gives zeros.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kv {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}

  bool empty() const { return rest_.empty(); }
  std::span<const std::uint8_t> take(std::size_t count) {
    const auto taken = rest_.first(std::min(count, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  std::span<const std::byte> bytes(std::size_t count) { return std::as_bytes(take(count)); }
  std::uint64_t number(std::size_t byte_count) {
    std::uint64_t value = 0;
    for (const std::uint8_t each : take(byte_count)) value = value << 8 | each;
    return value;
  }
  std::uint8_t byte() { return static_cast<std::uint8_t>(number(1)); }
  bool flag() { return (byte() & 1) != 0; }
  std::size_t below(std::size_t limit) { return number(limit > 256 ? 2 : 1) % limit; }

 private:
  std::span<const std::uint8_t> rest_;
};

}  // namespace kv
