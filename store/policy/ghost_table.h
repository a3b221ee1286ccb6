// store/policy/ghost_table.h: use counts of blocks that left.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace kv {

/// Two bytes a block: a fingerprint of 11 bits, and the block's uses up to 31. A cache line of 32 is a queue of its
/// own: the 33rd entry pushes the first out. So n entries keep about the last n departures. A wrong match, one lookup
/// in 64, costs a wrong estimate. Blocks that are here again are not removed: they are not looked up, and their next
/// departure comes first.
///
/// The table is much larger than a processor's caches, including the TLB, so that each lookup costs 50 ns or more. New
/// entries wait in a small, cached list until settle(): evictions do not pay for the table. prefetch() is for lookups.
class GhostTable {
 public:
  static constexpr std::uint8_t kUsesMax = 31;
  static constexpr std::size_t kWaitingMax = 1024;

  /// Forgets everything. Takes the same time for any size: the system hands out zeroed memory.
  void resize(std::size_t entries) {
    forget_waiting();
    count_ = std::max<std::size_t>(1, (entries + kWays - 1) / kWays);
    memory_.reset(std::calloc(count_ + 1, sizeof(Line)));
    if (memory_ == nullptr) throw std::bad_alloc();
    void* first = memory_.get();
    std::size_t room = (count_ + 1) * sizeof(Line);
    lines_ = static_cast<Line*>(std::align(alignof(Line), count_ * sizeof(Line), first, room));
  }

  void add(std::uint64_t name, std::uint8_t uses) {
    if (waiting_count_ == kWaitingMax) settle();
    const std::uint64_t key = key_of(name);
    waiting_[waiting_count_++] = {key, std::min(uses, kUsesMax)};
    places_[place_of(key)] = static_cast<std::uint16_t>(waiting_count_);
  }
  /// 0: unknown.
  std::uint8_t uses(std::uint64_t name) const {
    if (const std::uint16_t place = places_[place_of(key_of(name))]; place != 0) return waiting_[place - 1].uses;
    const std::size_t way = find(name);
    return way == kWays ? 0 : lines_[line_of(name)].entries[way] & kUsesMax;
  }
  void prefetch(std::uint64_t name) const {
    __builtin_prefetch(&lines_[line_of(name)], 1);
    __builtin_prefetch(&places_[home_of(key_of(name))], 1);
  }

  std::size_t waiting_count() const { return waiting_count_; }
  /// Enters the first `count` waiting entries. The list is reset only once all are entered.
  void settle(std::size_t count = kWaitingMax) {
    constexpr std::size_t kAhead = 12;
    const auto line = [this](std::size_t i) { return &lines_[waiting_[i].key >> kPrintBits]; };
    for (const std::size_t end = std::min(waiting_count_, settled_count_ + count); settled_count_ < end;) {
      const std::size_t i = settled_count_++;
      if (i + kAhead < end) __builtin_prefetch(line(i + kAhead), 1);
      std::uint16_t* const entries = line(i)->entries;
      std::memmove(entries + 1, entries, sizeof(Line) - sizeof entries[0]);
      entries[0] = static_cast<std::uint16_t>((waiting_[i].key & kPrintMask) << 5 | waiting_[i].uses);
    }
    if (settled_count_ == waiting_count_) forget_waiting();
  }
  std::size_t memory_bytes() const { return (count_ + 1) * sizeof(Line); }

 private:
  static constexpr std::size_t kWays = 32;
  static constexpr std::uint32_t kPrintBits = 11;
  static constexpr std::uint64_t kPrintMask = (1u << kPrintBits) - 1;
  struct alignas(64) Line {
    std::uint16_t entries[kWays];  ///< The latest first. 0: empty, since every block has uses.
  };
  struct Waiting {
    std::uint64_t key;  ///< Line and print: all that the table keeps of a name.
    std::uint8_t uses;
  };
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  std::size_t line_of(std::uint64_t name) const {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::size_t>((static_cast<Wide>(name) * count_) >> 64);
  }
  static std::uint16_t print_of(std::uint64_t name) { return name & kPrintMask; }
  std::uint64_t key_of(std::uint64_t name) const { return line_of(name) << kPrintBits | print_of(name); }
  static std::size_t home_of(std::uint64_t key) { return (key * 0x9E3779B97F4A7C15) >> 53; }
  /// The place of the key's latest entry, or the free place for it.
  std::size_t place_of(std::uint64_t key) const {
    std::size_t place = home_of(key);
    while (places_[place] != 0 && waiting_[places_[place] - 1].key != key) place = (place + 1) % kPlaces;
    return place;
  }
  void forget_waiting() {
    if (waiting_count_ > 0) places_ = {};
    waiting_count_ = settled_count_ = 0;
  }
  std::size_t find(std::uint64_t name) const {
    if (count_ == 0) return kWays;
    const Line& line = lines_[line_of(name)];
    // Four entries at a time: whether one of the words has the print, with any use count.
    constexpr std::uint64_t kOnes = 0x0001000100010001, kTops = 0x8000800080008000, kPrints = 0xFFE0FFE0FFE0FFE0;
    const std::uint64_t wanted = kOnes * static_cast<std::uint16_t>(print_of(name) << 5);
    for (std::size_t way = 0; way < kWays; way += 4) {
      std::uint64_t word = 0;
      std::memcpy(&word, line.entries + way, sizeof word);
      const std::uint64_t off = (word & kPrints) ^ wanted;
      if (((off - kOnes) & ~off & kTops) == 0) continue;
      for (std::size_t i = way; i < way + 4; ++i)
        if (line.entries[i] >> 5 == print_of(name) && line.entries[i] != 0) return i;
    }
    return kWays;
  }

  std::size_t count_ = 0;
  std::unique_ptr<void, Free> memory_;
  Line* lines_ = nullptr;
  static constexpr std::size_t kPlaces = 2 * kWaitingMax;
  static_assert(kPlaces == 1 << 11, "home_of() takes 11 bits");
  std::size_t waiting_count_ = 0, settled_count_ = 0;
  std::array<Waiting, kWaitingMax> waiting_;
  std::array<std::uint16_t, kPlaces> places_{};  ///< By key: one more than the index of the latest; 0: empty.
};

}  // namespace kv
