// client/tools/misspelt_verb.h: suggests a command for a misspelt one.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace kv {

/// "no command 'staus'; did you mean 'status'?" if the command line has an unknown word in place of a command; else "".
std::string misspelt_verb(const CLI::App& app, int argc, const char* const* argv);

}  // namespace kv
