// transport/connect_first.h: one connection to a host with several addresses, some perhaps dead (RFC 8305).
#pragma once

#include <algorithm>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/clock.h"
#include "base/event.h"
#include "base/result.h"

namespace kv {

/// How long an address is tried alone before the next one is tried beside it.
constexpr Duration kNextAddressAfter = 250ms;

/// The same addresses, families in turns: a family that is dead on this host costs one step, not all of its addresses.
inline std::vector<asio::ip::tcp::endpoint> alternate_families(std::vector<asio::ip::tcp::endpoint> addresses) {
  if (addresses.empty()) return addresses;
  const bool begins_with_v6 = addresses.front().address().is_v6();
  const auto other = std::stable_partition(addresses.begin(), addresses.end(),
                                           [&](const auto& each) { return each.address().is_v6() == begins_with_v6; });
  std::vector<asio::ip::tcp::endpoint> ordered;
  ordered.reserve(addresses.size());
  for (auto first = addresses.begin(), second = other; first != other || second != addresses.end();) {
    if (first != other) ordered.push_back(*first++);
    if (second != addresses.end()) ordered.push_back(*second++);
  }
  return ordered;
}

/// Runs connect(0), then each further one 250 ms after the previous one, or as soon as all running ones have failed.
/// The first connection wins, and the others are cancelled. Errors: that of the last failure; operation_aborted if the
/// awaiting coroutine is cancelled. `connect` is called on `executor`; a cancelled one may live on a little.
template <class T>
Async<T> connect_first(std::size_t count, std::function<Async<T>(std::size_t)> connect, Clock& clock,
                       asio::any_io_executor executor) {
  KV_ASSERT(count > 0);
  struct Race {
    explicit Race(const asio::any_io_executor& on) : event(on) {}
    Event event;  ///< One has ended, or the next one is due.
    std::size_t running = 0;
    bool is_due = true, is_over = false;
    std::optional<T> winner;
    error_code why = asio::error::operation_aborted;
    std::deque<asio::cancellation_signal> cancels;
  };
  const auto race = std::make_shared<Race>(executor);
  const auto alarm = clock.make_alarm(executor);
  /// Also runs when this coroutine is destroyed while it waits.
  struct Leave {
    Race& race;
    ~Leave() {
      race.is_over = true;
      for (auto& each : race.cancels) each.emit(asio::cancellation_type::terminal);
    }
  };
  const Leave leave{*race};
  for (std::size_t begun = 0;;) {
    if (race->winner) co_return std::move(*race->winner);
    if (begun < count && (race->is_due || race->running == 0)) {
      race->is_due = false;
      ++race->running;
      auto& cancel = race->cancels.emplace_back();
      const auto ended = [race](std::exception_ptr exception, Result<T> result) {
        --race->running;
        if (race->is_over) return;
        if (!exception && result) {
          if (!race->winner) race->winner.emplace(std::move(*result));
        } else {
          race->why = exception ? error_code(asio::error::operation_aborted) : result.error();
        }
        race->event.set();
      };
      asio::co_spawn(executor, connect(begun), asio::bind_cancellation_slot(cancel.slot(), ended));
      if (++begun < count) {
        alarm->arm(clock.now() + kNextAddressAfter, [weak = std::weak_ptr(race)] {
          const auto held = weak.lock();
          if (!held) return;
          held->is_due = true;
          held->event.set();
        });
      }
    } else if (race->running == 0) {
      co_return race->why;
    }
    co_await race->event.wait();
    if (!race->event.is_set()) co_return error_code(asio::error::operation_aborted);  // cancelled
    race->event.reset();
  }
}

}  // namespace kv
