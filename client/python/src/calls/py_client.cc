#include "client/python/src/calls/py_client.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

#include "client/python/src/bind.h"
#include "client/python/src/buffers.h"
#include "client/python/src/calls/calls.h"
#include "client/python/src/calls/client_config.h"
#include "client/python/src/errors.h"
#include "client/python/src/waits.h"
#include "client/python/src/without_gil.h"

namespace kv::python {

PyClient::PyClient(ClientConfig config, double busy_poll) : config_(config) {
  try {
    io_ = IoClient::make(std::move(config), deadline_of(busy_poll));
  } catch (const std::invalid_argument& error) {
    throw bad_request(error.what());
  }
}

void PyClient::check_open() const {
  if (is_closed_) throw bad_request("the client is closed");
}

void PyClient::close() {
  if (std::exchange(is_closed_, true)) return;
  if (!io_->is_forked()) {
    const auto memory = std::exchange(memory_, {});
    const WithoutGil without_gil;
    // Calls first: memory that a node still fills cannot be taken back, and would be quarantined instead of freed.
    io_->cancel_all();
    // Cancelled calls end soon, whatever the nodes do; abandoned ones never.
    while (io_->call_count() > 0 && !io_->is_over()) ::usleep(50);
    for (const auto& each : memory) {
      // Its Memory object may live on under NumPy arrays: it is ordinary memory then, unknown to all nodes.
      if (const auto lent = each.lock()) lent->take_back();
    }
    io_->close();  // and with it all registrations
  } else {
    io_->close();
  }
  device_regions_.clear();
  orphans_->sweep(io_->is_forked());
}

PyCall PyClient::begin(bool at_once) {
  check_open();
  orphans_->sweep(io_->is_forked());
  PyCall call(io_, orphans_);
  call.state->at_once = at_once;
  const nb::object traceparent = trace_.attr("get")();
  // An invalid traceparent is ignored, as W3C asks: engines pass on whatever their callers send.
  if (nb::isinstance<nb::str>(traceparent))
    call.state->trace = TraceContext::parse(nb::cast<std::string>(traceparent)).value_or(TraceContext());
  return call;
}

PyCall PyClient::begin(nb::handle hashes, bool at_once) {
  PyCall call = begin(at_once);
  // Copied: the caller's list may change as soon as this returns.
  call.state->hashes = hashes_from(hashes, "hashes");
  return call;
}

std::shared_ptr<LentMemory> PyClient::allocate(std::size_t bytes) {
  const auto allocation = Allocation::begin(io_, bytes);
  try {
    wait_in_steps(*io_, -1, [&](auto time) { return allocation->call().wait(time); });
  } catch (...) {
    const WithoutGil without_gil;
    allocation->abandon();
    throw;
  }
  check(*io_, allocation->call().error());
  check_open();  // otherwise the client was closed meanwhile, and the memory went with it
  auto lent = allocation->memory();
  // Swept here, not when memory is freed: memory that outlives this client never refers to it.
  std::erase_if(memory_, [](const auto& each) { return each.expired(); });
  memory_.push_back(lent);
  return lent;
}

void bind_client(nb::module_& module) {
  using namespace nb::literals;
  bind_calls(module);
  nb::class_<PyClient> client(module, "Client");
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
            new (self) PyClient(std::move(config), busy_poll);
          },
          nb::kw_only(), "nodes"_a, "identity"_a, "connections_per_node"_a, "connect_timeout"_a, "calls_max"_a,
          "region_bytes_max"_a, "rdma"_a, "rdma_devices"_a, "rdma_lanes"_a, "verify"_a, "busy_poll"_a,
          "extent_blocks"_a, "tls"_a, "token"_a, "token_file"_a, "hedge_share"_a, "zone"_a, "numa_nodes"_a,
          "follow_cluster"_a, "staging_bytes"_a)
      .def_prop_ro("is_closed", &PyClient::is_closed)
      .def_prop_ro("is_forked", &PyClient::is_forked)
      .def("close", &PyClient::close);
  bind_chains(module, client);
  bind_sets(module, client);
  bind_contexts(module, client);
  bind_nodes(client);
  bind_memory(module, client);

  // For atexit: all C++ threads must stop before the interpreter shuts down.
  module.def("abandon_all", [] {
    const auto clients = IoClient::all();
    const WithoutGil without_gil;
    for (const auto& each : clients) each->abandon();
  });
}

}  // namespace kv::python
