// client/queue/completions.h: what has become known of submitted calls and nobody has reaped yet.
#pragma once

#include <atomic>
#include <boost/intrusive/list.hpp>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <limits>
#include <mutex>
#include <span>

#include "base/result.h"
#include "client/queue/call_slot.h"
#include "client/queue/call_slots.h"
#include "client/waker.h"
#include "transport/forked.h"
#include "transport/stream.h"

namespace kv {

/// The way back of a call: from the I/O thread, which tells, to the threads that reap.
///   1. A slot is in the list exactly while something of its call can be reaped.
///   2. The eventfd is readable exactly while the list is not empty. Both change under one lock, which is held for no
///      transfer and no wait: the I/O thread never waits for a reaper that sleeps.
/// Thread safety: any.
class Completions {
 public:
  /// Throws std::system_error if no eventfd can be had.
  explicit Completions(CallSlots& slots);

  void begun() { unended_.fetch_add(1, std::memory_order_relaxed); }  ///< A call that will end.
  void tell_matched(CallSlot& slot, const MatchResult& match);
  void tell_segment(CallSlot& slot, std::size_t segment, std::size_t block_count);
  /// slot.end is complete. The slot is the reapers' from here on.
  void tell_end(CallSlot& slot);

  /// See CompletionQueue.
  std::size_t reap(std::span<Completion> into, std::size_t count_min, std::chrono::microseconds timeout);
  Result<std::size_t> wait(std::span<const CallId> calls, std::size_t count_min, std::chrono::microseconds timeout,
                           std::span<Completion> into);
  int fd() const { return readable_.get(); }

 private:
  using List = boost::intrusive::list<
      CallSlot, boost::intrusive::member_hook<CallSlot, boost::intrusive::list_member_hook<>, &CallSlot::listed>>;
  static constexpr std::size_t kNobody = std::numeric_limits<std::size_t>::max();

  void add(CallSlot& slot);
  void take_next(Completion& into);
  void free(CallSlot& slot);
  void unlist(CallSlot& slot);
  /// Until `done()`, for which the completions told so far must at least be `wanted`.
  template <class Done>
  void wait_until(std::unique_lock<std::mutex>& lock, std::chrono::microseconds timeout, std::size_t wanted, Done done);

  CallSlots& slots_;
  Descriptor readable_;
  ClosedInChild closed_in_child_;
  std::mutex mutex_;
  std::condition_variable told_;
  List list_;
  std::size_t count_ = 0;               ///< Completions that can be reaped, over all listed slots.
  std::size_t least_wanted_ = kNobody;  ///< Of the waiting threads: so that not each completion wakes each of them.
  std::atomic<std::size_t> unended_{0};
};

}  // namespace kv
