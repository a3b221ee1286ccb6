// Why a chain is not found.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "base/text/hex.h"
#include "client/python/src/calls/calls.h"
#include "client/python/src/calls/results.h"
#include "client/python/src/waits.h"
#include "client/types/miss_report.h"

namespace kv::python {
namespace {

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

void bind_miss_report(nb::module_& module, ClientClass& client) {
  using namespace nb::literals;
  nb::class_<FieldDifference>(module, "FieldDifference")
      .def_ro("field", &FieldDifference::field)
      .def_ro("here", &FieldDifference::here)
      .def_ro("there", &FieldDifference::there);
  using Other = MissReport::Other;
  nb::class_<Other>(module, "OtherNamespace")
      .def_prop_ro("namespace_id", [](const Other& other) { return to_hex(other.id.bytes); })
      .def_ro("has_block", &Other::has_block)
      .def_ro("block_count", &Other::block_count)
      .def_ro("stored_blocks", &Other::stored_blocks)
      .def_ro("lookups", &Other::lookups)
      .def_ro("empty_lookups", &Other::empty_lookups)
      .def_ro("differs", &Other::differs);
  using Report = Told<MissReport>;
  nb::class_<Report>(module, "MissReport")
      .def_prop_ro("why", [](const Report& report) { return why_object(report.why, report.reason); })
      .def_ro("block_count", &Report::block_count)
      .def_ro("disk_block_count", &Report::disk_block_count)
      .def_ro("is_whole", &Report::is_whole)
      .def_prop_ro("reason", [](const Report& report) { return std::string(miss_kind_name(report.kind)); })
      .def_ro("node", &Report::node)
      .def_prop_ro("left_seconds", &seconds_of<Report, &Report::left>)
      .def_prop_ro("idle_seconds", &seconds_of<Report, &Report::idle>)
      .def_prop_ro("remembers_seconds", &seconds_of<Report, &Report::remembers>)
      .def_ro("stored_blocks", &Report::stored_blocks)
      .def_ro("lookups", &Report::lookups)
      .def_ro("empty_lookups", &Report::empty_lookups)
      .def_ro("others", &Report::others)
      .def_prop_ro("text", &Report::text);
  client.def("why", &why_chain, "space"_a, "hashes"_a, "deadline"_a);
}

}  // namespace kv::python
