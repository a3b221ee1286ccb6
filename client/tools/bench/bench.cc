// kvstore-bench: how fast a node is, next to what the machine allows, and whether every byte is right.
//
// Files, in reading order:
//   limit.h        what this machine allows
//   run.h          one call in one shape
//   replay.h       recorded requests
//   submit.h       calls that never block
//   chat.h         conversations that grow
//   prompt.h       what a worker does for one prompt; replay and chat use it
//   tool_client.h  a client on the calling thread; every tool uses it
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "client/tools/bench/chat.h"
#include "client/tools/bench/limit.h"
#include "client/tools/bench/replay.h"
#include "client/tools/bench/run.h"
#include "client/tools/bench/submit.h"

int main(int argc, char** argv) {
  CLI::App app("kvstore-bench: how fast a node is, next to what this machine allows, and whether every byte is right");
  app.require_subcommand(1);
  app.get_formatter()->column_width(36);
  kv::add_run_command(app);
  kv::add_submit_command(app);
  kv::add_limit_command(app);
  kv::add_replay_command(app);
  kv::add_chat_command(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvstore-bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
