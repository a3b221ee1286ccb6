// kvstorectl ping: round trips to each node; with --wait, a start script's way to wait until nodes serve.
#include <thread>

#include "base/assert.h"
#include "client/tools/ctl/ctl.h"
#include "client/tools/latency_histogram.h"
#include "client/tools/options.h"
#include "client/tools/text_table.h"

namespace kv {
namespace {

struct PingOptions : CtlOptions {
  std::size_t count = 10;
  std::chrono::milliseconds wait{0}, interval{0};
};

struct NodePing {
  LatencyHistogram latency;
  std::size_t lost = 0;
  std::string error;
};

/// One ping to each node, all at once. False if some node was silent.
bool ping_once(ToolClient& client, std::chrono::microseconds deadline, std::vector<NodePing>& pings) {
  const auto round_trips = client.run(client->ping(deadline));
  const std::vector<NodeStatus> nodes = client->nodes();
  KV_ASSERT(!round_trips || round_trips->size() == nodes.size());
  pings.resize(nodes.size());
  bool is_complete = true;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    // The round trip alone decides: NodeStatus::last_error stays after the node has come back.
    if (round_trips && (*round_trips)[i].count() > 0) {
      pings[i].latency.record((*round_trips)[i]);
      continue;
    }
    is_complete = false;
    ++pings[i].lost;
    pings[i].error = !round_trips                        ? describe(round_trips.error())
                     : !nodes[i].last_error_text.empty() ? nodes[i].last_error_text
                                                         : describe(nodes[i].last_error);
  }
  return is_complete;
}

void run_ping(PingOptions options) {
  ToolClient client(ctl_config(options.node));
  std::vector<NodePing> pings;
  const TimePoint give_up = std::chrono::steady_clock::now() + options.wait;
  // The first round trip pays for connecting. It shows that the node serves, and does not count.
  while (!ping_once(client, options.node.deadline, pings) && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(100ms);
    pings.clear();
  }
  bool is_complete = true;
  for (const NodePing& ping : pings) is_complete = is_complete && ping.lost == 0;
  if (is_complete) {
    pings.clear();
    for (std::size_t i = 0; i < options.count; ++i) {
      if (i > 0) std::this_thread::sleep_for(options.interval);
      is_complete = ping_once(client, options.node.deadline, pings) && is_complete;
    }
  }
  const std::vector<NodeStatus> nodes = client->nodes();
  nlohmann::json document = {{"nodes", nlohmann::json::array()}};
  TextTable table({"node", "answers", "lost", "p50 us", "p99 us", "max us", "over"});
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const LatencyHistogram& latency = pings[i].latency;
    const double max_us = latency.max_us();
    document["nodes"].push_back({{"name", nodes[i].name},
                                 {"answers", latency.count()},
                                 {"lost", pings[i].lost},
                                 {"p50_us", latency.quantile_us(0.5)},
                                 {"p99_us", latency.quantile_us(0.99)},
                                 {"max_us", max_us},
                                 {"error", pings[i].error}});
    table.add({nodes[i].name, format_count(latency.count()), format_count(pings[i].lost),
               format_number(latency.quantile_us(0.5), 1), format_number(latency.quantile_us(0.99), 1),
               format_number(max_us, 1), pings[i].error.empty() ? nodes[i].peer_transport : pings[i].error});
  }
  print_answer(options.json, document, table);
  if (!is_complete) throw ToolFailed::said();
}

}  // namespace

void add_ping_command(CLI::App& app) {
  const auto [command, options] =
      add_ctl_command<PingOptions>(app, "ping", "Round trips to each node; can wait until a node serves", run_ping);
  command->add_option("--count", options->count, "Round trips")->capture_default_str()->check(CLI::Range(1, 1'000'000));
  add_duration_option(*command, "--interval", options->interval, "Pause between two round trips");
  add_duration_option(*command, "--wait", options->wait, "Try this long until every node answers");
  command->footer(
      "Exit status 1 if a node does not answer.\n\n"
      "Examples:\n"
      "  kvstorectl ping --wait 30s --count 1     after starting a node: returns once it serves\n"
      "  kvstorectl ping --count 1000             what the way to the node costs\n");
}

}  // namespace kv
