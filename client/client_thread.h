// client/client_thread.h: a Client and the one thread that runs it. BlockingClient and the completion queues ask here.
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
#include "client/waker.h"
#include "transport/forked.h"

namespace kv {

/// The block sizes of the namespaces that were opened, for callers of any thread that must not wait for the I/O thread.
/// Written by one thread. Cost: two loads to look one up; memory grows by 2 KiB for each 256 namespaces.
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
///   1. Every caller that enter() let in is woken: by its answer, or by fail() when the thread ends.
///   2. An exception on the I/O thread is a bug or the end of memory: nothing is known of the client's state any more.
///      The thread ends there and then, so that nothing moves bytes into anyone's memory, and all calls fail, those
///      that wait and those to come.
///   3. After fork() the child locks nothing and touches nothing of it: the thread, and whatever it held, are the
///      parent's.
///   4. The client is destroyed only once every guest has said that none of its calls is in progress.
/// Thread safety: any thread, except where a function names one. The destructor requires that nobody waits in call() or
/// run_there(), and that this is not a child of fork().
class ClientThread {
 public:
  /// Starts calls on the thread and waits for none of them: a completion queue. All functions run on the I/O thread.
  class Guest {
   public:
    /// Asked after each handler of the thread. Sequentially consistent with whoever makes work and then calls
    /// Waker::wake().
    virtual bool has_work() const = 0;
    virtual void work() = 0;
    /// The client is about to go: ends what is in progress, detaches itself, then calls `done` once.
    virtual void client_closes(std::function<void()> done) = 0;
    /// 2: nothing in progress will ever end by itself.
    virtual void client_disabled() = 0;

   protected:
    ~Guest() = default;
  };

  /// Throws as Client's constructor. `network` outlives this. `busy_poll`: see BlockingOptions.
  ClientThread(ClientConfig config, std::chrono::microseconds busy_poll, Network& network);
  ~ClientThread();

  /// For the end of the process: ends the thread after the handler that it is in. Nothing is told to anybody, and the
  /// object must be left where it is, undestroyed. Not on the I/O thread.
  void abandon();

  bool is_forked() const { return generation_ != fork_generation(); }
  bool is_disabled() const;
  /// Why enter() refuses.
  error_code why_not() const { return is_forked() ? Errc::kForked : Errc::kUnavailable; }
  bool is_current() const { return std::this_thread::get_id() == thread_.get_id(); }

  /// Runs `make(client)` (an Async<T>) on the I/O thread and waits for what it returns.
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

  /// Client::open, and what it opened is found by block_bytes(). On the I/O thread.
  Async<Space> open(NamespaceRecord record, std::chrono::microseconds deadline, CallControl control);
  std::size_t block_bytes(Space space) const { return space_sizes_->find(space); }
  std::shared_ptr<const SpaceSizes> space_sizes() const { return space_sizes_; }

  /// False: the client is disabled, or the parent's.
  bool attach(const std::shared_ptr<Guest>& guest);
  void detach(const Guest& guest);  ///< On the I/O thread.

  /// Somebody was just told something, and most often has a new call now: the thread looks for it a little longer
  /// before it sleeps, since to wake it costs the caller more than all else. `is_busy`: other calls are in progress. On
  /// the I/O thread.
  void linger(bool is_busy);
  /// For who has work for the thread, even when the thread may be gone.
  std::shared_ptr<Waker> waker() const { return waker_; }
  const NumaPlace& numa_place() const { return numa_place_; }  ///< The client's. Any thread.

  // For guests, on the I/O thread.
  asio::io_context& io() { return *io_; }
  Client& client() { return *client_; }

 private:
  /// A call that waits on another thread.
  class Waiting {
   public:
    virtual ~Waiting() = default;
    virtual void fail() = 0;  ///< There will be no answer.
  };

  /// Hands one value from the I/O thread to a waiting caller. No value: the client is disabled.
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
      done_.acquire();  // after a successful spin too: give() must be through with this object, which is about to go
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
  std::vector<Guest*> served_;  ///< The I/O thread's own list of guests_.
  /// Reads waker_'s descriptor, which remains the waker's.
  std::unique_ptr<asio::posix::stream_descriptor> watched_;
  std::size_t closing_count_ = 0;  ///< Guests that have not closed yet, and one more while they are being told.
  std::thread thread_;
};

/// Keeps an object to the end of the process, where leak checkers see that it is no leak: in a child of fork(), what
/// only the parent may destroy (locks may be held for ever, and the event queue is shared), or what a bug has broken.
void never_destroy(std::shared_ptr<const void> object);

}  // namespace kv
