#include "base/clock.h"

#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <utility>

namespace kv {
namespace {

class SteadyAlarm final : public Alarm {
 public:
  explicit SteadyAlarm(const asio::any_io_executor& executor) : timer_(executor) {}
  ~SteadyAlarm() override { state_->end(); }

  void arm(TimePoint when, std::function<void()> ring) override {
    state_->end();
    state_->ring = std::move(ring);
    timer_.expires_at(when);  // cancels the earlier wait
    timer_.async_wait([weak = std::weak_ptr(state_), generation = state_->generation](boost::system::error_code error) {
      // By weak pointer: a queued handler may run after its alarm was destroyed.
      const auto state = weak.lock();
      if (error || !state || state->generation != generation) return;
      const auto call = std::exchange(state->ring, nullptr);  // it may arm the alarm again, or destroy it
      state->end();
      if (call) call();
    });
  }

  void disarm() override {
    state_->end();
    timer_.cancel();
  }

 private:
  /// Shared with handlers in the executor. A queued handler cannot be called back, so each carries the generation that
  /// it was armed in and does nothing once that generation is over.
  struct State {
    std::uint64_t generation = 0;
    std::function<void()> ring;

    void end() {
      ++generation;
      ring = nullptr;  // at once, not when the queued handler runs: it may own objects about to be destroyed
    }
  };

  std::shared_ptr<State> state_ = std::make_shared<State>();
  asio::steady_timer timer_;
};

}  // namespace

std::unique_ptr<Alarm> SteadyClock::make_alarm(const asio::any_io_executor& executor) {
  return std::make_unique<SteadyAlarm>(executor);
}

}  // namespace kv
