// client/python/src/errors.h: errors of the C++ client as Python exceptions of the C ABI's names.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "base/result.h"
#include "gpu/checked.h"

namespace kv::python {

namespace nb = nanobind;

/// Thrown by a binding: becomes the exception of kvstore.errors with this status. Made without the GIL.
struct StatusError {
  int status;  ///< A KVS_ status of kvstore.h.
  std::string text;
};

inline constexpr int kStatusBadRequest = 5, kStatusTimedOut = 1000, kStatusSystem = 1001, kStatusInternal = 1002,
                     kStatusForked = 1003;

int status_of(const error_code& error);
/// `reason`: the nodes that caused it; empty for other errors.
StatusError failure_of(const error_code& error, const std::string& reason = {});
/// The caller's fault: kvstore.BadRequest, which is a ValueError too.
StatusError bad_request(std::string text);
/// "name[index]: value", which begins the refusal of an element.
std::string entry_text(const char* name, std::size_t index, std::int64_t value);

template <class T>
const T& value_of(const Checked<T>& checked) {
  if (!checked) throw bad_request(checked.error().text);
  return *checked;
}
template <class T>
const T& value_of(const Result<T>& result) {
  if (!result) throw failure_of(result.error());
  return *result;
}

void bind_errors(nb::module_& module);

}  // namespace kv::python
