// base/busy_poll.h: waiting for events without sleeping, and for a lock that is held for less time than a sleep takes.
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

/// One step of a spin: a hint to the processor that the thread only waits. About 40 ns on current x86 servers.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// A wait whose end a spinning thread can detect itself, with one system call.
class SpinWait {
 public:
  virtual ~SpinWait() = default;
  virtual bool is_over() = 0;
  /// Both end the wait's use: the first resumes the waiter, on the calling thread if it runs the context; the second
  /// hands the wait to the reactor.
  virtual void complete(error_code error) = 0;
  virtual void leave_to_reactor() = 0;
};

/// The waits that the thread of an io_context polls itself while it spins. An event through the reactor takes two
/// system calls and a turn of the scheduler, about 2 us; a poll takes a quarter of one.
///   1. A wait is here only between add() and its end, and only while a BusyPoll of this context lives.
///   2. Before the thread sleeps, the reactor has all waits.
///   3. At most kWaitsMax waits, each for kLooksMax polls: waits that stay silent longer go to the reactor. So spinning
///      costs the same for any number of sessions on a thread, and idle ones do not keep a busy one out.
/// A service: streams find it by their executor, and it ends with the context. Thread safety: the context's thread.
class SpinWatch final : public asio::execution_context::service {
 public:
  using key_type = SpinWatch;
  static asio::execution_context::id id;

  explicit SpinWatch(asio::execution_context& context) : service(context) {}

  bool has_room() const { return is_spinning_ && waits_.size() < kWaitsMax; }
  /// Requires has_room(). `whose`: the key for take().
  void add(std::unique_ptr<SpinWait> wait, const void* whose);
  /// The wait that was added with `whose`; nullptr if absent.
  std::unique_ptr<SpinWait> take(const void* whose);

  void spin(bool is_spinning);
  bool is_empty() const { return waits_.empty(); }
  /// Polls each wait a few times, and resumes the first one that is over. Returns whether there was one.
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
  std::size_t next_ = 0;  ///< Polled first, so that a busy wait leaves all others their turn.
  bool is_spinning_ = false;
};

/// Runs the handlers of an io_context on the calling thread, and spins for a while before the thread sleeps. Not
/// thread-safe. At most one per context at a time.
class BusyPoll {
 public:
  /// `spin`: how long to poll for events before a sleep; zero: sleeps at once.
  BusyPoll(asio::io_context& context, Duration spin);
  ~BusyPoll();
  BusyPoll(const BusyPoll&) = delete;
  BusyPoll& operator=(const BusyPoll&) = delete;

  /// Runs the ready handlers, or waits for the next handler and runs it. Returns how many ran; 0 when the context was
  /// stopped or is out of work. Handlers' exceptions pass through.
  std::size_t run_some();
  /// Runs one handler if one is ready, and polls the thread's own waits. Returns whether either succeeded.
  bool poll_one();
  /// Before the thread sleeps by other means than run_some().
  void rest() { watch_.rest(); }

 private:
  enum class Look { kPosted, kNothing, kFound };

  asio::io_context& context_;
  SpinWatch& watch_;
  Duration spin_;
  std::shared_ptr<Look> look_;  ///< The posted one; outlives this object if the context is stopped first.
};

/// Locks `mutex`; errors are those of its lock(). If the lock is taken, spins for about 2 us first: for a lock held for
/// less, a sleep and a wake-up cost more than the wait. Returns whether the lock was free at once.
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
