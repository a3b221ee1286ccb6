// client/tools/tool_main.h: the part of main() that the programs share.
#pragma once

namespace CLI {
class App;
}

namespace kv {

/// Runs the command that the command line names. Returns the exit status: 0: done; 1: it threw, and the reason is
/// printed unless it is empty, or standard output did not take all; 2: the command line is wrong. With --json standard
/// output is one JSON document in any case: after a failure without an answer {"error": "the reason"}.
int run_tool(const char* program, CLI::App& app, int argc, const char* const* argv);

}  // namespace kv
