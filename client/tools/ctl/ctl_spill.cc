// kvstorectl spill: hands over to `kvstore-node spill`. Only the
// node knows the format on disk, and so only the node links RocksDB.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "client/tools/ctl/ctl.h"

namespace kv {
namespace {

/// The kvstore-node beside this program, as packages and build directories have it, or the one in PATH. Beside it comes
/// first: that one is of the same release, and so of the same format on disk.
std::string node_program() {
  std::error_code error;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
  // The second place is a build directory's: client/tools/kvstorectl and store/node/kvstore-node.
  for (const char* const place : {"kvstore-node", "../../store/node/kvstore-node"}) {
    const std::filesystem::path beside = own.parent_path() / place;
    if (!error && ::access(beside.c_str(), X_OK) == 0) return beside.string();
  }
  return "kvstore-node";
}

/// Replaces this process. A child would need its output, its signals and its exit status passed on.
[[noreturn]] void run_spill(const std::vector<std::string>& rest) {
  const std::string program = node_program();
  std::vector<std::string> arguments = {program, "spill"};
  arguments.insert(arguments.end(), rest.begin(), rest.end());
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  ::execvp(program.c_str(), argv.data());  // the same process, so exit status and signals are the node's own
  throw ToolFailed("spill: kvstore-node is neither beside kvstorectl nor in PATH: " +
                   std::string(std::strerror(errno)));
}

}  // namespace

void add_spill_command(CLI::App& app) {
  CLI::App* const command =
      app.add_subcommand("spill", "Looks at the spill directory of a node that does not run: inspect, verify, compact");
  command->prefix_command();  // whatever follows belongs to kvstore-node,
  command->set_help_flag();   // --help included
  command->callback([command] { run_spill(command->remaining()); });
}

}  // namespace kv
