#include "client/tools/tool_main.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "base/spelling.h"
#include "base/variables.h"

namespace kv {
namespace {

/// "no command 'staus'; did you mean 'status'?" if the command line has an unknown word in place of a command; else "".
std::string misspelt_verb(const CLI::App& app, int argc, const char* const* argv) {
  const CLI::App* at = &app;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::vector<const CLI::App*> verbs = at->get_subcommands([](const CLI::App*) { return true; });
    if (verbs.empty() || word.starts_with("-")) return "";  // the rest belongs to the verb
    std::vector<std::string> names;
    const CLI::App* next = nullptr;
    for (const CLI::App* each : verbs) {
      names.push_back(each->get_name());
      if (each->check_name(word)) next = each;
    }
    if (next == nullptr) return "no command '" + word + "'" + did_you_mean(word, names);
    at = next;
  }
  return "";
}

}  // namespace

int run_tool(const char* program, CLI::App& app, int argc, const char* const* argv) {
  for (const std::string& variable : unknown_client_variables(environ))
    std::fprintf(stderr, "%s: warning: %s\n", program, variable.c_str());
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& error) {
    const std::string misspelt = error.get_exit_code() == 0 ? "" : misspelt_verb(app, argc, argv);
    if (misspelt.empty()) return app.exit(error) == 0 ? 0 : 2;
    std::fprintf(stderr, "%s: %s\n", program, misspelt.c_str());
    return 2;
  } catch (const std::exception& error) {
    if (*error.what() != '\0') std::fprintf(stderr, "%s: %s\n", program, error.what());
    return 1;
  }
}

}  // namespace kv
