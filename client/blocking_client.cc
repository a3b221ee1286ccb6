#include "client/blocking_client.h"

#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <mutex>
#include <optional>
#include <semaphore>
#include <set>
#include <thread>
#include <utility>

#include "base/assert.h"
#include "base/busy_poll.h"
#include "transport/forked.h"

namespace kv {
namespace {

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
    if (spin.count() > 0) {
      const auto until = std::chrono::steady_clock::now() + spin;
      while (!ready_.load(std::memory_order_acquire) && std::chrono::steady_clock::now() < until)
        std::this_thread::yield();  // the I/O thread may have been given the same core
    }
    done_.acquire();  // after a successful spin too: give() must be through with this object, which is about to go
    return std::move(value_);
  }

 private:
  std::optional<T> value_;
  std::atomic<bool> ready_{false};
  std::binary_semaphore done_{0};
};

}  // namespace

/// The client with a thread to run it on.
///   1. Every caller that enter() let in is woken: by its answer, or by fail() when the thread ends.
///   2. An exception on the I/O thread is a bug or the end of memory: nothing is known of the client's state any more.
///      The thread ends there and then, so that nothing moves bytes into anyone's memory, and all calls fail, those
///      that wait and those to come.
///   3. After fork() the child locks nothing and touches nothing of it: the thread, and whatever it held, are the
///      parent's.
struct BlockingClient::Impl {
  Impl(ClientConfig config, BlockingOptions o, Network& network)
      : options(o),
        client(std::make_unique<Client>(io->get_executor(), std::move(config), network)),
        thread([this] { run(); }) {}

  ~Impl() {
    asio::post(*io, [this] { client.reset(); });
    work.reset();
    thread.join();      // the coroutines of closed sessions run to their end
    if (is_disabled) {  // 2: what is left cannot be trusted to destroy itself
      (void)client.release();
      (void)io.release();
    }
  }

  /// The I/O thread, from its first to its last moment. A plain run() sleeps in the kernel; with busy polling the
  /// thread spins for as long as the option says after the last event, and then sleeps as well.
  void run() {
    try {
      if (options.busy_poll.count() == 0) {
        io->run();
        return;
      }
      const BusyPoll busy_poll(options.busy_poll);
      while (!io->stopped()) busy_poll.run_some(*io);
      return;
    } catch (const std::exception& e) {
      std::fprintf(stderr, "kvstore: client disabled: %s\n", e.what());
    } catch (...) {
      std::fprintf(stderr, "kvstore: client disabled\n");
    }
    const std::lock_guard lock(mutex);
    is_disabled = true;
    for (Waiting* each : waiting) each->fail();
    waiting.clear();
  }

  bool is_forked() const { return generation != fork_generation(); }
  error_code why_not() const { return is_forked() ? Errc::kForked : Errc::kUnavailable; }

  /// False if the client is disabled, or the parent's.
  bool enter(Waiting& call) {
    if (is_forked()) return false;  // 3: before anything is locked
    KV_ASSERT(std::this_thread::get_id() != thread.get_id());
    const std::lock_guard lock(mutex);
    if (!is_disabled) waiting.insert(&call);
    return !is_disabled;
  }
  /// True if the call is still to be answered; then its answer may be given.
  bool leave(Waiting& call) {
    const std::lock_guard lock(mutex);
    return waiting.erase(&call) > 0;
  }

  /// Runs `make(client)` (an Async<T>) on the I/O thread and waits for what it returns.
  template <class T, class Make>
  Result<T> call(Make make) {
    Handover<Result<T>> handover;
    if (!enter(handover)) return why_not();
    asio::post(*io, [this, &make, &handover] {
      asio::co_spawn(*io, make(*client), [this, &handover](std::exception_ptr exception, Result<T> result) {
        if (exception) std::rethrow_exception(exception);
        if (leave(handover)) handover.give(std::move(result));
      });
    });
    auto result = handover.take(options.busy_poll);
    return result ? std::move(*result) : Result<T>(error_code(Errc::kUnavailable));
  }

  /// The same for a plain function; `otherwise` if the client is disabled.
  template <class T, class F>
  T run_there(T otherwise, F f) {
    Handover<T> handover;
    if (!enter(handover)) return otherwise;
    asio::post(*io, [this, &f, &handover] {
      T value = f(*client);
      if (leave(handover)) handover.give(std::move(value));
    });
    auto result = handover.take(options.busy_poll);
    return result ? std::move(*result) : std::move(otherwise);
  }

  const std::uint32_t generation = fork_generation();
  BlockingOptions options;
  std::mutex mutex;
  std::set<Waiting*> waiting;
  bool is_disabled = false;
  std::unique_ptr<asio::io_context> io = std::make_unique<asio::io_context>(1);
  asio::executor_work_guard<asio::io_context::executor_type> work{io->get_executor()};
  std::unique_ptr<Client> client;
  Impl* left_before = nullptr;  ///< See the destructor of BlockingClient.
  std::thread thread;
};

BlockingClient::BlockingClient(ClientConfig config, BlockingOptions options, Network& network)
    : impl_(std::make_unique<Impl>(std::move(config), options, network)) {}

BlockingClient::~BlockingClient() {
  if (!impl_->is_forked()) return;
  // In a child the thread cannot be joined, and the event queue is the parent's own: to take a socket out of that queue
  // here would take it out there. So everything stays, where leak checkers see it.
  static std::atomic<Impl*> left_by_the_parent{nullptr};
  impl_->left_before = left_by_the_parent.exchange(impl_.get());
  (void)impl_.release();
}

Result<Space> BlockingClient::open(NamespaceRecord record, std::chrono::microseconds deadline) {
  return impl_->call<Space>([&](Client& client) { return client.open(std::move(record), deadline); });
}
Result<void> BlockingClient::wait_open(Space space, std::chrono::microseconds deadline) {
  return impl_->call<void>([&](Client& client) { return client.wait_open(space, deadline); });
}
std::size_t BlockingClient::block_bytes(Space space) const {
  return impl_->run_there<std::size_t>(0, [&](Client& client) { return client.block_bytes(space); });
}
Result<MatchResult> BlockingClient::match(Space space, std::span<const BlockHash> hashes, MatchOptions options) {
  return impl_->call<MatchResult>([&](Client& client) { return client.match(space, hashes, options); });
}
void BlockingClient::release(Lease lease) {
  impl_->run_there<bool>(false, [&](Client& client) {
    client.release(lease);
    return true;
  });
}
Result<GetResult> BlockingClient::get(Space space, std::span<const BlockHash> hashes,
                                      std::span<const std::span<std::byte>> blocks, GetOptions options) {
  return impl_->call<GetResult>([&](Client& client) { return client.get(space, hashes, blocks, options); });
}
Result<PutResult> BlockingClient::put(Space space, std::span<const BlockHash> hashes,
                                      std::span<const std::span<const std::byte>> blocks, PutOptions options) {
  return impl_->call<PutResult>([&](Client& client) { return client.put(space, hashes, blocks, options); });
}
Result<SetMatchResult> BlockingClient::match_set(Space set, std::span<const BlockHash> hashes,
                                                 SetMatchOptions options) {
  return impl_->call<SetMatchResult>([&](Client& client) { return client.match_set(set, hashes, options); });
}
Result<SetGetResult> BlockingClient::get_set(Space set, std::span<const BlockHash> hashes,
                                             std::span<const std::span<std::byte>> blocks, SetGetOptions options) {
  return impl_->call<SetGetResult>([&](Client& client) { return client.get_set(set, hashes, blocks, options); });
}
Result<SetPutResult> BlockingClient::put_set(Space set, std::span<const BlockHash> hashes,
                                             std::span<const std::span<const std::byte>> blocks,
                                             SetPutOptions options) {
  return impl_->call<SetPutResult>([&](Client& client) { return client.put_set(set, hashes, blocks, options); });
}
Result<std::size_t> BlockingClient::touch(Space space, std::span<const BlockHash> hashes,
                                          std::chrono::microseconds deadline) {
  return impl_->call<std::size_t>([&](Client& client) { return client.touch(space, hashes, deadline); });
}
Result<std::size_t> BlockingClient::retain(Space space, std::span<const BlockHash> hashes,
                                           std::chrono::microseconds deadline) {
  return impl_->call<std::size_t>([&](Client& client) { return client.retain(space, hashes, deadline); });
}
Result<std::size_t> BlockingClient::unretain(Space space, std::span<const BlockHash> hashes,
                                             std::chrono::microseconds deadline) {
  return impl_->call<std::size_t>([&](Client& client) { return client.unretain(space, hashes, deadline); });
}
Result<DropResult> BlockingClient::drop(Space space, std::span<const BlockHash> hashes,
                                        std::chrono::microseconds deadline) {
  return impl_->call<DropResult>([&](Client& client) { return client.drop(space, hashes, deadline); });
}
Result<std::vector<NodeStats>> BlockingClient::stats(std::chrono::microseconds deadline) {
  return impl_->call<std::vector<NodeStats>>([&](Client& client) { return client.stats(deadline); });
}
Result<std::vector<std::chrono::nanoseconds>> BlockingClient::ping(std::chrono::microseconds deadline) {
  return impl_->call<std::vector<std::chrono::nanoseconds>>([&](Client& client) { return client.ping(deadline); });
}
std::vector<NodeStatus> BlockingClient::nodes() const {
  return impl_->run_there<std::vector<NodeStatus>>({}, [](Client& client) { return client.nodes(); });
}
/// In three steps: the budget is reserved on the I/O thread, the memory is made and touched here, and then handed over.
/// adopt_memory() gives the budget back if there was no memory.
Result<std::span<std::byte>> BlockingClient::allocate(std::size_t bytes) {
  const auto reserved =
      impl_->run_there<Result<void>>(impl_->why_not(), [&](Client& client) { return client.reserve_memory(bytes); });
  if (!reserved) return reserved.error();
  auto memory = SharedMemory::create(bytes);  // on the caller's thread: 0.3 s a GiB would hold up all deadlines
  return impl_->run_there<Result<std::span<std::byte>>>(
      impl_->why_not(), [&](Client& client) { return client.adopt_memory(bytes, std::move(memory)); });
}
Result<std::size_t> BlockingClient::lend(std::span<std::byte> memory, std::chrono::microseconds deadline) {
  return impl_->call<std::size_t>([&](Client& client) { return client.lend(memory, deadline); });
}
Result<void> BlockingClient::free_memory(std::span<std::byte> memory) {
  auto released = impl_->run_there<Result<std::shared_ptr<const void>>>(
      impl_->why_not(), [&](Client& client) { return client.release_memory(memory); });
  if (!released) return released.error();
  return {};
}
Result<void> BlockingClient::add_device_memory(DeviceMemory memory) {
  return impl_->run_there<Result<void>>(impl_->why_not(),
                                        [&](Client& client) { return client.add_device_memory(memory); });
}
Result<void> BlockingClient::remove_device_memory(std::span<std::byte> memory, std::chrono::microseconds deadline) {
  return impl_->call<void>([&](Client& client) { return client.remove_device_memory(memory, deadline); });
}
bool BlockingClient::is_quarantined(std::span<const std::byte> memory) const {
  return impl_->run_there<bool>(false, [&](Client& client) { return client.is_quarantined(memory); });
}

bool BlockingClient::is_forked() const { return impl_->is_forked(); }

bool BlockingClient::is_disabled() const {
  if (impl_->is_forked()) return false;
  const std::lock_guard lock(impl_->mutex);
  return impl_->is_disabled;
}

}  // namespace kv
