#include "client/tools/tool_main.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/text/output.h"
#include "base/text/spelling.h"
#include "base/text/variables.h"
#include "client/tools/json_text.h"

namespace kv {
namespace {

/// "no command 'staus'; did you mean 'status'?" if the command line has an unknown word in place of a command; else "".
std::string misspelt_command(const CLI::App& app, int argc, const char* const* argv) {
  const CLI::App* at = &app;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::vector<const CLI::App*> commands = at->get_subcommands([](const CLI::App*) { return true; });
    if (commands.empty() || word.starts_with("-")) return "";  // the rest belongs to the command
    std::vector<std::string> names;
    const CLI::App* next = nullptr;
    for (const CLI::App* each : commands) {
      names.push_back(each->get_name());
      if (each->check_name(word)) next = each;
    }
    if (next == nullptr) return "no command '" + word + "'" + did_you_mean(word, names);
    at = next;
  }
  return "";
}

/// Standard output with --json: kept until the command flushes it or ends, so that a command that fails can still make
/// its answer one JSON document.
class KeptOutput final : public std::stringbuf {
 public:
  KeptOutput() : real_(std::cout.rdbuf(this)) {}
  ~KeptOutput() override { std::cout.rdbuf(real_); }
  KeptOutput(const KeptOutput&) = delete;
  KeptOutput& operator=(const KeptOutput&) = delete;

  /// Passes on what was kept; after a failure without any answer, a document with the reason.
  void end(int status, const std::string& why) {
    if (status != 0 && !has_written_ && view().empty()) std::cout << json_text({{"error", why}}) << '\n';
    pass_on();  // a failure stays known to the C library, and end_output() finds it there
  }

 protected:
  int sync() override { return pass_on() ? real_->pubsync() : -1; }

 private:
  bool pass_on() {
    const std::string text = str();
    has_written_ = has_written_ || !text.empty();
    str("");
    const auto count = static_cast<std::streamsize>(text.size());
    return real_->sputn(text.data(), count) == count;
  }

  std::streambuf* const real_;
  bool has_written_ = false;
};

/// Returns the exit status; `why`: of a failure, for a script.
int run(const char* program, CLI::App& app, int argc, const char* const* argv, std::string& why) {
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    const std::string misspelt = misspelt_command(app, argc, argv);
    why = misspelt.empty() ? error.what() : misspelt;
    if (misspelt.empty()) {
      app.exit(error);
    } else {
      std::fprintf(stderr, "%s: %s\n", program, misspelt.c_str());
    }
    return 2;
  } catch (const std::exception& error) {
    why = error.what();
    if (!why.empty()) std::fprintf(stderr, "%s: %s\n", program, why.c_str());
    if (why.empty()) why = "not done; standard error has the reason";
    return 1;
  }
}

}  // namespace

int run_tool(const char* program, CLI::App& app, int argc, const char* const* argv) {
  hold_standard_numbers();
  for (const std::string& variable : unknown_client_variables(environ))
    std::fprintf(stderr, "%s: warning: %s\n", program, variable.c_str());
  std::string why;
  int status;
  if (std::any_of(argv, argv + argc, [](const char* word) { return std::string_view(word) == "--json"; })) {
    KeptOutput output;
    status = run(program, app, argc, argv, why);
    output.end(status, why);
  } else {
    status = run(program, app, argc, argv, why);
  }
  return end_output(program, status);
}

}  // namespace kv
