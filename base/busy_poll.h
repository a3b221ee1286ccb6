// base/busy_poll.h: waiting for events without sleeping, and waiting for a lock that is held for less time than a
// sleep takes.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <thread>

#include "base/assert.h"
#include "base/clock.h"

namespace kv {

/// One step of a spin: tells the processor that nothing but the wait goes on. About 40 ns on current x86 servers.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Runs the handlers of an io_context on the calling thread, and spins for a while before the thread sleeps.
/// Thread safety: none.
class BusyPoll {
 public:
  /// `spin`: how long to ask for events before a sleep; zero: sleeps at once.
  explicit BusyPoll(Duration spin) : spin_(spin) { KV_ASSERT(spin >= Duration::zero()); }

  /// Runs what is ready, or waits for the next handler and runs it. Returns how many handlers ran; 0 when the context
  /// was stopped or has no work left. Handlers' exceptions pass through.
  std::size_t run_some(asio::io_context& context) const {
    const TimePoint until = std::chrono::steady_clock::now() + spin_;
    while (std::chrono::steady_clock::now() < until) {
      const std::size_t count = context.poll();
      if (count > 0 || context.stopped()) return count;
      // Who answers us may have been given the same core: then a spin without this keeps the answer from being made.
      std::this_thread::yield();
    }
    return context.run_one();
  }

 private:
  Duration spin_;
};

/// Locks `mutex`, or an error of its lock(). A caller that finds the lock taken spins for about 2 us first: for a lock
/// that is held for less, a sleep and a wake-up cost more than the wait. Returns whether the lock was free at once.
template <class Mutex>
bool lock_spinning(Mutex& mutex) {
  constexpr int kSteps = 50;
  if (mutex.try_lock()) return true;
  for (int i = 0; i < kSteps; ++i) {
    relax();
    if (mutex.try_lock()) return false;
  }
  mutex.lock();
  return false;
}

}  // namespace kv
