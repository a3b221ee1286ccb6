#include "client/link/deadline_queue.h"

namespace kv {

/// One alarm for all entries. It is rearmed only for an earlier deadline: most calls end long before theirs, and a
/// timer for each would cost a system call.
void DeadlineQueue::add(DeadlineEntry& entry, TimePoint when) {
  entry.set_deadline(when);
  entries_.insert(entry);
  if (alarm_ && when < armed_) arm(when);
}

void DeadlineQueue::close() {
  alarm_.reset();
  entries_.clear();
}

void DeadlineQueue::arm(TimePoint when) {
  armed_ = when;
  alarm_->arm(when, [this] { ring(); });
}

/// Entries end one by one, each unlinked first: its end may add entries, remove others, or close the queue.
void DeadlineQueue::ring() {
  armed_ = TimePoint::max();
  const TimePoint now = clock_.now();
  while (!entries_.empty() && entries_.begin()->deadline() <= now) {
    DeadlineEntry& entry = *entries_.begin();
    entry.unlink();
    entry.on_deadline();
    if (!alarm_) return;  // the entry's end destroyed the client
  }
  // An entry added meanwhile may have armed it already.
  if (!entries_.empty() && entries_.begin()->deadline() < armed_) arm(entries_.begin()->deadline());
}

}  // namespace kv
