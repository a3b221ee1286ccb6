// client/completion_queue.h: a client's calls without blocking: submit now, reap completions later.
//
//   CompletionQueue queue(client);                                   // a BlockingClient; any number of queues
//   loop.add_reader(queue.fd(), on_readable);                        // epoll, asyncio, libuv: level-triggered
//   const auto call = queue.submit_load(space, hashes, pages, {.deadline = 50ms, .block_count_min = 8}, request);
//   if (!call) prefill(request);                                     // kBusy: too many calls in flight
//   ...
//   Completion ended[64];                                            // on_readable: reap all completions at once
//   const std::size_t count = queue.reap(ended).value();
//   for (const Completion& one : std::span(ended, count)) resume(one.tag, one.get.block_count);
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <type_traits>

#include "client/blocking_client.h"

namespace kv {

struct CompletionQueueOptions {
  std::size_t calls_max = 256;         ///< In flight: submitted and not yet reaped. 1..65536; beyond it kBusy.
  std::size_t bytes_max = 4ull << 30;  ///< Of these calls: blocks to fill or read, and copied arguments.
  /// A call waits, up to its deadline, for a node that is being connected. False: the blocks of a node without a
  /// connection are answered at once with kUnavailable, and connecting goes on in the background.
  bool wait_while_away = false;
};

/// Names a call of one queue: never 0, never reused.
enum class CallId : std::uint64_t {};

enum class Verb : std::uint8_t {
  kOpen = 1,
  kWaitOpen,
  kMatch,
  kGet,
  kLoad,
  kPut,
  kTouch,
  kRetain,
  kUnretain,
  kDrop,
  kRelease,
  kLend,
  kRemoveDeviceMemory,
  kOther,
  kMatchSet,
  kGetSet,
  kPutSet
};

/// Results of a set call, by name: the one for the call's verb. Its lists have an element per hash.
struct SetResults {
  SetMatchResult match;
  SetGetResult get;
  SetPutResult put;
};

/// One event of a call. A call's events come in the order in which they happened; the last, exactly one, is kEnd.
struct Completion {
  enum class Kind : std::uint8_t {
    kEnd,      ///< The call has ended: `error`, and the result of its verb.
    kMatched,  ///< A load that asked for it: `match` is known, and the blocks are on their way.
    kSegment   ///< A get or load: the first get.block_count blocks have segment `segment` and all earlier ones.
  };
  CallId call{};
  std::uint64_t tag = 0;
  Verb verb{};
  Kind kind = Kind::kEnd;
  /// As the blocking call returns it: a dead, slow or full node is not an error but a smaller result with its `why`.
  /// kCancelled: the call was given up; the results cover the part done by then. kUnavailable from a queue that
  /// is_disabled(): the results are empty.
  error_code error;
  MatchResult match;  ///< match, load.
  GetResult get;      ///< get, load.
  PutResult put;
  DropResult drop;
  /// match_set, get_set, put_set; null if the call failed before any block. A pointer keeps other completions short.
  std::shared_ptr<const SetResults> sets;
  std::size_t count = 0;  ///< touch, retain, unretain: blocks. lend: connections. other: its return value.
  Space space{};          ///< open.
  std::size_t segment = 0;
};

/// Match, then get of the matched blocks, in one call.
struct LoadOptions {
  std::chrono::microseconds deadline;  ///< For both. No default: choose.
  /// With fewer matched blocks the get is skipped, since recomputing is cheaper. At least 1.
  std::size_t block_count_min = 1;
  bool tell_match = false;                           ///< Report the match in a kMatched completion first.
  std::span<const std::uint64_t> segment_ends = {};  ///< As in GetOptions.
  SegmentCallback on_segment = {};                   ///< As in GetOptions; without it, segments come as kSegment.
  bool memory_only = false;                          ///< As in GetOptions.
  std::span<std::uint64_t> checksums = {};           ///< As in GetOptions.
  ReuseHint reuse = ReuseHint::kNone;                ///< As in MatchOptions.
  TraceContext trace = {};                           ///< As in CallControl.
};
static_assert(std::is_trivially_destructible_v<LoadOptions>);

/// Where results by name go, for a binding whose caller has lists of its own.
struct SetLists {
  /// Called once for each submitted call, just before its end is reported, on any thread. Must not throw.
  void (*write)(const SetLists& lists, const Completion& end) = nullptr;
  void* first = nullptr;  ///< Interpreted by `write` only, as are the others.
  void* second = nullptr;
  std::size_t count = 0;
};
static_assert(std::is_trivially_destructible_v<SetLists>);

/// Calls in flight, and completions not reaped yet.
///   1. A call is in flight from its submit until its kEnd is reaped. Calls and bytes in flight are bounded.
///   2. A call ends exactly once: by its deadline, by cancel(), by shutdown() or with its client. By then the library
///      has released all memory named in the call.
///   3. fd() is readable exactly while completions wait.
///   4. Submitting and cancelling take no lock, allocate only to copy a call longer than those before it, and make at
///      most one system call.
///
/// A submit copies hashes, block addresses, segment ends, token ids, extras, group counts and records. The blocks and
/// the `checksums` of gets and puts stay in use, and the caller leaves them untouched, until the call's kEnd, even
/// after a cancel or a missed deadline. As with the blocking calls, a node may write blocks in memory of allocate()
/// even after a cancelled or late get: they are quarantined, calls that name them fail with kQuarantined, and they may
/// be freed.
///
/// Deadlines count from the submit. `control` in options is set by the queue: only the caller's trace is used.
///
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

  // Each returns a call, whose completions carry `tag`. Errors, after which the call has no completion: kBusy (reap
  // first), kTooLarge (the call alone exceeds bytes_max), kBadRequest (a deadline over 24 hours, counts that do not
  // agree), kCancelled (the queue was shut down, or its client closed), kUnavailable (is_disabled()), kForked. All
  // other mistakes arrive as the completion's `error`.
  Result<CallId> submit_open(NamespaceRecord record, std::chrono::microseconds deadline, std::uint64_t tag = 0);
  /// Ends when a node has opened the namespace: for callers that need one.
  Result<CallId> submit_wait_open(Space space, std::chrono::microseconds deadline, std::uint64_t tag = 0);
  Result<CallId> submit_match(Space space, Hashes hashes, MatchOptions options, std::uint64_t tag = 0);
  /// With segment_ends and without on_segment, each segment is a kSegment completion.
  Result<CallId> submit_get(Space space, Hashes hashes, TargetBlocks blocks, GetOptions options, std::uint64_t tag = 0);
  Result<CallId> submit_load(Space space, Hashes hashes, TargetBlocks blocks, LoadOptions options,
                             std::uint64_t tag = 0);
  Result<CallId> submit_put(Space space, Hashes hashes, SourceBlocks blocks, PutOptions options, std::uint64_t tag = 0);
  // Blocks that stand alone, as Client's calls of these names. Destinations count against bytes_max in full, whatever
  // lands, and so do the results by name.
  Result<CallId> submit_match_set(Space set, Hashes hashes, SetMatchOptions options, std::uint64_t tag = 0,
                                  SetLists lists = {});
  Result<CallId> submit_get_set(Space set, Hashes hashes, TargetBlocks blocks, SetGetOptions options,
                                std::uint64_t tag = 0, SetLists lists = {});
  Result<CallId> submit_put_set(Space set, Hashes hashes, SourceBlocks blocks, SetPutOptions options,
                                std::uint64_t tag = 0, SetLists lists = {});
  Result<CallId> submit_touch(Space space, Hashes hashes, std::chrono::microseconds deadline, std::uint64_t tag = 0);
  Result<CallId> submit_retain(Space space, Hashes hashes, std::chrono::microseconds deadline, std::uint64_t tag = 0);
  Result<CallId> submit_unretain(Space space, Hashes hashes, std::chrono::microseconds deadline, std::uint64_t tag = 0);
  Result<CallId> submit_drop(Space space, Hashes hashes, std::chrono::microseconds deadline, std::uint64_t tag = 0);
  Result<CallId> submit_release(Lease lease, std::uint64_t tag = 0);
  Result<CallId> submit_lend(std::span<std::byte> memory, std::chrono::microseconds deadline, std::uint64_t tag = 0);
  Result<CallId> submit_remove_device_memory(std::span<std::byte> memory, std::chrono::microseconds deadline,
                                             std::uint64_t tag = 0);
  /// Any other use of the client: `work` runs on the I/O thread, must not block it, and handles its own deadline. Calls
  /// to which it passes `control` can be cancelled.
  using Work = std::function<Async<std::size_t>(Client& client, CallControl control)>;
  Result<CallId> submit_other(Work work, std::uint64_t tag = 0);

  /// Gives a call up. Its completion follows soon, whatever the node does; wait for it. A call that ended meanwhile
  /// keeps its result. Errors: kNotFound if it was reaped, or never existed.
  Result<void> cancel(CallId call);

  /// Takes up to into.size() completions, oldest first. Waits until there are `count_min` (at most into.size()), all
  /// calls in flight have ended, or `timeout` has passed; by default does not wait. Returns how many. Errors: kForked.
  Result<std::size_t> reap(std::span<Completion> into, std::size_t count_min = 0,
                           std::chrono::microseconds timeout = std::chrono::microseconds(0));
  /// Takes the ends of these calls, once `count_min` of them have ended or `timeout` has passed: 1 for any one,
  /// calls.size() for all. Returns how many, in the order of `calls`; their unreaped kSegments and kMatched are
  /// dropped. Requires into.size() >= calls.size(). Errors: kBadRequest, kForked; kNotFound if a call was already
  /// reaped or never existed: then all ends stay.
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
  /// Whether an internal error has ended the client's I/O thread; then all calls have ended, with kUnavailable.
  bool is_disabled() const;
  bool is_forked() const;
  /// Of a namespace opened by the client; 0: not opened. Does not wait.
  std::size_t block_bytes(Space space) const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace kv
