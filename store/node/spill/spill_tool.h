// store/node/spill/spill_tool.h: `kvstore-node spill`, which inspects the directory of a stopped node.
#pragma once

#include <ostream>

namespace kv {

/// argv[0] is "spill". Writes results to `out`, progress and errors to `err`. Returns the exit status: 0 done, 1 failed
/// or found damage, 2 the command line is wrong.
int run_spill_tool(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

}  // namespace kv
