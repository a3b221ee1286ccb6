// client/tools/ctl/ctl.h: shared code of kvstorectl's commands. Start here. Each command is a file: it asks nodes
// through client/tools/tool_client.h, and prints a table for people or a JSON document for scripts.
//
//   ctl.cc            main(), and the mapping of results to exit status
//   ctl_status.cc     status, namespaces, top
//   ctl_curve.cc      curve
//   ctl_tenants.cc    tenants
//   ctl_erase.cc      erase
//   ctl_blocks.cc     match, why, retain, unretain, drop; ctl_chain.h: how a person names a chain
//   ctl_contexts.cc   contexts create, list, show, extend, warm, delete; ctl_context_archive.cc: export, import
//   ctl_slowlog.cc    slowlog
//   ctl_ping.cc       ping
//   ctl_cluster.cc    cluster status, map, plan, drain; ctl_cluster_hot.cc: hot; cluster/ compares nodes' reports
//   ctl_doctor.cc     doctor; doctor/doctor.h lists its files
//   ctl_size.cc       size; client/models/model_config.h reads a model's cache, generation_report.h has --new-tokens
//   ctl_config.cc     config list, config get, config set; admin_http.h asks the admin server
//   ctl_disk.cc       disk: hands over to kvstore-node
//   ctl_support.cc    support-bundle: asks the other commands
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <utility>

#include "client/tools/ctl/cluster/cluster_look.h"
#include "client/tools/node_stats.h"
#include "client/tools/text_table.h"
#include "client/tools/tool_client.h"

namespace kv {

void add_status_commands(CLI::App& app);
void add_curve_command(CLI::App& app);
void add_block_commands(CLI::App& app);
void add_ping_command(CLI::App& app);
void add_cluster_commands(CLI::App& app);
void add_cluster_hot_command(CLI::App& cluster);
void add_doctor_command(CLI::App& app);
void add_size_command(CLI::App& app);
void add_config_commands(CLI::App& app);
void add_disk_command(CLI::App& app);
void add_support_command(CLI::App& app);
void add_slowlog_command(CLI::App& app);
void add_tenants_command(CLI::App& app);
void add_erase_command(CLI::App& app);
void add_contexts_commands(CLI::App& app);

/// Ends the program with exit status 1.
struct ToolFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
  static ToolFailed said() { return ToolFailed(""); }  ///< The output has the reason already.
};

/// Asks before an irreversible act, such as "drop all blocks of m". `is_sure`: --yes was given. Otherwise a person at a
/// terminal is asked; without a terminal the command line is wrong.
void confirm(const std::string& command, const std::string& what, bool is_sure);
void add_sure_flag(CLI::App& command, bool& is_sure);

struct CtlOptions {
  CtlOptions() { node.deadline = 2s; }
  ConnectionOptions node;
  bool json = false;
};

/// Adds a command, which runs `run` with options of its own. They live as long as the command.
template <class Options, class Run>
std::pair<CLI::App*, Options*> add_ctl_command(CLI::App& app, const std::string& name, const std::string& about,
                                               Run run) {
  const auto options = std::make_shared<Options>();
  CLI::App* const command = app.add_subcommand(name, about);
  add_node_options(*command, options->node, /*with_transport=*/false);
  command->add_flag("--json", options->json, "One JSON document, for scripts");
  command->callback([options, run] { run(*options); });
  return {command, options.get()};
}

/// Prints the document with --json, else the table, or what `print_text` prints.
void print_answer(bool as_json, const nlohmann::json& document, const TextTable& table);
void print_answer(bool as_json, const nlohmann::json& document, const std::function<void()>& print_text);

/// Says on standard error that a node was silent, and why, and lists it in the document.
void note_if_silent(const NodeSaid& node, nlohmann::json& document);
/// Status 1 if a node was silent, after the others' answers were printed, for scripts and probes.
template <class Nodes>
void fail_if_silent(const Nodes& nodes) {
  if (std::ranges::any_of(nodes, [](const auto& node) { return bool(node.error); })) throw ToolFailed::said();
}

/// Fills in the endpoints, in a cluster all nodes; one connection and quick retries, for a waiting person.
ClientConfig ctl_config(ConnectionOptions& node);
struct CtlCluster {
  ClientConfig config;  ///< As ctl_config().
  ClusterStatus map;    ///< In the order of the config's nodes. Epoch 0: no cluster.
};
/// Errors: of Client::learn_cluster(), if all nodes are silent; then the config has the endpoints alone.
CtlCluster ctl_cluster(ConnectionOptions& node, error_code* error = nullptr);
/// The report of each node of the cluster, in the map's order. Throws ToolFailed without a cluster.
std::vector<MemberWord> ask_members(CtlOptions& options);
/// The same with only the given endpoints.
ClientConfig seed_config(ConnectionOptions& node);

}  // namespace kv
