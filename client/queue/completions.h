// client/queue/completions.h: the completions of submitted calls that are not reaped yet.
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
#include "client/queue/call_entry.h"
#include "client/queue/call_table.h"
#include "client/thread/waker.h"
#include "transport/forked.h"
#include "transport/stream.h"

namespace kv {

/// The way back of a call: from the I/O thread, which reports, to the threads that reap.
///   1. An entry is in the list exactly while its call has completions to reap.
///   2. The eventfd is readable exactly while the list is not empty. Both change under one lock, which is never held
///      during a transfer or a wait: the I/O thread does not wait for a sleeping reaper.
/// Thread safety: any.
class Completions {
 public:
  /// Throws std::system_error without an eventfd.
  explicit Completions(CallTable& table);

  void begun() { unended_.fetch_add(1, std::memory_order_relaxed); }  ///< A call that will end.
  void tell_matched(CallEntry& entry, const MatchResult& match);
  void tell_segment(CallEntry& entry, std::size_t segment, std::size_t block_count);
  /// entry.end is complete. From here on the entry belongs to the reapers.
  void tell_end(CallEntry& entry);

  /// See CompletionQueue.
  std::size_t reap(std::span<Completion> into, std::size_t count_min, std::chrono::microseconds timeout);
  Result<std::size_t> wait(std::span<const CallId> calls, std::size_t count_min, std::chrono::microseconds timeout,
                           std::span<Completion> into);
  int fd() const { return readable_.get(); }

 private:
  using List = boost::intrusive::list<
      CallEntry, boost::intrusive::member_hook<CallEntry, boost::intrusive::list_member_hook<>, &CallEntry::listed>>;
  static constexpr std::size_t kNobody = std::numeric_limits<std::size_t>::max();

  void add(CallEntry& entry);
  void take_next(Completion& into);
  void free(CallEntry& entry);
  void unlist(CallEntry& entry);
  /// Waits for `done()`, which needs at least `wanted` completions.
  template <class Done>
  void wait_until(std::unique_lock<std::mutex>& lock, std::chrono::microseconds timeout, std::size_t wanted, Done done);

  CallTable& table_;
  Descriptor readable_;
  ClosedInChild closed_in_child_;
  std::mutex mutex_;
  std::condition_variable told_;
  List list_;
  std::size_t count_ = 0;               ///< Completions that can be reaped, over all listed entries.
  std::size_t least_wanted_ = kNobody;  ///< By waiting threads, to avoid waking each for every completion.
  std::atomic<std::size_t> unended_{0};
};

}  // namespace kv
