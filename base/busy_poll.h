// base/busy_poll.h: waiting for events without sleeping, and waiting for a lock that is held for less time than a
// sleep takes.
#pragma once

#include <boost/asio/execution_context.hpp>
#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <memory>
#include <vector>

#include "base/assert.h"
#include "base/clock.h"
#include "base/result.h"

namespace kv {

/// One step of a spin: tells the processor that nothing but the wait goes on. About 40 ns on current x86 servers.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// A wait for something that a spinning thread can see by itself, with one system call.
class SpinWait {
 public:
  virtual ~SpinWait() = default;
  virtual bool is_over() = 0;
  /// Both use the wait up: the first goes on with whoever waits, on the calling thread if it runs the context; the
  /// second has the reactor wait.
  virtual void complete(error_code error) = 0;
  virtual void leave_to_reactor() = 0;
};

/// The waits that the thread of an io_context looks at itself while it spins. To be told of a socket by the reactor
/// takes two system calls and a turn of the scheduler, about 2 us; a look takes a quarter of one.
///   1. A wait is here only between add() and its end, and only while a BusyPoll of this context lives.
///   2. Before the thread sleeps, the reactor has them all.
///   3. At most kWaitsMax waits, each for kLooksMax looks: what stays silent longer is the reactor's. So spinning costs
///      the same however many sessions a thread has, and no idle one keeps a busy one out.
/// A service, so that streams find it by their executor and it ends with the context. Thread safety: none; the thread
/// that runs the context.
class SpinWatch final : public asio::execution_context::service {
 public:
  using key_type = SpinWatch;
  static asio::execution_context::id id;

  explicit SpinWatch(asio::execution_context& context) : service(context) {}

  bool has_room() const { return is_spinning_ && waits_.size() < kWaitsMax; }
  /// Requires has_room(). `whose`: what the wait is taken out by.
  void add(std::unique_ptr<SpinWait> wait, const void* whose);
  /// The wait that was added with `whose`; nullptr if there is none.
  std::unique_ptr<SpinWait> take(const void* whose);

  // For BusyPoll.
  void spin(bool is_spinning);
  bool is_empty() const { return waits_.empty(); }
  /// Looks a few times at each wait, and goes on with the first that is over. Returns whether there was one.
  bool look();
  void rest();  ///< 2.

 private:
  static constexpr std::size_t kWaitsMax = 4, kLooksMax = 256, kLooksAtATime = 8;
  struct Entry {
    std::unique_ptr<SpinWait> wait;
    const void* whose;
    std::size_t looks_left = kLooksMax;
  };

  void shutdown() override;
  std::unique_ptr<SpinWait> take_at(std::size_t index);

  std::vector<Entry> waits_;
  std::size_t next_ = 0;  ///< Looked at first, so that a busy wait keeps no other from its turn.
  bool is_spinning_ = false;
};

/// Runs the handlers of an io_context on the calling thread, and spins for a while before the thread sleeps.
/// Thread safety: none. At most one for a context at a time.
class BusyPoll {
 public:
  /// `spin`: how long to ask for events before a sleep; zero: sleeps at once.
  BusyPoll(asio::io_context& context, Duration spin);
  ~BusyPoll();
  BusyPoll(const BusyPoll&) = delete;
  BusyPoll& operator=(const BusyPoll&) = delete;

  /// Runs what is ready, or waits for the next handler and runs it. Returns how many handlers ran; 0 when the context
  /// was stopped or has no work left. Handlers' exceptions pass through.
  std::size_t run_some();
  /// Runs one handler if one is ready, and looks at what the thread watches itself. Whether anything came of it.
  bool poll_one();
  /// Before the thread sleeps by other means than run_some().
  void rest() { watch_.rest(); }

 private:
  enum class Look { kPosted, kNothing, kFound };

  asio::io_context& context_;
  SpinWatch& watch_;
  Duration spin_;
  std::shared_ptr<Look> look_;  ///< Of the one that is posted; outlives this where the context is stopped before it.
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
