#include "client/link/client_shared.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "transport/tls/tls_identity.h"
#include "transport/tls/tls_network.h"

namespace kv {
namespace {

std::uint64_t random_seed() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

/// Whether the configuration names a plain-text endpoint on a network.
bool names_plain(const ClientConfig& config) {
  return std::ranges::any_of(config.nodes, [](const NodeConfig& node) {
    const auto endpoint = parse_endpoint(node.endpoint);
    return endpoint && endpoint->scheme == Endpoint::Scheme::kTcp;
  });
}

std::shared_ptr<TlsSource> certificates_of(const ClientConfig& config) {
  if (!config.has_tls() || config.tls_source) return config.tls_source;
  auto opened = TlsSource::open(config.tls, TlsSide::kClient);
  if (!opened) throw std::invalid_argument(opened.error().text);
  return std::move(*opened);
}

std::unique_ptr<Network> tls_network_of(const ClientConfig& config, std::shared_ptr<TlsSource> certificates,
                                        Network& network) {
  if (!certificates) return nullptr;
  return make_tls_network(network, std::move(certificates),
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
      certificates(certificates_of(config)),
      tls_network(tls_network_of(config, certificates, n)),
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

error_code ClientShared::may_connect(const Endpoint& endpoint, bool is_told) const {
  if (!is_told || !config.has_token() || endpoint.scheme == Endpoint::Scheme::kTls) return {};
  const auto is_this = [&](const NodeConfig& node) {
    const auto own = parse_endpoint(node.endpoint);
    return own && *own == endpoint;
  };
  return std::ranges::any_of(config.nodes, is_this) ? error_code() : error_code(TlsErrc::kNotNamed);
}

/// The handshake has proved that the node is the endpoint's host; here the host, or another name in the same
/// certificate, must be a configured one. A certificate's wildcard stands for the names that it would prove.
error_code ClientShared::may_talk(const Endpoint& endpoint, const Stream& stream, bool is_told) const {
  if (!is_told || !config.has_token() || endpoint.scheme != Endpoint::Scheme::kTls) return {};
  if (!config.tls.server_name.empty()) return {};
  const std::vector<std::string> names = stream.peer_names();
  if (is_allowed(names, config.tls.node_names)) return {};
  for (const NodeConfig& node : config.nodes) {
    const auto own = parse_endpoint(node.endpoint);
    if (!own || own->scheme != Endpoint::Scheme::kTls) continue;
    if (own->host == endpoint.host || is_host_of(names, own->host)) return {};
  }
  return TlsErrc::kNotNamed;
}

}  // namespace kv
