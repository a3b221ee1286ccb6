// transport/slow_calls.h: slow calls, made away from event loops.
#pragma once

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>

#include "base/numa.h"
#include "base/result.h"

namespace kv {

/// Makes calls that may take long (opening a device, connecting a queue pair, a step of a handshake, reading many
/// bytes) away from an event loop. Thread safety: any thread. The destructor is finish().
class SlowCalls {
 public:
  /// `in_place`: calls are made at once, on the caller's thread, for a provider that is not thread-safe. Threads make
  /// calls in any order; they start with the first call, run where `numa` says, with this niceness (nice(2)).
  explicit SlowCalls(bool in_place, std::size_t thread_count = 1, NumaChoice numa = {}, int niceness = 0);
  ~SlowCalls();

  /// Makes `call`, then `then` on `executor`; an exception of `call` is thrown there instead. Both functions are
  /// destroyed on the executor too. The executor's context outlives this, or finish() is called before it ends.
  void run(std::function<void()> call, const asio::any_io_executor& executor, std::function<void()> then);
  /// Waits for running calls. Queued and later calls are skipped, but their `then` still runs.
  void finish();

 private:
  const std::size_t thread_count_;  ///< 0: in place.
  const NumaChoice numa_;
  const int niceness_;
  std::mutex mutex_;  ///< Guards threads_ until is_finished_, and the setting of is_finished_.
  std::unique_ptr<asio::thread_pool> threads_;
  std::atomic<bool> is_finished_{false};
};

}  // namespace kv
