// client/blocking_client.h: a Client for any number of threads, with an I/O thread of its own.
//
//   BlockingClient client({.nodes = {{.endpoint = "unix:///run/kvstore/kvstore.sock"}}});
//   const Space space = client.run({.op = Op::kOpen, .deadline = 1s, .record = &record}).space;
//   const Completion got = client.run({.op = Op::kGet, .space = space, .hashes = hashes, .to = pages,
//                                      .deadline = 2ms});
//   engine.skip(got.get.block_count);        // 0 blocks is a miss, not an error; got.get.why has the reason
#pragma once

#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "client/completion_queue.h"
#include "client/request.h"

namespace kv {

struct BlockingOptions {
  /// How long a thread polls for answers before it sleeps. Some tens of microseconds save the wake-ups, at the price of
  /// a busy core.
  std::chrono::microseconds busy_poll{0};
  bool tells_reason = false;    ///< As in CompletionQueueOptions.
  std::size_t calls_max = 256;  ///< At once; beyond it kBusy.
};

/// Calls that block their thread until they are complete, by their deadline. CompletionQueue has the same calls without
/// blocking. While no other call is in progress, the caller's own thread does the I/O.
/// Thread safety: all functions from any thread, but not from within a call (a segment callback); the destructor
/// requires that all calls have returned. Slow work (touching and unmapping memory) runs on the caller's thread, so
/// that other calls do not wait for it.
class BlockingClient {
 public:
  /// Throws as Client's constructor. `network` outlives the client.
  explicit BlockingClient(ClientConfig config, BlockingOptions options = {}, Network& network = socket_network());
  /// Calls of completion queues in progress end with kCancelled; the queues remain, to be reaped. Afterwards RDMA
  /// devices cannot reach lent memory, unless the client is_disabled(). If it is_forked(), it is only discarded.
  ~BlockingClient();

  /// Makes the call and returns its end. Waits, up to the deadline, for a node that is being connected. A failure, also
  /// one for which a queue would refuse the call, is the completion's `error`.
  Completion run(const Request& request, const Interrupt* interrupt = nullptr);
  /// Gives up the calls of run() in progress: each ends soon.
  void cancel_all();
  /// Any other use of the client, as one call: `use(client)` returns an Async<T>, a Result<T>, a T or nothing. Returns
  /// a Result<T>. Errors: also those of a call: kUnavailable (is_disabled()), kForked, kBusy, kCancelled.
  template <class Use>
  auto with(Use use);

  SpaceSize size_of(Space space) const;  ///< Does not wait.
  Result<std::span<std::byte>> allocate(std::size_t bytes);
  Result<void> free_memory(std::span<std::byte> memory);
  /// The same, but it stays mapped as long as the result lives.
  Result<std::shared_ptr<const void>> release_memory(std::span<std::byte> memory);

  /// Whether an internal error has disabled the client; then every call fails with kUnavailable at once.
  bool is_disabled() const;
  /// Whether this is a child of fork(), and the client the parent's: its thread does not exist here, and its locks may
  /// be held for ever. Every call then fails with kForked at once; its sockets were closed here at the fork, not in the
  /// parent.
  bool is_forked() const;
  /// For the process's end: no handler runs after the current one, and nobody is told. The client and its queues must
  /// then be left undestroyed.
  void abandon();

 private:
  friend class CompletionQueue;

  template <class T>
  static Async<T> ready(Result<T> value) {
    co_return std::move(value);
  }
  /// What `use` returns, as an Async.
  template <class Use>
  static auto begin(Use& use, Client& client) {
    using Made = std::invoke_result_t<Use&, Client&>;
    if constexpr (std::is_void_v<Made>) {
      use(client);
      return ready(Result<void>());
    } else if constexpr (requires { typename Made::executor_type; }) {
      return use(client);
    } else if constexpr (requires(const Made& made) { made.error(); }) {
      return ready(use(client));
    } else {
      return ready(Result<Made>(use(client)));
    }
  }
  template <class T>
  static Async<std::size_t> keep(Async<T> made, Result<T>& to) {
    to = co_await std::move(made);
    co_return std::size_t{0};
  }

  std::unique_ptr<ClientThread> thread_;
  std::unique_ptr<CompletionQueue> calls_;  ///< Those of run().
};

template <class Use>
auto BlockingClient::with(Use use) {
  using T = typename decltype(begin(use, std::declval<Client&>()))::value_type::value_type;
  // in_place_error: a bool is no error code.
  Result<T> result(boost::system::in_place_error, make_error_code(Errc::kUnavailable));
  const Work work = [&](Client& client, CallControl) { return keep<T>(begin(use, client), result); };
  const Completion end = run({.op = Op::kOther, .work = &work});
  return end.error ? Result<T>(boost::system::in_place_error, end.error) : std::move(result);
}

}  // namespace kv
