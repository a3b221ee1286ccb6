#include "transport/slow_calls.h"

#include <sys/resource.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <exception>
#include <utility>

#include "base/assert.h"

namespace kv {

/// In place, calls run on the caller's thread: a simulation has one, and its time stands still meanwhile.
SlowCalls::SlowCalls(bool in_place, std::size_t thread_count, NumaChoice numa, int niceness)
    : thread_count_(in_place ? 0 : thread_count), numa_(std::move(numa)), niceness_(niceness) {
  KV_ASSERT(in_place || thread_count > 0);  // or calls would wait for ever
}

SlowCalls::~SlowCalls() { finish(); }

/// Running calls are awaited, since they use objects that the owner destroys next; queued ones are skipped, since a
/// stop must not wait for a registration that has lost its purpose.
void SlowCalls::finish() {
  {
    const std::lock_guard lock(mutex_);
    is_finished_ = true;  // before join(): queued calls are then skipped
  }
  if (threads_) threads_->join();  // run() starts no new pool from here on
}

void SlowCalls::run(std::function<void()> call, const asio::any_io_executor& executor, std::function<void()> then) {
  std::unique_lock lock(mutex_);
  if (thread_count_ == 0 || is_finished_) {
    lock.unlock();
    if (!is_finished_) call();
    asio::post(executor, std::move(then));
    return;
  }
  // Not before the first call: most processes have no device, and no use for the threads.
  if (!threads_) {
    // Threads inherit their placement from the thread that starts them.
    static_cast<void>(run_on_nodes(numa_, [this] { threads_ = std::make_unique<asio::thread_pool>(thread_count_); }));
  }
  asio::post(*threads_, [this, call = std::move(call), executor, then = std::move(then)]() mutable {
    // Linux sets it per thread, and the pool has no hook for a thread's start.
    if (niceness_ > 0) ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), niceness_);
    std::exception_ptr thrown;  // the pool's threads have no handler
    try {
      if (!is_finished_) call();
    } catch (...) {
      thrown = std::current_exception();
    }
    // `call` is destroyed on the executor: its captures may require that.
    asio::post(executor, [call = std::move(call), then = std::move(then), thrown] {
      if (thrown) std::rethrow_exception(thrown);
      then();
    });
  });
}

}  // namespace kv
