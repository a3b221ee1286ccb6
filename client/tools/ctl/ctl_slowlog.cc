// kvstorectl slowlog: slow requests, and the phases of their time.
#include <algorithm>
#include <iostream>
#include <map>
#include <utility>

#include "client/tools/ctl/ctl.h"
#include "client/tools/text_table.h"

namespace kv {
namespace {

struct SlowLogOptions : CtlOptions {
  std::size_t count = 32;
  std::string what;  ///< "reset", or empty.
};

/// "2026-11-26 04:12:07.120", in UTC.
std::string date_text(double since_1970) {
  const auto time = std::chrono::microseconds(static_cast<std::int64_t>(since_1970 * 1e6));
  const std::string ms = std::to_string(1000 + time.count() / 1000 % 1000);  // the 1 keeps leading zeros
  return format_utc(time, "%Y-%m-%d %H:%M:%S.") + ms.substr(1);
}

/// The notable phases, the longest first: "disk 0.21 s, client 0.04 s".
std::string phases_text(const nlohmann::json& request) {
  const std::map<std::string, double> named = values_in(request, "phases");
  std::vector<std::pair<std::string, double>> phases(named.begin(), named.end());
  std::ranges::sort(phases, std::greater<>{}, &std::pair<std::string, double>::second);
  std::string text;
  for (const auto& [name, seconds] : phases) {
    if (seconds * 20 < number_in(request, "took_seconds")) continue;
    text += (text.empty() ? "" : ", ") + name + " " + format_seconds(seconds);
  }
  return text;
}

void run_slowlog(SlowLogOptions options) {
  ToolClient client(ctl_config(options.node));
  const auto logs = answer_of(
      ask_nodes(client, {.path = options.what == "reset" ? "/slowlog/reset" : "/slowlog.json"}, options.node.deadline));
  nlohmann::json document = {{"nodes", nlohmann::json::array()}};
  TextTable table({"node", "began (UTC)", "op", "took", "where", "blocks", "bytes", "model", "client"});
  for (const NodeSaid& node : logs) {
    nlohmann::json entry = {{"name", node.name}, {"requests", nlohmann::json::array()}};
    if (node.error) {
      entry["error"] = describe(node.error);
      std::cerr << node.name << ": " << describe(node.error) << '\n';
    } else if (number_in(node.said, "threshold_seconds") == 0 && !options.json) {
      std::cerr << node.name << ": the slow log is off (slow-log-seconds)\n";
    }
    entry["threshold_seconds"] = number_in(node.said, "threshold_seconds");
    entry["count"] = count_in(node.said, "count");
    std::size_t shown = 0;
    for (const nlohmann::json& request : rows_in(node.said, "requests")) {
      if (shown++ == options.count) break;
      entry["requests"].push_back(request);
      const std::string tenant = text_in(request, "tenant"), trace = text_in(request, "traceparent");
      std::string who = text_in(request, "identity") + " " + text_in(request, "peer");
      if (!tenant.empty()) who += ", tenant " + tenant;
      if (trace.size() > 3) who += ", trace " + trace.substr(3, 32);
      table.add({node.name, date_text(number_in(request, "began")),
                 text_in(request, "op") + (number_in(request, "failed") != 0 ? " (failed)" : ""),
                 format_seconds(number_in(request, "took_seconds")), phases_text(request),
                 count_text(request, "blocks"), bytes_text(request, "bytes"), text_in(request, "model"), who});
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
