#include "client/python/src/calls/results.h"

#include <nanobind/stl/string.h>

#include <cstdint>
#include <span>
#include <variant>

#include "client/python/src/errors.h"

namespace kv::python {
namespace {

struct OutcomeToPython {
  const std::string& reason;

  nb::object operator()(std::monostate) const { return nb::none(); }
  nb::object operator()(std::span<std::byte>) const { return nb::none(); }
  nb::object operator()(Space space) const { return nb::cast(static_cast<std::uint32_t>(space)); }
  nb::object operator()(const std::vector<std::chrono::nanoseconds>& times) const {
    nb::list seconds;
    for (const auto time : times) {
      seconds.append(time.count() < 0 ? nb::none()
                                      : nb::object(nb::float_(std::chrono::duration<double>(time).count())));
    }
    return seconds;
  }
  nb::object operator()(const std::vector<NodeAnswer>& nodes) const {
    nb::list list;
    for (const NodeAnswer& node : nodes) {
      nb::dict entry;
      entry["name"] = node.name;
      entry["error"] = node.error ? nb::object(nb::str(failure_of(node.error).text.c_str())) : nb::none();
      entry["json"] = node.json;
      list.append(entry);
    }
    return list;
  }
  nb::object operator()(const std::vector<NodeStatus>& nodes) const {
    nb::list list;
    for (const NodeStatus& node : nodes) {
      nb::dict entry;
      entry["name"] = node.name;
      entry["endpoint"] = node.endpoint;
      entry["node_id"] = node.node_id;
      entry["transport"] = node.peer_transport;
      entry["rdma_lanes"] = node.rdma_lanes;
      entry["rdma_text"] = node.rdma_text;
      entry["connected"] = node.connected;
      entry["breaker_open"] = node.breaker_open;
      entry["calls"] = node.calls;
      entry["failures"] = node.failures;
      entry["timeouts"] = node.timeouts;
      entry["reconnects"] = node.reconnects;
      entry["hedges"] = node.hedges;
      entry["hedge_wins"] = node.hedge_wins;
      entry["breaker_openings"] = node.breaker_openings;
      entry["last_error"] = node.last_error_text;
      list.append(entry);
    }
    return list;
  }
  nb::object operator()(const NumaStatus& numa) const {
    nb::dict entry;
    entry["nodes"] = numa.place.node_count;
    nb::list chosen, processors;
    for (const unsigned node : numa.place.choice.memory) chosen.append(node);
    for (const unsigned processor : numa.place.choice.processors) processors.append(processor);
    entry["chosen"] = chosen;
    entry["processors"] = processors;
    entry["misplaced_ratio"] = numa.misplaced_ratio ? nb::cast(*numa.misplaced_ratio) : nb::none();
    entry["why_not"] = numa.place.why_not;
    return entry;
  }
  template <class T>
  nb::object operator()(const T& value) const {
    if constexpr (HasWhy<T>) {
      return nb::cast(Told<T>{value, reason});
    } else {
      return nb::cast(value);
    }
  }
};

}  // namespace

nb::object to_python(const Outcome& outcome, const std::string& reason) {
  return std::visit(OutcomeToPython{reason}, outcome);
}

nb::object why_object(const error_code& why, const std::string& reason) {
  if (!why) return nb::none();
  const StatusError failure = failure_of(why, reason);
  return nb::module_::import_("kvstore.errors").attr("error_of")(failure.status, failure.text);
}

}  // namespace kv::python
