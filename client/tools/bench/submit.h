// client/tools/bench/submit.h: `kvstore-bench submit`: the cost of a call that never blocks, to its caller's thread.
#pragma once

namespace CLI {
class App;
}

namespace kv {

void add_submit_command(CLI::App& app);

}  // namespace kv
