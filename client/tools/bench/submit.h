// client/tools/bench/submit.h: `kvstore-bench submit`: the cost of a call that never blocks, to its caller's thread.
#pragma once

#include <CLI/CLI.hpp>

namespace kv {

void add_submit_command(CLI::App& app);

}  // namespace kv
