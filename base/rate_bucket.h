// base/rate_bucket.h: limits the amount taken over time.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"

namespace kv {

/// Fills at a rate and holds a second's worth, but at least one, so that small rates work. So over any time t at most
/// rate * (t + 1 s) is taken. Full at first. Callers subtract from `left`, even below 0. Not thread-safe.
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
