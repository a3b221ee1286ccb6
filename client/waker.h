// client/waker.h: wakes a thread that sleeps, and costs nothing while that thread is awake.
#pragma once

#include <atomic>

#include "transport/stream.h"

namespace kv {

/// Throws std::system_error.
Descriptor make_eventfd();

/// To wake a thread is a system call of some microseconds, which each caller would pay although the thread is busy and
/// would look anyway. So the thread says when it is about to sleep:
///
///     who has work for it         the thread
///     publish the work            fall_asleep()
///     wake()                      look for work once more: if there is none, sleep until fd() is readable
///                                 awake()
///
/// One of the two sees the other, if publishing and looking are sequentially consistent atomics.
/// Thread safety: wake() any thread, the rest is the sleeper's.
class Waker {
 public:
  Waker() : fd_(make_eventfd()) {}

  void wake();
  void fall_asleep() { is_asleep_.store(true, std::memory_order_seq_cst); }
  void awake() { is_asleep_.store(false, std::memory_order_relaxed); }
  int fd() const { return fd_.get(); }
  void drain();  ///< Makes fd() unreadable.

 private:
  std::atomic<bool> is_asleep_{false};
  const Descriptor fd_;
};

}  // namespace kv
