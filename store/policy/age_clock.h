// store/policy/age_clock.h: the number of blocks that came in since a use.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "index/prefix_index.h"

namespace kv {

/// Counts blocks, and records the count at up to kMarksMax ticks, evenly spaced, over the last `span` blocks. Between
/// two marks the count is interpolated; the first one's also stands for all earlier ones. Cost: used_at() O(log marks).
class AgeClock {
 public:
  static constexpr std::size_t kMarksMax = 4096;

  void set_span(std::uint64_t span) { spacing_ = std::max<std::uint64_t>(1, span / kMarksMax); }

  std::uint64_t count() const { return count_; }
  void advance(std::uint64_t blocks, Tick tick) {
    count_ += blocks;
    if (size_ > 0 && count_ - mark(size_ - 1).count < spacing_) return;
    if (size_ > 0 && tick <= mark(size_ - 1).tick) return;
    if (size_ == kMarksMax) {
      marks_[first_] = {tick, count_};
      first_ = (first_ + 1) % kMarksMax;
    } else {
      marks_.push_back({tick, count_});
      ++size_;
    }
  }

  std::uint64_t used_at(Tick tick) const {
    if (size_ == 0) return 0;
    // Callers ask about blocks used at about one time, so the last answer's place often serves again.
    const auto is_at = [&](std::size_t i) {  // the last mark that is not later
      return i < size_ && mark(i).tick <= tick && (i + 1 == size_ || tick < mark(i + 1).tick);
    };
    std::size_t at = last_;
    if (!is_at(at) && !is_at(++at)) {
      std::size_t begin = 0, end = size_;  // the first that is later
      while (begin < end) {
        const std::size_t middle = (begin + end) / 2;
        if (tick < mark(middle).tick) {
          end = middle;
        } else {
          begin = middle + 1;
        }
      }
      if (begin == 0) return mark(0).count;
      at = begin - 1;
    }
    last_ = at;
    const Mark& before = mark(at);
    if (at + 1 == size_) return before.count;
    const Mark& after = mark(at + 1);
    const double part =
        static_cast<double>(static_cast<std::uint64_t>(tick) - static_cast<std::uint64_t>(before.tick)) /
        static_cast<double>(static_cast<std::uint64_t>(after.tick) - static_cast<std::uint64_t>(before.tick));
    return before.count + static_cast<std::uint64_t>(part * static_cast<double>(after.count - before.count));
  }

  std::size_t memory_bytes() const { return marks_.capacity() * sizeof(Mark); }

 private:
  struct Mark {
    Tick tick;
    std::uint64_t count;
  };
  static_assert((kMarksMax & (kMarksMax - 1)) == 0);
  const Mark& mark(std::size_t i) const { return marks_[(first_ + i) % kMarksMax]; }

  std::vector<Mark> marks_;  ///< In a ring: the oldest is at `first_`.
  std::size_t first_ = 0, size_ = 0;
  mutable std::size_t last_ = 0;  ///< The place of the last answer.
  std::uint64_t count_ = 0, spacing_ = 1;
};

}  // namespace kv
