// client/python/src/calls/results.h: results of calls as Python objects.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/completion_queue.h"
#include "client/python/src/errors.h"
#include "client/python/src/numpy_arrays.h"
#include "client/types/context_archive.h"

namespace kv::python {

/// A result with the text of its `why`.
template <class T>
struct Told : T {
  std::string reason;
};

/// Whether the operation's result has a `why`, and so also an end for a call that was given up.
bool has_why(Op op);
/// The result of a call of `name_count` hashes, by its operation.
nb::object result_of(const Completion& end, std::size_t name_count);

nb::object to_python(const std::vector<std::chrono::nanoseconds>& times);
nb::object to_python(const std::vector<NodeAnswer>& nodes);
nb::object to_python(const std::vector<NodeStatus>& nodes);
nb::object to_python(const NumaStatus& numa);

/// A reason is the exception object, not raised: results and errors share one set of classes.
nb::object why_object(const error_code& why, const std::string& reason = {});

/// A getter of T: its member `time` in seconds.
template <class T, auto time>
double seconds_of(const T& value) {
  return std::chrono::duration<double>(value.*time).count();
}

}  // namespace kv::python
