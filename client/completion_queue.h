// client/completion_queue.h: the calls of a client without blocking: submit now, reap what has ended later.
//
//   CompletionQueue queue(client);                                   // a BlockingClient; any number of queues
//   loop.add_reader(queue.fd(), on_readable);                        // epoll, asyncio, libuv: level-triggered
//   const auto call = queue.submit_load(space, hashes, pages, {.deadline = 50ms, .block_count_min = 8}, request);
//   if (!call) prefill(request);                                     // kBusy: too much is in flight already
//   ...
//   Completion ended[64];                                            // on_readable: all that has ended, in one call
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
  std::size_t calls_max = 256;         ///< In flight: submitted and not yet reaped. 1..65536; one more is kBusy.
  std::size_t bytes_max = 4ull << 30;  ///< Of the same calls: blocks to be filled or read, and what was copied.
  /// A call waits, up to its deadline, for a node that is being connected. False: what a node without a connection
  /// owns is answered at once, with kUnavailable, and connecting goes on in the background.
  bool wait_while_away = false;
};

/// Names a call of one queue, for ever: never 0, and never used again.
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

/// What became of the blocks of a set, by name: one of the three, of the call's verb. Each of its lists has an element
/// for each hash.
struct SetResults {
  SetMatchResult match;
  SetGetResult get;
  SetPutResult put;
};

/// Something that became known of a call. Each call has exactly one with kEnd, and that comes last; those of one call
/// come in the order in which they happened.
struct Completion {
  enum class Kind : std::uint8_t {
    kEnd,      ///< It has ended: `error`, and the result of its verb.
    kMatched,  ///< Of a load that asked for it: `match` is known, and the bytes are on their way.
    kSegment   ///< Of a get or load: the first get.block_count blocks have segment `segment` and all before it.
  };
  CallId call{};
  std::uint64_t tag = 0;  ///< As it was submitted.
  Verb verb{};
  Kind kind = Kind::kEnd;
  /// As the blocking call returns it: that a node is dead, slow or full is none, but a smaller result with its `why`.
  /// kCancelled: the call was given up; the results say what was done by then. kUnavailable of a queue that
  /// is_disabled(): they say nothing.
  error_code error;
  MatchResult match;  ///< Of match and load.
  GetResult get;      ///< Of get and load.
  PutResult put;
  DropResult drop;
  /// Of match_set, get_set and put_set; null where `error` says that no block was looked at. Behind a pointer, so that
  /// the completions of other verbs stay short.
  std::shared_ptr<const SetResults> sets;
  std::size_t count = 0;  ///< Of touch, retain and unretain: blocks. Of lend: connections. Of other: what it returned.
  Space space{};          ///< Of open.
  std::size_t segment = 0;
};

/// Match, then get what was found: one call for what an engine decides in advance.
struct LoadOptions {
  std::chrono::microseconds deadline;  ///< Of both. No default: choose.
  /// If fewer blocks are found, none is moved: recomputing is cheaper. At least 1.
  std::size_t block_count_min = 1;
  bool tell_match = false;                           ///< With a completion of its own, before the bytes come.
  std::span<const std::uint64_t> segment_ends = {};  ///< As in GetOptions.
  SegmentCallback on_segment = {};                   ///< As in GetOptions; else kSegment tells.
  bool memory_only = false;                          ///< As in GetOptions.
  std::span<std::uint64_t> checksums = {};           ///< As in GetOptions.
  ReuseHint reuse = ReuseHint::kNone;                ///< As in MatchOptions.
  TraceContext trace = {};                           ///< As in CallControl.
};
static_assert(std::is_trivially_destructible_v<LoadOptions>);

/// For a border whose caller has lists of its own: where the results by name go.
struct SetLists {
  /// Called once for each call that was handed over, just before its end is told, on any thread. Must not throw.
  void (*write)(const SetLists& lists, const Completion& end) = nullptr;
  void* first = nullptr;  ///< Known to `write` alone, as are the others.
  void* second = nullptr;
  std::size_t count = 0;
};
static_assert(std::is_trivially_destructible_v<SetLists>);

/// Calls in flight, and the completions that nobody has reaped.
///   1. A call is in flight from its submit until its kEnd is reaped. Calls and bytes in flight are bounded.
///   2. A call ends exactly once: by its deadline, by cancel(), by shutdown() or with its client. By then the library
///      has let go of all memory that the call named.
///   3. fd() is readable exactly while completions wait.
///   4. Submitting and cancelling take no lock, allocate only to copy a call longer than those before it, and make at
///      most one system call.
///
/// What is copied at submit: hashes, the addresses of blocks, segment ends, token ids, extras, group counts and
/// records. What stays the caller's, untouched by the caller until the kEnd of the call, whether it was cancelled or
/// missed its deadline or not: the blocks, and the `checksums` of gets and puts. As with the blocking calls, blocks in
/// memory of allocate() may be written by a node even after a cancelled or late get: those are quarantined, and calls
/// that name them fail with kQuarantined. Such memory may be freed.
///
/// Deadlines count from the submit. `control` in options is the queue's own: what is set there is ignored, but for its
/// trace.
///
/// Thread safety: all functions from any thread, at once; on the client's I/O thread (segment callbacks) those that do
/// not wait. The destructor waits for nobody's node, only for the I/O thread; requires that no function is being called
/// and that it is not run on the I/O thread. Either of queue and client may be destroyed first. After fork() the child
/// gets kForked, and its copy of fd() is closed; the parent notices nothing.
class CompletionQueue {
 public:
  /// Throws std::invalid_argument for bad options, std::system_error if no descriptor can be had.
  explicit CompletionQueue(BlockingClient& client, CompletionQueueOptions options = {});
  /// As shutdown(), and forgets what was not reaped. By its return the library has let go of all memory of the calls.
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  // Each hands back a call, whose end will be told with `tag`. Errors, for which nothing will be told: kBusy (reap
  // first), kTooLarge (it alone is over bytes_max), kBadRequest (a deadline over 24 hours, counts that do not agree),
  // kCancelled (the queue was shut down, or its client closed), kUnavailable (is_disabled()), kForked. All other
  // mistakes are the completion's `error`.
  Result<CallId> submit_open(NamespaceRecord record, std::chrono::microseconds deadline, std::uint64_t tag = 0);
  /// Ends when a node has opened it: for who insists that one is there.
  Result<CallId> submit_wait_open(Space space, std::chrono::microseconds deadline, std::uint64_t tag = 0);
  Result<CallId> submit_match(Space space, std::span<const BlockHash> hashes, MatchOptions options,
                              std::uint64_t tag = 0);
  /// With segment_ends and no on_segment, each segment is told by a kSegment.
  Result<CallId> submit_get(Space space, std::span<const BlockHash> hashes,
                            std::span<const std::span<std::byte>> blocks, GetOptions options, std::uint64_t tag = 0);
  Result<CallId> submit_load(Space space, std::span<const BlockHash> hashes,
                             std::span<const std::span<std::byte>> blocks, LoadOptions options, std::uint64_t tag = 0);
  Result<CallId> submit_put(Space space, std::span<const BlockHash> hashes,
                            std::span<const std::span<const std::byte>> blocks, PutOptions options,
                            std::uint64_t tag = 0);
  // Blocks that stand alone, as Client's verbs of these names. Rooms count against bytes_max whole, whatever lands
  // there, and so do the results by name.
  Result<CallId> submit_match_set(Space set, std::span<const BlockHash> hashes, SetMatchOptions options,
                                  std::uint64_t tag = 0, SetLists lists = {});
  Result<CallId> submit_get_set(Space set, std::span<const BlockHash> hashes,
                                std::span<const std::span<std::byte>> blocks, SetGetOptions options,
                                std::uint64_t tag = 0, SetLists lists = {});
  Result<CallId> submit_put_set(Space set, std::span<const BlockHash> hashes,
                                std::span<const std::span<const std::byte>> blocks, SetPutOptions options,
                                std::uint64_t tag = 0, SetLists lists = {});
  Result<CallId> submit_touch(Space space, std::span<const BlockHash> hashes, std::chrono::microseconds deadline,
                              std::uint64_t tag = 0);
  Result<CallId> submit_retain(Space space, std::span<const BlockHash> hashes, std::chrono::microseconds deadline,
                               std::uint64_t tag = 0);
  Result<CallId> submit_unretain(Space space, std::span<const BlockHash> hashes, std::chrono::microseconds deadline,
                                 std::uint64_t tag = 0);
  Result<CallId> submit_drop(Space space, std::span<const BlockHash> hashes, std::chrono::microseconds deadline,
                             std::uint64_t tag = 0);
  Result<CallId> submit_release(Lease lease, std::uint64_t tag = 0);
  Result<CallId> submit_lend(std::span<std::byte> memory, std::chrono::microseconds deadline, std::uint64_t tag = 0);
  Result<CallId> submit_remove_device_memory(std::span<std::byte> memory, std::chrono::microseconds deadline,
                                             std::uint64_t tag = 0);
  /// Any other use of the client: `work` runs on the I/O thread and must not hold it up; what it passes `control` to
  /// can be cancelled. The deadline is its own affair.
  using Work = std::function<Async<std::size_t>(Client& client, CallControl control)>;
  Result<CallId> submit_other(Work work, std::uint64_t tag = 0);

  /// Gives a call up. Its completion comes soon, whatever the node does, and is the one to wait for; a call that ended
  /// meanwhile ends as it did. Errors: kNotFound if it was reaped, or never was.
  Result<void> cancel(CallId call);

  /// Takes up to into.size() completions, oldest first. Waits until there are `count_min` (or into.size(), if that is
  /// less), nothing is in flight that has not ended, or `timeout` has passed; by default for nothing. Returns how many,
  /// none is no error. Errors: kForked.
  Result<std::size_t> reap(std::span<Completion> into, std::size_t count_min = 0,
                           std::chrono::microseconds timeout = std::chrono::microseconds(0));
  /// Takes the ends of these calls, once `count_min` of them have ended or `timeout` has passed: 1 for one of them,
  /// calls.size() for all. Returns how many, in the order of `calls`; kSegments and kMatched of these that were not
  /// reaped are dropped. Requires into.size() >= calls.size(). Errors: kBadRequest, kForked; kNotFound if one of them
  /// was reaped before, or never was: then none is taken.
  Result<std::size_t> wait(std::span<const CallId> calls, std::size_t count_min, std::chrono::microseconds timeout,
                           std::span<Completion> into);

  /// For epoll, poll, asyncio's add_reader: readable exactly while completions wait to be reaped. Nobody reads from it;
  /// reaping the last one makes it unreadable. With EPOLLET reap until nothing comes. Owned by the queue.
  int fd() const;
  std::size_t calls_in_flight() const;
  std::size_t bytes_in_flight() const;

  /// No call is taken any more, those in progress are cancelled, and who waits is woken when they have ended. What has
  /// ended can still be reaped. Waits for nothing.
  void shutdown();
  /// Whether an internal error has ended the client's I/O thread. Then all calls have ended, with kUnavailable.
  bool is_disabled() const;
  bool is_forked() const;
  /// Of a namespace that the client has opened; 0: it has not. Waits for nobody.
  std::size_t block_bytes(Space space) const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace kv
