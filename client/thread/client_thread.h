// client/thread/client_thread.h: a Client and its I/O thread, used by BlockingClient and the completion queues.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <semaphore>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "client/client.h"
#include "client/thread/waker.h"
#include "transport/forked.h"

namespace kv {

/// Block sizes of opened namespaces, for callers on any thread that must not wait for the I/O thread. One writer. Cost:
/// two loads per lookup; 2 KiB of memory per 256 namespaces.
class SpaceSizes {
 public:
  SpaceSizes() = default;
  ~SpaceSizes();
  SpaceSizes(const SpaceSizes&) = delete;
  SpaceSizes& operator=(const SpaceSizes&) = delete;

  void note(Space space, std::size_t block_bytes);
  std::size_t find(Space space) const;  ///< 0: not opened.

 private:
  static constexpr std::size_t kChunk = 256;
  using Chunk = std::array<std::atomic<std::size_t>, kChunk>;
  std::array<std::atomic<Chunk*>, kSpacesMax / kChunk> chunks_{};
};

/// A client with a thread to run it on.
///   1. Every caller admitted by enter() is woken: by its answer, or by fail() when the thread ends.
///   2. An exception on the I/O thread is a bug or the end of memory, and leaves the client's state unknown. The thread
///      ends at once, so that it moves no more bytes into callers' memory, and all waiting and later calls fail.
///   3. After fork() the child takes no locks and uses no members: the thread and its locks belong to the parent.
///   4. The client is destroyed only after every guest has reported that all its calls have ended.
/// Thread safety: any thread, except where a function names one. The destructor requires that call() and run_there()
/// have returned, and that this is not a child of fork().
class ClientThread {
 public:
  /// A completion queue: starts calls on the thread without waiting. All functions run on the I/O thread.
  class Guest {
   public:
    /// Asked after each handler. Sequentially consistent with threads that add work, then call Waker::wake().
    virtual bool has_work() const = 0;
    virtual void work() = 0;
    /// The client is about to be destroyed: ends calls in progress, detaches itself, then calls `done` once.
    virtual void client_closes(std::function<void()> done) = 0;
    /// 2: calls in progress will not end by themselves.
    virtual void client_disabled() = 0;

   protected:
    ~Guest() = default;
  };

  /// Throws as Client's constructor. `network` outlives this. `busy_poll`: see BlockingOptions.
  ClientThread(ClientConfig config, std::chrono::microseconds busy_poll, Network& network);
  ~ClientThread();

  /// For the end of the process: ends the thread after its current handler, without notifying callers. The object must
  /// then be left undestroyed. Not on the I/O thread.
  void abandon();

  bool is_forked() const { return generation_ != fork_generation(); }
  bool is_disabled() const;
  error_code why_not() const { return is_forked() ? Errc::kForked : Errc::kUnavailable; }
  bool is_current() const { return std::this_thread::get_id() == thread_.get_id(); }

  /// Runs `make(client)` (an Async<T>) on the I/O thread and waits for its result.
  template <class T, class Make>
  Result<T> call(Make make) {
    Handover<Result<T>> handover;
    if (!enter(handover)) return why_not();
    asio::post(*io_, [this, &make, &handover] {
      asio::co_spawn(*io_, make(*client_), [this, &handover](std::exception_ptr exception, Result<T> result) {
        if (exception) std::rethrow_exception(exception);
        if (leave(handover)) handover.give(std::move(result));
      });
    });
    auto result = handover.take(busy_poll_);
    return result ? std::move(*result) : Result<T>(error_code(Errc::kUnavailable));
  }

  /// The same for a plain function; `otherwise` if the client is disabled.
  template <class T, class F>
  T run_there(T otherwise, F f) {
    Handover<T> handover;
    if (!enter(handover)) return otherwise;
    asio::post(*io_, [this, &f, &handover] {
      T value = f(*client_);
      if (leave(handover)) handover.give(std::move(value));
    });
    auto result = handover.take(busy_poll_);
    return result ? std::move(*result) : std::move(otherwise);
  }

  /// Client::open; block_bytes() then finds the namespace. On the I/O thread.
  Async<Space> open(NamespaceRecord record, std::chrono::microseconds deadline, CallControl control);
  std::size_t block_bytes(Space space) const { return space_sizes_->find(space); }
  std::shared_ptr<const SpaceSizes> space_sizes() const { return space_sizes_; }

  /// False: the client is disabled, or the parent's.
  bool attach(const std::shared_ptr<Guest>& guest);
  void detach(const Guest& guest);  ///< On the I/O thread.

  /// Call after a completion, which most often leads to a new call: the thread looks for it a little longer before it
  /// sleeps, since waking it is the caller's largest cost. `is_busy`: other calls are in progress. On the I/O thread.
  void linger(bool is_busy);
  /// For threads with work for the I/O thread, even after its end.
  std::shared_ptr<Waker> waker() const { return waker_; }
  const NumaPlace& numa_place() const { return numa_place_; }  ///< The client's. Any thread.

  // For guests, on the I/O thread.
  asio::io_context& io() { return *io_; }
  Client& client() { return *client_; }

 private:
  class Waiting {
   public:
    virtual ~Waiting() = default;
    virtual void fail() = 0;  ///< Wakes the caller without an answer.
  };

  /// Hands one value from the I/O thread to a waiting caller. Without a value: the client is disabled.
  template <class T>
  class Handover final : public Waiting {
   public:
    void give(T value) {
      value_.emplace(std::move(value));
      fail();
    }
    void fail() override {
      ready_.store(true, std::memory_order_release);
      done_.release();
    }
    std::optional<T> take(std::chrono::microseconds spin) {
      if (spin.count() > 0) spin_until_set(ready_, spin);
      done_.acquire();  // after a spin too: give() must have left this object, which is about to be destroyed
      return std::move(value_);
    }

   private:
    std::optional<T> value_;
    std::atomic<bool> ready_{false};
    std::binary_semaphore done_{0};
  };

  static void spin_until_set(const std::atomic<bool>& flag, std::chrono::microseconds spin);
  void run();
  void run_until_stopped();
  bool serve_guests();  ///< Whether one had work.
  void watch_waker();
  void close();
  void guest_closed();
  bool enter(Waiting& call);  ///< False if the client is disabled, or the parent's.
  bool leave(Waiting& call);  ///< True if the call is still to be answered; then its answer may be given.

  const std::uint32_t generation_ = fork_generation();
  const std::chrono::microseconds busy_poll_;
  const std::shared_ptr<SpaceSizes> space_sizes_ = std::make_shared<SpaceSizes>();
  mutable std::mutex mutex_;
  std::set<Waiting*> waiting_;
  std::vector<std::shared_ptr<Guest>> guests_;
  bool is_disabled_ = false;
  const std::shared_ptr<Waker> waker_ = std::make_shared<Waker>();
  std::unique_ptr<asio::io_context> io_ = std::make_unique<asio::io_context>(1);
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_->get_executor()};
  std::unique_ptr<Client> client_;
  const NumaPlace numa_place_;
  TimePoint awake_until_{};
  std::vector<Guest*> served_;  ///< The I/O thread's copy of guests_.
  /// Reads waker_'s descriptor, which the waker owns.
  std::unique_ptr<asio::posix::stream_descriptor> watched_;
  std::size_t closing_count_ = 0;  ///< Guests still to close, plus one while they are being notified.
  std::thread thread_;
};

/// Keeps an object to the end of the process, reachable for leak checkers: in a child of fork(), objects that only the
/// parent may destroy (locks may be held for ever, and the event queue is shared), or objects broken by a bug.
void never_destroy(std::shared_ptr<const void> object);

}  // namespace kv
