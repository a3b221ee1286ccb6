// kvstore-bench: speed of a node, beside the machine's limits, with every byte checked.
//
// Files, in reading order:
//   touched_memory.h   memory without page faults, and cheap random numbers
//   work_memory.h      block buffers, lent to the node where the transport needs it
//   block_pattern.h    a block's expected bytes, from its name alone
//   run.h              one call in one shape; run_thread.h is one of its threads
//   prompt.h           a worker's calls for one prompt; used by replay and chat
//   replay.h           recorded requests, which trace_reader.h reads
//   submit.h           calls that never block
//   chat.h             conversations that grow
//   limit.h            the machine's limits: memcpy, and bare sockets against raw_server.h
//   policies/policies.h  each eviction policy on a trace, in this process
//   loads/generate.h   traces of synthetic loads
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "base/variables.h"
#include "client/tools/bench/chat.h"
#include "client/tools/bench/limit.h"
#include "client/tools/bench/loads/generate.h"
#include "client/tools/bench/policies/policies.h"
#include "client/tools/bench/replay.h"
#include "client/tools/bench/run.h"
#include "client/tools/bench/submit.h"
#include "client/tools/misspelt_verb.h"

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
  kv::add_policies_command(app);
  kv::add_generate_command(app);
  for (const std::string& variable : kv::unknown_client_variables(environ))
    std::fprintf(stderr, "kvstore-bench: warning: %s\n", variable.c_str());
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (const std::string misspelt = kv::misspelt_verb(app, argc, argv);
        error.get_exit_code() != 0 && !misspelt.empty()) {
      std::fprintf(stderr, "kvstore-bench: %s\n", misspelt.c_str());
      return 2;
    }
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvstore-bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
