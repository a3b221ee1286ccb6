// base/event.h: lets one coroutine wait until another, on the same executor, has something for it.
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace kv {

namespace asio = boost::asio;

/// A flag that can be waited for. set() wakes every waiter and stays set until reset().
/// Thread safety: none; all calls on the executor given at construction. A wait is ended by Asio cancellation as well,
/// so the waiter checks its own condition again.
class Event {
 public:
  explicit Event(const asio::any_io_executor& executor) : timer_(executor, asio::steady_timer::time_point::max()) {}

  void set() {
    is_set_ = true;
    timer_.cancel();
  }
  void reset() { is_set_ = false; }
  bool is_set() const { return is_set_; }

  asio::awaitable<void> wait() {
    if (!is_set_) co_await timer_.async_wait(asio::as_tuple(asio::use_awaitable));
  }

 private:
  asio::steady_timer
      timer_;  ///< Never expires; cancelling it is the wake-up. Needs no real time, so it works in simulation.
  bool is_set_ = false;
};

}  // namespace kv
