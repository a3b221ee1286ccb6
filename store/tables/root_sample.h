// store/tables/root_sample.h: which first blocks of a namespace's chains are requested, and which are stored.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace kv {

/// Samples the first blocks with the smallest prints (BlockSample): requests and puts sample the same ones, so blocks
/// that are stored but never requested show, and the reverse. The sample is fair over different blocks, however often
/// each comes. HeavyBlocks and HotRoots count frequent beginnings; here the rare ones count as much.
///   1. At most kRootsMax blocks.
///   2. Blocks neither requested nor stored for kWindow make room. A block that enters then may have been requested
///      before it was in the sample, so single blocks mean little, and shares of the sample much.
/// Thread safety: the Store's lock. Cost: one comparison for most, else O(kRootsMax). Memory: 0.5 KiB.
class RootSample {
 public:
  static constexpr std::size_t kRootsMax = 32;
  static constexpr Duration kWindow = std::chrono::hours(2);
  enum class Act : std::uint8_t { kAsked, kStored };

  void note(std::uint32_t print, Act act, TimePoint now) {
    if (now >= tidy_at_) tidy(now);
    if (roots_.size() == kRootsMax && print > roots_.back().print) return;
    const auto at = std::ranges::lower_bound(roots_, print, {}, &Root::print);
    if (at != roots_.end() && at->print == print) return at->note(act, now);
    const auto i = at - roots_.begin();
    if (roots_.size() == kRootsMax) roots_.pop_back();
    roots_.insert(roots_.begin() + i, Root{.print = print})->note(act, now);
  }

  struct Counts {
    std::size_t roots = 0, stored_only = 0, asked_only = 0;
  };
  Counts counts() const {
    Counts counts{.roots = roots_.size()};
    for (const Root& root : roots_) {
      counts.stored_only += !root.is_asked;
      counts.asked_only += !root.is_stored;
    }
    return counts;
  }

 private:
  struct Root {
    std::uint32_t print;
    TimePoint last{};
    bool is_asked = false, is_stored = false;
    void note(Act act, TimePoint now) {
      last = now;
      (act == Act::kAsked ? is_asked : is_stored) = true;
    }
  };

  void tidy(TimePoint now) {
    std::erase_if(roots_, [&](const Root& root) { return now - root.last >= kWindow; });
    tidy_at_ = now + kWindow / 8;
  }

  std::vector<Root> roots_;  ///< By print.
  TimePoint tidy_at_{};
};

}  // namespace kv
