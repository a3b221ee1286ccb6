#include "client/link/client_shared.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "transport/tls/tls_network.h"

namespace kv {
namespace {

std::uint64_t random_seed() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

/// Whether one of the nodes that a person named is reached in plain text over a network.
bool names_plain(const ClientConfig& config) {
  return std::ranges::any_of(config.nodes, [](const NodeConfig& node) {
    const auto endpoint = parse_endpoint(node.endpoint);
    return endpoint && endpoint->scheme == Endpoint::Scheme::kTcp;
  });
}

std::unique_ptr<Network> tls_network_of(const ClientConfig& config, Network& network) {
  if (!config.tls.is_given()) return nullptr;
  auto source = TlsSource::open(config.tls, TlsSide::kClient);
  if (!source) throw std::invalid_argument(source.error().text);
  return make_tls_network(network, std::move(*source),
                          {.server_name = config.tls.server_name, .allows_plain = names_plain(config)});
}

NumaPlace numa_place_of(const ClientConfig& config) {
  auto place = find_numa_place(config.numa_nodes);
  if (!place) throw std::invalid_argument("numa_nodes: " + place.error().text);
  return *std::move(place);
}

}  // namespace

ClientShared::ClientShared(asio::any_io_executor e, ClientConfig c, Network& n, Clock& k, verbs::Provider* v)
    : executor(std::move(e)),
      config(std::move(c)),
      tls_network(tls_network_of(config, n)),
      network(tls_network ? *tls_network : n),
      clock(k),
      deadlines(k, executor),
      numa_place(numa_place_of(config)),
      memory(config.region_bytes_max, numa_place),
      staging(memory, config.staging_bytes),
      verbs(executor, k, {.names = config.rdma_devices, .traffic_class = config.rdma_traffic_class}, v,
            numa_place.choice),
      random(config.seed != 0 ? config.seed : random_seed()) {}

ClientShared::~ClientShared() = default;

}  // namespace kv
