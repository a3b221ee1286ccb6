// kvstorectl: inspects nodes and changes the blocks they keep, from a shell.
//
// Exit status: 0: done; 1: it failed, or found a fault; 2: the command line is wrong. ctl.h has the folder's map.
#include "client/tools/ctl/ctl.h"

#include <unistd.h>

#include <iostream>

#include "client/tools/json_text.h"
#include "client/tools/tool_main.h"

namespace kv {

void confirm(const std::string& command, const std::string& what, bool is_sure) {
  if (is_sure) return;
  if (::isatty(STDIN_FILENO) == 0 || ::isatty(STDERR_FILENO) == 0)
    throw CLI::ValidationError(command, "this would " + what + ", which cannot be taken back: say --yes");
  std::cerr << "This will " << what << ", which cannot be taken back. Go on? [y/N] " << std::flush;
  std::string answer;
  std::getline(std::cin, answer);
  if (answer != "y" && answer != "Y" && answer != "yes") throw ToolFailed(command + ": nothing was done");
}

void add_sure_flag(CLI::App& command, bool& is_sure) {
  command.add_flag("--yes", is_sure, "Do not ask; needed where there is no terminal to ask at");
}

void note_if_silent(const NodeSaid& node, nlohmann::json& document) {
  if (!node.error) return;
  std::cerr << node.name << ": " << describe(node.error) << '\n';
  document["silent"].push_back({{"node", node.name}, {"error", describe(node.error)}});
}

void print_answer(bool as_json, const nlohmann::json& document, const TextTable& table) {
  print_answer(as_json, document, [&] { table.print(std::cout); });
}

void print_answer(bool as_json, const nlohmann::json& document, const std::function<void()>& print_text) {
  if (!as_json) return print_text();
  std::cout << json_text(document) << '\n';
}

}  // namespace kv

int main(int argc, char** argv) {
  CLI::App app("kvstorectl: look at kvstore nodes and change what they keep");
  app.require_subcommand(1);
  app.set_version_flag("--version", "kvstorectl " KV_VERSION);
  app.get_formatter()->column_width(34);
  app.footer(
      "Which nodes: --endpoint, else the environment variable KVSTORE_ENDPOINTS (separated by commas), else\n"
      "unix:///run/kvstore/kvstore.sock if it is there, else tcp://127.0.0.1:7400.\n\n"
      "Examples:\n"
      "  kvstorectl doctor                                is everything all right?\n"
      "  kvstorectl status -e tcp://127.0.0.1:7400        what a node holds\n"
      "  kvstorectl top                                   what it does, every second\n"
      "  kvstorectl curve                                 what more memory would bring\n"
      "  kvstorectl ping --wait 30s                       wait until a node serves\n"
      "  kvstorectl cluster status                        which nodes belong together\n"
      "  kvstorectl config set capacity=96GiB             more memory, while it serves\n"
      "  kvstorectl size --config config.json             how large a model's cache is\n");
  kv::add_status_commands(app);
  kv::add_curve_command(app);
  kv::add_tenants_command(app);
  kv::add_erase_command(app);
  kv::add_block_commands(app);
  kv::add_contexts_commands(app);
  kv::add_slowlog_command(app);
  kv::add_ping_command(app);
  kv::add_cluster_commands(app);
  kv::add_doctor_command(app);
  kv::add_size_command(app);
  kv::add_config_commands(app);
  kv::add_disk_command(app);
  kv::add_support_command(app);
  return kv::run_tool("kvstorectl", app, argc, argv);
}
