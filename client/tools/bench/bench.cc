#include "client/tools/bench/bench.h"

#include <CLI/CLI.hpp>

#include "client/tools/tool_main.h"

int main(int argc, char** argv) {
  CLI::App app("kvstore-bench: how fast a node is, next to what this machine allows, and whether every byte is right");
  app.require_subcommand(1);
  app.set_version_flag("--version", "kvstore-bench " KV_VERSION);
  app.get_formatter()->column_width(36);
  kv::add_run_command(app);
  kv::add_submit_command(app);
  kv::add_limit_command(app);
  kv::add_replay_command(app);
  kv::add_chat_command(app);
  kv::add_generate_command(app);
  return kv::run_tool("kvstore-bench", app, argc, argv);
}
