#include "client/core/client_core.h"

#include <array>
#include <stdexcept>
#include <utility>

#include "transport/frames/frame_message.h"
#include "transport/token.h"

namespace kv {
namespace {

void check(bool ok, const std::string& what) {
  if (!ok) throw std::invalid_argument(what);
}

ClientConfig checked(ClientConfig config) {
  check(!config.nodes.empty(), "nodes: at least one is needed");
  for (NodeConfig& node : config.nodes) {
    const auto endpoint = parse_endpoint(node.endpoint);
    check(endpoint.has_value(), "nodes: " + (endpoint ? "" : endpoint.error().text));
    check(endpoint->scheme != Endpoint::Scheme::kTls || config.has_tls() || config.are_nodes_told,
          "nodes: " + node.endpoint + " needs tls-cert, tls-key and tls-ca");
    const bool is_heard = endpoint->scheme == Endpoint::Scheme::kTcp && !endpoint->is_loopback();
    check(!config.has_token() || !is_heard,
          "nodes: " + node.endpoint + " is plain text: a token goes over tls://, unix:// and loopback only");
    if (node.name.empty()) node.name = node.endpoint;
  }
  check(config.token.empty() || config.token_file.empty(), "token: given, and token_file too");
  if (!config.token.empty()) {
    const std::string wrong = check_token(config.token.text());
    check(wrong.empty(), "token: " + wrong);
  }
  if (!config.token_file.empty()) {
    const auto read = read_token_file(config.token_file);
    check(read.has_value(), read ? "" : read.error().text);
  }
  check(config.identity.size() <= 128, "identity: at most 128 bytes");
  check(config.connections_per_node >= 1 && config.connections_per_node <= 64, "connections_per_node: must be 1..64");
  check(config.connect_timeout > Duration::zero(), "connect_timeout: must be positive");
  check(config.backoff_min > Duration::zero() && config.backoff_min <= config.backoff_max,
        "backoff_min: must be positive and at most backoff_max");
  check(config.breaker_failures >= 1, "breaker_failures: must be at least 1");
  check(config.breaker_open >= Duration::zero(), "breaker_open: must not be negative");
  check(config.hedge_share >= 0 && config.hedge_share <= 1, "hedge_share: must be 0..1");
  check(config.hedge_after_min >= Duration::zero() && config.hedge_after_min <= config.hedge_after_max,
        "hedge_after_min: must not be negative, and at most hedge_after_max");
  check(config.calls_max >= 1, "calls_max: must be at least 1");
  for (const std::string& name : config.rdma_devices) {
    const auto wish = verbs::parse_device_wish(name);
    check(wish.has_value(), "rdma_devices: " + wish.error().text);
  }
  check(config.rdma_lanes <= 32, "rdma_lanes: must be at most 32");
  check(config.rdma_messages <= kMessageCountMax, "rdma_messages: must be at most 64");
  check(config.tls.allowed_names.empty(), "tls.allowed_names: is for nodes; a client has server_name");
  return config;
}

}  // namespace

ClientCore::ClientCore(asio::any_io_executor executor, ClientConfig config, Network& network, Clock& clock,
                       verbs::Provider* verbs)
    : shared(std::make_shared<ClientShared>(std::move(executor), checked(std::move(config)), network, clock, verbs)),
      map(list_map()),
      map_event(shared->executor),
      hot_sets(map->node_count()),
      hedger(shared->config.hedge_share, shared->config.hedge_after_min, shared->config.hedge_after_max) {
  if (shared->config.follow_cluster) {
    shared->on_map_epoch = [this](const NodeLink& node, std::uint64_t epoch) { follow(node, epoch); };
    shared->on_node_failure = [this] { node_failed(); };
  }
  for (const NodeConfig& node : shared->config.nodes) {
    members.push_back(links.size());
    links.push_back(std::make_unique<NodeLink>(shared, node, parse_endpoint(node.endpoint).value()));
    hot_calls.push_back(std::make_unique<HotRootsCall>(hot_sets, hot_calls.size()));
  }
}

/// Calls end while the network and the clock still exist. Session coroutines may outlive this, and hold `shared`.
ClientCore::~ClientCore() {
  shared->on_map_epoch = nullptr;
  shared->on_node_failure = nullptr;
  for (const auto& link : links) link->close();
  shared->deadlines.close();  // from here on the network and the clock are unused, and may go
}

const ClientShared::SpaceInfo* ClientCore::find_space(Space space) const {
  const auto index = static_cast<std::size_t>(space);
  return index < shared->spaces.size() ? shared->spaces[index].get() : nullptr;
}

std::vector<OwnedChain> ClientCore::split(Space space, Hashes hashes) const {
  if (find_space(space)->record.is_set()) return split_set(*map, hashes);
  return split_chain(*map, hashes, hot_roots(space, hashes).now);
}

/// For a chain within its root: the node that had it, or else all clients would get the root from one node.
std::vector<OwnedChain> ClientCore::split_found(Space space, Hashes hashes) {
  if (!has_hot_roots()) return split_chain(*map, hashes);
  const auto place = hot_sets.place_of(static_cast<std::uint32_t>(space), hashes, shared->clock.now());
  if (!place.node || hashes.size() > place.hot_blocks) return split_chain(*reachable_map(), hashes, place.hot_blocks);
  std::vector<OwnedChain> chains(1);
  chains[0].node = *place.node;
  chains[0].hashes = hashes;
  chains[0].anchor = hashes.size() - 1;
  // It may be away now: others have the root too.
  if (links[*place.node]->is_away()) chains[0].node = nearest(*reachable_map(), hashes.back(), *place.node);
  return chains;
}

/// Blocks of a set may lie where they would be with any one node away.
/// A hot root lies on every node with an extent behind it, at the chain's beginning. It may have been hot before this
/// client came, or for other clients: so every node is asked both for a possible beginning of the chain, and for its
/// later extents as cut under the known roots.
std::vector<OwnedChain> ClientCore::split_copies(Space space, Hashes hashes) const {
  if (!has_hot_roots()) return split(space, hashes);
  std::vector<OwnedChain> copies(members.size());
  for (std::size_t i = 0; i < copies.size(); ++i) {
    copies[i].node = members[i];
    copies[i].hashes = hashes;
  }
  if (find_space(space)->record.is_set()) return copies;
  const HotSets::Roots roots = hot_roots(space, hashes);
  const auto add = [&](std::size_t hot_blocks) {
    for (const OwnedChain& part : split_chain(*map, hashes, hot_blocks)) {
      if (part.first == 0) continue;
      for (const std::size_t node : members) {
        copies.push_back(part);
        copies.back().node = node;
      }
    }
  };
  add(roots.now);
  if (roots.before) add(*roots.before);
  return copies;
}

std::shared_ptr<const ClusterMap> ClientCore::reachable_map() {
  if (shared->away_count == 0 || !has_hot_roots() || !shared->config.stand_ins) return map;
  std::vector<std::size_t> away;
  for (const std::size_t node : members) {
    if (!links[node]->is_away()) continue;
    away.push_back(node);
    links[node]->probe();
  }
  if (away.empty()) return map;
  if (reachable.whole != map || reachable.away != away) {
    reachable = {map, std::make_shared<const ClusterMap>(map->without(away)), std::move(away)};
  }
  return reachable.rest;
}

std::optional<std::size_t> ClientCore::second_node(const ClusterMap& on, const OwnedChain& chain) const {
  KV_ASSERT(chain.anchor < chain.hashes.size());
  const std::size_t second = on.owner(chain.hashes[chain.anchor], chain.node);
  if (second == chain.node || links[second]->is_away()) return std::nullopt;
  return second;
}

std::size_t ClientCore::nearest(const ClusterMap& on, const BlockHash& block, std::size_t except) {
  const std::string& zone = shared->config.zone;
  std::vector<std::size_t> others;  // farther away
  for (std::size_t i = 0; i < members.size() && !zone.empty() && i < cluster.nodes.size(); ++i) {
    if (cluster.nodes[i].zone != zone) others.push_back(members[i]);
  }
  const ClusterMap own = others.empty() ? on : on.without(others);
  const std::size_t first = own.owner(block, except);
  if (first == except) return on.owner(block, except);
  if (!hedger.is_on() || own.owner_count() < 2) return first;
  const std::size_t other = own.without(std::array{first}).owner(block, except);
  const auto time = hedger.node(first).match.p50(), time_of_other = hedger.node(other).match.p50();
  const bool is_far_sooner = time && time_of_other && *time > 2 * *time_of_other;
  return is_far_sooner && other != except ? other : first;
}

bool ClientCore::is_owner_away(Hashes chain, std::size_t position, std::size_t hot_blocks) const {
  KV_ASSERT(position < chain.size());
  if (shared->away_count == 0 || !has_hot_roots()) return false;
  const auto extents = map->extents(chain, hot_blocks);
  const auto extent = std::ranges::find_if(extents, [&](const auto& each) { return position < each.end; });
  return links[extent->node]->is_away();
}

HotSets::Roots ClientCore::hot_roots(Space space, Hashes chain) const {
  if (!has_hot_roots()) return {};
  return hot_sets.roots(static_cast<std::uint32_t>(space), chain, shared->clock.now());
}

void ClientCore::hear_hot_version(Space space, std::size_t node, std::uint64_t version) {
  if (hot_sets.hear(static_cast<std::uint32_t>(space), node, version, shared->clock.now())) {
    ask_hot_roots(space, node, /*at_once=*/true);
  }
}

void ClientCore::meet_hot_roots(Space space) {
  if (!has_hot_roots() || !hot_sets.meet(static_cast<std::uint32_t>(space))) return;
  for (const std::size_t node : members) ask_hot_roots(space, node, /*at_once=*/false);
}

void ClientCore::ask_hot_roots(Space space, std::size_t node, bool at_once) {
  HotRootsCall& call = *hot_calls[node];
  if (!call.has_ended()) return;  // the next answer asks again
  call.space = static_cast<std::uint32_t>(space);
  call.at_once = at_once;
  links[node]->start(call, shared->clock.now() + HotRootsCall::kDeadline);
}

error_code ClientCore::refuses(Space space, std::chrono::microseconds deadline, const CallControl& control) const {
  return find_space(space) == nullptr ? make_error_code(Errc::kBadRequest) : refuses(deadline, control);
}

error_code ClientCore::refuses(std::chrono::microseconds deadline, const CallControl& control) const {
  if (deadline > kDeadlineMax) return Errc::kBadRequest;
  if (control.is_cancelled()) return Errc::kCancelled;
  if (shared->call_count < shared->config.calls_max) return {};
  shared->metrics.refused();
  return Errc::kBusy;
}

}  // namespace kv
