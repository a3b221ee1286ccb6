// client/tools/bench/replay.h: `kvstore-bench replay`: recorded requests against a running node, every byte checked.
#pragma once

namespace CLI {
class App;
}

namespace kv {

void add_replay_command(CLI::App& app);

}  // namespace kv
