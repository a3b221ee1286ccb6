// Why a chain is not found.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "base/text/hex.h"
#include "client/python/src/calls/calls.h"
#include "client/python/src/calls/results.h"
#include "client/types/miss_report.h"

namespace kv::python {

void bind_miss_report(nb::module_& module) {
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
}

}  // namespace kv::python
