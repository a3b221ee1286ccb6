// client/tools/ctl/ctl.h: what the commands of kvstorectl share.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "client/tools/tool_client.h"

namespace kv {

void add_status_commands(CLI::App& app);
void add_block_commands(CLI::App& app);
void add_ping_command(CLI::App& app);
void add_doctor_command(CLI::App& app);
void add_size_command(CLI::App& app);
void add_spill_command(CLI::App& app);

/// Ends the program with exit status 1. `is_said`: the output says why already, and main() adds no line.
struct ToolFailed : std::runtime_error {
  explicit ToolFailed(const std::string& why) : std::runtime_error(why) {}
  static ToolFailed said() {
    ToolFailed failed("");
    failed.is_said = true;
    return failed;
  }
  bool is_said = false;
};

struct CtlOptions {
  ConnectionOptions node{.endpoints = {}, .transport = {}, .deadline = 2s};
  bool json = false;
};

/// A subcommand with --endpoint, --deadline and --json.
template <class Options>
CLI::App* add_ctl_command(CLI::App& app, const std::string& name, const std::string& about,
                          const std::shared_ptr<Options>& options) {
  CLI::App* command = app.add_subcommand(name, about);
  add_node_options(*command, options->node, /*with_transport=*/false);
  command->add_flag("--json", options->json, "One JSON document, for scripts");
  return command;
}

/// Fills in the endpoints, and makes a client with one connection and quick retries: a person waits.
ClientConfig ctl_config(ConnectionOptions& node);

/// A value of a node, or `otherwise` if this node does not tell it.
double stat(const NodeStats& stats, std::string_view name, double otherwise = 0);
bool has_stat(const NodeStats& stats, std::string_view name);

}  // namespace kv
