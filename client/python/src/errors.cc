#include "client/python/src/errors.h"

#include <nanobind/stl/string.h>

#include <exception>
#include <utility>

namespace kv::python {

int status_of(const error_code& error) {
  if (!error) return 0;
  if (error == asio::error::timed_out) return kStatusTimedOut;
  if (error.category() == errc_category()) return error.value();
  return kStatusSystem;
}

StatusError failure_of(const error_code& error, const std::string& reason) {
  // "Connection timed out" would mislead: the connection is fine, the call's own time is over.
  std::string text = error == asio::error::timed_out ? "the deadline has passed" : error.message();
  if (!reason.empty()) {
    text += ": " + reason;
  } else if (error == Errc::kBusy) {
    text += ": of this client (calls_max, region_bytes_max, namespaces)";
  }
  return {status_of(error), std::move(text)};
}

StatusError bad_request(std::string text) { return {kStatusBadRequest, std::move(text)}; }

std::string entry_text(const char* name, std::size_t index, std::int64_t value) {
  return std::string(name) + "[" + std::to_string(index) + "]: " + std::to_string(value);
}

void bind_errors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    int status = kStatusInternal;
    std::string text;
    try {
      std::rethrow_exception(thrown);
    } catch (const StatusError& failure) {
      status = failure.status;
      text = failure.text;
    } catch (const std::logic_error& error) {  // a failed KV_ASSERT
      text = error.what();
    }
    try {
      const nb::object error = nb::module_::import_("kvstore.errors").attr("error_of")(status, text);
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
    } catch (nb::python_error& nested) {
      nested.restore();
    }
  });
}

}  // namespace kv::python
