// store/tables/departed_table.h: when and why blocks left, to explain misses.
#pragma once

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "base/assert.h"
#include "base/clock.h"
#include "index/block_hash.h"
#include "index/miss_kind.h"
#include "index/prefix_index.h"

namespace kv {

/// Eight bytes a block: a fingerprint of 28 bits, the reason, the time in seconds and the idle time (to an eighth). A
/// line of 8 is a queue of its own: the 9th entry pushes the first out. A wrong answer: one lookup in 30 million.
///   1. A block that left and was entered is found, unless 8 others of its line left later.
///   2. The table does not reveal facts about another namespace's blocks: names are mixed with the namespace's and with
///      a secret seed.
/// Blocks that are here again are not removed: they are not looked up, and their next departure replaces the old one.
/// GhostTable has other blocks: all that left memory, for the disk too, six capacities of them at two bytes each; here
/// are those that left the node, drops and refusals included.
/// Thread safety: the Store's lock. Cost: a cache miss for each call.
class DepartedTable {
 public:
  static constexpr std::size_t kWays = 8;

  DepartedTable(std::size_t entries, std::uint64_t seed) : seed_(seed) {
    count_ = (entries + kWays - 1) / kWays;
    if (count_ == 0) return;
    lines_.reset(static_cast<Line*>(std::calloc(count_, sizeof(Line))));  // untouched pages take no memory
    if (lines_ == nullptr) throw std::bad_alloc();
  }

  /// Before the first block of the tree: its namespace.
  void set_tree(TreeId tree, const NamespaceId& name) {
    const auto i = static_cast<std::size_t>(tree);
    if (i >= of_tree_.size()) of_tree_.resize(i + 1);
    std::uint64_t words[2];
    static_assert(sizeof words == sizeof name.bytes);
    std::memcpy(words, name.bytes.data(), sizeof words);
    of_tree_[i] = multiply_fold(words[0] ^ seed_ ^ 0x9E3779B97F4A7C15, words[1] ^ 0xD1B54A32D192ED03);
  }

  /// Sets the time for callers without a clock.
  void tell_time(TimePoint now) { now_ = std::max(now_, now); }
  TimePoint now() const { return now_; }
  /// `why`: not kUnknown. `idle`: since its last use.
  void add(TreeId tree, const BlockHash& hash, MissKind why, TimePoint now, Duration idle = {}) {
    KV_ASSERT(why != MissKind::kUnknown && static_cast<std::size_t>(why) < 16);
    tell_time(now);
    if (count_ == 0) return;
    const std::uint64_t name = name_of(tree, hash);
    std::uint64_t* const entries = line_of(name).entries;
    std::size_t way = 0;
    while (way + 1 < kWays && entries[way] != 0 && !is_of(entries[way], name)) ++way;
    std::memmove(entries + 1, entries, way * sizeof entries[0]);
    entries[0] = name << kPrintShift | std::uint64_t{static_cast<std::uint8_t>(why)} << kWhyShift |
                 std::uint64_t{encode(idle)} << kIdleShift | seconds(now);
  }

  void prefetch(TreeId tree, const BlockHash& hash) const {
    if (count_ > 0) __builtin_prefetch(&line_of(name_of(tree, hash)));
  }

  struct Departed {
    MissKind why = MissKind::kUnknown;
    Duration ago{}, idle{};
  };
  struct Answer {
    std::optional<Departed> departed;
    Duration remembers{};  ///< A departure within this time would be known.
  };
  Answer find(TreeId tree, const BlockHash& hash, TimePoint now) {
    if (count_ == 0) return {};
    const std::uint64_t name = name_of(tree, hash), at = seconds(now);
    const std::uint64_t* const entries = line_of(name).entries;
    const auto since = [&](std::uint64_t when) { return std::chrono::seconds(at - std::min(at, when)); };
    for (std::size_t way = 0; way < kWays && entries[way] != 0; ++way) {
      if (!is_of(entries[way], name)) continue;
      const auto why = static_cast<MissKind>(entries[way] >> kWhyShift & 0xF);
      const Duration idle = decode(static_cast<std::uint8_t>(entries[way] >> kIdleShift));
      return {Departed{why, since(entries[way] & kWhenMax), idle}, {}};
    }
    const std::uint64_t last = entries[kWays - 1];
    return {std::nullopt, since(last == 0 ? 0 : last & kWhenMax)};
  }

 private:
  static constexpr int kPrintShift = 36, kWhyShift = 32, kIdleShift = 24;
  static constexpr std::uint64_t kWhenMax = (1 << 24) - 1;  ///< Half a year; then it stays there.
  /// | fingerprint 28 | why 4 | idle 8 | when 24 |; the latest first. 0: empty.
  struct Line {
    std::uint64_t entries[kWays];
  };
  struct Free {
    void operator()(Line* lines) const { std::free(lines); }
  };

  std::uint64_t name_of(TreeId tree, const BlockHash& hash) const {
    KV_ASSERT(static_cast<std::size_t>(tree) < of_tree_.size());
    return multiply_fold(short_hash(hash) ^ of_tree_[static_cast<std::size_t>(tree)], 0xA0761D6478BD642F);
  }
  /// Uses the upper bits; the fingerprint uses the lower ones.
  Line& line_of(std::uint64_t name) const {
    __extension__ using Wide = unsigned __int128;
    return lines_[static_cast<std::size_t>((static_cast<Wide>(name) * count_) >> 64)];
  }
  static bool is_of(std::uint64_t entry, std::uint64_t name) {
    return ((entry ^ name << kPrintShift) >> kPrintShift) == 0;
  }
  std::uint64_t seconds(TimePoint now) {
    if (!began_) began_ = now;
    const auto count = std::chrono::duration_cast<std::chrono::seconds>(now - *began_).count();
    return std::min<std::uint64_t>(static_cast<std::uint64_t>(std::max<std::int64_t>(count, 0)), kWhenMax);
  }
  /// Milliseconds as a floating-point number of 5 + 3 bits.
  static std::uint8_t encode(Duration idle) {
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(idle).count();
    const std::uint64_t x =
        static_cast<std::uint64_t>(std::clamp<std::int64_t>(ms, 0, (std::int64_t{1} << 32) - 2)) + 1;
    const int exponent = static_cast<int>(std::bit_width(x)) - 1;
    return static_cast<std::uint8_t>(exponent * 8 + static_cast<int>((x << 3 >> exponent) & 7));
  }
  static Duration decode(std::uint8_t code) {
    return std::chrono::milliseconds((std::int64_t{8 + (code & 7)} << (code >> 3) >> 3) - 1);
  }

  std::uint64_t seed_;
  std::size_t count_ = 0;
  std::unique_ptr<Line[], Free> lines_;
  std::vector<std::uint64_t> of_tree_;
  std::optional<TimePoint> began_;
  TimePoint now_{};
};

}  // namespace kv
