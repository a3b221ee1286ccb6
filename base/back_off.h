// base/back_off.h: when to retry after a failure.
#pragma once

#include <algorithm>
#include <chrono>
#include <random>

#include "base/assert.h"
#include "base/clock.h"

namespace kv {

struct BackOffConfig {
  Duration min{}, max{};  ///< The pause: `min` after the first failure, then doubled up to `max`.
  /// The random share of each pause, so that clients that failed together do not return together. 0: a fixed pause; 1:
  /// anything from 0 to the full length.
  double jitter = 0;
  /// A failure this long after the last pause counts as a first one. Zero: only succeeded() starts over.
  Duration forget_after{};
};

/// Pauses between tries, doubled from failure to failure.
///   1. Failures during a pause belong to the failure that began it: simultaneous failures cost one step.
///   2. The pause never exceeds `max`.
/// Not thread-safe. Time: the caller's clock.
class BackOff {
 public:
  /// Requires 0 < min <= max.
  explicit BackOff(const BackOffConfig& config) : config_(config) {
    KV_ASSERT(config.min > Duration::zero() && config.min <= config.max);
    KV_ASSERT(config.jitter >= 0 && config.jitter <= 1);
  }

  bool is_due(TimePoint now) const { return now >= next_; }
  TimePoint next() const { return next_; }   ///< When the next try is due; long past before the first failure.
  Duration pause() const { return pause_; }  ///< After the last failure, before jitter; zero after succeeded().

  /// `random`: any standard generator; used if there is jitter.
  template <class Random>
  void failed(TimePoint now, Random& random) {
    if (!is_due(now)) return;  // 1
    grow(now);
    std::uniform_real_distribution<double> draw(1 - config_.jitter, 1);
    next_ = now + std::chrono::duration_cast<Duration>(pause_ * draw(random));
  }
  void failed(TimePoint now) {
    if (!is_due(now)) return;  // 1
    grow(now);
    next_ = now + pause_;
  }

  /// The next failure is a first one. A running pause is kept.
  void succeeded() { pause_ = {}; }
  /// Resets everything, including a running pause.
  void forget() {
    pause_ = {};
    next_ = {};
  }

 private:
  void grow(TimePoint now) {
    if (config_.forget_after > Duration::zero() && now >= next_ + config_.forget_after) pause_ = {};
    pause_ = std::clamp(2 * pause_, config_.min, config_.max);
  }

  BackOffConfig config_;
  Duration pause_{};
  TimePoint next_{};
};

}  // namespace kv
