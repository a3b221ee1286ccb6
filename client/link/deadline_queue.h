// client/link/deadline_queue.h: one alarm for all deadlines of a client.
#pragma once

#include <boost/intrusive/set.hpp>
#include <memory>

#include "base/clock.h"

namespace kv {

/// Something that ends at a set time. Belongs to at most one queue; removes itself when destroyed.
class DeadlineEntry
    : public boost::intrusive::set_base_hook<boost::intrusive::link_mode<boost::intrusive::auto_unlink>> {
 public:
  virtual ~DeadlineEntry() = default;
  TimePoint deadline() const { return when_; }

 protected:
  DeadlineEntry() = default;
  DeadlineEntry(const DeadlineEntry&) = delete;
  DeadlineEntry& operator=(const DeadlineEntry&) = delete;

 private:
  friend class DeadlineQueue;
  virtual void on_deadline() = 0;  ///< The entry is out of the queue again; it may be added anew, or destroyed.
  TimePoint when_{};
};

/// Deadlines in order of time. Arming a timer costs more than a small call, and most calls end early: the alarm is set
/// only for a deadline earlier than the one it waits for, and not reset when that one is removed.
/// Thread safety: none; all calls on the executor. No allocation per entry.
class DeadlineQueue {
 public:
  DeadlineQueue(Clock& clock, const asio::any_io_executor& executor)
      : clock_(clock), alarm_(clock.make_alarm(executor)) {}

  void add(DeadlineEntry& entry, TimePoint when);
  void remove(DeadlineEntry& entry) {
    if (entry.is_linked()) entry.unlink();
  }
  /// Forgets all entries; the clock is not used again.
  void close();

 private:
  void arm(TimePoint when);
  void ring();

  struct Earlier {
    bool operator()(const DeadlineEntry& a, const DeadlineEntry& b) const { return a.when_ < b.when_; }
  };
  Clock& clock_;
  boost::intrusive::multiset<DeadlineEntry, boost::intrusive::compare<Earlier>,
                             boost::intrusive::constant_time_size<false>>
      entries_;
  TimePoint armed_ = TimePoint::max();
  std::unique_ptr<Alarm> alarm_;
};

}  // namespace kv
