// store/node/options/option_sources.h: options as text, each with its origin: command line, environment or TOML file.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "store/node/options/option_table.h"

namespace kv {

enum class OptionSource : std::uint8_t { kDefault, kFile, kEnvironment, kFlag, kSet };

const char* source_name(OptionSource source);  ///< "file"; "environment".

/// The origin of a value, for people.
struct OptionPlace {
  OptionSource source = OptionSource::kDefault;
  std::string text;  ///< "flag --capacity", "environment variable KVSTORE_NODE_CAPACITY", "FILE, line 3"; or empty.
};

struct OptionText {
  std::vector<std::string> values;
  OptionPlace place;
};

struct OptionSources {
  std::map<std::string, OptionText, std::less<>> options;  ///< By name; of several origins the winning one.
  std::set<std::string, std::less<>> switches;             ///< --check-config and others without a value, as given.
  std::string file;                                        ///< --config; empty: not given.
  std::vector<std::string> unknown_variables;              ///< Misspelt, in words.
};

std::string with_place(const std::string& wrong, const OptionPlace& place);  ///< "WRONG (flag --capacity)".

std::string help_of(const std::vector<OptionRow>& rows);  ///< For --help.

/// A flag wins over the environment, the environment over the file. Refuses names without a row, and two options that
/// exclude one another. Returns "", or the error.
std::string read_sources(int argc, const char* const* argv, const std::vector<OptionRow>& rows,
                         const std::set<std::string, std::less<>>& switches, OptionSources* sources);

}  // namespace kv
