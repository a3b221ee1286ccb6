// tests/sim/sim_run.h: the thread in which a world runs, and the first thing that goes wrong there.
#pragma once

#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/event.h"
#include "tests/fakes/sim_network.h"
#include "tests/fakes/verbs_fake.h"
#include "tests/fakes/virtual_clock.h"
#include "tests/sim/sim_base.h"

namespace kv::sim {

/// Tasks on virtual time and a simulated network. `Outcome` has failure, calls and trace_hash.
template <class Outcome>
class SimRun : protected Dice {
 public:
  virtual ~SimRun() = default;

 protected:
  SimRun(std::uint64_t seed, std::uint64_t steps_max)
      : Dice(seed), network_(clock_, mix(seed)), steps_max_(steps_max) {}

  /// Invariants, now and then.
  virtual void look() = 0;
  /// The first one counts.
  virtual void fail(const std::string& what) {
    if (outcome_.failure.empty()) outcome_.failure = what;
  }
  void note(std::uint64_t what) { outcome_.trace_hash = mix(outcome_.trace_hash ^ what); }

  void begin(asio::awaitable<void> task) {
    ++running_;
    pace_.disturb();
    asio::co_spawn(context_, std::move(task), [this](std::exception_ptr error) {
      --running_;
      part_ended(error);
    });
  }
  void part_ended(std::exception_ptr error) {
    if (!error) return;
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& caught) {
      fail(std::string("exception: ") + caught.what());
    }
  }
  void run_all() {
    while (running_ > 0 && step()) {
    }
  }
  /// Runs what is ready; when nothing is, moves time to the next alarm. False when stuck or something broke.
  bool step() {
    if (!outcome_.failure.empty()) return false;
    if (pace_.step() == Pace::Step::kStuck) {
      fail("stuck: calls are in progress, and nothing will ever wake them");
      return false;
    }
    if (++steps_ % 64 == 0) {
      look();
      pace_.disturb();
    }
    if (steps_ > steps_max_) fail("no end: " + std::to_string(steps_max_) + " steps");
    return outcome_.failure.empty();
  }
  asio::awaitable<void> sleep(Duration duration) {
    Event over(context_.get_executor());
    const auto alarm = clock_.make_alarm(context_.get_executor());
    alarm->arm(clock_.now() + duration, [&over] { over.set(); });
    co_await over.wait();
  }
  /// A call that began at `began` with this deadline must be over: the executor is never late here.
  void check_deadline(const char* op, TimePoint began, std::chrono::microseconds deadline) {
    ++outcome_.calls;
    if (clock_.now() > began + deadline) {
      fail(std::string(op) + " ended " +
           std::to_string(
               std::chrono::duration_cast<std::chrono::microseconds>(clock_.now() - began - deadline).count()) +
           " us after its deadline");
    }
  }

  VirtualClock clock_;
  SimNetwork network_;
  std::unique_ptr<verbs::FakeVerbs> verbs_;  ///< nullptr: no RDMA in this world.
  // Its end destroys coroutines that still hold alarms, streams and queue pairs, so it ends before the things that
  // those belong to.
  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(context_);
  Pace pace_{context_, clock_};
  std::size_t running_ = 0;
  std::uint64_t steps_ = 0;
  Outcome outcome_;

 private:
  std::uint64_t steps_max_;
};

}  // namespace kv::sim
