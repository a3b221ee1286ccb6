// client/python/src/calls/client_core.h: the C++ client behind the Python objects of one client.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "client/blocking_client.h"
#include "client/python/src/calls/device_memory.h"
#include "client/python/src/without_gil.h"
#include "transport/forked.h"

namespace kv::python {

class LentMemory;
class Queue;

/// Shared by the client's queues, calls and memory, each of which may outlive the client.
///   1. Once it is over, closed or abandoned, no new use of the C++ client begins. It is over from a moment with the
///   GIL
///      held on, and goes later, without the GIL.
///   2. A child of fork() takes no lock: it may be held for ever.
/// Thread safety: used with the GIL held, which all that may wait release.
class ClientCore {
 public:
  /// Throws StatusError for a configuration that the client refuses.
  static std::shared_ptr<ClientCore> make(const ClientConfig& config, std::chrono::microseconds busy_poll);
  /// For the process's end: ends the I/O threads of all clients after their current handlers, and leaves all else.
  static void abandon_all();
  ~ClientCore();
  ClientCore(const ClientCore&) = delete;
  ClientCore& operator=(const ClientCore&) = delete;

  bool is_forked() const { return generation_ != fork_generation(); }
  bool is_over() const { return is_over_.load(std::memory_order_acquire); }
  bool is_abandoned() const { return is_abandoned_.load(std::memory_order_acquire); }
  bool is_disabled() const { return !is_over() && client_->is_disabled(); }
  std::size_t calls_max() const { return calls_max_; }
  void check_open() const;
  SpaceSize size_of(Space space) const;  ///< Requires an open client.

  /// Makes a call, and waits for its end. Ctrl-C gives it up, and is then thrown.
  Completion run(Request request);
  /// The same for any use of the client: `make(client, control)`, an Async<T>. Throws StatusError for its error.
  template <class T, class Make>
  T ask(Make make);
  /// Any use of the client that asks no node. Without the GIL, which the caller need not have.
  template <class Use>
  auto use(Use use) -> decltype(std::declval<BlockingClient&>().with(use));
  /// The same for a function of the C++ client's thread-safe interface.
  template <class T, class Use>
  Result<T> use_blocking(Use use);

  /// Requires an open client. Throws StatusError.
  std::unique_ptr<CompletionQueue> make_queue(const CompletionQueueOptions& options);
  void add(const std::shared_ptr<Queue>& queue);
  void add(const std::shared_ptr<LentMemory>& memory);
  /// Frees the buffers of dropped calls that have ended.
  void sweep();
  /// Cancels the calls in flight and closes the connections. Memory still in use stays mapped; a device's is out of
  /// RDMA devices' reach.
  void close();

  /// A device's memory that this client lends. Look right before a call: reading its other arguments may run Python.
  DeviceRegions device_regions;

 private:
  ClientCore() = default;
  void abandon();

  const std::uint32_t generation_ = fork_generation();
  std::size_t calls_max_ = 0;
  std::shared_timed_mutex mutex_;  ///< Shared while client_ is in use without the GIL.
  std::unique_ptr<BlockingClient> client_;
  std::atomic<bool> is_over_{false}, is_abandoned_{false};
  std::vector<std::weak_ptr<Queue>> queues_;
  std::vector<std::weak_ptr<LentMemory>> memory_;
};

/// The W3C trace of the caller's context.
TraceContext current_trace();
/// Throws the error that a call has ended with, unless its result tells it.
void check(const ClientCore& core, const Completion& end);

template <class T>
Async<std::size_t> keep(Async<T> asked, std::optional<T>& to) {
  auto answer = co_await std::move(asked);
  if (!answer) co_return answer.error();
  to.emplace(*std::move(answer));
  co_return std::size_t{0};
}

template <class T, class Make>
T ClientCore::ask(Make make) {
  std::optional<T> answer;
  const Work work = [&](Client& client, CallControl control) { return keep<T>(make(client, control), answer); };
  check(*this, run({.op = Op::kOther, .work = &work}));
  return *std::move(answer);
}

template <class Use>
auto ClientCore::use(Use use) -> decltype(std::declval<BlockingClient&>().with(use)) {
  using Used = decltype(std::declval<BlockingClient&>().with(use));
  const auto refused = [](Errc why) { return Used(boost::system::in_place_error, make_error_code(why)); };
  if (is_forked()) return refused(Errc::kForked);
  const std::shared_lock lock(mutex_);
  return is_over() ? refused(Errc::kCancelled) : client_->with(use);
}

template <class T, class Use>
Result<T> ClientCore::use_blocking(Use use) {
  if (is_forked()) return error_code(Errc::kForked);
  const std::shared_lock lock(mutex_);
  return is_over() ? Result<T>(error_code(Errc::kCancelled)) : use(*client_);
}

}  // namespace kv::python
