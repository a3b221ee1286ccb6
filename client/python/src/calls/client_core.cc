#include "client/python/src/calls/client_core.h"

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <system_error>

#include "client/completion_queue.h"
#include "client/python/src/calls/lent_memory.h"
#include "client/python/src/calls/queue.h"
#include "client/python/src/waits.h"

namespace kv::python {
namespace {

/// All clients that live, for the end of the process. Used with the GIL held. Never destroyed: threads may outlive
/// static objects.
std::vector<std::weak_ptr<ClientCore>>& living() {
  static auto* const made = new std::vector<std::weak_ptr<ClientCore>>;
  return *made;
}

template <class T>
void add_to(std::vector<std::weak_ptr<T>>& list, const std::shared_ptr<T>& object) {
  std::erase_if(list, [](const auto& each) { return each.expired(); });
  list.push_back(object);
}

/// Looks for signals; an exception stays set until the call has ended. `lock` is the client's: a handler may close it.
bool has_signal(void* lock) {
  if (auto& held = *static_cast<std::shared_lock<std::shared_timed_mutex>*>(lock)) held.unlock();
  const nb::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

}  // namespace

std::shared_ptr<ClientCore> ClientCore::make(const ClientConfig& config, std::chrono::microseconds busy_poll) {
  std::shared_ptr<ClientCore> made(new ClientCore);
  try {
    const BlockingOptions options{.busy_poll = busy_poll,
                                  .tells_reason = true,
                                  .calls_max = std::clamp<std::size_t>(config.calls_max, 64, 65536)};
    made->client_ = std::make_unique<BlockingClient>(config, options);
  } catch (const std::invalid_argument& error) {
    throw bad_request(error.what());
  }
  made->calls_max_ = config.calls_max;
  add_to(living(), made);
  return made;
}

ClientCore::~ClientCore() {
  if (is_abandoned()) static_cast<void>(client_.release());
}

void ClientCore::abandon_all() {
  for (const auto& each : std::exchange(living(), {})) {
    if (const auto core = each.lock()) core->abandon();
  }
}

void ClientCore::abandon() {
  if (is_forked() || is_over_.exchange(true)) return;
  is_abandoned_ = true;
  const WithoutGil without_gil;
  client_->abandon();
}

void ClientCore::check_open() const {
  if (is_over()) throw bad_request("the client is closed");
}

SpaceSize ClientCore::size_of(Space space) const { return client_->size_of(space); }

Completion ClientCore::run(Request request) {
  // Checked last: Python may have closed the client while its arguments were read.
  check_open();
  request.trace = current_trace();
  Completion end;
  const bool looks_for_signals = is_main_thread();
  if (is_forked()) {
    end.error = Errc::kForked;
  } else {
    const WithoutGil without_gil;
    std::shared_lock lock(mutex_);
    const Interrupt interrupt{.interval = kSignalInterval, .is_wanted = &has_signal, .context = &lock};
    end.error = Errc::kCancelled;
    if (client_ && !is_abandoned()) end = client_->run(request, looks_for_signals ? &interrupt : nullptr);
  }
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  sweep();  // not before the call: other threads may run meanwhile, and take back the memory that it names
  end.op = request.op;
  return end;
}

std::unique_ptr<CompletionQueue> ClientCore::make_queue(const CompletionQueueOptions& options) {
  check_open();
  if (is_forked()) throw failure_of(Errc::kForked);
  return std::make_unique<CompletionQueue>(*client_, options);
}

void ClientCore::add(const std::shared_ptr<Queue>& queue) { add_to(queues_, queue); }
void ClientCore::add(const std::shared_ptr<LentMemory>& memory) { add_to(memory_, memory); }

void ClientCore::sweep() {
  for (std::size_t i = 0; i < queues_.size(); ++i) {  // which may grow meanwhile
    if (const auto queue = queues_[i].lock(); queue && queue->is_shared()) queue->reap();
  }
}

void ClientCore::close() {
  if (is_over_.exchange(true)) return;
  std::vector<std::shared_ptr<Queue>> queues;  // which may be the last to hold them: destroyed with the GIL
  for (const auto& each : std::exchange(queues_, {}))
    if (auto queue = each.lock()) queues.push_back(std::move(queue));
  if (!is_forked()) {
    const auto memory = std::exchange(memory_, {});
    const WithoutGil without_gil;
    // Calls first: memory that a node still fills cannot be taken back, and would be quarantined instead of freed.
    for (const auto& queue : queues) queue->end_calls();
    std::unique_lock lock(mutex_, std::defer_lock);
    // Again and again: a thread may be just about to begin its call.
    do client_->cancel_all();
    while (!lock.try_lock_for(std::chrono::milliseconds(1)));
    for (const auto& each : memory) {
      // Its Memory object may live on under NumPy arrays: it is ordinary memory then, unknown to all nodes.
      if (const auto lent = each.lock()) lent->take_back(*client_);
    }
    client_.reset();  // and with it all registrations
  } else {
    client_.reset();
  }
  device_regions.clear();
  for (const auto& queue : queues) queue->reap();
}

void check(const ClientCore& core, const Completion& end) {
  if (!end.error || (end.error == Errc::kCancelled && has_why(end.op))) return;
  // Calls of a disabled client end as unavailable, which would read as a node that may come back.
  if (end.error == Errc::kUnavailable && core.is_disabled())
    throw StatusError{kStatusInternal, "the client is disabled after an internal error"};
  throw failure_of(end.error, end.reason);
}

TraceContext current_trace() {
  static const auto* const current = new nb::object(nb::module_::import_("kvstore._trace").attr("current").attr("get"));
  const nb::object traceparent = (*current)();
  // An invalid traceparent is ignored, as W3C asks: engines pass on whatever their callers send.
  if (!nb::isinstance<nb::str>(traceparent)) return {};
  return TraceContext::parse(nb::cast<std::string>(traceparent)).value_or(TraceContext());
}

}  // namespace kv::python
