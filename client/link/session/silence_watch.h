// client/link/session/silence_watch.h: how long a node has been silent.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace kv {

/// Consulted only when a call misses its deadline, so that receiving costs nothing: compares counts of received bytes.
///   1. Silence is measured from the last look that saw new bytes, or from begin().
/// Thread safety: none.
class SilenceWatch {
 public:
  /// A call begins to wait for an answer.
  void begin(TimePoint now, std::uint64_t bytes_received) {
    since_ = now;
    bytes_seen_ = bytes_received;
  }
  /// Whether the node has been silent for `silence_max`.
  bool look(TimePoint now, std::uint64_t bytes_received, Duration silence_max) {
    if (bytes_received == bytes_seen_) return now - since_ >= silence_max;
    begin(now, bytes_received);
    return false;
  }

 private:
  TimePoint since_{};
  std::uint64_t bytes_seen_ = 0;
};

}  // namespace kv
