#include "client/link/deadline_queue.h"

#include "base/assert.h"

namespace kv {

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

void DeadlineQueue::ring() {
  armed_ = TimePoint::max();
  const TimePoint now = clock_.now();
  while (!entries_.empty() && entries_.begin()->deadline() <= now) {
    DeadlineEntry& entry = *entries_.begin();
    entry.unlink();
    entry.on_deadline();
    if (!alarm_) return;  // the entry's end was the client's
  }
  // An entry that was added meanwhile may have armed it already.
  if (!entries_.empty() && entries_.begin()->deadline() < armed_) arm(entries_.begin()->deadline());
}

}  // namespace kv
