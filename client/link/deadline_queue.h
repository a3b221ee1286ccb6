// client/link/deadline_queue.h: one alarm for all deadlines of a client.
#pragma once

#include <boost/intrusive/set.hpp>
#include <memory>

#include "base/assert.h"
#include "base/clock.h"

namespace kv {

/// Something that ends at a set time. Belongs to at most one queue; removes itself when destroyed.
///   1. Its time does not change while it is in a queue.
class DeadlineEntry
    : public boost::intrusive::set_base_hook<boost::intrusive::link_mode<boost::intrusive::auto_unlink>> {
 public:
  virtual ~DeadlineEntry() = default;
  TimePoint deadline() const { return when_; }
  void set_deadline(TimePoint when) {
    KV_ASSERT(!is_linked());  // 1
    when_ = when;
  }
  /// Called by the queue after removing the entry, which may be added anew, or destroyed.
  virtual void on_deadline() = 0;

 protected:
  DeadlineEntry() = default;
  DeadlineEntry(const DeadlineEntry&) = delete;
  DeadlineEntry& operator=(const DeadlineEntry&) = delete;

 private:
  TimePoint when_{};
};

/// Deadlines in order of time. Arming a timer costs more than a small call, and most calls end early: the alarm is set
/// only for an earlier deadline than its present one, and stays set when that one is removed.
///   1. While there are entries, the alarm rings no later than the first one's deadline.
///   2. After close() the clock is not used, and entries are not called.
/// Thread safety: none; all calls on the executor. Cost: O(log n), no allocation per entry.
class DeadlineQueue {
 public:
  DeadlineQueue(Clock& clock, const asio::any_io_executor& executor)
      : clock_(clock), alarm_(clock.make_alarm(executor)) {}

  void add(DeadlineEntry& entry, TimePoint when);
  void remove(DeadlineEntry& entry) {
    if (entry.is_linked()) entry.unlink();
  }
  /// Drops all entries; the clock is not used again.
  void close();

 private:
  void arm(TimePoint when);
  void ring();

  struct Earlier {
    bool operator()(const DeadlineEntry& a, const DeadlineEntry& b) const { return a.deadline() < b.deadline(); }
  };
  Clock& clock_;
  boost::intrusive::multiset<DeadlineEntry, boost::intrusive::compare<Earlier>,
                             boost::intrusive::constant_time_size<false>>
      entries_;
  TimePoint armed_ = TimePoint::max();  ///< When the alarm rings; max: it is off.
  std::unique_ptr<Alarm> alarm_;
};

}  // namespace kv
