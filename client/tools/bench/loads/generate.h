// client/tools/bench/loads/generate.h: `kvstore-bench generate`: writes traces of made-up loads (load.h).
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "client/tools/bench/trace_reader.h"

namespace kv {

/// A request as a line of a trace, as read_trace() takes it, with the line's end.
std::string trace_line(const TraceRequest& request);

void add_generate_command(CLI::App& app);

}  // namespace kv
