// kvstorectl slowlog: slow requests, and the phases of their time.
#include <algorithm>
#include <iostream>
#include <utility>

#include "client/tools/ctl/ctl.h"
#include "client/tools/json_text.h"
#include "client/tools/text_table.h"

namespace kv {
namespace {

struct SlowLogOptions : CtlOptions {
  std::size_t count = 32;
  std::string what;  ///< "reset", or empty.
};

using Request = NodeSlowLog::Request;

double seconds_of(std::chrono::microseconds time) { return std::chrono::duration<double>(time).count(); }

/// "2026-11-26 04:12:07.120", in UTC.
std::string date_text(std::chrono::microseconds since_1970) {
  const std::string ms = std::to_string(1000 + since_1970.count() / 1000 % 1000);  // the 1 keeps leading zeros
  return format_utc(since_1970, "%Y-%m-%d %H:%M:%S.") + ms.substr(1);
}

/// The notable phases, the longest first: "disk 0.21 s, client 0.04 s".
std::string phases_text(const Request& request) {
  std::vector<std::pair<std::chrono::microseconds, const char*>> phases = {
      {request.lock, "lock"}, {request.store, "store"},   {request.room, "room"},  {request.disk, "disk"},
      {request.move, "move"}, {request.client, "client"}, {request.other, "other"}};
  std::ranges::sort(phases, std::greater<>{});
  std::string text;
  for (const auto& [time, name] : phases) {
    if (time * 20 < request.took) continue;
    text += (text.empty() ? "" : ", ") + std::string(name) + " " + format_seconds(seconds_of(time));
  }
  return text;
}

nlohmann::json json_of(const Request& request) {
  return {{"number", request.number},
          {"began", seconds_of(request.began)},
          {"took_seconds", seconds_of(request.took)},
          {"phases",
           {{"lock", seconds_of(request.lock)},
            {"store", seconds_of(request.store)},
            {"room", seconds_of(request.room)},
            {"disk", seconds_of(request.disk)},
            {"move", seconds_of(request.move)},
            {"client", seconds_of(request.client)},
            {"other", seconds_of(request.other)}}},
          {"verb", request.verb},
          {"blocks", request.blocks},
          {"bytes", request.bytes},
          {"failed", request.failed},
          {"namespace_id", request.namespace_id},
          {"model", request.model},
          {"tenant", request.tenant},
          {"session", request.session},
          {"identity", request.identity},
          {"peer", request.peer},
          {"traceparent", request.traceparent}};
}

void run_slowlog(SlowLogOptions options) {
  ToolClient client(ctl_config(options.node));
  const auto logs = answer_of(client.run(client->slow_log(options.what == "reset", options.node.deadline)));
  nlohmann::json document = {{"nodes", nlohmann::json::array()}};
  TextTable table({"node", "began (UTC)", "verb", "took", "where", "blocks", "bytes", "model", "client"});
  for (const NodeSlowLog& node : logs) {
    nlohmann::json entry = {{"name", node.name}, {"requests", nlohmann::json::array()}};
    if (node.error) {
      entry["error"] = describe(node.error);
      std::cerr << node.name << ": " << describe(node.error) << '\n';
    } else if (!node.is_kept) {
      std::cerr << node.name << ": keeps no slow log; it is older than this program\n";
    } else if (node.threshold.count() == 0 && !options.json) {
      std::cerr << node.name << ": the slow log is off (slow-log-seconds)\n";
    }
    entry["threshold_seconds"] = seconds_of(node.threshold);
    entry["count"] = node.count;
    std::size_t shown = 0;
    for (const Request& request : node.requests) {
      if (shown++ == options.count) break;
      entry["requests"].push_back(json_of(request));
      std::string who = request.identity + " " + request.peer;
      if (!request.tenant.empty()) who += ", tenant " + request.tenant;
      if (!request.traceparent.empty()) who += ", trace " + request.traceparent.substr(3, 32);
      table.add({node.name, date_text(request.began), request.verb + (request.failed ? " (failed)" : ""),
                 format_seconds(seconds_of(request.took)), phases_text(request), format_count(request.blocks),
                 format_bytes(request.bytes), request.model, who});
    }
    document["nodes"].push_back(std::move(entry));
  }
  print_answer(options.json, document, table);
  fail_if_silent(logs);
}

}  // namespace

void add_slowlog_command(CLI::App& app) {
  const auto [command, options] = add_ctl_command<SlowLogOptions>(
      app, "slowlog", "The latest requests that took long, and where their time went", run_slowlog);
  command->add_option("--count", options->count, "So many of each node at most")->capture_default_str();
  command->add_option("what", options->what, "reset: shows them, and empties the log")->check(CLI::IsMember({"reset"}));
  command->footer(
      "What is slow: the node's option slow-log-seconds. lock: waiting for the store's lock; store: in it; room: "
      "waiting\nfor memory to put into; disk; move: copies and RDMA; client: waiting for the client to send or to take "
      "bytes.\n\nExamples:\n  kvstorectl slowlog\n  kvstorectl slowlog --json --count 5\n  kvstorectl slowlog reset\n");
}

}  // namespace kv
