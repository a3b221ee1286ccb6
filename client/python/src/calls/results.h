// client/python/src/calls/results.h: results of calls as Python objects.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <concepts>
#include <string>
#include <utility>
#include <vector>

#include "client/python/src/io_client.h"
#include "client/python/src/numpy_arrays.h"

namespace kv::python {

/// A result with the text of its `why`.
template <class T>
struct Told : T {
  std::string reason;
};
/// Except contexts: their `why` is their quota's, and they come in lists.
template <class T>
concept HasWhy = !std::same_as<T, NamedContext> &&
                 (
                     requires(const T& value) { value.why; } || requires(const T& value) { value.get.why; });

nb::object to_python(const Outcome& outcome, const std::string& reason);

/// A reason is the exception object, not raised: results and errors share one set of classes.
nb::object why_object(const error_code& why, const std::string& reason = {});

/// The class of a result with a `why`, which is its first member.
template <HasWhy T>
nb::class_<Told<T>> told_class(nb::module_& module, const char* name) {
  return nb::class_<Told<T>>(module, name).def_prop_ro("why", [](const Told<T>& told) {
    if constexpr (requires { told.why; }) {
      return why_object(told.why, told.reason);
    } else {
      return why_object(told.get.why, told.reason);
    }
  });
}

/// A getter of T: its member `time` in seconds.
template <class T, auto time>
double seconds_of(const T& value) {
  return std::chrono::duration<double>(value.*time).count();
}

/// A NumPy array of `convert` of each value.
template <class To, class From, class Convert>
nb::object numpy_of_each(const std::vector<From>& values, Convert convert) {
  std::vector<To> made;
  made.reserve(values.size());
  for (const From& value : values) made.push_back(static_cast<To>(convert(value)));
  return numpy_of<To>(std::move(made));
}

}  // namespace kv::python
