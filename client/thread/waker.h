// client/thread/waker.h: wakes a sleeping thread, at no cost while the thread is awake.
#pragma once

#include <atomic>

#include "transport/stream.h"

namespace kv {

/// Throws std::system_error.
Descriptor make_eventfd();

/// Waking a thread takes a system call of some microseconds, which each caller would pay even if the thread is busy and
/// would look anyway. So the thread announces its sleep:
///
///     thread with work            the sleeper
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
