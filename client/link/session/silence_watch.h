// client/link/session/silence_watch.h: how long nothing has come from a node.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace kv {

/// Looked at only when a call misses its deadline, so that bytes that come cost nothing here: what is compared is the
/// session's count of bytes received.
///   1. At each look silence is no longer than the time since the last look at which bytes had come, or since begin().
/// Thread safety: none.
class SilenceWatch {
 public:
  /// From now on somebody waits for an answer.
  void begin(TimePoint now, std::uint64_t bytes_received) {
    since_ = now;
    bytes_seen_ = bytes_received;
  }
  /// Whether nothing has come for `silence_max`.
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
