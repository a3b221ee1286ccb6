// client/tools/bench/policies/policies.h: `kvstore-bench policies`: eviction policies on a trace, without a node.
//
// Files, in reading order:
//   block_trace.h   the trace as lists of blocks
//   policy_run.h    one policy at one size: the trace through a Store in this process
//   optimum.h       the most hits that any cache could have had
//   svg_plot.h      the picture
#pragma once

namespace CLI {
class App;
}

namespace kv {

void add_policies_command(CLI::App& app);

}  // namespace kv
