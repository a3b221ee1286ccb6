// store/node/disk/call_threads.h: calls into a disk that may hang, made on threads of their own.
#pragma once

#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "base/clock.h"
#include "store/node/disk/call_watch.h"
#include "store/node/threads/thread_border.h"

namespace kv {

/// The caller waits up to `patience`, even if the disk hangs. An abandoned call runs on, so it owns all that it uses.
///   1. At most `thread_count` calls run; the others wait in order. With one thread they run one after the other.
///   2. A hanging disk holds one call per asking thread, as long as threads ask only while is_stuck() is false.
/// Thread safety: all from any thread but the constructor. The destructor waits for calls, however long they take.
class CallThreads {
 public:
  CallThreads(const Clock& clock, std::size_t thread_count, Duration patience)
      : clock_(clock), patience_(patience), watch_(clock), threads_(thread_count) {
    KV_ASSERT(thread_count > 0 && patience > Duration::zero());
  }
  ~CallThreads() { threads_.join(); }

  /// A call that has begun; wait() for it once.
  template <class T>
  struct Begun {
    std::mutex mutex;
    std::condition_variable ended;
    std::optional<T> result;
    TimePoint since{};
  };

  template <class Call>
  auto begin(Call call) {
    using T = decltype(call());
    auto begun = std::make_shared<Begun<T>>();
    begun->since = clock_.now();
    watch_.begin();
    asio::post(threads_, [this, begun, call = std::move(call)]() mutable {
      // A call that throws has no result, like one that hangs: the caller's patience ends.
      std::optional<T> result;
      within_border(NodeThread::kDisk, [&] { result = call(); });
      watch_.end();  // before the result is visible: its receiver may ask whether all threads are idle
      const std::lock_guard lock(begun->mutex);
      KV_ASSERT(!begun->result);
      begun->result = std::move(result);
      begun->ended.notify_all();
    });
    return begun;
  }
  /// nullopt: the call takes longer than the patience, and goes on.
  template <class T>
  std::optional<T> wait(const std::shared_ptr<Begun<T>>& begun) {
    // In short steps, since a test may move the clock.
    constexpr std::chrono::milliseconds kLook{5};
    KV_ASSERT(begun != nullptr);
    std::unique_lock lock(begun->mutex);
    while (!begun->ended.wait_for(lock, kLook, [&] { return begun->result.has_value(); })) {
      if (clock_.now() - begun->since > patience_) return std::nullopt;
    }
    return std::move(begun->result);
  }
  template <class Call>
  auto run(Call call) {
    return wait(begin(std::move(call)));
  }

  bool is_stuck(Duration after) const { return watch_.is_stuck(after); }
  bool is_stuck() const { return watch_.is_stuck(patience_); }
  bool is_idle() const { return watch_.is_idle(); }

 private:
  const Clock& clock_;
  const Duration patience_;
  CallWatch watch_;
  asio::thread_pool threads_;
};

}  // namespace kv
