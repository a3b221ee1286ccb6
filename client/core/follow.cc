// client/core/follow.cc: how a client's nodes become those of the cluster's map.
//
// Every answer to a lookup or a put, and every hello, carries the epoch of the node's map. If it is later than the one
// in use, the client asks that node and one more for the map and adopts it between two calls if they agree
// (map_votes.h): running calls keep their map, and none fails because of the change. Besides, some node is asked every
// few seconds, so that a client discovers nodes that its map has hidden from it.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "client/core/client_core.h"

namespace kv {
namespace {

/// The endpoint for an unconfigured node: TLS if the client has certificates, else plain text. Unix sockets come last:
/// the same path may belong to another node on this machine (which NodeConfig::node_id then detects).
const std::string& preferred_endpoint(const ClusterStatus::Node& member, bool has_tls) {
  const auto rank = [has_tls](const std::string& text) {
    switch (parse_endpoint(text)->scheme) {
      case Endpoint::Scheme::kTls: return has_tls ? 0 : 2;
      case Endpoint::Scheme::kUnix: return 3;
      default: return 1;
    }
  };
  return *std::ranges::min_element(member.endpoints, {}, rank);  // among equals the first
}

/// The id in the map, or else the node's own.
const std::string& id_of(const NodeLink& link) {
  return link.config().node_id.empty() ? link.node_id() : link.config().node_id;
}

}  // namespace

/// A node has a later map, or it is time to check for one. Called in the middle of a link's work, where calls must not
/// be started or links replaced: that is posted.
void ClientCore::follow(const NodeLink& node, std::uint64_t epoch) {
  if (is_map_asked) return;  // the next answer asks again
  const TimePoint now = shared->clock.now();
  const auto link = std::ranges::find(links, &node, [](const auto& each) { return each.get(); });
  if (link == links.end()) return;
  const auto number = static_cast<std::size_t>(link - links.begin());
  if (epoch > shared->map_epoch && now >= next_round && !votes.is_known(number, epoch))
    return begin_round(number, /*is_awaited=*/true);
  if (now < shared->next_map_look) return;
  const std::vector<MapVotes::Voter> voters = map_voters();
  const std::size_t next = votes.next_to_ask(voters, TimePoint::max(), now);
  if (next < voters.size()) begin_round(voters[next].node, /*is_awaited=*/false);
}

/// The nodes to ask for a map: the client's own list, which no map removes, and the members.
std::vector<MapVotes::Voter> ClientCore::map_voters() const {
  std::vector<MapVotes::Voter> voters;
  const auto add = [&](std::size_t number, bool is_own) {
    voters.push_back({number, id_of(*links[number]), is_own, links[number]->is_away() || links[number]->is_down()});
  };
  const std::size_t own_count = shared->config.nodes.size();
  for (std::size_t number = 0; number < own_count; ++number) add(number, true);
  for (const std::size_t number : members) {
    if (number >= own_count) add(number, false);
  }
  return voters;
}

void ClientCore::begin_round(std::size_t number, bool is_awaited) {
  is_map_asked = true;
  is_map_awaited = is_awaited;
  round_began = shared->clock.now();
  round_count = 0;
  asio::post(shared->executor, lifeline.guard([this, number] { ask_for_map(number); }));
}

void ClientCore::ask_for_map(std::size_t number) {
  ++round_count;
  map_call.done = [this, number] {
    asio::post(shared->executor, lifeline.guard([this, number] { hear_map(number); }));
  };
  links[number]->start(map_call, shared->clock.now() + ClusterMapCall::kDeadline);
}

/// Counts one more vote: enough for another map, or a reason to ask one more node, or unchanged.
void ClientCore::hear_map(std::size_t number) {
  constexpr std::size_t kAskedMax = 5;
  constexpr Duration kLook = 5s, kSoon = 1s, kPause = 250ms;
  const TimePoint now = shared->clock.now();
  const bool has_answer = !map_call.error() && votes.tell(number, std::move(map_call.answer), now).empty();
  if (!has_answer) votes.silent(number, now);
  const std::vector<MapVotes::Voter> voters = map_voters();
  const ClusterStatus* const chosen = votes.choose(voters, now);
  const bool is_split = chosen == nullptr && (!has_answer || !votes.agrees(number));
  if (is_split && round_count < kAskedMax) {
    const std::size_t next = votes.next_to_ask(voters, round_began, now);
    if (next < voters.size()) return ask_for_map(voters[next].node);
  }
  if (chosen != nullptr) {
    votes.took(*chosen, now);
    if (chosen->epoch == 0) {
      adopt_list();
    } else {
      adopt(*chosen);
    }
  }
  next_round = is_split ? now + kPause : now;
  // Soon check a single node's report, or a disagreement, against other nodes.
  shared->next_map_look = now + (is_split || chosen != nullptr ? kSoon : kLook);
  is_map_asked = is_map_awaited = false;
  map_event.set();
}

/// Returns at once unless a map is awaited.
asio::awaitable<void> ClientCore::wait_for_map(TimePoint until) {
  if (!is_map_awaited) co_return;
  const auto alarm = shared->clock.make_alarm(shared->executor);
  alarm->arm(until, [this] { map_event.set(); });
  while (is_map_awaited && shared->clock.now() < until) {
    map_event.reset();
    co_await map_event.wait();
  }
}

/// A node did not answer: others may know that it has left. Asks members and own-list nodes in turn, so that a client
/// whose nodes have all moved finds the cluster again through its list.
void ClientCore::node_failed() {
  constexpr Duration kPause = 1s;
  const TimePoint now = shared->clock.now();
  if (shared->map_epoch == 0 || now < next_question || is_map_asked) return;
  next_question = now + kPause;
  const std::size_t seed_count = shared->config.nodes.size();
  const std::size_t turn = question_count++ % (members.size() + seed_count);
  begin_round(turn < members.size() ? members[turn] : turn - members.size(), /*is_awaited=*/true);
}

/// Without a map in force, the client uses its own list, as at first.
void ClientCore::adopt_list() {
  const TimePoint now = shared->clock.now();
  const std::size_t own_count = shared->config.nodes.size();
  for (const std::size_t node : members) {
    if (node < own_count) continue;
    hot_sets.forget_node(node, now);
    hedger.forget_node(node);
  }
  members.resize(own_count);
  std::iota(members.begin(), members.end(), std::size_t{0});
  hot_sets.forget_places();
  map = list_map();
  shared->map_epoch = 0;
  cluster = {};
}

std::shared_ptr<const ClusterMap> ClientCore::list_map() const {
  std::vector<ClusterMap::Node> nodes;
  for (const NodeConfig& node : shared->config.nodes) nodes.push_back({node.name, node.weight});
  while (nodes.size() < links.size()) nodes.push_back({" " + std::to_string(nodes.size()), 0});
  const ClusterMap listed(nodes, shared->config.extent_blocks);
  return std::make_shared<const ClusterMap>(shared->config.nodes.size() == 1 ? listed.uncut() : listed);
}

/// Nodes that stay keep their numbers, and with them their connections, hot root reports and leases.
void ClientCore::adopt(ClusterStatus status) {
  std::unordered_map<std::string_view, std::vector<std::size_t>> numbers_by_id;
  for (std::size_t node = 0; node < links.size(); ++node) numbers_by_id[id_of(*links[node])].push_back(node);
  std::vector<std::size_t> numbers(status.nodes.size(), links.size());
  std::vector<bool> is_taken(links.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const ClusterStatus::Node& member = status.nodes[i];
    const auto known = numbers_by_id.find(member.id);
    if (known == numbers_by_id.end()) continue;
    for (const std::size_t node : known->second) {
      // An own-list node too, if the member lists its endpoint.
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
  std::size_t free = shared->config.nodes.size();  // own-list nodes are kept: see node_failed()
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] < is_taken.size()) continue;
    while (free < is_taken.size() && is_taken[free]) ++free;
    numbers[i] = free < is_taken.size() ? free++ : links.size();
    set_link(numbers[i], status.nodes[i]);
  }
  hot_sets.forget_places();
  members = std::move(numbers);
  // Nodes outside the map own nothing. Ids contain no space.
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

void ClientCore::set_link(std::size_t node, const ClusterStatus::Node& member) {
  NodeConfig config;
  config.endpoint = preferred_endpoint(member, shared->tls_network != nullptr);
  config.name = config.node_id = member.id;
  config.weight = member.weight;
  config.is_told = true;
  auto link = std::make_unique<NodeLink>(shared, config, parse_endpoint(config.endpoint).value());
  if (node == links.size()) {
    links.push_back(std::move(link));
    hot_calls.push_back(std::make_unique<HotRootsCall>(hot_sets, node));
    hot_sets.add_node();
    return;
  }
  links[node]->close();
  links[node] = std::move(link);
  votes.forget(node);
}

}  // namespace kv
