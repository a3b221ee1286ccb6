// client/python/src/waits.h: times that Python gives in seconds, and waits that Ctrl-C ends.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "client/python/src/errors.h"
#include "client/python/src/without_gil.h"

namespace kv::python {

/// How often a waiting thread checks for signals: Ctrl-C ends a blocking call within 100 ms.
inline constexpr std::chrono::milliseconds kSignalInterval{40};

/// Only the main thread handles signals, so others need not check.
bool is_main_thread();

/// From 0 to `most`. `name` begins the refusal of NaN.
std::chrono::nanoseconds time_of(double seconds, double most, const char* name);
std::chrono::nanoseconds duration_of(double seconds);
std::chrono::microseconds deadline_of(double seconds);

/// Waits by `sleep(time)`, without the GIL, until `look()` is true or `timeout` seconds have passed; none: for ever.
template <class Sleep, class Look>
bool wait_in_steps(std::optional<double> timeout, Sleep sleep, Look look) {
  using std::chrono::nanoseconds;
  const auto until = std::chrono::steady_clock::now() + duration_of(timeout.value_or(1e9));
  if (look()) return true;
  const bool looks_for_signals = is_main_thread();
  for (;;) {
    const auto left = std::max<nanoseconds>(until - std::chrono::steady_clock::now(), nanoseconds(0));
    if (left == nanoseconds(0)) return false;
    const auto time = looks_for_signals ? std::min<nanoseconds>(left, kSignalInterval) : left;
    run_without_gil([&] { sleep(std::chrono::ceil<std::chrono::microseconds>(time)); });
    if (look()) return true;
    if (looks_for_signals && PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

}  // namespace kv::python
