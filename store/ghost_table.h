// store/ghost_table.h: how often blocks that left were used.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace kv {

/// Two bytes a block: a fingerprint of 11 bits, and the block's uses up to 31. A cache line of 32 is a queue of its
/// own: the 33rd that is entered pushes the first out. So of n entries the table keeps about the last n departures. A
/// wrong match, one look-up in 64 at most, costs a wrong estimate.
class GhostTable {
 public:
  static constexpr std::uint8_t kUsesMax = 31;

  /// Forgets everything. Takes no longer for a large table than for a small one: what the system hands out is zero.
  void resize(std::size_t entries) {
    count_ = std::max<std::size_t>(1, (entries + kWays - 1) / kWays);
    lines_.reset(static_cast<Line*>(std::calloc(count_, sizeof(Line))));
    if (lines_ == nullptr) throw std::bad_alloc();
  }

  void add(std::uint64_t name, std::uint8_t uses) {
    Line& line = lines_[line_of(name)];
    std::memmove(line.entries + 1, line.entries, sizeof line.entries - sizeof line.entries[0]);
    line.entries[0] = static_cast<std::uint16_t>(print_of(name) << 5 | std::min(uses, kUsesMax));
  }
  /// 0: not known.
  std::uint8_t uses(std::uint64_t name) const {
    const std::size_t way = find(name);
    return way == kWays ? 0 : lines_[line_of(name)].entries[way] & kUsesMax;
  }
  void remove(std::uint64_t name) {
    const std::size_t way = find(name);
    if (way < kWays) lines_[line_of(name)].entries[way] = 0;
  }
  std::size_t memory_bytes() const { return count_ * sizeof(Line); }

 private:
  static constexpr std::size_t kWays = 32;
  struct Line {
    std::uint16_t entries[kWays];  ///< The latest first. 0: nothing, for no block has 0 uses.
  };
  struct Free {
    void operator()(Line* lines) const { std::free(lines); }
  };

  std::size_t line_of(std::uint64_t name) const {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::size_t>((static_cast<Wide>(name) * count_) >> 64);
  }
  static std::uint16_t print_of(std::uint64_t name) { return name & 0x7FF; }
  std::size_t find(std::uint64_t name) const {
    if (count_ == 0) return kWays;
    const Line& line = lines_[line_of(name)];
    for (std::size_t way = 0; way < kWays; ++way)
      if (line.entries[way] >> 5 == print_of(name) && (line.entries[way] & kUsesMax) != 0) return way;
    return kWays;
  }

  std::size_t count_ = 0;
  std::unique_ptr<Line[], Free> lines_;
};

}  // namespace kv
