// client/link/breaker.h: when to stop asking a node that fails.
#pragma once

#include <cstddef>

#include "base/clock.h"

namespace kv {

class Call;

/// Saves a worker from paying a deadline for each call to a node that is gone.
///   1. Opened by failures_max failures in a row; closed by the first answer.
///   2. While open, it admits no calls for `open_for` after each failure, and then one at a time: the probe.
/// Thread safety: none. Time: the caller's clock.
class Breaker {
 public:
  Breaker(std::size_t failures_max, Duration open_for) : failures_max_(failures_max), open_for_(open_for) {}

  bool is_open() const { return failures_in_row_ >= failures_max_; }
  /// Whether `call` may go. If the breaker is open, `call` is then the probe, until let_go().
  bool admits(const Call& call, TimePoint now) {
    if (!is_open()) return true;
    if (probe_ != nullptr || now < closed_until_) return false;
    probe_ = &call;
    return true;
  }
  void let_go(const Call& call) {
    if (probe_ == &call) probe_ = nullptr;
  }
  void failed(TimePoint now) {
    ++failures_in_row_;
    if (is_open()) closed_until_ = now + open_for_;
  }
  void succeeded() { failures_in_row_ = 0; }

 private:
  const std::size_t failures_max_;
  const Duration open_for_;
  std::size_t failures_in_row_ = 0;
  TimePoint closed_until_{};     ///< For all calls, if it is open.
  const Call* probe_ = nullptr;  ///< Compared only.
};

}  // namespace kv
