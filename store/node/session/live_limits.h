// store/node/session/live_limits.h: the limits of sessions, which an operator may change while they run.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>

#include "store/node/session/session_limits.h"

namespace kv {

/// A session takes what is in force at each look: one load. What was told to a client at hello stays told; where that
/// was more than is allowed now, its requests are refused like any that are over a limit.
///   1. Limits that were in force once are kept, since somebody may be reading them: some 200 bytes for each change
///   that
///      an operator makes.
/// Thread safety: all calls from any thread, but before_start().
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
  SessionLimits& before_start() { return all_.back(); }  ///< While nobody else reads.

 private:
  std::mutex mutex_;
  std::deque<SessionLimits> all_;  // which does not move what it has
  std::atomic<const SessionLimits*> now_{nullptr};
};

}  // namespace kv
