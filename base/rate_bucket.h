// base/rate_bucket.h: how much may be taken in a time.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"

namespace kv {

/// Fills at a rate and holds a second's worth; one at the least, or a small rate would let nothing through. So in any
/// time t no more than rate * (t + 1 s) is taken. Full at first. Whoever takes subtracts from `left`, and may go below
/// 0: a debt. Thread safety: none.
struct RateBucket {
  double left = 0;
  TimePoint filled{};
  bool is_new = true;

  static double full(double rate) { return std::max(rate, 1.0); }
  void fill(double rate, TimePoint now) {
    const double seconds = std::chrono::duration<double>(now - filled).count();
    if (std::exchange(is_new, false)) {
      left = full(rate);
    } else if (seconds > 0) {
      left += rate * seconds;
    }
    left = std::min(left, full(rate));
    filled = std::max(filled, now);
  }
};

}  // namespace kv
