#include "store/node/options/option_sources.h"

#include <spdlog/fmt/fmt.h>

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "base/text/printable.h"
#include "base/text/spelling.h"
#include "base/text/variables.h"
#include "store/node/options/config_file.h"

namespace kv {
namespace {

constexpr const char* kAbout =
    R"(kvstore-node: keeps the KV blocks of LLM prefixes in memory and gives them to workers.

Examples:
  kvstore-node                                            4 GiB, tcp://127.0.0.1:7400, metrics on 127.0.0.1:7401
  kvstore-node --capacity 64GiB --listen unix:///run/kvstore/kvstore.sock --listen tcp://127.0.0.1:7400
  kvstore-node --config /etc/kvstore/kvstore-node.toml --check-config
  kvstore-node --capacity-blocks 10000 --capacity-block-bytes 2MiB      exactly 10,000 blocks of 2 MiB
  kvstore-node --config /etc/kvstore/kvstore-node.toml --autotune        what to set on this machine, and why

Each option can stand in the TOML file under its long name (capacity = "64GiB") and in the environment as
KVSTORE_NODE_ and its name in capitals (KVSTORE_NODE_CAPACITY=64GiB). A flag wins over the environment, that over
the file. Sizes: 4096, 512MiB, 4G. Times: 10s, 500ms, 2m.
Signals: SIGTERM and SIGINT drain and exit 0; SIGHUP reads certificates, policy-file, tenant-secret-file,
disk-key-file and the TOML file again, where they are given. `kvstorectl config list` shows which options can be changed
while the node runs.)";

constexpr const char* kConfig = "config";

using Switches = std::set<std::string, std::less<>>;

/// --name VALUE, --name=VALUE, --switch. A list takes all values up to the next flag.
std::string read_flags(int argc, const char* const* argv, const std::vector<OptionRow>& rows, const Switches& switches,
                       OptionSources& sources) {
  std::vector<std::string> known = names_of(rows);
  known.emplace_back(kConfig);
  known.insert(known.end(), switches.begin(), switches.end());
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument(argv[i]);
    const std::string shown = "'" + printable(argument) + "'";
    if (!argument.starts_with("--")) return shown + ": a value without an option; allowed: --NAME VALUE, see --help";
    const std::size_t equals = argument.find('=');
    const std::string name(argument.substr(2, equals == std::string_view::npos ? equals : equals - 2));
    if (switches.contains(name)) {
      if (equals != std::string_view::npos) return name + ": " + shown + "; allowed: --" + name + ", without a value";
      sources.switches.insert(name);
      continue;
    }
    const OptionRow* const row = find_row(rows, name);
    if (row == nullptr && name != kConfig)
      return shown + ": there is no such option" + did_you_mean(name, known) + " (command line)";
    OptionText& text = sources.options[name];
    text.place = {OptionSource::kFlag, "flag --" + name};
    if (equals != std::string_view::npos) {
      text.values.emplace_back(argument.substr(equals + 1));
      continue;
    }
    const auto has_value = [&] { return i + 1 < argc && !std::string_view(argv[i + 1]).starts_with("--"); };
    if (!has_value()) {
      return fmt::format("{}: no value; allowed: {} ({})", name, row == nullptr ? "a TOML file" : allowed_text(*row),
                         text.place.text);
    }
    do text.values.emplace_back(argv[++i]);
    while (row != nullptr && is_list(*row) && has_value());
  }
  return "";
}

/// The values of a list stand between commas, as in KVSTORE_ENDPOINTS: a variable cannot be repeated as a flag can.
std::vector<std::string> values_of(const std::string& text, bool is_list) {
  std::vector<std::string> values;
  for (std::size_t at = 0; is_list && at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    if (end > at) values.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return values.empty() ? std::vector<std::string>{text} : values;
}

void read_environment(const std::vector<std::string>& names, const std::vector<OptionRow>& rows,
                      OptionSources& sources) {
  for (const std::string& name : names) {
    const std::string variable = node_variable(name);
    const char* const value = std::getenv(variable.c_str());
    if (value == nullptr || sources.options.contains(name)) continue;
    const OptionRow* const row = find_row(rows, name);
    sources.options[name] = {values_of(value, row != nullptr && is_list(*row)),
                             {OptionSource::kEnvironment, "environment variable " + variable}};
  }
}

std::string read_file(const std::vector<OptionRow>& rows, const Switches& switches, OptionSources& sources) {
  std::string text;
  if (const std::string wrong = read_config_file(sources.file, &text); !wrong.empty()) return wrong;
  std::vector<ConfigStatement> statements;
  if (const std::string wrong = read_config_text(text, &statements); !wrong.empty()) return sources.file + ", " + wrong;
  std::map<std::string, std::size_t> lines;
  for (ConfigStatement& each : statements) {
    const std::string place = fmt::format("{}, line {}", sources.file, each.line);
    if (find_row(rows, each.name) == nullptr) {
      const bool is_flag = each.name == kConfig || switches.contains(each.name);
      return fmt::format("{}{} ({})", each.name,
                         is_flag ? ": is for the command line only"
                                 : ": there is no such option" + did_you_mean(each.name, names_of(rows)),
                         place);
    }
    if (const auto [first, is_first] = lines.emplace(each.name, each.line); !is_first) {
      return fmt::format("{}: stands there twice, first in line {}; allowed: once, several values as a list in [] ({})",
                         each.name, first->second, place);
    }
    if (!sources.options.contains(each.name))
      sources.options[each.name] = {std::move(each.values), {OptionSource::kFile, place}};
  }
  return "";
}

/// Returns "", or which two given options exclude one another.
std::string check_excludes(const std::vector<OptionRow>& rows, const OptionSources& sources) {
  for (const OptionRow& row : rows) {
    const auto own = sources.options.find(row.name), other = sources.options.find(row.excludes);
    if (own == sources.options.end() || other == sources.options.end()) continue;
    const auto text = [](const OptionText& given) {
      return with_place("'" + (given.values.empty() ? "" : printable(given.values.front())) + "'", given.place);
    };
    return fmt::format("{}: {} is given beside {}, {}; allowed: one of them", row.name, text(own->second), row.excludes,
                       text(other->second));
  }
  return "";
}

}  // namespace

const char* source_name(OptionSource source) {
  switch (source) {
    case OptionSource::kDefault: return "default";
    case OptionSource::kFile: return "file";
    case OptionSource::kEnvironment: return "environment";
    case OptionSource::kFlag: return "flag";
    case OptionSource::kSet: return "set";
  }
  return "?";
}

std::string with_place(const std::string& wrong, const OptionPlace& place) {
  return wrong + (place.text.empty() ? "" : " (" + place.text + ")");
}

std::string help_of(const std::vector<OptionRow>& rows) {
  CLI::App app(kAbout, "kvstore-node");
  app.set_version_flag("--version", "");
  app.set_config("--config", "", "TOML file with any of these options");
  add_options(app, rows);
  const auto add = [&app](const char* name, const char* help) { return app.add_flag(name)->description(help); };
  add("--check-config", "Check the options, print the result and exit");
  auto* const is_asked = add("--autotune",
                             "Measure this machine for a node with these options, say what to set and why, and exit. "
                             "Writes 256 MiB to each --disk-path, and takes them away again");
  auto* const as_json = add("--json", "With --autotune: one JSON document, for scripts")->needs(is_asked);
  add("--toml", "With --autotune: lines for the TOML file")->needs(is_asked)->excludes(as_json);
  return app.help();
}

std::string read_sources(int argc, const char* const* argv, const std::vector<OptionRow>& rows,
                         const Switches& switches, OptionSources* sources) {
  if (std::string wrong = read_flags(argc, argv, rows, switches, *sources); !wrong.empty()) return wrong;
  std::vector<std::string> names = names_of(rows);
  names.emplace_back(kConfig);
  read_environment(names, rows, *sources);
  sources->unknown_variables = unknown_node_variables(environ, names);
  const auto file = sources->options.find(kConfig);
  if (file == sources->options.end()) return check_excludes(rows, *sources);
  const OptionText given = std::move(file->second);
  sources->options.erase(file);
  if (given.values.size() != 1) return std::string("config: several files; allowed: one (") + given.place.text + ")";
  sources->file = given.values.front();
  std::string wrong = read_file(rows, switches, *sources);
  // For a missing file, also reports where its name was given.
  if (!wrong.empty() && wrong.starts_with(sources->file + ": "))
    wrong = "config: " + wrong + "; allowed: a TOML file (" + given.place.text + ")";
  return wrong.empty() ? check_excludes(rows, *sources) : wrong;
}

}  // namespace kv
