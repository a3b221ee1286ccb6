// Calls on the blocks of a chain, and their results.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <iterator>

#include "base/checksum.h"
#include "client/load.h"
#include "client/python/src/calls/calls.h"
#include "client/python/src/calls/results.h"
#include "client/python/src/waits.h"

namespace kv::python {
namespace {

void take_tokens(Call& state, nb::handle tokens, nb::handle extras) {
  const Numbers<std::uint32_t> ids(tokens, "token_ids");
  state.token_ids.assign(ids.values().begin(), ids.values().end());
  state.extras = extras_from(extras, "extras");
}

/// The checksums of a call's blocks, for each stripe of each block: where they land, or where they come from.
class BlockChecksums {
 public:
  /// None: without.
  BlockChecksums(nb::handle object, std::size_t block_count, std::size_t block_bytes, bool is_written) {
    if (object.is_none()) return;
    values_ = integers_of<std::uint64_t>(array_.emplace_back(object, "checksums", is_written));
    const std::size_t stripes = stripe_count(block_bytes);
    if (values_.size() != block_count * stripes)
      throw bad_request("checksums: " + std::to_string(values_.size()) + ", " + std::to_string(block_count) +
                        " blocks of " + std::to_string(stripes) + " stripes have " +
                        std::to_string(block_count * stripes));
  }

  std::span<std::uint64_t> values() const { return values_; }
  /// Right before the call starts, when `holds` has the blocks' arrays alone. Throws where a device's memory must not
  /// be named, or nobody could verify it.
  void join(PyClient& self, std::span<const std::span<std::byte>> blocks, Holds& holds) {
    if (self.device_regions().covers(holds, blocks) && array_.empty())
      throw bad_request("checksums: none are given, and this process cannot read blocks on a CUDA device");
    std::ranges::move(array_, std::back_inserter(holds));
  }

 private:
  Holds array_;  ///< One at most.
  std::span<std::uint64_t> values_;
};

SegmentCallback tell_segments(Call& state) {
  if (state.segment_ends.empty()) return {};
  return {[](void* context, std::size_t, std::size_t block_count) {
            // On the I/O thread, without the GIL: no Python here. Wakes a waiting thread, which reads `segments`.
            static_cast<Call*>(context)->land_segment(block_count);
          },
          &state};
}

PyCall open_space(PyClient& self, const NamespaceRecord& record, double deadline, bool waits) {
  return self.start(self.begin(),
                    [record, time = waits ? deadline_of(deadline) : std::chrono::microseconds(0)](
                        Client& client, Call& state) { return client.open(record, time, state.control()); });
}

PyCall wait_open(PyClient& self, std::uint32_t space, double deadline) {
  return self.start(self.begin(), [space, time = deadline_of(deadline)](Client& client, Call& state) {
    return client.wait_open(Space{space}, time, state.control());
  });
}

PyCall match_chain(PyClient& self, std::uint32_t space, nb::handle hashes, double deadline, bool lease, bool prefetch,
                   nb::handle tokens, nb::handle extras, std::uint8_t reuse, bool at_once) {
  PyCall call = self.begin(hashes, at_once);
  take_tokens(*call.state, tokens, extras);
  MatchOptions options{};
  options.deadline = deadline_of(deadline);
  options.lease = lease;
  options.prefetch = prefetch;
  options.token_ids = call.state->token_ids;
  options.extras = call.state->extras;
  options.reuse = static_cast<ReuseHint>(reuse);
  options.control = call.state->control();
  return self.start(std::move(call), [space, options](Client& client, Call& state) {
    return client.match(Space{space}, state.hashes, options);
  });
}

PyCall get_chain(PyClient& self, std::uint32_t space, std::size_t block_bytes, nb::handle hashes, nb::handle blocks,
                 nb::handle rows, double deadline, std::uint64_t lease, std::vector<std::uint64_t> segment_ends,
                 bool memory_only, nb::handle checksums, bool at_once) {
  PyCall call = self.begin(hashes, at_once);
  Call& state = *call.state;
  BlockChecksums sums(checksums, state.hashes.size(), block_bytes, /*is_written=*/true);
  state.blocks = blocks_from(blocks, rows, state.hashes.size(), block_bytes, /*is_written=*/true, call.holds(),
                             self.device_regions().place());
  sums.join(self, state.blocks, call.holds());
  state.segment_ends = std::move(segment_ends);
  GetOptions options{};
  options.deadline = deadline_of(deadline);
  options.lease = Lease{lease};
  options.segment_ends = state.segment_ends;
  options.memory_only = memory_only;
  options.checksums = sums.values();
  options.control = state.control();
  options.on_segment = tell_segments(state);
  return self.start(std::move(call), [space, options](Client& client, Call& arguments) {
    return client.get(Space{space}, arguments.hashes, arguments.blocks, options);
  });
}

PyCall load_chain(PyClient& self, std::uint32_t space, std::size_t block_bytes, nb::handle hashes, nb::handle blocks,
                  nb::handle rows, double deadline, std::size_t block_count_min,
                  std::vector<std::uint64_t> segment_ends, bool memory_only, std::uint8_t reuse, nb::handle checksums,
                  bool at_once) {
  PyCall call = self.begin(hashes, at_once);
  Call& state = *call.state;
  BlockChecksums sums(checksums, state.hashes.size(), block_bytes, /*is_written=*/true);
  state.blocks = blocks_from(blocks, rows, state.hashes.size(), block_bytes, /*is_written=*/true, call.holds(),
                             self.device_regions().place());
  sums.join(self, state.blocks, call.holds());
  state.segment_ends = std::move(segment_ends);
  LoadOptions options{};
  options.deadline = deadline_of(deadline);
  options.block_count_min = block_count_min;
  options.segment_ends = state.segment_ends;
  options.memory_only = memory_only;
  options.checksums = sums.values();
  options.on_segment = tell_segments(state);
  options.reuse = static_cast<ReuseHint>(reuse);
  return self.start(std::move(call), [space, options](Client& client, Call& arguments) {
    LoadOptions own = options;
    own.control = arguments.control();
    return load(client, Space{space}, arguments.hashes, arguments.blocks, own);
  });
}

PyCall put_chain(PyClient& self, std::uint32_t space, std::size_t block_bytes, nb::handle hashes, nb::handle blocks,
                 nb::handle rows, double deadline, nb::handle tokens, nb::handle extras, std::uint8_t reuse,
                 nb::handle checksums, bool at_once) {
  PyCall call = self.begin(hashes, at_once);
  Call& state = *call.state;
  take_tokens(state, tokens, extras);
  BlockChecksums sums(checksums, state.hashes.size(), block_bytes, /*is_written=*/false);
  // Borrowed, not copied: an engine must not write to these blocks until the call has ended, just as in C.
  const auto from = blocks_from(blocks, rows, state.hashes.size(), block_bytes, /*is_written=*/false, call.holds(),
                                self.device_regions().place());
  sums.join(self, from, call.holds());
  state.read_from(from);
  PutOptions options{};
  options.deadline = deadline_of(deadline);
  options.token_ids = state.token_ids;
  options.extras = state.extras;
  options.checksums = sums.values();
  options.reuse = static_cast<ReuseHint>(reuse);
  options.control = state.control();
  return self.start(std::move(call), [space, options](Client& client, Call& arguments) {
    return client.put(Space{space}, arguments.hashes, arguments.sources, options);
  });
}

/// Calls that need the hashes alone: touch, pin, unpin, drop and why.
template <auto verb>
PyCall of_chain(PyClient& self, std::uint32_t space, nb::handle hashes, double deadline, bool at_once) {
  return self.start(self.begin(hashes, at_once), [space, time = deadline_of(deadline)](Client& client, Call& state) {
    return (client.*verb)(Space{space}, state.hashes, time, state.control());
  });
}
PyCall why_chain(PyClient& self, std::uint32_t space, nb::handle hashes, double deadline) {
  return of_chain<&Client::why>(self, space, hashes, deadline, /*at_once=*/false);
}

void bind_miss_report(nb::module_& module) {
  nb::class_<FieldDifference>(module, "FieldDifference")
      .def_ro("field", &FieldDifference::field)
      .def_ro("here", &FieldDifference::here)
      .def_ro("there", &FieldDifference::there);
  nb::class_<MissReport::Other>(module, "OtherNamespace")
      .def_prop_ro("namespace_id", [](const MissReport::Other& other) { return to_hex(other.id.bytes); })
      .def_ro("has_block", &MissReport::Other::has_block)
      .def_ro("block_count", &MissReport::Other::block_count)
      .def_ro("stored_blocks", &MissReport::Other::stored_blocks)
      .def_ro("lookups", &MissReport::Other::lookups)
      .def_ro("empty_lookups", &MissReport::Other::empty_lookups)
      .def_ro("differs", &MissReport::Other::differs);
  using Report = Told<MissReport>;
  told_class<MissReport>(module, "MissReport")
      .def_ro("block_count", &MissReport::block_count)
      .def_ro("disk_block_count", &MissReport::disk_block_count)
      .def_ro("is_whole", &MissReport::is_whole)
      .def_prop_ro("reason", [](const Report& report) { return std::string(miss_kind_name(report.kind)); })
      .def_ro("node", &MissReport::node)
      .def_prop_ro("left_seconds", &seconds_of<Report, &MissReport::left>)
      .def_prop_ro("idle_seconds", &seconds_of<Report, &MissReport::idle>)
      .def_prop_ro("remembers_seconds", &seconds_of<Report, &MissReport::remembers>)
      .def_ro("stored_blocks", &MissReport::stored_blocks)
      .def_ro("lookups", &MissReport::lookups)
      .def_ro("empty_lookups", &MissReport::empty_lookups)
      .def_ro("others", &MissReport::others)
      .def_prop_ro("text", &MissReport::text);
}

void bind_chain_results(nb::module_& module) {
  using Match = Told<MatchResult>;
  told_class<MatchResult>(module, "MatchResult")
      .def_ro("block_count", &MatchResult::block_count)
      .def_ro("disk_block_count", &MatchResult::disk_block_count)
      .def_prop_ro("disk_seconds", &seconds_of<Match, &MatchResult::disk_time>)
      .def_prop_ro("lease", [](const Match& match) { return static_cast<std::uint64_t>(match.lease); })
      .def_ro("partial_token_count", &MatchResult::partial_token_count)
      .def_prop_ro("partial_block", [](const Match& match) {
        return nb::bytes(match.partial_block.bytes.data(), match.partial_block.bytes.size());
      });
  told_class<GetResult>(module, "GetResult")
      .def_ro("block_count", &GetResult::block_count)
      .def_ro("corrupt_count", &GetResult::corrupt_count);
  using Loaded = Told<LoadResult>;
  told_class<LoadResult>(module, "LoadResult")
      .def_prop_ro("found_count", [](const Loaded& loaded) { return loaded.match.block_count; })
      .def_prop_ro("disk_block_count", [](const Loaded& loaded) { return loaded.match.disk_block_count; })
      .def_prop_ro("block_count", [](const Loaded& loaded) { return loaded.get.block_count; })
      .def_prop_ro("corrupt_count", [](const Loaded& loaded) { return loaded.get.corrupt_count; });
  told_class<PutResult>(module, "PutResult")
      .def_ro("stored", &PutResult::stored)
      .def_ro("already_stored", &PutResult::already_stored)
      .def_ro("refused", &PutResult::refused);
  nb::class_<DropResult>(module, "DropResult")
      .def_ro("block_count", &DropResult::block_count)
      .def_ro("until_restart", &DropResult::until_restart);
}

}  // namespace

void bind_chains(nb::module_& module, nb::class_<PyClient>& client) {
  using namespace nb::literals;
  bind_miss_report(module);
  bind_chain_results(module);
  client.def("open", &open_space, "record"_a, "deadline"_a, "waits"_a)
      .def("wait_open", &wait_open, "space"_a, "deadline"_a)
      .def("why", &why_chain, "space"_a, "hashes"_a, "deadline"_a)
      .def("match", &match_chain, "space"_a, "hashes"_a, "deadline"_a, "lease"_a, "prefetch"_a, "token_ids"_a.none(),
           "extras"_a.none(), "reuse"_a, "at_once"_a)
      .def("get", &get_chain, "space"_a, "block_bytes"_a, "hashes"_a, "blocks"_a, "rows"_a.none(), "deadline"_a,
           "lease"_a, "segment_ends"_a, "memory_only"_a, "checksums"_a.none(), "at_once"_a)
      .def("load", &load_chain, "space"_a, "block_bytes"_a, "hashes"_a, "blocks"_a, "rows"_a.none(), "deadline"_a,
           "block_count_min"_a, "segment_ends"_a, "memory_only"_a, "reuse"_a, "checksums"_a.none(), "at_once"_a)
      .def("put", &put_chain, "space"_a, "block_bytes"_a, "hashes"_a, "blocks"_a, "rows"_a.none(), "deadline"_a,
           "token_ids"_a.none(), "extras"_a.none(), "reuse"_a, "checksums"_a.none(), "at_once"_a)
      .def("touch", &of_chain<&Client::touch>, "space"_a, "hashes"_a, "deadline"_a, "at_once"_a)
      .def("pin", &of_chain<&Client::retain>, "space"_a, "hashes"_a, "deadline"_a, "at_once"_a)
      .def("unpin", &of_chain<&Client::unretain>, "space"_a, "hashes"_a, "deadline"_a, "at_once"_a)
      .def("drop", &of_chain<&Client::drop>, "space"_a, "hashes"_a, "deadline"_a, "at_once"_a)
      .def(
          "release",  // never waits: the caller does not need the answer
          [](PyClient& self, std::uint64_t lease) {
            self.ask([lease](Client& asked) { asked.release(Lease{lease}); });
          },
          "lease"_a);
}

}  // namespace kv::python
