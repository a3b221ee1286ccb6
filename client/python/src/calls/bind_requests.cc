// Requests from Python's arguments.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "base/checksum.h"
#include "client/python/src/calls/calls.h"
#include "client/python/src/waits.h"
#include "index/name_groups.h"

namespace kv::python {
namespace {

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

Request opening(const NamespaceRecord& record, double deadline) {
  return {.op = Op::kOpen, .deadline = deadline_of(deadline), .record = &record};
}

void wait_open(PyClient& self, std::uint32_t space, double deadline) {
  self.make({.op = Op::kWaitOpen, .space = Space{space}, .deadline = deadline_of(deadline)}, {});
}

Async<Told<MissReport>> explain(Client& client, Space space, Hashes hashes, std::chrono::microseconds deadline,
                                CallControl control) {
  const auto report = co_await client.why(space, hashes, deadline, control);
  if (!report) co_return report.error();
  Told<MissReport> told{*report, {}};
  if (told.why) told.reason = client.reason_of(told.why);
  co_return told;
}

Told<MissReport> why_chain(const PyClient& self, std::uint32_t space, nb::handle hashes, double deadline) {
  const std::vector<BlockHash> asked = hashes_from(hashes, "hashes");
  return self.core()->ask<Told<MissReport>>([&, time = deadline_of(deadline)](Client& client, CallControl control) {
    return explain(client, Space{space}, asked, time, control);
  });
}

}  // namespace

TraceContext current_trace() {
  static const auto* const current = new nb::object(nb::module_::import_("kvstore._trace").attr("current").attr("get"));
  const nb::object traceparent = (*current)();
  // An invalid traceparent is ignored, as W3C asks: engines pass on whatever their callers send.
  if (!nb::isinstance<nb::str>(traceparent)) return {};
  return TraceContext::parse(nb::cast<std::string>(traceparent)).value_or(TraceContext());
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

void bind_requests(ClientClass& client, QueueClass& queue) {
  using namespace nb::literals;
  client
      .def(
          "open",
          [](PyClient& self, const NamespaceRecord& record, double deadline) {
            return self.make(opening(record, deadline), {});
          },
          "record"_a, "deadline"_a)
      .def("wait_open", &wait_open, "space"_a, "deadline"_a)
      .def("why", &why_chain, "space"_a, "hashes"_a, "deadline"_a);
  queue
      .def(
          "open",
          [](Queue& self, const NamespaceRecord& record, double deadline, nb::object then) {
            return self.begin(opening(record, deadline), {}, std::move(then));
          },
          "record"_a, "deadline"_a, "then"_a = nb::none())
      .def(
          "release",  // waits neither for a node nor for the client's thread: the caller does not need the answer
          [](Queue& self, std::uint64_t lease) { self.begin({.op = Op::kRelease, .lease = Lease{lease}}, {}); },
          "lease"_a);
}

}  // namespace kv::python
