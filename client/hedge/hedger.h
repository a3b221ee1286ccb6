// client/hedge/hedger.h: when a read is also sent to a second node, and the limits on that.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/assert.h"
#include "client/hedge/latencies.h"
#include "client/link/call.h"

namespace kv {

/// A read is *late* once its node takes longer than 99 of 100 of its recent answers of that kind took. Then the second
/// node of the rendezvous order, which has second copies and the hot root (docs/cluster.md), is asked as well.
///   1. Second requests are at most `share` of all reads, plus kBurst.
///   2. After kFruitlessMax fruitless ones in a row, copies are unlikely: the hedger pauses for kRest, then tries one.
/// Thread safety: none; on the client's executor.
class Hedger {
 public:
  static constexpr double kBurst = 8;
  static constexpr std::size_t kFruitlessMax = 8;
  static constexpr Duration kRest = 60s;
  enum class Kind : std::uint8_t { kMatch, kGet };

  struct Node {
    Latencies match, get;  ///< Time to the answer; to its first part.
    std::uint64_t hedges = 0, wins = 0;
    Latencies& of(Kind kind) { return kind == Kind::kMatch ? match : get; }
  };

  Hedger(double share, Duration after_min, Duration after_max)
      : share_(share), after_min_(after_min), after_max_(after_max) {
    KV_ASSERT(share >= 0 && share <= 1 && after_min <= after_max);
  }

  bool is_on() const { return share_ > 0; }
  Node& node(std::size_t number) {
    if (nodes_.size() <= number) nodes_.resize(number + 1);
    return nodes_[number];
  }
  void forget_node(std::size_t number) { node(number) = {}; }

  /// A read is sent to `number` now. Returns the time after which it is late.
  Duration begin(std::size_t number, Kind kind) {
    tokens_ = std::min(tokens_ + share_, kBurst);
    const auto usual = node(number).of(kind).p99();
    return std::clamp(usual.value_or(after_max_), after_min_, after_max_);
  }
  /// Whether a second request is allowed; if so, counts it.
  bool take(std::size_t number, TimePoint now) {
    if (tokens_ < 1 || now < rests_until_) return false;
    tokens_ -= 1;
    ++node(number).hedges;
    return true;
  }
  /// Outcome of an answered second request: whether it found blocks.
  void answered(bool has_found, TimePoint now) {
    fruitless_ = has_found ? 0 : fruitless_ + 1;
    if (fruitless_ < kFruitlessMax) return;
    rests_until_ = now + kRest;
    fruitless_ = kFruitlessMax - 1;
  }

 private:
  const double share_;
  const Duration after_min_, after_max_;
  std::vector<Node> nodes_;  ///< By number.
  double tokens_ = kBurst;
  std::size_t fruitless_ = 0;
  TimePoint rests_until_{};
};

/// Wakes the operation's coroutine when its next call is late.
class LateAlarm final : public DeadlineEntry {
 public:
  LateAlarm(DeadlineQueue& queue, CallBundle& bundle) : queue_(queue), bundle_(bundle) {}
  /// Replaces an earlier time.
  void arm(TimePoint when) {
    queue_.remove(*this);
    if (when != TimePoint::max()) queue_.add(*this, when);
  }

 private:
  void on_deadline() override { bundle_.event.set(); }

  DeadlineQueue& queue_;
  CallBundle& bundle_;
};

}  // namespace kv
