// store/node/daemon/main.cc: kvstore-node's command line: reads the options, then checks them, tunes them, or runs the
// daemon.

#include <sys/stat.h>

#include <exception>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/text/output.h"
#include "store/node/daemon/daemon.h"
#include "store/node/disk_worker/disk_tool.h"
#include "store/node/machine/disk_path.h"
#include "store/node/machine/room.h"
#include "store/node/options/autotune.h"
#include "store/node/options/config.h"

namespace {

/// For --check-config. Returns the exit status: 0, or 2 after a reason on stderr.
int check(const kv::NodeOptions& options, const kv::GivenOptions& given) {
  if (options.operator_keys.is_given()) {
    if (const auto keys = kv::OperatorKeys::open(options.operator_keys); !keys) {
      std::cerr << "kvstore-node: " << keys.error().text << "\n";
      return 2;
    }
  }
  const auto& arena = options.store.arena;
  if (const std::string refused =
          kv::capacity_refusal(kv::read_memory_facts(), kv::RoomOf::kMachine, arena.capacity_bytes, arena.huge_pages);
      !refused.empty()) {
    std::cerr << "kvstore-node: " << given.explained(refused) << "\n";
    return 2;
  }
  std::cout << "configuration is valid: node-id " << options.node_id << ", capacity "
            << options.store.arena.capacity_bytes << " bytes, " << options.threads << " I/O threads ("
            << options.threads_why << "), listening on";
  for (const auto& endpoint : options.listen) std::cout << " " << endpoint.to_string();
  std::cout << "\n";
  for (const std::string& path : options.disk_paths) {
    if (const std::string place = kv::new_disk_path(path); !place.empty())
      std::cout << "disk-path " << path << " " << place << "\n";
  }
  return 0;
}

/// The daemon's own output is its log, which has rules of its own.
int run_daemon(const kv::NodeOptions& options, kv::GivenOptions given, const kv::Daemon::ReadOptions& read) {
  try {
    return kv::Daemon(options).run(std::move(given), read);
  } catch (const std::exception& error) {
    std::cerr << "kvstore-node: " << error.what() << "\n";
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  kv::hold_standard_numbers();
  // For the disk files: RocksDB has no mode for its own. The Unix socket gets its mode explicitly (socket_network.cc).
  ::umask(0077);
  if (argc > 1 && std::string_view(argv[1]) == "disk")
    return kv::end_output("kvstore-node", kv::run_disk_tool(argc - 1, argv + 1, std::cout, std::cerr));
  int exit_code = 0;
  std::optional<kv::GivenOptions> given;
  const auto options = kv::parse_options(argc, argv, &exit_code, &given);
  if (!options) return kv::end_output("kvstore-node", exit_code);
  if (options->check_only) return kv::end_output("kvstore-node", check(*options, *given));
  if (options->autotune.is_asked)
    return kv::end_output("kvstore-node", kv::run_autotune(*options, *given, std::cout, std::cerr));
  return run_daemon(*options, *std::move(given), [argc, argv](std::string* wrong) {
    int ignored = 0;
    return kv::GivenOptions::read(argc, argv, &ignored, wrong);
  });
}
