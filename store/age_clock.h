// store/age_clock.h: how many blocks came in since a moment of use.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>

#include "index/prefix_index.h"

namespace kv {

/// Counts blocks, and remembers at which ticks the count stood where: at up to kMarksMax moments, evenly spaced, over
/// the last `span` blocks. Between two marks the count is taken to have grown evenly; before the first it is unknown
/// and the oldest mark's stands in. Cost: used_at() O(log marks).
class AgeClock {
 public:
  static constexpr std::size_t kMarksMax = 4096;

  void set_span(std::uint64_t span) { spacing_ = std::max<std::uint64_t>(1, span / kMarksMax); }

  std::uint64_t count() const { return count_; }
  void advance(std::uint64_t blocks, Tick tick) {
    count_ += blocks;
    if (!marks_.empty() && count_ - marks_.back().count < spacing_) return;
    if (!marks_.empty() && tick <= marks_.back().tick) return;
    marks_.push_back({tick, count_});
    if (marks_.size() > kMarksMax) marks_.pop_front();
  }

  std::uint64_t used_at(Tick tick) const {
    const auto after = std::upper_bound(marks_.begin(), marks_.end(), tick,
                                        [](Tick wanted, const Mark& mark) { return wanted < mark.tick; });
    if (after == marks_.begin()) return marks_.empty() ? 0 : marks_.front().count;
    const Mark& before = *std::prev(after);
    if (after == marks_.end()) return before.count;
    const double part =
        static_cast<double>(static_cast<std::uint64_t>(tick) - static_cast<std::uint64_t>(before.tick)) /
        static_cast<double>(static_cast<std::uint64_t>(after->tick) - static_cast<std::uint64_t>(before.tick));
    return before.count + static_cast<std::uint64_t>(part * static_cast<double>(after->count - before.count));
  }

  std::size_t memory_bytes() const { return marks_.size() * sizeof(Mark); }

 private:
  struct Mark {
    Tick tick;
    std::uint64_t count;
  };
  std::deque<Mark> marks_;
  std::uint64_t count_ = 0, spacing_ = 1;
};

}  // namespace kv
