// store/node/session/live_limits.h: the limits of sessions, which an operator may change while they run.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>

#include "store/node/session/session_limits.h"

namespace kv {

/// Each read of a session sees the limits in force: one load. Values sent to a client at hello stay as they are; if
/// they exceed the present limits, its requests are refused like any over a limit.
///   1. Old limits are kept, since a thread may be reading them: some 200 bytes for each change by an operator.
/// Thread safety: all calls from any thread.
class LiveLimits {
 public:
  LiveLimits() : LiveLimits(SessionLimits{}) {}
  LiveLimits(const SessionLimits& limits) { set(limits); }  // NOLINT: so that a NodeContext can be made with limits

  const SessionLimits* operator->() const { return now_.load(std::memory_order_acquire); }
  const SessionLimits& operator*() const { return *now_.load(std::memory_order_acquire); }
  void set(const SessionLimits& limits) {
    const std::lock_guard lock(mutex_);
    all_.push_back(limits);
    now_.store(&all_.back(), std::memory_order_release);
  }

 private:
  std::mutex mutex_;
  std::deque<SessionLimits> all_;  // a deque, since it never moves its elements
  std::atomic<const SessionLimits*> now_{nullptr};
};

}  // namespace kv
