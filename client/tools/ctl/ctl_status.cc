// kvstorectl status, top and namespaces: content and activity of nodes, for people as tables and for scripts as JSON.
//
// A count is "-" where a node does not report it: an older node lacks newer counters, and 0 would be wrong.
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <thread>

#include "base/assert.h"
#include "client/tools/ctl/ctl.h"
#include "client/tools/json_text.h"
#include "client/tools/options.h"
#include "client/tools/text_table.h"

namespace kv {

/// One connection, since requests come one by one; a breaker that never opens, since a repeated command asks for the
/// present state. A cluster's map is read once, so a command's nodes and their order do not change during it.
ClientConfig ctl_config(ConnectionOptions& node) { return ctl_cluster(node).config; }

CtlCluster ctl_cluster(ConnectionOptions& node, error_code* error) {
  ClientConfig config = seed_config(node);
  ToolClient seeds(config);
  const auto cluster = seeds.run(seeds->learn_cluster(node.deadline));
  config.follow_cluster = false;
  if (!cluster && error != nullptr) *error = cluster.error();
  if (!cluster || cluster->epoch == 0) return {std::move(config), {}};
  config.extent_blocks = cluster->extent_blocks;
  config.nodes.clear();
  const std::vector<NodeStatus> links = seeds->nodes();
  for (std::size_t i = 0; i < cluster->nodes.size(); ++i) {
    const ClusterStatus::Node& member = cluster->nodes[i];
    config.nodes.push_back(
        {.endpoint = links[i].endpoint, .name = member.id, .weight = cluster->weight_of(member), .node_id = member.id});
  }
  return {std::move(config), *cluster};
}

ClientConfig seed_config(ConnectionOptions& node) {
  complete(node);
  ClientConfig config = client_config(node, "kvstorectl");
  config.connections_per_node = 1;
  config.connect_timeout = std::min<Duration>(config.connect_timeout, node.deadline);
  // For a node that is down or just starting: retry soon, and for ever.
  config.backoff_max = 200ms;
  config.breaker_failures = 1'000'000;
  return config;
}

namespace {

/// A count as text, or "-" if the node does not report it.
std::string count_cell(const NodeStats& stats, std::string_view name) {
  return has_stat(stats, name) ? count_text(stats, name) : "-";
}

std::string fraction_cell(double part, double whole) { return whole > 0 ? format_share(part / whole) : "-"; }

std::vector<NodeStats> fetch_stats(ToolClient& client, const ConnectionOptions& node) {
  return answer_of(ask_stats(client, node.deadline));
}

const NodeStatus* find_status(const std::vector<NodeStatus>& nodes, const std::string& name) {
  const auto found = std::ranges::find(nodes, name, &NodeStatus::name);
  return found == nodes.end() ? nullptr : &*found;
}

nlohmann::json status_json(const std::vector<NodeStats>& stats, const std::vector<NodeStatus>& nodes) {
  nlohmann::json document = {{"nodes", nlohmann::json::array()}};
  for (const NodeStats& node : stats) {
    nlohmann::json entry = {{"name", node.name}, {"answers", !node.error}};
    if (node.error) entry["error"] = describe(node.error);
    // From this client's own connection: endpoint and transport are the client's view, not the node's.
    if (const NodeStatus* status = find_status(nodes, node.name)) {
      entry["endpoint"] = status->endpoint;
      entry["node_id"] = status->node_id;
      entry["transport"] = status->peer_transport;
    }
    entry["hit_rate"] = node.said.value("hit_rate", nlohmann::json());
    entry["stats"] = values_of(node);
    for (const char* const part : {"curve", "hot", "exchange"})
      if (node.said.contains(part)) entry[part] = node.said[part];
    entry["namespace_count"] = rows_in(node.said, "namespaces").size();
    document["nodes"].push_back(entry);
  }
  return document;
}

void print_below(const TextTable& table) {
  if (table.is_empty()) return;
  std::cout << '\n';
  table.print(std::cout);
}

/// "opening" and "loading" are separate states: a disk of some TB takes minutes to read its records.
std::string disk_state(const NodeStats& node) {
  const bool is_on = stat(node, "disk_is_on") != 0;
  if (stat(node, "disk_is_loading") == 0) {
    const std::string left_out = stat(node, "disk_directories_left_out") > 0
                                     ? ", " + count_cell(node, "disk_directories_left_out") + " left out"
                                     : "";
    const std::string draining = stat(node, "disk_draining_directories") > 0
                                     ? ", draining " + count_cell(node, "disk_draining_directories") + ": " +
                                           count_cell(node, "disk_draining_blocks") + " blocks to move"
                                     : "";
    return (is_on ? "on" : "off") + left_out + draining;
  }
  return is_on ? "loading, " + count_cell(node, "disk_loaded_blocks") + " so far" : "opening";
}

/// One line per node with a disk tier; no table without one.
void print_disks(const std::vector<NodeStats>& stats) {
  TextTable table({"disk of", "state", "blocks", "on disk only", "files", "hits", "lost unwritten", "lost damaged"});
  for (const NodeStats& node : stats) {
    // Skips nodes too old to report it: a row of dashes would imply a disk.
    if (node.error || !has_stat(node, "disk_is_on")) continue;
    table.add({node.name, disk_state(node), count_cell(node, "disk_blocks"), bytes_text(node, "disk_only_bytes"),
               bytes_text(node, "disk_file_bytes"), count_cell(node, "get_disk_blocks"),
               count_cell(node, "lost_unspilled_blocks"), count_cell(node, "lost_blocks")});
  }
  print_below(table);
}

/// One line per node with RDMA; no table without one.
void print_rdma(const std::vector<NodeStats>& stats) {
  TextTable table({"RDMA of", "devices", "registered", "lanes", "connected", "broken", "refused", "messages"});
  for (const NodeStats& node : stats) {
    if (node.error || !has_stat(node, "rdma_devices")) continue;
    table.add({node.name, count_cell(node, "rdma_devices"), bytes_text(node, "rdma_registered_bytes"),
               count_cell(node, "rdma_lanes"), count_cell(node, "rdma_lanes_connected"),
               count_cell(node, "rdma_lanes_broken"), count_cell(node, "rdma_lanes_refused"),
               count_cell(node, "rdma_messages")});
  }
  print_below(table);
}

/// Sources of learned reuse: one line per node that another one learns from; no table if nodes learn alone.
void print_exchange(const std::vector<NodeStats>& stats) {
  TextTable table({"learns", "from", "uses told", "counted", "age"});
  for (const NodeStats& node : stats) {
    for (const nlohmann::json& from : rows_in(node.said, "exchange")) {
      table.add({node.name, text_in(from, "name"), count_text(from, "uses"),
                 fraction_cell(number_in(from, "weight"), 1), format_seconds(number_in(from, "age_seconds"))});
    }
  }
  print_below(table);
}

/// A node that is down has a row with the reason in place of its numbers; without it the cluster would look smaller.
void print_status(const std::vector<NodeStats>& stats, const std::vector<NodeStatus>& nodes) {
  TextTable table(
      {"node", "state", "over", "up", "blocks", "used", "of", "full", "hit rate", "evicted", "leases", "sessions"});
  for (const NodeStats& node : stats) {
    const NodeStatus* status = find_status(nodes, node.name);
    if (node.error) {
      table.add({node.name, "down: " + (status && !status->last_error_text.empty() ? status->last_error_text
                                                                                   : describe(node.error))});
      continue;
    }
    const double used = stat(node, "allocated_bytes"), capacity = stat(node, "capacity_bytes");
    const double hit_rate = number_in(node.said, "hit_rate", -1);  // since its start; `kvstorectl top`: of an interval
    table.add({node.name, stat(node, "draining") != 0 ? "draining" : "serving", status ? status->peer_transport : "-",
               has_stat(node, "uptime_seconds") ? format_seconds(stat(node, "uptime_seconds")) : "-",
               count_cell(node, "blocks"), format_bytes(static_cast<std::uint64_t>(used)),
               format_bytes(static_cast<std::uint64_t>(capacity)), fraction_cell(used, capacity),
               hit_rate < 0 ? "-" : fraction_cell(hit_rate, 1), count_cell(node, "evicted_blocks"),
               count_cell(node, "leases"), count_cell(node, "sessions")});
  }
  table.print(std::cout);
  print_disks(stats);
  print_rdma(stats);
  print_exchange(stats);
}

void run_status(CtlOptions options) {
  ToolClient client(ctl_config(options.node));
  const std::vector<NodeStats> stats = fetch_stats(client, options.node);
  const std::vector<NodeStatus> nodes = client->nodes();
  print_answer(options.json, status_json(stats, nodes), [&] { print_status(stats, nodes); });
  fail_if_silent(stats);
}

/// Per node: a namespace appears once for each node with its blocks, since sums would hide an uneven spread.
void run_namespaces(CtlOptions options) {
  ToolClient client(ctl_config(options.node));
  const std::vector<NodeStats> stats = fetch_stats(client, options.node);
  nlohmann::json document = {{"namespaces", nlohmann::json::array()}, {"silent", nlohmann::json::array()}};
  TextTable table({"node", "id", "model", "block tokens", "block size", "blocks", "bytes", "other fields"});
  for (const NodeStats& node : stats) {
    for (const nlohmann::json& space : rows_in(node.said, "namespaces")) {
      std::string other;
      const std::string text = text_in(space, "record");
      const auto record = NamespaceRecord::parse(text);
      const std::string id = record ? to_hex(record->id().bytes) : "?";
      // A record has one field per line; fields with their own column are omitted from the last one.
      for (std::size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
        const std::string line = text.substr(begin, end - begin);
        const std::string key = line.substr(0, line.find('='));
        if (key == "model" || key == "block_size" || key == "block_bytes" || key == "block_bytes_max") continue;
        other += (other.empty() ? "" : " ") + line;
      }
      table.add({node.name, id, record ? std::string(record->field("model")) : "?",
                 !record            ? "?"
                 : record->is_set() ? "-"
                                    : std::to_string(record->block_size()),
                 !record ? "?" : (record->is_set() ? "to " : "") + format_bytes(record->block_bytes()),
                 count_text(space, "block_count"), bytes_text(space, "total_bytes"), other});
      nlohmann::json entry = space;
      entry.erase("total_bytes");
      entry["bytes"] = count_in(space, "total_bytes");
      entry["node"] = node.name;
      entry["id"] = id;
      entry["kind"] = record && record->is_set() ? "set" : "chain";
      entry["block_bytes"] = record ? record->block_bytes() : 0;
      document["namespaces"].push_back(std::move(entry));
    }
    note_if_silent(node, document);
  }
  print_answer(options.json, document, table);
  fail_if_silent(stats);
}

struct TopOptions : CtlOptions {
  std::chrono::milliseconds interval{1000};
  bool once = false;
};

/// Reads single keys, without newline and echo, during its lifetime; then restores the terminal.
class RawKeys {
 public:
  RawKeys() : is_terminal_(::tcgetattr(STDIN_FILENO, &before_) == 0) {
    if (!is_terminal_) return;
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  }
  ~RawKeys() {
    if (is_terminal_) ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  RawKeys(const RawKeys&) = delete;
  RawKeys& operator=(const RawKeys&) = delete;

  /// The key pressed within `timeout`, or 0. A closed terminal is 'q'. Without a terminal it only waits.
  char wait(std::chrono::milliseconds timeout) const {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    char key = 0;
    if (!is_terminal_) {
      std::this_thread::sleep_for(timeout);
    } else if (::poll(&input, 1, static_cast<int>(timeout.count())) > 0 && ::read(STDIN_FILENO, &key, 1) <= 0) {
      return 'q';
    }
    return key;
  }

 private:
  termios before_{};
  bool is_terminal_;
};

struct TopSample {
  std::vector<NodeStats> stats;
  TimePoint when;
};

/// Change of a counter per second. 0 after a restart of the node, which resets its counters.
double rate_of(const NodeStats& before, const NodeStats& now, std::string_view name, double seconds) {
  return seconds > 0 ? std::max(0.0, stat(now, name) - stat(before, name)) / seconds : 0;
}

constexpr std::array<std::string_view, 8> kTopRates = {"match_hit_blocks", "match_disk_blocks", "match_miss_blocks",
                                                       "get_hit_blocks",   "get_disk_blocks",   "get_miss_blocks",
                                                       "stored_blocks",    "evicted_blocks"};

nlohmann::json top_json(const TopSample& before, const TopSample& now) {
  KV_ASSERT(before.stats.size() == now.stats.size());  // one for each node, in the order of the endpoints
  const double seconds = std::chrono::duration<double>(now.when - before.when).count();
  nlohmann::json document = {{"seconds", seconds}, {"nodes", nlohmann::json::array()}};
  for (std::size_t i = 0; i < now.stats.size(); ++i) {
    const NodeStats& node = now.stats[i];
    nlohmann::json entry = {{"name", node.name},
                            {"answers", !node.error},
                            {"block_count", stat(node, "blocks")},
                            {"allocated_bytes", stat(node, "allocated_bytes")},
                            {"sessions", stat(node, "sessions")}};
    for (const std::string_view name : kTopRates) {
      entry[std::string(name) + "_per_second"] = rate_of(before.stats[i], node, name, seconds);
    }
    const LookedUp lookups = lookups_between(before.stats[i], node);
    entry["hit_rate"] = lookups.asked() > 0 ? nlohmann::json(lookups.found() / lookups.asked()) : nlohmann::json();
    document["nodes"].push_back(entry);
  }
  return document;
}

void print_top(const TopSample& before, const TopSample& now) {
  KV_ASSERT(before.stats.size() == now.stats.size());  // one for each node, in the order of the endpoints
  const double seconds = std::chrono::duration<double>(now.when - before.when).count();
  TextTable table({"node", "blocks", "used", "full", "looked up blk/s", "hit rate", "got blk/s", "stored blk/s",
                   "evicted blk/s", "leases", "sessions"});
  for (std::size_t i = 0; i < now.stats.size(); ++i) {
    const NodeStats& node = now.stats[i];
    if (node.error) {
      table.add({node.name, "down: " + describe(node.error)});
      continue;
    }
    const auto rate = [&](std::string_view name) { return rate_of(before.stats[i], node, name, seconds); };
    const LookedUp lookups = lookups_between(before.stats[i], node);
    const double used = stat(node, "allocated_bytes");
    table.add(
        {node.name, count_cell(node, "blocks"), format_bytes(static_cast<std::uint64_t>(used)),
         fraction_cell(used, stat(node, "capacity_bytes")),
         format_number(seconds > 0 ? lookups.asked() / seconds : 0, 0), fraction_cell(lookups.found(), lookups.asked()),
         format_number(rate("get_hit_blocks") + rate("get_disk_blocks"), 0), format_number(rate("stored_blocks"), 0),
         format_number(rate("evicted_blocks"), 0), count_cell(node, "leases"), count_cell(node, "sessions")});
  }
  table.print(std::cout);
}

/// Rates need two samples: the first is taken before any output. --once waits one interval and ends; otherwise each
/// sample is the base of the next line, so the intervals adjoin.
void run_top(TopOptions options) {
  ToolClient client(ctl_config(options.node));
  const auto sample = [&] { return TopSample{fetch_stats(client, options.node), std::chrono::steady_clock::now()}; };
  TopSample before = sample();
  if (options.once) {
    std::this_thread::sleep_for(options.interval);
    const TopSample now = sample();
    print_answer(options.json, top_json(before, now), [&] { print_top(before, now); });
    return fail_if_silent(now.stats);
  }
  const RawKeys keys;
  while (keys.wait(options.interval) != 'q') {
    TopSample now = sample();
    if (options.json) {
      std::cout << json_text(top_json(before, now), /*indent=*/-1) << std::endl;
    } else {
      std::cout << "\033[H\033[2J"  // to the corner, and clear
                << "kvstorectl top, every " << format_seconds(std::chrono::duration<double>(options.interval).count())
                << "; q quits\n\n";
      print_top(before, now);
      std::cout << std::flush;
    }
    if (!std::cout) return;  // the reader has closed its end
    before = std::move(now);
  }
}

}  // namespace

void add_status_commands(CLI::App& app) {
  add_ctl_command<CtlOptions>(app, "status", "What the nodes hold, and whether they serve", run_status)
      .first->footer(
          "With --json every counter of the node. Exit status 1 if a node does not answer.\n\n"
          "Example:\n  kvstorectl status -e tcp://127.0.0.1:7400 -e tcp://127.0.0.1:7401\n");

  const auto [top, options] =
      add_ctl_command<TopOptions>(app, "top", "What the nodes do, shown anew every interval; q quits", run_top);
  add_duration_option(*top, "--interval", options->interval, "Time between two samples");
  top->add_flag("--once", options->once, "One sample over one interval, then exit; for scripts");
  top->footer("Example:\n  kvstorectl top --once --json --interval 5s\n");

  add_ctl_command<CtlOptions>(app, "namespaces", "The namespaces of each node: whose blocks, how many, how large",
                              run_namespaces);
}

}  // namespace kv
