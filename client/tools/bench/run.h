// client/tools/bench/run.h: `kvstore-bench run`: one call in one shape, as fast as it goes.
#pragma once

#include <CLI/CLI.hpp>

namespace kv {

void add_run_command(CLI::App& app);

}  // namespace kv
