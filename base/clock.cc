#include "base/clock.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/assert.h"

namespace kv {
namespace {

/// Shared by an alarm and its handlers in an executor. A queued handler cannot be called back, so each carries the
/// generation that it was armed in and does nothing once that generation is over.
struct AlarmState {
  std::uint64_t generation = 0;
  std::function<void()> ring;

  std::uint64_t begin(std::function<void()> new_ring) {
    ring = std::move(new_ring);
    return ++generation;
  }
  void end() {
    ++generation;
    ring = nullptr;  // at once, not when the queued handler runs: it may own objects about to be destroyed
  }
};

/// By weak pointer: a queued handler may run after its alarm was destroyed.
void ring_if_current(const std::weak_ptr<AlarmState>& weak_state, std::uint64_t generation) {
  const auto state = weak_state.lock();
  if (!state || state->generation != generation) return;
  const auto ring = std::exchange(state->ring, nullptr);  // `ring` may arm the alarm again, or destroy it
  ++state->generation;
  if (ring) ring();
}

class SteadyAlarm final : public Alarm {
 public:
  explicit SteadyAlarm(const asio::any_io_executor& executor) : timer_(executor) {}
  ~SteadyAlarm() override { state_->end(); }

  void arm(TimePoint when, std::function<void()> ring) override {
    const std::uint64_t generation = state_->begin(std::move(ring));
    timer_.expires_at(when);  // cancels the earlier wait
    timer_.async_wait([state = std::weak_ptr(state_), generation](error_code error) {
      if (!error) ring_if_current(state, generation);
    });
  }

  void disarm() override {
    state_->end();
    timer_.cancel();
  }

 private:
  using error_code = boost::system::error_code;
  std::shared_ptr<AlarmState> state_ = std::make_shared<AlarmState>();
  asio::steady_timer timer_;
};

}  // namespace

std::unique_ptr<Alarm> SteadyClock::make_alarm(const asio::any_io_executor& executor) {
  return std::make_unique<SteadyAlarm>(executor);
}

class VirtualClock::VirtualAlarm final : public Alarm {
 public:
  VirtualAlarm(VirtualClock& clock, const asio::any_io_executor& executor) : clock_(clock), executor_(executor) {}
  ~VirtualAlarm() override { disarm(); }

  void arm(TimePoint when, std::function<void()> ring) override {
    disarm();
    generation_ = state_->begin(std::move(ring));
    key_ = {when, ++clock_.sequence_};
    clock_.alarms_.emplace(key_, this);
  }

  void disarm() override {
    clock_.alarms_.erase(key_);  // harmless if the alarm is not armed: keys are unique
    state_->end();
  }

  /// Posted, not called, as arm() promises: `ring` never runs inside advance_to().
  void post_ring() {
    asio::post(executor_,
               [state = std::weak_ptr(state_), generation = generation_] { ring_if_current(state, generation); });
  }

 private:
  VirtualClock& clock_;
  asio::any_io_executor executor_;
  std::shared_ptr<AlarmState> state_ = std::make_shared<AlarmState>();
  std::uint64_t generation_ = 0;
  Key key_{TimePoint::min(), 0};
};

std::unique_ptr<Alarm> VirtualClock::make_alarm(const asio::any_io_executor& executor) {
  return std::make_unique<VirtualAlarm>(*this, executor);
}

TimePoint VirtualClock::next_alarm() const {
  KV_ASSERT(has_alarm());
  return alarms_.begin()->first.first;
}

/// Alarms ring in the order of their times, and those of one time in the order of arming: a simulation must not depend
/// on memory addresses. While an alarm is posted, the time is the alarm's own.
void VirtualClock::advance_to(TimePoint when) {
  while (has_alarm() && next_alarm() <= when) {
    VirtualAlarm* const alarm = alarms_.begin()->second;
    now_ = std::max(now_, next_alarm());
    alarms_.erase(alarms_.begin());
    alarm->post_ring();
  }
  now_ = std::max(now_, when);  // alarms and `when` may lie in the past: time never goes back
}

}  // namespace kv
