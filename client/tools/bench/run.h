// client/tools/bench/run.h: `kvstore-bench run`: one call in one shape, as fast as it goes.
#pragma once

namespace CLI {
class App;
}

namespace kv {

void add_run_command(CLI::App& app);

}  // namespace kv
