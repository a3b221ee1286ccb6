// kvstorectl cluster: the members of the cluster, and each one's view of it.
#include <algorithm>
#include <iostream>
#include <map>
#include <set>
#include <thread>

#include "base/assert.h"
#include "client/tools/ctl/cluster/cluster_look.h"
#include "client/tools/ctl/cluster/cluster_plan.h"
#include "client/tools/ctl/ctl.h"
#include "client/tools/json_text.h"
#include "client/tools/options.h"
#include "client/tools/text_table.h"

namespace kv {
namespace {

/// Behind a node's id.
constexpr const char* kRefusedByEtcd =
    ": etcd answers and refuses its changes (out of space, or no right to write): its log has the reason, and the "
    "runbook's KvstoreEtcdUnreachable the remedies";

/// A node's own view of the cluster, beside the map of one node.
struct MemberReport {
  ClusterStatus::Node member;
  std::string endpoint;  ///< The one it was asked at.
  NodeStats said;        ///< Without values if it was silent.
  std::string error_text;
  std::map<std::string, std::uint64_t> unmoved;  ///< Paths that failed to move, by reason.

  double remaining_paths() const { return stat(said, "cluster_move_remaining_paths"); }  ///< Still to hand over.
  bool is_refused_by_etcd() const {
    return has_stat(said, "cluster_etcd_is_writable") && stat(said, "cluster_etcd_is_writable") == 0;
  }
};

struct ClusterReport {
  ClusterStatus map;
  std::vector<MemberReport> members;
  /// Whether all answering nodes have the same view. Otherwise a change is in progress, or a node has lost etcd. Epochs
  /// may differ: a node that missed two changes which cancel each other has noticed none.
  bool is_agreed() const {
    std::set<double> digests;
    for (const MemberReport& each : members) {
      if (!each.said.error) digests.insert(stat(each.said, "cluster_digest"));
    }
    return digests.size() <= 1;
  }
};

CtlCluster ask_map(CtlOptions& options) {
  error_code error;
  CtlCluster cluster = ctl_cluster(options.node, &error);
  if (error) throw ToolFailed("no node answers: " + describe(error));
  if (cluster.map.epoch == 0) {
    throw ToolFailed("the node belongs to no cluster (or has not reached etcd yet): it was started without --etcd");
  }
  return cluster;
}

ClusterReport ask_all(CtlOptions& options) {
  CtlCluster cluster = ask_map(options);
  ToolClient client(std::move(cluster.config));
  auto stats = answer_of(ask_stats(client, options.node.deadline));
  const std::vector<NodeStatus> links = client->nodes();
  ClusterReport report{std::move(cluster.map), {}};
  KV_ASSERT(stats.size() == report.map.nodes.size() && links.size() == stats.size());
  for (std::size_t i = 0; i < links.size(); ++i) {
    NodeStats& said = stats[i];
    MemberReport& one = report.members.emplace_back();
    one.member = report.map.nodes[i];
    one.endpoint = links[i].endpoint;
    if (said.error) one.error_text = links[i].last_error_text.empty() ? describe(said.error) : links[i].last_error_text;
    one.unmoved = unmoved_paths(values_in(said.said, "values"));
    one.said = std::move(said);
  }
  return report;
}

const char* state_of(const ClusterStatus::Node& member) {
  if (member.is_joining) return "joining";
  if (member.is_leaving) return "leaving";
  return member.is_serving ? "serving" : "draining";
}

std::string share_of(const ClusterStatus& map, const ClusterStatus::Node& member) {
  double sum = 0;
  for (const ClusterStatus::Node& each : map.nodes) sum += map.weight_of(each);
  return format_share(map.weight_of(member) / sum);
}

nlohmann::json node_json(const ClusterStatus::Node& member) {
  return {{"id", member.id},
          {"state", state_of(member)},
          {"weight", member.weight},
          {"endpoints", member.endpoints},
          {"zone", member.zone}};
}

std::string paths_text(double count) { return count == 0 ? "-" : format_number(count, 0) + " paths"; }

void print_remarks(const ClusterReport& report) {
  for (const MemberReport& one : report.members) {
    if (!one.unmoved.empty())
      std::cout << '\n' << one.member.id << " could not hand over " << unmoved_text(one.unmoved) << '\n';
    if (one.is_refused_by_etcd()) std::cout << '\n' << one.member.id << kRefusedByEtcd << '\n';
  }
  if (!report.is_agreed()) {
    std::cout << "\nThe nodes know different maps. That passes within seconds after a change; a node that stays behind "
                 "has lost etcd (its log and kvstore_cluster_etcd_is_reachable say so).\n";
  }
}

std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

void run_cluster_status(CtlOptions options) {
  const ClusterReport report = ask_all(options);
  nlohmann::json nodes = nlohmann::json::array();
  TextTable table({"node", "state", "epoch", "share", "zone", "up", "used", "of", "moved", "to move", "endpoint"});
  bool all_answer = true;
  for (const MemberReport& one : report.members) {
    nlohmann::json& entry = nodes.emplace_back(node_json(one.member));
    const std::string share = share_of(report.map, one.member), zone = or_dash(one.member.zone);
    entry["answers"] = !one.said.error;
    if (one.said.error) {
      all_answer = false;
      entry["error"] = one.error_text;
      table.add({one.member.id, "down: " + one.error_text, "-", share, zone, "-", "-", "-", "-", "-", one.endpoint});
      continue;
    }
    entry["epoch"] = static_cast<std::uint64_t>(stat(one.said, "cluster_epoch"));
    entry["moved_blocks"] = stat(one.said, "cluster_moved_blocks");
    entry["moved_bytes"] = stat(one.said, "cluster_moved_bytes");
    entry["remaining_paths"] = one.remaining_paths();
    entry["unmoved_paths"] = one.unmoved;
    table.add({one.member.id, state_of(one.member), format_number(stat(one.said, "cluster_epoch"), 0), share, zone,
               format_seconds(stat(one.said, "uptime_seconds")), bytes_text(one.said, "allocated_bytes"),
               bytes_text(one.said, "capacity_bytes"), bytes_text(one.said, "cluster_moved_bytes"),
               paths_text(one.remaining_paths()), one.endpoint});
  }
  const nlohmann::json document = {{"epoch", report.map.epoch},
                                   {"extent_blocks", report.map.extent_blocks},
                                   {"agreed", report.is_agreed()},
                                   {"nodes", nodes}};
  print_answer(options.json, document, [&] {
    table.print(std::cout);
    print_remarks(report);
  });
  if (!all_answer || !report.is_agreed()) throw ToolFailed::said();
}

void run_cluster_map(CtlOptions options) {
  const ClusterStatus map = ask_map(options).map;
  nlohmann::json nodes = nlohmann::json::array();
  TextTable table({"node", "state", "weight", "share", "zone", "endpoints"});
  for (const ClusterStatus::Node& member : map.nodes) {
    nodes.push_back(node_json(member));
    std::string endpoints;
    for (const std::string& endpoint : member.endpoints) endpoints += (endpoints.empty() ? "" : " ") + endpoint;
    table.add({member.id, state_of(member), format_number(member.weight, 2), share_of(map, member),
               or_dash(member.zone), endpoints});
  }
  print_answer(options.json, {{"epoch", map.epoch}, {"extent_blocks", map.extent_blocks}, {"nodes", nodes}}, [&] {
    std::cout << "epoch " << map.epoch << ", extents of " << map.extent_blocks << " blocks on average\n\n";
    table.print(std::cout);
  });
}

struct PlanOptions : CtlOptions {
  std::vector<std::string> added, removed;
  std::size_t move_rate = 256 << 20;
};

/// "n7", "n7=64" (a weight, which is the capacity in GiB unless nodes were given others).
PlanNode added_node(const std::string& text, double usual_weight, double bytes_per_weight) {
  PlanNode node;
  const std::size_t equals = text.find('=');
  node.id = text.substr(0, equals);
  node.weight = usual_weight;
  node.is_added = true;
  if (equals != std::string::npos) {
    const std::string number = text.substr(equals + 1);
    char* end = nullptr;
    node.weight = std::strtod(number.c_str(), &end);
    if (number.empty() || *end != '\0' || !(node.weight > 0) || node.weight > 1e9) {
      throw ToolFailed("--add: '" + text + "': the weight must be a number above 0");
    }
  }
  if (node.id.empty()) throw ToolFailed("--add: '" + text + "' has no node id");
  node.capacity_bytes = node.weight * bytes_per_weight;
  return node;
}

std::vector<PlanNode> nodes_to_plan(const ClusterReport& report, const PlanOptions& options) {
  std::vector<PlanNode> nodes;
  double weights = 0, capacity = 0;
  for (const MemberReport& one : report.members) {
    if (one.said.error)
      throw ToolFailed(one.member.id + " does not answer (" + one.error_text + "), so what it holds is unknown");
    nodes.push_back({one.member.id, report.map.weight_of(one.member), stat(one.said, "allocated_bytes"),
                     stat(one.said, "capacity_bytes")});
    weights += nodes.back().weight;
    capacity += nodes.back().weight > 0 ? nodes.back().capacity_bytes : 0;
  }
  for (const std::string& id : options.removed) {
    const auto node = std::ranges::find(nodes, id, &PlanNode::id);
    if (node == nodes.end()) throw ToolFailed("--remove: no node '" + id + "' in the cluster");
    node->is_removed = true;
  }
  const double usual_weight = weights > 0 ? weights / static_cast<double>(nodes.size()) : 1;
  for (const std::string& text : options.added) {
    PlanNode node = added_node(text, usual_weight, weights > 0 ? capacity / weights : 0);
    if (std::ranges::find(nodes, node.id, &PlanNode::id) != nodes.end()) {
      throw ToolFailed("--add: the cluster has a node '" + node.id + "' already");
    }
    nodes.push_back(std::move(node));
  }
  const bool has_owner =
      std::ranges::any_of(nodes, [](const PlanNode& node) { return node.weight > 0 && !node.is_removed; });
  if (!has_owner) throw ToolFailed("no node would be left that owns anything");
  return nodes;
}

void run_cluster_plan(PlanOptions options) {
  if (options.added.empty() && options.removed.empty()) throw ToolFailed("nothing to plan: give --add or --remove");
  const std::vector<PlanNode> nodes = nodes_to_plan(ask_all(options), options);
  const std::vector<NodePlan> plans = plan_change(nodes);
  double moved = 0, held = 0, lost = 0, most = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    moved += plans[i].sent_bytes;
    held += nodes[i].held_bytes;
    lost += plans[i].lost_bytes;
    most = std::max(most, plans[i].sent_bytes);
  }
  const double seconds = most / static_cast<double>(options.move_rate);
  const auto bytes = [](double count) { return format_bytes(static_cast<std::uint64_t>(count)); };
  nlohmann::json rows = nlohmann::json::array();
  TextTable table({"node", "", "share", "then", "sends", "is given", "holds", "then"});
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    rows.push_back({{"id", nodes[i].id},
                    {"added", nodes[i].is_added},
                    {"removed", nodes[i].is_removed},
                    {"share_before", plans[i].share_before},
                    {"share_after", plans[i].share_after},
                    {"sent_bytes", plans[i].sent_bytes},
                    {"received_bytes", plans[i].received_bytes},
                    {"held_bytes", nodes[i].held_bytes},
                    {"held_after_bytes", plans[i].held_after_bytes},
                    {"lost_bytes", plans[i].lost_bytes}});
    table.add({nodes[i].id,
               nodes[i].is_added     ? "new"
               : nodes[i].is_removed ? "goes"
                                     : "",
               format_share(plans[i].share_before), format_share(plans[i].share_after), bytes(plans[i].sent_bytes),
               bytes(plans[i].received_bytes), bytes(nodes[i].held_bytes), bytes(plans[i].held_after_bytes)});
  }
  const nlohmann::json document = {
      {"moved_bytes", moved}, {"held_bytes", held}, {"lost_bytes", lost}, {"seconds", seconds}, {"nodes", rows}};
  print_answer(options.json, document, [&] {
    table.print(std::cout);
    std::cout << "\nIn all " << bytes(moved) << " of " << bytes(held) << " would move, in about "
              << format_seconds(std::max(seconds, 1.0)) << " at " << bytes(static_cast<double>(options.move_rate))
              << " a second from each node.\n";
    if (lost > 0) {
      std::cout << "There is no room for " << bytes(lost)
                << " of it: so much of what is used least would be evicted.\n";
    }
    std::cout << "Nothing was changed. A node that dies instead of leaving takes along what it would have sent.\n";
  });
}

struct DrainOptions : CtlOptions {
  std::string node_id;
  bool waits = true;
  double wait_seconds = 600;
};

/// Paths that failed to move with the node's change: from it in a drain, to it in an undrain. Empty: all moved.
std::string unmoved_on_the_way(const ClusterReport& report, const std::string& node_id, bool drain) {
  const auto serves_beside = [&](const ClusterStatus::Node& each) {
    return each.id != node_id && each.is_serving && report.map.weight_of(each) > 0;
  };
  if (drain && std::ranges::none_of(report.map.nodes, serves_beside))
    return "no other node serves, so nothing was handed over";
  std::string text;
  for (const MemberReport& one : report.members) {
    if ((one.member.id == node_id) != drain || one.unmoved.empty()) continue;
    text += (text.empty() ? "" : "; ") + one.member.id + " could not hand over " + unmoved_text(one.unmoved);
  }
  return text;
}

/// Waits until the node is drained, or serves again. Returns the paths left behind, in words.
std::string wait_for_state(CtlOptions& options, const std::string& node_id, bool drain, double seconds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::string before;
  while (true) {
    const ClusterReport report = ask_all(options);
    const auto one =
        std::ranges::find(report.members, node_id, [](const MemberReport& each) { return each.member.id; });
    if (one == report.members.end()) throw ToolFailed(node_id + " has left the cluster");
    const std::string state = state_of(one->member);
    const std::string line =
        state + (one->remaining_paths() > 0 ? ", " + paths_text(one->remaining_paths()) + " to hand over" : "");
    if (line != before && !options.json) std::cout << node_id << ": " << line << std::endl;
    before = line;
    const bool is_there = state == (drain ? "draining" : "serving");
    if (is_there && !one->said.error) return unmoved_on_the_way(report, node_id, drain);  // from its own answer
    if (std::chrono::steady_clock::now() >= until) {
      throw ToolFailed(is_there ? node_id + " does not say what it has handed over: " + one->error_text
                                : node_id + " is still " + state + "; it goes on" +
                                      (one->is_refused_by_etcd() ? ", but" + std::string(kRefusedByEtcd) : "") +
                                      ". `kvstorectl cluster status` shows how far it is");
    }
    std::this_thread::sleep_for(500ms);
  }
}

void run_cluster_drain(DrainOptions options, bool drain) {
  CtlCluster cluster = ask_map(options);
  if (std::ranges::find(cluster.map.nodes, options.node_id, &ClusterStatus::Node::id) == cluster.map.nodes.end()) {
    std::string known;
    for (const ClusterStatus::Node& node : cluster.map.nodes) known += " " + node.id;
    throw ToolFailed("no node '" + options.node_id + "' in the cluster, which has:" + known);
  }
  // By the map, so that the answer is the right node's even behind a shared name.
  ToolClient client(seed_config(options.node));
  if (const auto learned = client.run(client->learn_cluster(options.node.deadline)); !learned)
    throw ToolFailed(describe(learned.error()));
  NodeQuestion question{.path = "/drain",
                        .query = parameter("node", options.node_id) + (drain ? "&drain=true" : "&drain=false"),
                        .node = options.node_id};
  const auto asked = ask_nodes(client, std::move(question), options.node.deadline);
  const error_code error = asked ? asked->front().error : asked.error();
  if (error) {
    throw ToolFailed(options.node_id + ": " +
                     (error == Errc::kUnsupported
                          ? "hands nothing over: it is of an earlier version, or has a --move-rate of 0"
                          : describe(error)));
  }
  const std::string unmoved =
      options.waits ? wait_for_state(options, options.node_id, drain, options.wait_seconds) : "";
  if (options.json) {
    nlohmann::json document = {{"node", options.node_id}, {"drain", drain}};
    if (options.waits) document["unmoved"] = unmoved;
    std::cout << json_text(document) << '\n';
  }
  // The state is reached all the same: a node does not wait for its neighbours for ever.
  if (!unmoved.empty()) throw ToolFailed(unmoved);
}

void add_drain_command(CLI::App& cluster, const char* name, const std::string& about, bool drain) {
  const auto [command, options] = add_ctl_command<DrainOptions>(
      cluster, name, about, [drain](const DrainOptions& given) { run_cluster_drain(given, drain); });
  command->add_option("node", options->node_id, "The node's id")->required();
  command->add_flag("!--no-wait", options->waits, "Return once the node has begun");
  command->add_option("--wait-seconds", options->wait_seconds, "How long to wait for the end; then exit status 1")
      ->capture_default_str();
  command->footer(
      "Exit status 1 too if blocks stayed behind; the reason is told, and `kvstorectl doctor` has it as long as it "
      "holds.\n");
}

}  // namespace

std::vector<MemberWord> ask_members(CtlOptions& options) {
  CtlCluster cluster = ask_map(options);
  ToolClient client(std::move(cluster.config));
  (void)client.run(client->ping(options.node.deadline));  // connects first, so that `asked_at` is close to the answer
  const double asked_at = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const auto stats = answer_of(ask_stats(client, options.node.deadline));
  KV_ASSERT(stats.size() == cluster.map.nodes.size());
  std::vector<MemberWord> words;
  for (std::size_t i = 0; i < stats.size(); ++i) words.push_back(word_of(cluster.map.nodes[i].id, stats[i], asked_at));
  return words;
}

void add_cluster_commands(CLI::App& app) {
  CLI::App* const cluster = app.add_subcommand("cluster", "Which nodes belong together, and what each knows of it");
  cluster->require_subcommand(1);
  add_ctl_command<CtlOptions>(*cluster, "status",
                              "Each node of the map: its state, and the epoch that it knows itself. Exit status 1 if "
                              "one does not answer, or if they know different maps",
                              run_cluster_status);
  add_ctl_command<CtlOptions>(*cluster, "map", "The map as a node has it: what clients place blocks by",
                              run_cluster_map);
  add_cluster_hot_command(*cluster);
  const auto [plan, plan_options] = add_ctl_command<PlanOptions>(
      *cluster, "plan", "What nodes that come or go would move, and whether there is room; changes nothing",
      run_cluster_plan);
  plan->add_option("--add", plan_options->added,
                   "A node that comes, ID or ID=WEIGHT (default: the average weight); may be repeated");
  plan->add_option("--remove", plan_options->removed, "A node that leaves, by its id; may be repeated");
  add_bytes_option(*plan, "--move-rate", plan_options->move_rate, "The nodes' move-rate, for the time that it takes");
  add_drain_command(
      *cluster, "drain",
      "A node hands over what it owns to those who follow, then owns nothing; it goes on running until it "
      "is stopped, or undrained",
      /*drain=*/true);
  add_drain_command(*cluster, "undrain", "It is given what will be its own again, then serves", /*drain=*/false);
}

}  // namespace kv
