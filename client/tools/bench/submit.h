// client/tools/bench/submit.h: `kvstore-bench submit`: what a call that never blocks costs the thread that makes it.
#pragma once

#include <CLI/CLI.hpp>

namespace kv {

void add_submit_command(CLI::App& app);

}  // namespace kv
