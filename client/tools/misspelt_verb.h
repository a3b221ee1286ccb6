// client/tools/misspelt_verb.h: which command somebody meant who wrote another one.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace kv {

/// "no command 'staus'; did you mean 'status'?" if the command line has another word where a command is due; else "".
std::string misspelt_verb(const CLI::App& app, int argc, const char* const* argv);

}  // namespace kv
