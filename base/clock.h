// base/clock.h: injected time. The daemon and the client run on SteadyClock; tests and the simulation on VirtualClock,
// where an hour passes at once and every run is the same.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

namespace kv {

namespace asio = boost::asio;
using namespace std::chrono_literals;
using TimePoint = std::chrono::steady_clock::time_point;  ///< Monotonic; never wall-clock time.
using Duration = std::chrono::steady_clock::duration;

/// Rings once at a set time. An alarm holds at most one time: arming it again replaces the earlier one. Armed,
/// disarmed, rung and destroyed on its executor.
class Alarm {
 public:
  virtual ~Alarm() = default;
  /// Calls `ring` at or after `when`, from the executor and never from within arm(). A disarmed, re-armed or destroyed
  /// alarm never rings for its earlier time.
  virtual void arm(TimePoint when, std::function<void()> ring) = 0;
  virtual void disarm() = 0;
};

/// Thread safety: now() may be called from any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
  virtual std::unique_ptr<Alarm> make_alarm(const asio::any_io_executor& executor) = 0;
};

/// CLOCK_MONOTONIC and Asio timers.
class SteadyClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
  std::unique_ptr<Alarm> make_alarm(const asio::any_io_executor& executor) override;
};

/// Time that moves only by advance(). Alarms ring in order of time, then of arming. Not thread-safe. Outlives its
/// alarms.
class VirtualClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  std::unique_ptr<Alarm> make_alarm(const asio::any_io_executor& executor) override;

  bool has_alarm() const { return !alarms_.empty(); }
  TimePoint next_alarm() const;     ///< Requires has_alarm().
  void advance_to(TimePoint when);  ///< Rings (posts to their executors) all alarms due by then, in order.
  void advance(Duration by) { advance_to(now_ + by); }

 private:
  class VirtualAlarm;
  using Key = std::pair<TimePoint, std::uint64_t>;
  std::map<Key, VirtualAlarm*> alarms_;
  TimePoint now_{Duration{1'000'000'000}};  ///< Not the epoch, so that earlier times exist.
  std::uint64_t sequence_ = 0;
};

}  // namespace kv
