#include "client/tools/misspelt_verb.h"

#include <CLI/CLI.hpp>
#include <vector>

#include "base/spelling.h"

namespace kv {

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

}  // namespace kv
