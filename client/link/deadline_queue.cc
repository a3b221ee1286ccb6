#include "client/link/deadline_queue.h"

#include "base/assert.h"

namespace kv {

void DeadlineQueue::add(DeadlineEntry& entry, TimePoint when) {
  KV_ASSERT(!entry.is_linked());
  entry.when_ = when;
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
  while (!entries_.empty() && entries_.begin()->when_ <= now) {
    DeadlineEntry& entry = *entries_.begin();
    entry.unlink();
    entry.on_deadline();
    if (!alarm_) return;
  }
  if (!entries_.empty() && entries_.begin()->when_ < armed_) arm(entries_.begin()->when_);
}

}  // namespace kv
