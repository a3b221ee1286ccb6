#include "client/python/src/calls/queue.h"

#include <algorithm>
#include <array>
#include <limits>
#include <new>
#include <system_error>

#include "client/python/src/errors.h"
#include "client/python/src/waits.h"

namespace kv::python {
namespace {

/// How long a thread that waits for segments may miss that another one took their completion.
constexpr std::chrono::microseconds kLookAgain{1000};

}  // namespace

Queue::Queue(std::shared_ptr<ClientCore> core, bool waits, bool is_shared)
    : core_(std::move(core)), is_shared_(is_shared) {
  // The bounds that count are the client's.
  const CompletionQueueOptions options{.calls_max = std::clamp<std::size_t>(core_->calls_max(), 64, 65536),
                                       .bytes_max = std::numeric_limits<std::ptrdiff_t>::max(),
                                       .wait_while_away = waits,
                                       .tells_reason = true};
  try {
    queue_ = core_->make_queue(options);
  } catch (const std::system_error& error) {
    throw failure_of(error_code(error.code().value(), boost::system::generic_category()));
  }
}

std::shared_ptr<Queue> Queue::open(const std::shared_ptr<ClientCore>& core, bool waits, bool is_shared) {
  auto made = std::make_shared<Queue>(core, waits, is_shared);
  core->add(made);
  return made;
}

Queue::~Queue() {
  if (core_->is_abandoned()) static_cast<void>(queue_.release());  // its thread will not let the calls go
  queue_.reset();  // 3: until then nodes may fill the buffers of in_flight_
}

nb::object Queue::make(const Request& request, Holds holds) { return nb::cast(begin(request, std::move(holds))); }

Future Queue::begin(Request request, Holds holds, nb::object then) {
  auto state = std::make_shared<CallState>();
  state->name_count = request.hashes.size();
  state->holds = std::move(holds);
  // Checked last: Python may have closed the client while its arguments were read.
  core_->check_open();
  request.tag = ++last_tag_;
  request.trace = current_trace();
  state->end.op = request.op;
  in_flight_.emplace(request.tag, state);
  Result<CallId> begun = error_code(Errc::kBusy);
  try {
    begun = queue_->submit(request);
  } catch (...) {  // out of memory: it has not begun
    in_flight_.erase(request.tag);
    throw;
  }
  if (begun) {
    state->id = *begun;
  } else {
    in_flight_.erase(request.tag);
    state->end.error = begun.error();
    state->has_ended = true;
    state->holds.clear();
  }
  core_->sweep();  // not before the submit: other threads may run meanwhile, and take back the memory that it names
  return Future(shared_from_this(), std::move(state), std::move(then));
}

void Queue::reap() {
  if (is_lost()) return;
  const auto keep = shared_from_this();
  std::array<std::shared_ptr<CallState>, kTakenAtOnce> changed;
  for (std::size_t count = kTakenAtOnce; count == kTakenAtOnce;) {
    const auto reaped = queue_->reap(taken_);
    count = reaped ? *reaped : 0;
    for (std::size_t i = 0; i < count; ++i) {
      const auto found = in_flight_.find(taken_[i].tag);
      CallState& call = *found->second;
      if (taken_[i].kind == Completion::Kind::kEnd) {
        call.end = std::move(taken_[i]);
        call.has_ended = true;
        changed[i] = std::move(found->second);
        in_flight_.erase(found);
        continue;
      }
      changed[i] = found->second;
      try {
        call.segments.push_back(taken_[i].get.block_count);
      } catch (const std::bad_alloc&) {
        // The next segment, or the end, tells as much.
      }
    }
    // Only now, as each of these can run Python, and let another thread in here.
    for (std::size_t i = 0; i < count; ++i) {
      const std::shared_ptr<CallState> call = std::move(changed[i]);
      if (call->has_ended) const Holds released = std::exchange(call->holds, {});
      for (const nb::object& each : std::exchange(call->told, {})) {
        if (PyObject* const none = PyObject_CallNoArgs(each.ptr()); none != nullptr) {
          Py_DECREF(none);
        } else {
          PyErr_WriteUnraisable(each.ptr());
        }
      }
    }
  }
}

bool Queue::wait(const std::vector<std::shared_ptr<CallState>>& calls, std::size_t count,
                 std::optional<double> timeout) {
  std::vector<CallId> ids;
  std::size_t wanted = 0;
  return wait_in_steps(
      timeout, [&](auto time) { static_cast<void>(queue_->wait(ids, wanted, time, {})); },
      [&] {
        if (is_lost()) return true;
        reap();
        ids.clear();
        for (const auto& each : calls) {
          if (!each->has_ended) ids.push_back(each->id);
        }
        const std::size_t ended = calls.size() - ids.size();
        wanted = count > ended ? count - ended : 0;
        return wanted == 0;
      });
}

std::size_t Queue::wait_segments(const CallState& call, std::size_t count, std::optional<double> timeout) {
  wait_in_steps(
      timeout, [&](auto time) { static_cast<void>(queue_->reap({}, 1, std::min(time, kLookAgain))); },
      [&] {
        reap();
        return is_lost() || call.has_ended || call.segments.size() >= count;
      });
  return call.segments.size();
}

void Queue::end_calls() {
  queue_->shutdown();
  static_cast<void>(queue_->reap({}, std::numeric_limits<std::ptrdiff_t>::max(), std::chrono::hours(24)));
}

// -- Future

bool Future::has_ended() const {
  if (!state_->has_ended) queue_->reap();
  return state_->has_ended || queue_->is_lost();
}

bool Future::wait(std::optional<double> timeout) const {
  try {
    return queue_->wait({state_}, 1, timeout);
  } catch (const nb::python_error&) {  // Ctrl-C: the answer is not wanted any more
    cancel();
    throw;
  }
}

nb::object Future::result(std::optional<double> timeout) const {
  if (!wait(timeout)) throw failure_of(asio::error::timed_out);
  if (!state_->has_ended) throw failure_of(queue_->core()->is_forked() ? Errc::kForked : Errc::kCancelled);
  check(*queue_->core(), state_->end);
  nb::object result = result_of(state_->end, state_->name_count);
  return then_.is_none() ? result : then_(result);
}

std::vector<std::size_t> Future::segments() const {
  if (queue_->core()->is_forked()) throw failure_of(Errc::kForked);
  queue_->reap();
  return state_->segments;
}

std::size_t Future::wait_segments(std::size_t count, std::optional<double> timeout) const {
  if (queue_->core()->is_forked()) throw failure_of(Errc::kForked);
  return queue_->wait_segments(*state_, count, timeout);
}

bool Future::tell(nb::object told) const {
  // Without a look at the queue: what it takes off there would make the descriptor unreadable.
  if (state_->has_ended || queue_->is_lost()) return false;
  state_->told.push_back(std::move(told));
  return true;
}

}  // namespace kv::python
