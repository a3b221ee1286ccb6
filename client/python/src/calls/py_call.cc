#include "client/python/src/calls/py_call.h"

#include <nanobind/stl/vector.h>

#include <iterator>

#include "client/python/src/calls/calls.h"
#include "client/python/src/calls/results.h"
#include "client/python/src/errors.h"
#include "client/python/src/waits.h"

namespace kv::python {

void check(const IoClient& io, const error_code& error, const std::string& reason) {
  if (!error) return;
  // Calls of a disabled client end as unavailable, which would read as a node that may come back.
  if (io.is_disabled()) throw StatusError{kStatusInternal, "the client is disabled after an internal error"};
  throw failure_of(error, reason);
}

void Orphans::sweep(bool is_forked) {
  std::list<Orphan> ended;  // destroyed last: a release can run Python, and another thread may enter here
  for (auto each = orphans.begin(); each != orphans.end();) {
    const auto next = std::next(each);
    if (is_forked || each->call->is_done()) ended.splice(ended.end(), orphans, each);
    each = next;
  }
}

PyCall::~PyCall() {
  // A node may still write into this dropped call's buffers. Waiting here would block Python's garbage collector.
  if (has_started && state && !has_ended()) orphans_->orphans.splice(orphans_->orphans.end(), borrowed_);
}

Holds& PyCall::holds() {
  if (borrowed_.empty()) borrowed_.push_back({state, {}});
  return borrowed_.front().holds;
}

bool PyCall::wait(double seconds) {
  try {
    return has_ended() || wait_in_steps(*io_, seconds, [&](auto time) { return state->wait(time); });
  } catch (const nb::python_error&) {  // Ctrl-C: the answer is not wanted any more
    cancel();
    throw;
  }
}

nb::object PyCall::result(double seconds) {
  if (!wait(seconds)) throw failure_of(asio::error::timed_out);
  {
    // The buffers are their owner's again. Taken out first: a release can run Python and let another thread in here.
    const std::list<Orphans::Orphan> ended = std::exchange(borrowed_, {});
  }
  // Then this is a child of fork(), where has_ended() holds for every call that was in flight.
  if (!state->is_done()) throw failure_of(Errc::kForked);
  check(*io_, state->error(), state->reason());
  return to_python(state->outcome(), state->reason());
}

std::size_t PyCall::wait_segments(std::size_t count, double seconds) {
  std::size_t landed = 0;
  wait_in_steps(*io_, seconds, [&](auto time) {
    landed = state->wait_segments(count, time);
    return landed >= count || state->is_done();
  });
  return landed;
}

std::vector<std::size_t> PyCall::segments() const {
  if (io_->is_forked()) throw failure_of(Errc::kForked);
  return state->segments();
}

void bind_calls(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<PyQueue>(module, "ReadyQueue")
      .def(nb::init<>())
      .def("fileno", [](const PyQueue& self) { return self.queue->fd(); })
      .def("drain", [](const PyQueue& self) { return self.queue->drain(); });

  nb::class_<PyCall>(module, "Call")
      .def("done", &PyCall::has_ended)
      .def("wait", &PyCall::wait, "seconds"_a)
      .def("cancel", &PyCall::cancel)
      .def("result", &PyCall::result, "seconds"_a)
      .def("wait_segments", &PyCall::wait_segments, "count"_a, "seconds"_a)
      .def_prop_ro("segments", &PyCall::segments)
      .def("tell", &PyCall::tell, "queue"_a, "id"_a)
      .def("stop_telling", &PyCall::stop_telling, "queue"_a);
}

}  // namespace kv::python
