// client/tools/bench/loads/generate.h: `kvstore-bench generate`: writes traces of synthetic loads (load.h).
#pragma once

#include <string>

#include "client/tools/bench/trace/trace_reader.h"

namespace kv {

/// A request as a line of a trace for read_trace(), with its newline.
std::string trace_line(const TraceRequest& request);

}  // namespace kv
