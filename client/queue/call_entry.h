// client/queue/call_entry.h: one submitted call, from its submit until its end is reaped.
#pragma once

#include <atomic>
#include <boost/intrusive/list_hook.hpp>
#include <cstdint>
#include <optional>
#include <semaphore>
#include <vector>

#include "base/clock.h"
#include "client/queue/argument_store.h"
#include "client/request.h"

namespace kv {

class Completions;

/// A thread that waits for the end of its call.
struct CallWaiter {
  Completion end;
  bool is_in_charge = false;  ///< The waiting thread itself ends the call, so nobody wakes it.
  bool has_ended = false;     ///< For a thread in charge.
  std::binary_semaphore done{0};
};

/// A place for a call in flight. Its parts belong to one side at a time, and each hand-over is a release by one side
/// and an acquire by the other:
///
///     CallTable        submitter          I/O thread          Completions      reaper
///     free  ---------> fills it --------> runs the call ----> has ended -----> copies the end --> free
///             take()             push()              tell_end()        reap()             give_back()
struct CallEntry {
  // CallTable.
  std::uint32_t index = 0;
  std::atomic<std::uint32_t> next_free{0};
  std::atomic<std::uint64_t> id{0};  ///< Of its call; 0: without a name.
  std::uint64_t use_count = 0;       ///< Makes each id unique.
  std::size_t bytes = 0;             ///< Counted against bytes_max.

  // The call. Written by the submitter, then the I/O thread's.
  Request request;
  TimePoint until{};
  ArgumentStore arguments;  ///< What `request` borrows, as are the next two.
  std::optional<NamespaceRecord> record;
  Work work;
  CallWaiter* waiter = nullptr;  ///< Null: the end goes to Completions.
  CallEntry* next_submitted = nullptr;

  // A wish to cancel, from any thread.
  std::atomic<std::uint64_t> cancel_id{0};  ///< The newest call here with a wish to cancel.
  std::atomic<bool> is_cancel_queued{false};
  CallEntry* next_cancelled = nullptr;

  // The I/O thread's.
  enum class Progress : std::uint8_t { kNone, kTaken, kRunning };
  Progress progress = Progress::kNone;
  std::optional<Cancellation> cancellation;  ///< Of this call, from kTaken on.

  // Under the lock of Completions, but for `end`, which is the I/O thread's until the call has ended.
  struct SegmentMark {
    std::size_t segment, block_count;
  };
  Completions* completions = nullptr;
  boost::intrusive::list_member_hook<> listed;  ///< Linked: it has completions to reap.
  bool has_ended = false;
  std::optional<MatchResult> matched;  ///< To be reported.
  std::vector<SegmentMark> segments;   ///< All so far; those before segments_told were reaped.
  std::size_t segments_told = 0;
  Completion end;
};

}  // namespace kv
