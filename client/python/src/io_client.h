// client/python/src/io_client.h: the C++ client on a thread of its own, for calls that other threads wait for.
#pragma once

#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "client/client.h"
#include "client/load.h"
#include "client/thread/client_thread.h"
#include "client/types/call_control.h"
#include "transport/forked.h"

namespace kv::python {

/// Reports which calls have ended, by a number of the caller's for each, and wakes an event loop by an eventfd.
///   1. An end that expect() made room for is reported without allocating, so none is lost for want of memory.
///   2. A child of fork() shares the eventfd with its parent, and so neither reads nor writes it: there a queue of the
///      parent's stays empty.
/// Thread safety: all. One write to the eventfd stands for all calls that ended since the last drain().
class ReadyQueue {
 public:
  ReadyQueue();  ///< Throws StatusError without an eventfd.
  ~ReadyQueue();
  ReadyQueue(const ReadyQueue&) = delete;
  ReadyQueue& operator=(const ReadyQueue&) = delete;

  int fd() const { return fd_; }
  void expect();            ///< Room for one more end. Throws std::bad_alloc.
  void expect_no_longer();  ///< For an end that will not be reported here.
  void push(std::uint64_t id);
  /// Progress of a call. Lost without memory: its end still comes.
  void push_progress(std::uint64_t id);
  std::vector<std::uint64_t> drain();

 private:
  bool is_forked() const { return generation_ != fork_generation(); }
  void wake();

  const std::uint32_t generation_ = fork_generation();
  int fd_;
  std::mutex mutex_;
  std::vector<std::uint64_t> ends_, progress_;
  std::size_t expected_ = 0;  ///< Invariant 1: ends_ has room for so many more.
};

/// The result of a call. `monostate`: its answer is its error alone.
using Outcome = std::variant<std::monostate, Space, MatchResult, GetResult, PutResult, std::size_t, DropResult,
                             std::vector<NodeAnswer>, std::vector<std::chrono::nanoseconds>, std::vector<NodeStatus>,
                             std::string, std::span<std::byte>, bool, NumaStatus, SetMatchResult, SetGetResult,
                             SetPutResult, LoadResult, MissReport, NamedContext, ContextList>;

/// One call under way, shared by its caller and the I/O thread.
///   1. Ends once: error and outcome are written before is_done() is true, and never after.
///   2. The arguments live here, so they outlive the call even if the caller drops it.
///   3. Ending needs no memory.
/// Thread safety: all, but the arguments are the caller's until the call has started.
class Call {
 public:
  // Arguments; each call uses some.
  std::vector<BlockHash> hashes;
  std::vector<std::span<std::byte>> blocks;
  std::vector<std::span<const std::byte>> sources;
  std::vector<std::uint32_t> token_ids, group_counts;
  std::vector<ExtraDigest> extras;
  std::vector<std::uint64_t> segment_ends;
  std::string name;
  std::vector<std::string> tags;
  Cancellation cancellation;  ///< Used on the I/O thread.
  bool at_once = false;       ///< See CallControl.
  TraceContext trace;

  CallControl control() { return {.at_once = at_once, .cancellation = &cancellation, .trace = trace}; }
  void read_from(TargetBlocks from) { sources.assign(from.begin(), from.end()); }
  bool is_done() const { return is_done_.load(std::memory_order_acquire); }
  /// Waits at most `time`; returns whether the call has ended.
  bool wait(std::chrono::nanoseconds time) const;
  /// The same until segment `count` has landed or the call has ended; returns how many segments have landed.
  std::size_t wait_segments(std::size_t count, std::chrono::nanoseconds time) const;
  /// Block count of each segment landed so far.
  std::vector<std::size_t> segments() const;
  /// Has `queue` report the end, under `id`, and each landed segment. False if the call has ended already. Several
  /// queues can wait for one call, each under its latest id. Throws std::bad_alloc.
  bool tell(std::shared_ptr<ReadyQueue> queue, std::uint64_t id);
  /// Removes `queue`: its waiter has left.
  void stop_telling(ReadyQueue& queue);

  const error_code& error() const { return error_; }   ///< Requires is_done().
  const Outcome& outcome() const { return outcome_; }  ///< Requires is_done() without an error.
  /// Details for the error or the outcome's `why`: the nodes and their answers.
  const std::string& reason() const { return reason_; }

  /// On the I/O thread, or where the call could not start.
  void end(error_code error, Outcome outcome, std::string reason = {});
  void land_segment(std::size_t block_count);  ///< On the I/O thread.

 private:
  /// Wakes waiting threads, if any: skipping the system call saves a third of the cost of a call's end.
  void changed();
  /// Waits until a change since `seen`, or for `time`.
  void wait_for_change(std::uint32_t seen, std::chrono::nanoseconds time) const;

  struct Listener {
    std::shared_ptr<ReadyQueue> queue;
    std::uint64_t id;
  };

  mutable std::mutex mutex_;  ///< Guards segments_ and listeners_.
  std::atomic<std::uint32_t> changes_{
      0};  ///< A futex. A condition variable would wake a waiter into a lock that is held.
  mutable std::atomic<std::uint32_t> waiting_{0};
  std::atomic<bool> is_done_{false};
  error_code error_;
  Outcome outcome_;
  std::string reason_;
  std::vector<std::size_t> segments_;
  std::vector<Listener> listeners_;  ///< Each queue once.
};
using CallPtr = std::shared_ptr<Call>;

/// Python's calls in flight on a client's thread. Differs from CompletionQueue: threads and event loops can wait for
/// each call by itself, it has any kind of result, and it keeps the buffers that Python lent.
///   1. Every started call ends: by its answer, by cancel(), or with kUnavailable when the thread ends on an exception.
///   2. After fork() the child does not touch it: every call ends with kForked at once.
///   3. A call that could not be posted for want of memory has not begun: start() and run() throw std::bad_alloc.
/// Thread safety: all calls from any thread; they neither need nor take Python's GIL.
class IoClient final : public ClientThread::Guest, public std::enable_shared_from_this<IoClient> {
 public:
  /// Throws as Client's constructor.
  static std::shared_ptr<IoClient> make(ClientConfig config, std::chrono::microseconds busy_poll);
  /// All live ones. Requires the GIL, as does make().
  static std::vector<std::shared_ptr<IoClient>> all();
  ~IoClient();
  IoClient(const IoClient&) = delete;
  IoClient& operator=(const IoClient&) = delete;

  /// Starts `make(client)`, an Async<T>, whose answer ends `call`.
  template <class T, class Make>
  void start(const CallPtr& call, Make make);
  /// Runs a plain function of the client on its thread and ends `call` with its result.
  template <class Function>
  void run(const CallPtr& call, Function function);
  /// Gives the call up: it ends soon, whatever the node does. If there is no memory for that, by its deadline.
  void cancel(const CallPtr& call);
  void cancel_all();

  const NumaPlace& numa_place() const { return numa_place_; }
  std::size_t call_count() const { return call_count_.load(std::memory_order_acquire); }
  bool is_forked() const { return generation_ != fork_generation(); }
  bool is_over() const { return is_over_.load(std::memory_order_acquire); }  ///< close() or abandon() was called.
  bool is_disabled() const { return is_disabled_.load(std::memory_order_acquire); }
  /// Refuses new calls, cancels those in flight, ends the thread and frees the client's memory. Not on the I/O thread.
  void close();
  /// For the process's end: ends the thread after its current handler, and leaves all else. With or without the GIL.
  void abandon();

 private:
  IoClient() = default;
  // Calls are posted to the thread: there is no other work.
  bool has_work() const override { return false; }
  void work() override {}
  bool is_running() const override { return call_count() > 0; }
  void client_closes(std::function<void()> done) override;
  void client_disabled() override;
  /// Posts `work`, which ends `call` some day; or ends it here.
  template <class Work>
  void hand_over(const CallPtr& call, Work work);
  void leave(const CallPtr& call, error_code error, Outcome outcome);
  void post_cancel(const CallPtr& call);  ///< With mutex_ held.
  void be_closed();                       ///< The last call is over: the client may go.

  const std::uint32_t generation_ = fork_generation();
  std::mutex mutex_;  ///< Held while posting, so that the thread exists.
  std::shared_ptr<ClientThread> owned_;
  NumaPlace numa_place_;            ///< Set once, by make(): the thread may end sooner.
  ClientThread* thread_ = nullptr;  ///< The same; stays while the thread ends, for the handlers on it.
  std::unordered_set<CallPtr> calls_;
  std::atomic<std::size_t> call_count_{0};
  std::atomic<bool> is_disabled_{false}, is_over_{false};
  std::function<void()> closed_;  ///< On the I/O thread: called after the last call.
};

template <class Work>
void IoClient::hand_over(const CallPtr& call, Work work) {
  error_code refused = Errc::kForked;
  if (!is_forked()) {  // before the lock: in a child it may be held for ever
    const std::lock_guard lock(mutex_);
    if (!is_disabled_ && !is_over_) {
      const auto entry = calls_.insert(call).first;
      ++call_count_;
      try {
        asio::post(thread_->io(), std::move(work));
      } catch (...) {  // 3: otherwise close() would wait for it for ever
        calls_.erase(entry);
        --call_count_;
        throw;
      }
      return;
    }
    refused = is_over_ ? Errc::kCancelled : Errc::kUnavailable;
  }
  call->end(refused, std::monostate());
}

template <class T, class Make>
void IoClient::start(const CallPtr& call, Make make) {
  hand_over(call, [this, call, make = std::move(make)] {
    // The thread stays while this runs on it.
    asio::co_spawn(thread_->io(), make(thread_->client()),
                   [this, call](std::exception_ptr exception, Result<T> result) {
                     if (exception) std::rethrow_exception(exception);
                     if constexpr (std::is_void_v<T>) {
                       leave(call, result ? error_code() : result.error(), std::monostate());
                     } else {
                       if (result) {
                         leave(call, {}, std::move(*result));
                       } else {
                         leave(call, result.error(), std::monostate());
                       }
                     }
                   });
  });
}

template <class Function>
void IoClient::run(const CallPtr& call, Function function) {
  hand_over(call, [this, call, function = std::move(function)]() mutable {
    auto [error, outcome] = function(thread_->client());
    leave(call, error, std::move(outcome));
  });
}

}  // namespace kv::python
