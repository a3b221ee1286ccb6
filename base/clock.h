// base/clock.h: injected time. The daemon and the client run on SteadyClock; tests and the simulation on a clock of
// theirs, tests/fakes/virtual_clock.h.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <functional>
#include <memory>

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

}  // namespace kv
