// A call, in the order of its life: Python's arguments become a request, which is submitted; its end becomes a result.
#include "client/python/src/calls/queue.h"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <new>
#include <string>
#include <system_error>

#include "base/checksum.h"
#include "client/python/src/calls/calls.h"
#include "client/python/src/waits.h"
#include "index/name_groups.h"

namespace kv::python {
namespace {

/// How long a thread that waits for segments may miss that another one took their completion.
constexpr std::chrono::microseconds kLookAgain{1000};

bool is_of_set(Op op) { return op == Op::kMatchSet || op == Op::kGetSet || op == Op::kPutSet; }
bool reads_blocks(Op op) { return op == Op::kPut || op == Op::kPutSet; }

/// The checksums of a call's blocks, for each stripe of each block: where they land, or where they come from.
std::span<std::uint64_t> checksums_from(nb::handle object, std::size_t block_count, std::size_t block_bytes,
                                        bool is_written, Holds& holds) {
  if (object.is_none()) return {};
  const std::span<std::uint64_t> values =
      integers_of<std::uint64_t>(holds.emplace_back(object, "checksums", is_written));
  const std::size_t stripes = stripe_count(block_bytes);
  if (values.size() != block_count * stripes)
    throw bad_request("checksums: " + std::to_string(values.size()) + ", " + std::to_string(block_count) +
                      " blocks of " + std::to_string(stripes) + " stripes have " +
                      std::to_string(block_count * stripes));
  return values;
}

void check_group_counts(std::span<const BlockHash> hashes, std::span<const std::uint32_t> counts, bool is_given) {
  // The C++ client reads an empty list as one name per group; here None means that.
  if (is_given && counts.empty() && !hashes.empty())
    throw bad_request("groups: 0 names in all, " + std::to_string(hashes.size()) + " are given");
  const std::string why = check_groups(hashes, counts, "groups");
  if (!why.empty()) throw bad_request(why);
}

/// Where the call's blocks lie. Throws where a device's memory must not be named, or nobody could verify it.
std::vector<std::span<std::byte>> take_blocks(const ClientCore& core, Request& request, nb::handle blocks,
                                              nb::handle rows, nb::handle checksums, Holds& holds) {
  const bool is_written = !reads_blocks(request.op);
  const std::size_t count = request.hashes.size();
  if (is_of_set(request.op)) return sized_blocks_from(blocks, rows, count, is_written, holds);
  core.check_open();  // reading the other arguments may have run Python
  if (core.is_forked()) throw failure_of(Errc::kForked);
  const std::size_t block_bytes = core.size_of(request.space).block_bytes;
  if (block_bytes == 0) throw failure_of(Errc::kNoNamespace);
  Holds sums;
  request.checksums = checksums_from(checksums, count, block_bytes, is_written, sums);
  auto taken = blocks_from(blocks, rows, count, block_bytes, is_written, holds, core.device_regions.place());
  core.check_open();
  if (core.device_regions.covers(holds, taken) && sums.empty())
    throw bad_request("checksums: none are given, and this process cannot read blocks on a CUDA device");
  std::ranges::move(sums, std::back_inserter(holds));
  return taken;
}

/// A call on blocks.
nb::object call(Caller& on, Op op, std::uint32_t space, nb::handle names, double deadline, nb::handle blocks,
                nb::handle rows, nb::handle checksums, nb::handle groups, nb::handle token_ids, nb::handle extras,
                const std::vector<std::uint64_t>& segment_ends, std::uint64_t lease, std::size_t block_count_min,
                std::uint8_t reuse, bool wants_lease, bool prefetch, bool memory_only) {
  on.core()->check_open();
  const std::vector<BlockHash> hashes = hashes_from(names, "hashes");
  const std::vector<ExtraDigest> digests = extras_from(extras, "extras");
  const Numbers<std::uint32_t> ids(token_ids, "token_ids"), counts(groups, "groups");
  if (is_of_set(op)) check_group_counts(hashes, counts.values(), !groups.is_none());
  Request request{.op = op,
                  .space = Space{space},
                  .hashes = hashes,
                  .deadline = deadline_of(deadline),
                  .lease = Lease{lease},
                  .wants_lease = wants_lease,
                  .prefetch = prefetch,
                  .memory_only = memory_only,
                  .reuse = static_cast<ReuseHint>(reuse),
                  .token_ids = ids.values(),
                  .extras = digests,
                  .segment_ends = segment_ends,
                  .block_count_min = block_count_min,
                  .group_counts = counts.values()};
  Holds holds;
  std::vector<std::span<std::byte>> targets;
  if (!blocks.is_none()) targets = take_blocks(*on.core(), request, blocks, rows, checksums, holds);
  // Borrowed, not copied: an engine must not write to these blocks until the call has ended, just as in C.
  const std::vector<std::span<const std::byte>> sources(targets.begin(), targets.end());
  if (reads_blocks(op)) {
    request.from = sources;
    request.checksums_of_from = std::exchange(request.checksums, {});
  } else {
    request.to = targets;
  }
  return on.make(request, std::move(holds));
}

}  // namespace

// -- Queue

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

void bind_caller(nb::module_& module) {
  using namespace nb::literals;
  nb::enum_<Op>(module, "Op")
      .value("MATCH", Op::kMatch)
      .value("GET", Op::kGet)
      .value("LOAD", Op::kLoad)
      .value("PUT", Op::kPut)
      .value("TOUCH", Op::kTouch)
      .value("RETAIN", Op::kRetain)
      .value("UNRETAIN", Op::kUnretain)
      .value("DROP", Op::kDrop)
      .value("MATCH_SET", Op::kMatchSet)
      .value("GET_SET", Op::kGetSet)
      .value("PUT_SET", Op::kPutSet);
  nb::class_<Caller>(module, "Caller")
      .def("call", &call, "op"_a, "space"_a, "hashes"_a, "deadline"_a, nb::kw_only(), "blocks"_a = nb::none(),
           "rows"_a = nb::none(), "checksums"_a = nb::none(), "groups"_a = nb::none(), "token_ids"_a = nb::none(),
           "extras"_a = nb::none(), "segment_ends"_a = std::vector<std::uint64_t>(), "lease"_a = 0,
           "block_count_min"_a = 1, "reuse"_a = 0, "wants_lease"_a = false, "prefetch"_a = false,
           "memory_only"_a = false);
}

}  // namespace kv::python
