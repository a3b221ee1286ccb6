// Client, Queue and Future as Python sees them; opening namespaces, and questions about the nodes.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>

#include "client/python/src/bind.h"
#include "client/python/src/calls/calls.h"
#include "client/python/src/calls/client_config.h"
#include "client/python/src/waits.h"

namespace kv::python {
namespace {

nb::object ask_nodes(const PyClient& self, const std::string& path, const std::string& query, const std::string& node,
                     double deadline) {
  const NodeQuestion question{.path = path, .query = query, .node = node};
  return to_python(
      self.core()->ask<std::vector<NodeAnswer>>([&, time = deadline_of(deadline)](Client& client, CallControl control) {
        return client.ask(question, time, control);
      }));
}

nb::object ping(const PyClient& self, double deadline) {
  return to_python(self.core()->ask<std::vector<std::chrono::nanoseconds>>(
      [&, time = deadline_of(deadline)](Client& client, CallControl control) { return client.ping(time, control); }));
}

/// A question that asks no node.
template <auto question>
auto of_client(const PyClient& self) {
  self.core()->check_open();
  return value_of(
      run_without_gil([&] { return self.core()->use([](Client& client) { return (client.*question)(); }); }));
}

void tell_prefill_speed(const PyClient& self, double tokens_per_second) {
  self.core()->check_open();
  static_cast<void>(run_without_gil(
      [&] { return self.core()->use([&](Client& client) { client.tell_prefill_speed(tokens_per_second); }); }));
}

Request opening(const NamespaceRecord& record, double deadline) {
  return {.op = Op::kOpen, .deadline = deadline_of(deadline), .record = &record};
}

void wait_open(PyClient& self, std::uint32_t space, double deadline) {
  self.make({.op = Op::kWaitOpen, .space = Space{space}, .deadline = deadline_of(deadline)}, {});
}

void bind_queue(QueueClass& queue) {
  using namespace nb::literals;
  queue
      .def(nb::new_([](const PyClient& client, bool waits, bool is_shared) {
             return Queue::open(client.core(), waits, is_shared);
           }),
           "client"_a, "waits"_a, "is_shared"_a = false)
      .def(
          "open",
          [](Queue& self, const NamespaceRecord& record, double deadline, nb::object then) {
            return self.begin(opening(record, deadline), {}, std::move(then));
          },
          "record"_a, "deadline"_a, "then"_a = nb::none())
      .def(
          "release",  // waits neither for a node nor for the client's thread: the caller does not need the answer
          [](Queue& self, std::uint64_t lease) { self.begin({.op = Op::kRelease, .lease = Lease{lease}}, {}); },
          "lease"_a)
      .def("fileno", [](const Queue& self) { return self.native().fd(); })
      .def("check",
           [](const Queue& self) {
             if (self.core()->is_forked()) throw failure_of(Errc::kForked);
           })
      .def("reap", &Queue::reap)
      .def(
          "wait",
          [](Queue& self, const std::vector<Future>& futures, std::size_t count, std::optional<double> timeout) {
            std::vector<std::shared_ptr<CallState>> states;
            for (const Future& each : futures) states.push_back(each.state());
            return self.wait(states, count, timeout);
          },
          "futures"_a, "count"_a, "timeout"_a.none());
}

}  // namespace

void bind_client(nb::module_& module) {
  using namespace nb::literals;
  bind_caller(module);
  ClientClass client(module, "Client");
  client
      .def(
          "__init__",
          [](PyClient* self, const std::vector<nb::object>& nodes, const std::string& identity, std::size_t connections,
             double connect_timeout, std::size_t calls_max, std::uint64_t region_bytes_max, bool rdma,
             std::vector<std::string> rdma_devices, std::size_t rdma_lanes, bool verify, double busy_poll,
             std::size_t extent_blocks, const nb::dict& tls, const nb::str& token, const std::string& token_file,
             double hedge_share, const std::string& zone, const std::string& numa_nodes, bool follow_cluster,
             std::size_t staging_bytes) {
            ClientConfig config = config_of(nodes, tls, token, token_file);
            config.follow_cluster = follow_cluster;
            config.extent_blocks = extent_blocks;
            config.hedge_share = hedge_share;
            config.zone = zone;
            config.numa_nodes = numa_nodes;
            config.staging_bytes = staging_bytes;
            config.identity = identity;
            config.connections_per_node = connections;
            config.connect_timeout = duration_of(connect_timeout);
            config.calls_max = calls_max;
            config.region_bytes_max = region_bytes_max;
            config.rdma = rdma ? ClientConfig::Rdma::kAuto : ClientConfig::Rdma::kOff;
            config.rdma_devices = std::move(rdma_devices);
            config.rdma_lanes = rdma_lanes;
            config.verify = verify;
            new (self) PyClient(std::move(config), deadline_of(busy_poll));
          },
          nb::kw_only(), "nodes"_a, "identity"_a, "connections_per_node"_a, "connect_timeout"_a, "calls_max"_a,
          "region_bytes_max"_a, "rdma"_a, "rdma_devices"_a, "rdma_lanes"_a, "verify"_a, "busy_poll"_a,
          "extent_blocks"_a, "tls"_a, "token"_a, "token_file"_a, "hedge_share"_a, "zone"_a, "numa_nodes"_a,
          "follow_cluster"_a, "staging_bytes"_a)
      .def_prop_ro("is_closed", [](const PyClient& self) { return self.core()->is_over(); })
      .def("close", [](const PyClient& self) { self.core()->close(); })
      .def(
          "open",
          [](PyClient& self, const NamespaceRecord& record, double deadline) {
            return self.make(opening(record, deadline), {});
          },
          "record"_a, "deadline"_a)
      .def("wait_open", &wait_open, "space"_a, "deadline"_a)
      .def("ask", &ask_nodes, "path"_a, "query"_a, "node"_a, "deadline"_a)
      .def("ping", &ping, "deadline"_a)
      .def("nodes", [](const PyClient& self) { return to_python(of_client<&Client::nodes>(self)); })
      .def("numa", [](const PyClient& self) { return to_python(of_client<&Client::numa>(self)); })
      .def("metrics_text", &of_client<&Client::metrics_text>)
      .def("tell_prefill_speed", &tell_prefill_speed, "tokens_per_second"_a);
  QueueClass queue(module, "Queue", nb::is_weak_referenceable());
  bind_queue(queue);
  bind_results(module);
  bind_miss_report(module, client);
  nb::class_<Future>(module, "Future", nb::is_generic())
      .def_prop_ro("_queue", &Future::queue)
      .def("_tell", &Future::tell, "told"_a)
      .def("__repr__",
           [](const Future& self) { return self.has_ended() ? "<kvstore.Future done>" : "<kvstore.Future in flight>"; })
      .def("done", &Future::has_ended)
      .def("result", &Future::result, "timeout"_a = nb::none())
      .def("cancel", &Future::cancel)
      .def("wait", &Future::wait, "timeout"_a = nb::none())
      .def_prop_ro("segments", &Future::segments)
      .def("wait_segments", &Future::wait_segments, "count"_a, "timeout"_a = nb::none());
  bind_contexts(module, client);
  bind_memory(module, client);
  // For atexit: all C++ threads must stop before the interpreter shuts down.
  module.def("abandon_all", &ClientCore::abandon_all);
}

}  // namespace kv::python
