// client/thread/client_thread.h: a Client and its I/O thread, used by BlockingClient and the completion queues.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/busy_poll.h"
#include "client/request.h"
#include "client/thread/waker.h"
#include "transport/forked.h"

namespace kv {

/// Block sizes of opened namespaces, for callers on any thread that must not wait for the I/O thread. One writer. Cost:
/// two loads per lookup; 4 KiB of memory per 256 namespaces.
class SpaceSizes {
 public:
  SpaceSizes() = default;
  ~SpaceSizes();
  SpaceSizes(const SpaceSizes&) = delete;
  SpaceSizes& operator=(const SpaceSizes&) = delete;

  void note(Space space, SpaceSize size);
  SpaceSize find(Space space) const;

 private:
  static constexpr std::size_t kChunk = 256;
  struct Entry {
    std::atomic<std::size_t> block_bytes, block_size;
  };
  using Chunk = std::array<Entry, kChunk>;
  std::array<std::atomic<Chunk*>, kSpacesMax / kChunk> chunks_{};
};

/// A client with a thread to run it on: its I/O thread, or for a while the thread of a caller that waits.
///
/// A call that a thread waits for would pass the I/O thread twice, with a wake-up each time. So after such a call, and
/// while no other call is in progress and no connection is being made, the I/O thread parks: it sleeps outside the
/// client's event queue. The next caller takes charge, and its own thread runs the handlers until its call has ended.
///
///     I/O thread in charge -- park() --> nobody -- run_here() --> caller in charge
///              ^                           |  ^                         |
///              +---- woken, or no call ----+  +------ call ended -------+
///                    for kParkTime
///
///   1. At most one thread is in charge. Only this one runs handlers, serves guests and sleeps in the event queue;
///      charge passes under charge_mutex_.
///   2. With nobody in charge no call is in progress, no connection is being made, and waker_ wakes the I/O thread: for
///      a submitted call, for what a caller leaves behind whose own call has ended, or for the end of the client.
///   3. Without wake-up the I/O thread takes charge again after kParkTime without a caller, so that timers and closed
///      connections wait no longer than that.
///   4. An exception of a handler is a bug or the end of memory, and leaves the client's state unknown. No handler runs
///      afterwards, so that no more bytes move into callers' memory, and all calls in progress and later ones fail.
///   5. After fork() the child takes no locks and uses no members: the thread and its locks belong to the parent.
///   6. The client is destroyed only after every guest has reported that all its calls have ended.
/// Thread safety: any thread, except where a function names one; "the I/O thread" is the thread in charge. The
/// destructor requires that run_here() has returned, and that this is not a child of fork().
class ClientThread {
 public:
  /// A completion queue: starts calls on the thread without waiting. All functions run on the I/O thread.
  class Guest {
   public:
    /// Asked after each handler. Sequentially consistent with threads that add work, then call Waker::wake().
    virtual bool has_work() const = 0;
    virtual void work() = 0;
    virtual bool is_running() const = 0;  ///< Whether calls are in progress.
    /// The client is about to be destroyed: ends calls in progress, detaches itself, then calls `done` once.
    virtual void client_closes(std::function<void()> done) = 0;
    /// 4: calls in progress will not end by themselves.
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
  bool is_current() const { return current_ == this; }  ///< Whether the calling thread is in charge.

  /// Takes charge until give_charge_back(), if nobody has it.
  bool take_charge();
  /// Runs the client here until `is_over`, or that time. False: its end will come from another thread, or never
  /// (abandon()). Clears `is_in_charge` before it gives charge back.
  bool run_here(const bool& is_over, bool& is_in_charge, TimePoint until);

  /// Client::open; block_bytes() then finds the namespace. On the I/O thread.
  Async<Space> open(NamespaceRecord record, std::chrono::microseconds deadline, CallControl control);
  std::shared_ptr<const SpaceSizes> space_sizes() const { return space_sizes_; }

  /// False: the client is disabled, or the parent's.
  bool attach(const std::shared_ptr<Guest>& guest);
  void detach(const Guest& guest);  ///< On the I/O thread.

  /// Call after a completion, which most often leads to a new call: the thread looks for it a little longer before it
  /// sleeps, since waking it is the caller's largest cost. `is_busy`: other calls are in progress. On the I/O thread.
  void linger(bool is_busy);
  /// The same after a call whose caller waits for it: it may do the next one itself. On the I/O thread.
  void expect_caller() { may_park_ = true; }
  /// For threads with work for the I/O thread, even after its end.
  std::shared_ptr<Waker> waker() const { return waker_; }
  const NumaPlace& numa_place() const { return numa_place_; }  ///< The client's. Any thread.
  std::chrono::microseconds busy_poll() const { return busy_poll_; }

  // For guests, on the I/O thread.
  asio::io_context& io() { return *io_; }
  Client& client() { return *client_; }

 private:
  enum class Charge : std::uint8_t { kIoThread, kNobody, kCaller };

  void run();
  void run_until_stopped();
  /// Sleeps until a handler has run, a guest has work, or that time.
  void run_one(TimePoint until = TimePoint::max());
  bool serve_guests();  ///< Whether one had work.
  bool has_work() const;
  bool is_busy() const;        ///< 2: somebody must be in charge.
  void fail(const char* why);  ///< 4.
  void park();
  void give_charge_back();
  void watch_waker();
  void close();
  void guest_closed();

  const std::uint32_t generation_ = fork_generation();
  const std::chrono::microseconds busy_poll_;
  const std::shared_ptr<SpaceSizes> space_sizes_ = std::make_shared<SpaceSizes>();
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Guest>> guests_;
  bool is_disabled_ = false;
  std::mutex charge_mutex_;
  std::condition_variable charge_changed_;
  Charge charge_ = Charge::kIoThread;
  bool is_wanted_back_ = false;  ///< The I/O thread waits for a caller to end: no other takes charge.
  std::uint64_t callers_ = 0;    ///< That have taken charge so far.
  static thread_local const ClientThread* current_;
  const std::shared_ptr<Waker> waker_ = std::make_shared<Waker>();
  std::unique_ptr<asio::io_context> io_ = std::make_unique<asio::io_context>(1);
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_->get_executor()};
  std::unique_ptr<Client> client_;
  const NumaPlace numa_place_;
  TimePoint awake_until_{};
  bool may_park_ = false;
  bool has_failed_ = false;         ///< 4. Of the thread in charge.
  std::unique_ptr<BusyPoll> poll_;  ///< While the I/O thread runs.
  std::vector<Guest*> served_;      ///< The I/O thread's copy of guests_.
  /// Reads waker_'s descriptor, which the waker owns.
  std::unique_ptr<asio::posix::stream_descriptor> watched_;
  std::size_t closing_count_ = 0;  ///< Guests still to close, plus one while they are being notified.
  std::thread thread_;
};

/// Keeps an object to the end of the process, reachable for leak checkers: in a child of fork(), objects that only the
/// parent may destroy (locks may be held for ever, and the event queue is shared), or objects broken by a bug.
void never_destroy(std::shared_ptr<const void> object);

}  // namespace kv
