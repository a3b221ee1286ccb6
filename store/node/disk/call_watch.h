// store/node/disk/call_watch.h: notices that a disk does not answer.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/assert.h"
#include "base/clock.h"

namespace kv {

/// Watches the calls of one thread, or of several threads with a common queue. The sign of life is a call that ends: a
/// slow disk that completes a call now and then is not stuck. Thread safety: all from any thread.
class CallWatch {
 public:
  explicit CallWatch(const Clock& clock) : clock_(clock) {}

  /// A call is under way as long as this lives.
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
    // The sign first: with the count first, is_stuck() could pair a call with an old sign.
    if (running_ == 0) last_sign_ = ticks();
    ++running_;
  }
  void end() {
    last_sign_ = ticks();
    ++finished_;
    const int before = running_.fetch_sub(1);
    KV_ASSERT(before > 0);
  }
  /// Calls are under way, and the last one to end did so more than `after` ago.
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
