// Calls on sets of blocks, and their results.
#include "client/python/src/calls/calls.h"
#include "client/python/src/calls/results.h"
#include "client/python/src/errors.h"
#include "client/python/src/waits.h"
#include "index/name_groups.h"

namespace kv::python {
namespace {

std::span<const std::uint32_t> take_groups(Call& state, nb::handle groups) {
  const Numbers<std::uint32_t> counts(groups, "groups");
  // The C++ client reads an empty list as one name per group; here None means that.
  if (!groups.is_none() && counts.values().empty() && !state.hashes.empty())
    throw bad_request("groups: 0 names in all, " + std::to_string(state.hashes.size()) + " are given");
  state.group_counts.assign(counts.values().begin(), counts.values().end());
  const std::string why = check_groups(state.hashes, state.group_counts, "groups");
  if (!why.empty()) throw bad_request(why);
  return state.group_counts;
}

PyCall match_set(PyClient& self, std::uint32_t set, nb::handle hashes, nb::handle groups, double deadline, bool lease,
                 bool prefetch, std::uint8_t reuse, bool at_once) {
  PyCall call = self.begin(hashes, at_once);
  SetMatchOptions options{};
  options.group_counts = take_groups(*call.state, groups);
  options.deadline = deadline_of(deadline);
  options.control = call.state->control();
  options.lease = lease;
  options.prefetch = prefetch;
  options.reuse = static_cast<ReuseHint>(reuse);
  return self.start(std::move(call), [set, options](Client& client, Call& state) {
    return client.match_set(Space{set}, state.hashes, options);
  });
}

PyCall get_set(PyClient& self, std::uint32_t set, nb::handle hashes, nb::handle groups, nb::handle blocks,
               nb::handle rows, double deadline, std::uint64_t lease, bool memory_only, bool at_once) {
  PyCall call = self.begin(hashes, at_once);
  Call& state = *call.state;
  state.blocks = sized_blocks_from(blocks, rows, state.hashes.size(), /*is_written=*/true, call.holds());
  SetGetOptions options{};
  options.group_counts = take_groups(state, groups);
  options.deadline = deadline_of(deadline);
  options.control = state.control();
  options.lease = Lease{lease};
  options.memory_only = memory_only;
  return self.start(std::move(call), [set, options](Client& client, Call& arguments) {
    return client.get_set(Space{set}, arguments.hashes, arguments.blocks, options);
  });
}

PyCall put_set(PyClient& self, std::uint32_t set, nb::handle hashes, nb::handle groups, nb::handle blocks,
               nb::handle rows, double deadline, std::uint8_t reuse, bool at_once) {
  PyCall call = self.begin(hashes, at_once);
  Call& state = *call.state;
  state.read_from(sized_blocks_from(blocks, rows, state.hashes.size(), /*is_written=*/false, call.holds()));
  SetPutOptions options{};
  options.group_counts = take_groups(state, groups);
  options.deadline = deadline_of(deadline);
  options.reuse = static_cast<ReuseHint>(reuse);
  options.control = state.control();
  return self.start(std::move(call), [set, options](Client& client, Call& arguments) {
    return client.put_set(Space{set}, arguments.hashes, arguments.sources, options);
  });
}

}  // namespace

void bind_sets(nb::module_& module, nb::class_<PyClient>& client) {
  using namespace nb::literals;
  using Match = Told<SetMatchResult>;
  told_class<SetMatchResult>(module, "SetMatchResult")
      .def_prop_ro(
          "held",
          [](const Match& match) { return numpy_of_each<std::uint8_t>(match.held, [](Held held) { return held; }); })
      .def_prop_ro("block_bytes", [](const Match& match) { return numpy_of<std::uint32_t>(match.block_bytes); })
      .def_ro("held_count", &SetMatchResult::held_count)
      .def_ro("disk_count", &SetMatchResult::disk_count)
      .def_prop_ro("disk_seconds", &seconds_of<Match, &SetMatchResult::disk_time>)
      .def_prop_ro("lease", [](const Match& match) { return static_cast<std::uint64_t>(match.lease); });
  using Got = Told<SetGetResult>;
  told_class<SetGetResult>(module, "SetGetResult")
      .def_prop_ro("landed",
                   [](const Got& got) {
                     return nb::object(numpy_of_each<std::uint8_t>(got.blocks, [](const SetGetBlock& block) {
                                         return block.has_landed;
                                       }).attr("view")("bool"));
                   })
      .def_prop_ro("block_bytes",
                   [](const Got& got) {
                     return numpy_of_each<std::uint64_t>(got.blocks,
                                                         [](const SetGetBlock& block) { return block.block_bytes; });
                   })
      .def("why_of",
           [](const Got& got, std::size_t i) {
             // One at a time: exceptions for thousands of blocks would cost more than the get did, and few are read.
             if (i >= got.blocks.size()) throw nb::index_error();
             const error_code why = got.blocks[i].why;
             return why_object(why, why == got.why ? got.reason : "");
           })
      .def_ro("landed_count", &SetGetResult::landed_count)
      .def_ro("corrupt_count", &SetGetResult::corrupt_count);
  told_class<SetPutResult>(module, "SetPutResult")
      .def_prop_ro("states",
                   [](const Told<SetPutResult>& put) {
                     return numpy_of_each<std::uint8_t>(put.blocks, [](SetPutBlock block) { return block; });
                   })
      .def_ro("stored", &SetPutResult::stored)
      .def_ro("already_stored", &SetPutResult::already_stored)
      .def_ro("conflicts", &SetPutResult::conflicts)
      .def_ro("refused", &SetPutResult::refused);

  client
      .def("match_set", &match_set, "set"_a, "hashes"_a, "groups"_a.none(), "deadline"_a, "lease"_a, "prefetch"_a,
           "reuse"_a, "at_once"_a)
      .def("get_set", &get_set, "set"_a, "hashes"_a, "groups"_a.none(), "blocks"_a, "rows"_a.none(), "deadline"_a,
           "lease"_a, "memory_only"_a, "at_once"_a)
      .def("put_set", &put_set, "set"_a, "hashes"_a, "groups"_a.none(), "blocks"_a, "rows"_a.none(), "deadline"_a,
           "reuse"_a, "at_once"_a);
}

}  // namespace kv::python
