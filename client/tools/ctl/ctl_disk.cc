// kvstorectl disk: runs `kvstore-node disk`. Only the node links RocksDB and reads the disk format.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "client/tools/ctl/ctl.h"

namespace kv {
namespace {

/// The kvstore-node beside this program, as in packages and build directories, or the one in PATH. The one beside comes
/// first: it has the same release, and so the same disk format.
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

/// Replaces this process. For a child, output, signals and exit status would have to be passed on.
[[noreturn]] void run_disk(const std::vector<std::string>& rest) {
  const std::string program = node_program();
  std::vector<std::string> arguments = {program, "disk"};
  arguments.insert(arguments.end(), rest.begin(), rest.end());
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  ::execvp(program.c_str(), argv.data());  // the same process, so exit status and signals are the node's own
  throw ToolFailed("disk: kvstore-node is neither beside kvstorectl nor in PATH: " + std::string(std::strerror(errno)));
}

}  // namespace

void add_disk_command(CLI::App& app) {
  CLI::App* const command =
      app.add_subcommand("disk", "Looks at the disk directory of a node that does not run: inspect, verify, compact");
  command->prefix_command();  // the remaining arguments belong to kvstore-node,
  command->set_help_flag();   // --help included
  command->callback([command] { run_disk(command->remaining()); });
}

}  // namespace kv
