// tests/fakes/virtual_clock.h: time that moves only by advance(): an hour passes at once, and every run is the same.
#pragma once

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "base/assert.h"
#include "base/clock.h"

namespace kv {

/// Alarms ring in the order of their times, and those of one time in the order of arming: a simulation must not depend
/// on memory addresses. Not thread-safe. Outlives its alarms.
class VirtualClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  std::unique_ptr<Alarm> make_alarm(const asio::any_io_executor& executor) override {
    return std::make_unique<VirtualAlarm>(*this, executor);
  }

  bool has_alarm() const { return !alarms_.empty(); }
  TimePoint next_alarm() const {  ///< Requires has_alarm().
    KV_ASSERT(has_alarm());
    return alarms_.begin()->first.first;
  }
  /// Rings (posts to their executors) all alarms due by then, in order. While an alarm is posted, the time is its own.
  void advance_to(TimePoint when) {
    while (has_alarm() && next_alarm() <= when) {
      VirtualAlarm* const alarm = alarms_.begin()->second;
      now_ = std::max(now_, next_alarm());
      alarms_.erase(alarms_.begin());
      alarm->post_ring();
    }
    now_ = std::max(now_, when);  // alarms and `when` may lie in the past: time never goes back
  }
  void advance(Duration by) { advance_to(now_ + by); }

 private:
  using Key = std::pair<TimePoint, std::uint64_t>;

  class VirtualAlarm final : public Alarm {
   public:
    VirtualAlarm(VirtualClock& clock, const asio::any_io_executor& executor) : clock_(clock), executor_(executor) {}
    ~VirtualAlarm() override { disarm(); }

    void arm(TimePoint when, std::function<void()> ring) override {
      disarm();
      ring_ = std::make_shared<std::function<void()>>(std::move(ring));
      key_ = {when, ++clock_.sequence_};
      clock_.alarms_.emplace(key_, this);
    }
    void disarm() override {
      clock_.alarms_.erase(key_);  // harmless if the alarm is not armed: keys are unique
      if (ring_) *ring_ = nullptr;
      ring_ = nullptr;
    }
    /// Posted, not called, as arm() promises: `ring` never runs inside advance_to(). Disarmed, armed again or destroyed
    /// meanwhile: it does not run. It may itself arm the alarm again, or destroy it.
    void post_ring() {
      asio::post(executor_, [weak = std::weak_ptr(ring_)] {
        const auto held = weak.lock();
        if (const auto ring = held ? std::exchange(*held, nullptr) : nullptr) ring();
      });
    }

   private:
    VirtualClock& clock_;
    asio::any_io_executor executor_;
    std::shared_ptr<std::function<void()>> ring_;
    Key key_{TimePoint::min(), 0};
  };

  std::map<Key, VirtualAlarm*> alarms_;
  TimePoint now_{Duration{1'000'000'000}};  ///< Not the epoch, so that earlier times exist.
  std::uint64_t sequence_ = 0;
};

}  // namespace kv
