// store/node/disk/call_watch.h: notices that a call into something that may hang has been under way for too long.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace kv {

/// Of one thread's calls, or of several threads' that work off one queue. Thread safety: all from any thread.
class CallWatch {
 public:
  explicit CallWatch(const Clock& clock) : clock_(clock) {}

  /// While it lives, a call is under way.
  class Call {
   public:
    explicit Call(CallWatch& watch) : watch_(watch) { watch_.begin(); }
    ~Call() { watch_.end(); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    CallWatch& watch_;
  };

  void begin() {
    if (running_ == 0) last_sign_ = ticks();  // before: nobody shall see a call with a sign of long ago
    ++running_;
  }
  void end() {
    last_sign_ = ticks();
    ++finished_;
    --running_;
  }
  /// Something is under way, and nothing has ended for so long.
  bool is_stuck(Duration after) const { return running_ > 0 && ticks() - last_sign_ > after.count(); }
  bool is_idle() const { return running_ == 0; }
  std::uint64_t finished_count() const { return finished_; }

 private:
  Duration::rep ticks() const { return clock_.now().time_since_epoch().count(); }

  const Clock& clock_;
  std::atomic<int> running_{0};
  std::atomic<Duration::rep> last_sign_{0};
  std::atomic<std::uint64_t> finished_{0};
};

}  // namespace kv
