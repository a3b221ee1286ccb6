// transport/verbs/verbs_mover.h: moves blocks between a node's arena and lent memory, over one queue pair.
//
// In: arena slots, pinned or staged, and each one's place in the client's region. Out: the bytes, moved by the device
// without a processor; and a mark for each segment once it has landed whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/event.h"
#include "base/owner.h"
#include "transport/verbs/completion_loop.h"
#include "transport/verbs/verbs.h"

namespace kv::verbs {

enum class Direction : std::uint8_t { kToPeer, kFromPeer };  ///< A get is a WRITE, a put is a READ.

/// Local memory within one registered slice, and its counterpart within one slice of the peer's.
struct Stretch {
  std::span<std::byte> local;  ///< Not empty; below 4 GiB.
  std::uint32_t lkey = 0;
  std::uint64_t remote_address = 0;
  std::uint32_t rkey = 0;
};

struct MoverOptions {
  std::uint64_t chunk_bytes = 1 << 20;     ///< Most bytes of one request. Devices differ in their limits.
  std::uint32_t batch_request_count = 16;  ///< Requests that share one signalled completion.
  std::uint64_t outstanding_bytes_max = 8 << 20;
  std::uint32_t request_count_max = 128;  ///< Outstanding on the queue pair.
  std::uint32_t piece_count_max = 8;      ///< Stretches that adjoin at the peer go as one request.
  std::uint8_t port = 1;
};

/// Order: moves are posted one after the other, their stretches in order. Its queue pair allows no remote access.
///   1. `owner` is held as long as the device may touch local memory of the move: until its last completion or flush
///      has come, or the queue pair is destroyed. A call that ends by its deadline ends before that.
///   2. Outstanding requests and bytes stay within MoverOptions. A single request that is larger goes alone.
///   3. The first failure breaks it for good: all moves end with an error. Make a new one.
/// The peer may reuse its memory when the move has succeeded, or when it has ended its own queue pair.
/// Thread safety: none; all calls on the loop's executor.
class VerbsMover {
 public:
  /// Errors: those of create_queue_pair.
  static Result<std::unique_ptr<VerbsMover>, Failure> create(CompletionLoop& loop, Clock& clock,
                                                             ProtectionDomain& domain, const MoverOptions& options);
  ~VerbsMover();  ///< Moves in progress end with operation_aborted.

  QueuePair& queue_pair() { return *pair_; }  ///< To be connected, before the first move.

  /// Called on the loop, in order, with 0, 1, ...; not after the move has ended.
  using OnSegment = std::function<void(std::size_t segment)>;
  /// Moves `stretches`. Segment i ends before stretch segment_ends[i]; ends ascend, the last one is stretches.size().
  /// `owner` keeps the local memory (1). Errors: a Status as an error_code; timed_out; kUnavailable if the mover is
  /// broken; operation_aborted on cancellation, which breaks the mover, and on its destruction.
  Async<void> move(Direction direction, std::vector<Stretch> stretches, std::vector<std::size_t> segment_ends,
                   Owner owner, TimePoint deadline, OnSegment on_segment);

  /// Ends this owner's moves with kCancelled once their posted part has landed, if that was not all.
  void stop(OwnerId owner);
  /// Puts the queue pair into ERROR: all moves end with `why` as soon as they are flushed.
  void fail(error_code why);
  bool is_broken() const { return static_cast<bool>(broken_); }
  error_code broken() const { return broken_; }         ///< Why; no error if it is not broken.
  bool is_drained() const { return batches_.empty(); }  ///< The device no longer touches our memory.
  /// `call` is made once, on the loop, after the device is gone: owners are held until this mover is destroyed.
  void on_gone(std::function<void()> call) { on_gone_ = std::move(call); }

  struct Counters {
    std::uint64_t bytes = 0, requests = 0, batches = 0;
  };
  const Counters& counters() const { return counters_; }

 private:
  struct Job;
  struct Batch {
    std::shared_ptr<Job> job;
    std::uint64_t bytes = 0;
  };

  VerbsMover(CompletionLoop& loop, Clock& clock, const MoverOptions& options);
  bool post_next(const std::shared_ptr<Job>& job);  ///< False: no room now.
  void post_all();
  void on_completion(const Completion& completion);
  void batch_ended(const std::shared_ptr<Job>& job);
  static void end(Job& job, error_code why);

  CompletionLoop& loop_;
  Clock& clock_;
  MoverOptions options_;
  std::deque<std::shared_ptr<Job>> waiting_;          ///< Not wholly posted, in order.
  std::unordered_map<std::uint64_t, Batch> batches_;  ///< Outstanding, by id.
  std::uint64_t batch_last_ = 0, outstanding_bytes_ = 0;
  error_code broken_;
  std::function<void()> on_gone_;
  Counters counters_;
  std::unique_ptr<QueuePair> pair_;
};

}  // namespace kv::verbs
