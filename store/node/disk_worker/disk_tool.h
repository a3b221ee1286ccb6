// store/node/disk_worker/disk_tool.h: `kvstore-node disk`, which inspects the directory of a stopped node.
#pragma once

#include <ostream>

namespace kv {

/// argv[0] is "disk". Writes results to `out`, progress and errors to `err`. Returns the exit status: 0 done, 1 failed
/// or found damage, 2 the command line is wrong.
int run_disk_tool(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

}  // namespace kv
