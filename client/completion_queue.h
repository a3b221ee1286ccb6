// client/completion_queue.h: a client's calls without blocking: submit now, reap completions later.
//
//   CompletionQueue queue(client);                                   // a BlockingClient; any number of queues
//   loop.add_reader(queue.fd(), on_readable);                        // epoll, asyncio, libuv: level-triggered
//   const auto call = queue.submit({.op = Op::kLoad, .space = space, .hashes = hashes, .to = pages,
//                                   .deadline = 50ms, .tag = request});
//   if (!call) prefill(request);                                     // kBusy: too many calls in flight
//   ...
//   Completion ended[64];                                            // on_readable: reap all completions at once
//   const std::size_t count = queue.reap(ended).value();
//   for (const Completion& one : std::span(ended, count)) resume(one.tag, one.get.block_count);
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>

#include "client/request.h"

namespace kv {

class BlockingClient;
struct BlockingOptions;
class ClientThread;

struct CompletionQueueOptions {
  std::size_t calls_max = 256;         ///< In flight: submitted and not yet reaped. 1..65536; beyond it kBusy.
  std::size_t bytes_max = 4ull << 30;  ///< Of these calls: blocks to fill or read, and copied arguments.
  /// A call waits, up to its deadline, for a node that is being connected. False: the blocks of a node without a
  /// connection are answered at once with kUnavailable, and connecting goes on in the background.
  bool wait_while_away = false;
  bool tells_reason = false;  ///< Fill Completion::reason, which costs a look at all nodes for each such call.
};

/// Calls in flight, and completions not reaped yet.
///   1. A call is in flight from its submit until its kEnd is reaped. Calls and bytes in flight are bounded.
///   2. A call ends exactly once: by its deadline, by cancel(), by shutdown() or with its client. By then the library
///      has released all memory named in the call.
///   3. fd() is readable exactly while completions wait.
///   4. Submitting and cancelling take no lock, allocate only to copy a call longer than those before it, and make at
///      most one system call.
/// Thread safety: all functions from any thread, at once; on the client's I/O thread (segment callbacks) those that do
/// not wait. The destructor waits only for the I/O thread, never for a node; it requires that other functions of the
/// queue have returned, and must not run on the I/O thread. Either of queue and client may be destroyed first. After
/// fork() the child gets kForked, and its copy of fd() is closed; the parent is unaffected.
class CompletionQueue {
 public:
  /// Throws std::invalid_argument for bad options, std::system_error without a free descriptor.
  explicit CompletionQueue(BlockingClient& client, CompletionQueueOptions options = {});
  /// As shutdown(), and discards completions. On return the library has released all memory of the calls.
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  /// Returns a call, whose completions carry `tag`. Errors, after which the call has no completion: kBusy (reap first),
  /// kTooLarge (the call alone exceeds bytes_max), kBadRequest (a deadline over 24 hours, counts that do not agree),
  /// kCancelled (the queue was shut down, or its client closed), kUnavailable (is_disabled()), kForked. All other
  /// mistakes arrive as the completion's `error`. Destinations of a get count against bytes_max in full, whatever
  /// lands, and so do results by name.
  Result<CallId> submit(const Request& request);

  /// Gives a call up. Its completion follows soon, whatever the node does; wait for it. A call that ended meanwhile
  /// keeps its result. Errors: kNotFound if it was reaped, or never existed.
  Result<void> cancel(CallId call);

  /// Takes up to into.size() completions, oldest first. Waits until there are `count_min` (at most into.size()), all
  /// calls in flight have ended, or `timeout` has passed; by default does not wait. Returns how many. With an empty
  /// `into` it waits, and takes none. Errors: kForked.
  Result<std::size_t> reap(std::span<Completion> into, std::size_t count_min = 0,
                           std::chrono::microseconds timeout = std::chrono::microseconds(0));
  /// Takes the ends of these calls, once `count_min` of them have ended or `timeout` has passed: 1 for any one,
  /// calls.size() for all. Returns how many, in the order of `calls`; their unreaped kSegments and kMatched are
  /// dropped. Requires into.size() >= calls.size(), or an empty `into`: then it takes none. Errors: kBadRequest,
  /// kForked; kNotFound if a call was already reaped or never existed: then all ends stay.
  Result<std::size_t> wait(std::span<const CallId> calls, std::size_t count_min, std::chrono::microseconds timeout,
                           std::span<Completion> into);

  /// For epoll, poll, asyncio's add_reader: readable exactly while completions wait to be reaped. Do not read from it;
  /// reaping the last completion makes it unreadable. With EPOLLET reap until reap() returns 0. Owned by the queue.
  int fd() const;
  std::size_t calls_in_flight() const;
  std::size_t bytes_in_flight() const;

  /// Refuses new calls, cancels those in progress, and wakes waiting threads when they have ended. Completions can
  /// still be reaped. Does not wait.
  void shutdown();
  /// Whether an internal error has disabled the client; then all calls have ended, with kUnavailable.
  bool is_disabled() const;
  bool is_forked() const;
  SpaceSize size_of(Space space) const;  ///< Does not wait.

 private:
  friend class BlockingClient;
  class Impl;
  /// For calls that their threads wait for: without copies.
  CompletionQueue(ClientThread& thread, const BlockingOptions& options);
  Completion run(const Request& request, const Interrupt* interrupt);  ///< See BlockingClient.
  void cancel_all();

  std::shared_ptr<Impl> impl_;
};

}  // namespace kv
