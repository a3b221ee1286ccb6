// kvstorectl erase: removes all data of a tenant on all nodes, from memory and from their disks' files.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <string>
#include <thread>

#include "client/tools/ctl/ctl.h"
#include "client/tools/text_table.h"

namespace kv {
namespace {

struct EraseOptions : CtlOptions {
  std::string name;
  bool is_share = false, is_sure = false;
  double wait_seconds = 3600;
};

/// Errors that retries cannot change.
bool is_final(error_code error) {
  return error == Errc::kPermissionDenied || error == Errc::kUnsupported || error == Errc::kBadRequest ||
         error == Errc::kDiskFailed;
}

std::string state_of(const NodeSaid& node, bool is_over) {
  if (node.error) return describe(node.error) + (node.error == Errc::kDiskFailed ? " (the node's log says why)" : "");
  if (is_over) return "gone";
  if (number_in(node.said, "erase_waits_for") > 0)
    return "waits for " + count_text(node.said, "erase_waits_for") + " others";
  if (number_in(node.said, "erase_files") > 0)
    return "file " + count_text(node.said, "erase_files_looked_at") + " of " + count_text(node.said, "erase_files");
  return "dropping";
}

nlohmann::json json_of(const NodeSaid& node, bool is_over) {
  return {{"node", node.name}, {"gone", is_over}, {"state", state_of(node, is_over)}, {"values", node.said}};
}

void print(const std::map<std::string, NodeSaid>& last, const std::map<std::string, bool>& over,
           const EraseOptions& options) {
  nlohmann::json nodes = nlohmann::json::array();
  TextTable table({"node", "state", "namespaces", "blocks", "files rewritten", "of", "given back", "stored since"});
  for (const auto& [name, node] : last) {
    nodes.push_back(json_of(node, over.at(name)));
    const auto count = [&said = node.said](std::string_view what) { return count_text(said, what); };
    const bool has_disk = number_in(node.said, "erase_has_disk") > 0;
    table.add({name, state_of(node, over.at(name)), count("erase_namespaces"), count("erase_blocks"),
               has_disk ? count("erase_files_rewritten") : "-", has_disk ? count("erase_files") : "-",
               has_disk ? bytes_text(node.said, "erase_given_back_bytes") : "-", count("erase_blocks_left")});
  }
  print_answer(options.json, {{options.is_share ? "share" : "tenant", options.name}, {"nodes", nodes}}, table);
}

void run_erase(EraseOptions options) {
  confirm(
      "erase",
      "erase all that the " + std::string(options.is_share ? "share " : "tenant ") + options.name + " has on all nodes",
      options.is_sure);
  ToolClient client(ctl_config(options.node));
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(options.wait_seconds);
  std::map<std::string, NodeSaid> last;
  std::map<std::string, bool> over;   ///< By node: its erasure is complete.
  std::map<std::string, int> silent;  ///< Missing answers in a row.
  constexpr int kSilentMax = 10;
  std::string said;
  for (;;) {
    const std::string query = parameter(options.is_share ? "share" : "tenant", options.name);
    const auto asked = answer_of(ask_nodes(client, {.path = "/erase", .query = query}, options.node.deadline));
    bool is_final_everywhere = true;
    std::string progress;
    for (const NodeSaid& node : asked) {
      if (over[node.name]) continue;  // asking a finished node would start over
      over[node.name] = !node.error && number_in(node.said, "erase_done") > 0;
      last[node.name] = node;
      silent[node.name] = node.error && node.error != Errc::kBusy ? silent[node.name] + 1 : 0;
      is_final_everywhere =
          is_final_everywhere && (over[node.name] || is_final(node.error) || silent[node.name] >= kSilentMax);
      progress += (progress.empty() ? "" : "; ") + node.name + ": " + state_of(node, over[node.name]);
    }
    if (is_final_everywhere) break;
    if (!options.json && progress != said) std::cerr << progress << '\n';
    said = progress;
    if (std::chrono::steady_clock::now() >= until) {
      std::cerr << "kvstorectl: not done after " << options.wait_seconds << " s; nodes go on, ask again\n";
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  print(last, over, options);
  const bool is_gone = std::ranges::all_of(over, [](const auto& node) { return node.second; });
  if (!is_gone) throw ToolFailed::said();
}

}  // namespace

void add_erase_command(CLI::App& app) {
  const auto [command, options] = add_ctl_command<EraseOptions>(
      app, "erase", "Erase all that a tenant has on all nodes, in memory and in the files of their disks", run_erase);
  command->add_option("tenant", options->name, "The tenant; with --share, the share")->required();
  command->add_flag("--share", options->is_share, "A share of the policy instead of a tenant");
  add_sure_flag(*command, options->is_sure);
  command->add_option("--wait-seconds", options->wait_seconds, "How long to wait for the end; then exit status 1")
      ->capture_default_str();
  command->footer(
      "Needs the role operator. What the tenant stores meanwhile stays: take its rights away first. Files that hold "
      "its blocks,\nor any that were evicted, are written anew without them. Exit status 0: it is gone on every "
      "node.\n\nExample:\n  kvstorectl erase research --yes\n");
}

}  // namespace kv
