// client/tools/bench/bench.h: kvstore-bench: speed of a node, beside the machine's limits, with every byte checked.
//
// Files, in reading order:
//   touched_memory.h   memory without page faults, and cheap random numbers
//   work_memory.h      block buffers, lent to the node where the transport needs it
//   block_pattern.h    a block's expected bytes, from its name alone
//   run.cc             one call in one shape; run_thread.h is one of its threads
//   prompt.h           a worker's calls for one prompt; used by replay and chat
//   replay.cc          recorded requests, which trace/trace_reader.h reads
//   submit.cc          calls that never block
//   chat.cc            conversations that grow
//   limit/limit.h      the machine's limits: memcpy, and bare sockets against raw_server.h
//   loads/generate.h   traces of synthetic loads, also for kvstore-policies (store/replay)
#pragma once

namespace CLI {
class App;
}

namespace kv {

void add_run_command(CLI::App& app);
void add_submit_command(CLI::App& app);
void add_limit_command(CLI::App& app);
void add_replay_command(CLI::App& app);
void add_chat_command(CLI::App& app);
void add_generate_command(CLI::App& app);

}  // namespace kv
