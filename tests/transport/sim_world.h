// tests/transport/sim_world.h: one thread, virtual time and a simulated network, for tests that talk to themselves.
#pragma once

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "tests/fakes/sim_network.h"
#include "tests/fakes/virtual_clock.h"

namespace kv {

/// KV_SEED from the environment, or `otherwise`: a test that prints it can be run again.
inline std::uint64_t seed_or(std::uint64_t otherwise) {
  const char* const text = std::getenv("KV_SEED");
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 0);
}

/// Coroutines that outlive a test are destroyed with `io`, before the network and the clock.
struct SimWorld {
  explicit SimWorld(std::uint64_t seed = 1) : network(clock, seed) {}

  VirtualClock clock;
  SimNetwork network;
  asio::io_context io{1};

  void poll() {
    io.restart();
    io.poll();
  }
  /// Runs until `done`, or until `limit` has passed in vain.
  bool run_until(const std::function<bool()>& done, Duration limit = 1000s) {
    const TimePoint end = clock.now() + limit;
    for (poll(); !done(); poll()) {
      if (!clock.has_alarm() || clock.next_alarm() > end) return false;
      clock.advance_to(std::max(clock.now(), clock.next_alarm()));
    }
    return true;
  }
  void run_for(Duration time) {
    const TimePoint end = clock.now() + time;
    run_until([] { return false; }, time);
    clock.advance_to(end);
    poll();
  }
  /// What `work` returns; nullopt if it has not after `limit`.
  template <class T>
  std::optional<T> await(asio::awaitable<T> work, Duration limit = 1000s) {
    const auto result = std::make_shared<std::optional<T>>();
    asio::co_spawn(io, std::move(work), [result](std::exception_ptr error, T value) {
      if (error) std::rethrow_exception(error);
      result->emplace(std::move(value));
    });
    run_until([&] { return result->has_value(); }, limit);
    return std::move(*result);
  }
};

}  // namespace kv
