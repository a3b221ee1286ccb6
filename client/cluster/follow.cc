// client/cluster/follow.cc: how a client's nodes become those of the cluster's map.
//
// Every answer to a lookup or a put, and every hello, names the epoch of the map that the node knows. A later one than
// that in use is asked for, from the node that named it, and taken up between two calls: the calls that run go on with
// the map with which they began, and none fails because of it.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "client/client_impl.h"

namespace kv {
namespace {

/// Where to reach a node that the client was not told of itself: with TLS if the client has certificates, else in plain
/// text. Unix sockets come last: the same path may belong to another node on this machine (which NodeConfig::node_id
/// then finds out).
const std::string& preferred_endpoint(const ClusterStatus::Node& member, bool has_tls) {
  const auto rank = [has_tls](const std::string& text) {
    switch (parse_endpoint(text)->scheme) {
      case Endpoint::Scheme::kTls: return has_tls ? 0 : 2;
      case Endpoint::Scheme::kUnix: return 3;
      default: return 1;
    }
  };
  return *std::ranges::min_element(member.endpoints, {}, rank);  // of equals the first
}

/// As the map named it, or as it said itself.
const std::string& id_of(const NodeLink& link) {
  return link.config().node_id.empty() ? link.node_id() : link.config().node_id;
}

}  // namespace

/// In the middle of a link's work nothing is started and no link replaced: that is posted.
void Client::Impl::follow(const NodeLink& node) {
  if (is_map_asked) return;  // the next answer will say that there is news
  is_map_asked = true;
  asio::post(shared->executor, [this, &node, alive = std::weak_ptr<int>(life)] {
    if (!alive.expired()) ask_for_map(node);
  });
}

void Client::Impl::ask_for_map(const NodeLink& node) {
  const auto link = std::ranges::find(links, &node, [](const auto& each) { return each.get(); });
  if (link == links.end()) return end_question();  // it was replaced meanwhile
  map_call.done = [this] {
    asio::post(shared->executor, [this, alive = std::weak_ptr<int>(life)] {
      if (alive.expired()) return;
      if (!map_call.error() && map_call.answer.epoch > shared->map_epoch) adopt(std::move(map_call.answer));
      end_question();
    });
  };
  (*link)->start(map_call, shared->clock.now() + ClusterMapCall::kDeadline);
}

void Client::Impl::end_question() {
  is_map_asked = false;
  map_event.set();
}

/// If one is asked for.
asio::awaitable<void> Client::Impl::wait_for_map(TimePoint until) {
  if (!is_map_asked) co_return;
  const auto alarm = shared->clock.make_alarm(shared->executor);
  alarm->arm(until, [this] { map_event.set(); });
  while (is_map_asked && shared->clock.now() < until) {
    map_event.reset();
    co_await map_event.wait();
  }
}

/// Some node did not answer: others may know that it has left. Asked are, in turn, the members and those of the
/// client's own list, so that a client whose nodes have all moved finds the cluster again where it found it first.
void Client::Impl::node_failed() {
  constexpr Duration kPause = 1s;
  const TimePoint now = shared->clock.now();
  if (shared->map_epoch == 0 || now < next_question || is_map_asked) return;
  next_question = now + kPause;
  const std::size_t seed_count = shared->config.nodes.size();
  const std::size_t turn = question_count++ % (members.size() + seed_count);
  follow(*links[turn < members.size() ? members[turn] : turn - members.size()]);
}

/// Nodes that stay keep their numbers, and with them their connections, what they said of hot roots, and leases.
void Client::Impl::adopt(ClusterStatus status) {
  std::unordered_map<std::string_view, std::vector<std::size_t>> numbers_by_id;
  for (std::size_t node = 0; node < links.size(); ++node) numbers_by_id[id_of(*links[node])].push_back(node);
  std::vector<std::size_t> numbers(status.nodes.size(), links.size());
  std::vector<bool> is_taken(links.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const ClusterStatus::Node& member = status.nodes[i];
    const auto known = numbers_by_id.find(member.id);
    if (known == numbers_by_id.end()) continue;
    for (const std::size_t node : known->second) {
      // Of the client's own list too, if the node says that this endpoint is its own.
      if (std::ranges::find(member.endpoints, links[node]->config().endpoint) == member.endpoints.end()) continue;
      numbers[i] = node;
      is_taken[node] = true;
      break;
    }
  }
  const TimePoint now = shared->clock.now();
  for (const std::size_t node : members) {
    if (is_taken[node]) continue;
    hot_sets.forget_node(node, now);
    hedger.forget_node(node);
  }
  std::size_t free = shared->config.nodes.size();  // those of the client's own list are kept: see node_failed()
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] < is_taken.size()) continue;
    while (free < is_taken.size() && is_taken[free]) ++free;
    numbers[i] = free < is_taken.size() ? free++ : links.size();
    set_link(numbers[i], status.nodes[i]);
  }
  hot_sets.forget_places();
  members = std::move(numbers);
  // Those that do not belong to it own nothing. A space is in no id.
  std::vector<ClusterMap::Node> nodes;
  for (std::size_t node = 0; node < links.size(); ++node) nodes.push_back({" " + std::to_string(node), 0});
  for (std::size_t i = 0; i < members.size(); ++i) {
    const ClusterStatus::Node& member = status.nodes[i];
    nodes[members[i]] = {member.id, status.weight_of(member)};
  }
  map = std::make_shared<const ClusterMap>(nodes, status.extent_blocks);
  shared->map_epoch = status.epoch;
  cluster = std::move(status);
}

void Client::Impl::set_link(std::size_t node, const ClusterStatus::Node& member) {
  NodeConfig config;
  config.endpoint = preferred_endpoint(member, shared->tls_network != nullptr);
  config.name = config.node_id = member.id;
  config.weight = member.weight;
  auto link = std::make_unique<NodeLink>(shared, config, parse_endpoint(config.endpoint).value());
  if (node == links.size()) {
    links.push_back(std::move(link));
    hot_calls.push_back(std::make_unique<HotRootsCall>(hot_sets, node));
    hot_sets.add_node();
    return;
  }
  links[node]->close();
  links[node] = std::move(link);
}

}  // namespace kv
