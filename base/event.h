// base/event.h: lets one coroutine wait for another on the same executor.
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace kv {

namespace asio = boost::asio;

/// A flag to wait for. set() wakes every waiter; the flag stays set until reset(). Asio cancellation also ends a wait,
/// so the waiter checks its own condition again. All calls are on the executor given at construction.
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
  /// Never expires: cancelling it is the wake-up. Independent of real time, so it also works in simulation.
  asio::steady_timer timer_;
  bool is_set_ = false;
};

}  // namespace kv
