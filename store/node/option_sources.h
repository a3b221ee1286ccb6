// store/node/option_sources.h: options as text, each with the place where it stands: the command line, the environment,
// the TOML file.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "store/node/option_table.h"

namespace kv {

enum class OptionSource : std::uint8_t { kDefault, kFile, kEnvironment, kFlag, kSet };

const char* source_name(OptionSource source);  ///< "file"; "environment".

/// For a person who has to find it.
struct OptionPlace {
  OptionSource source = OptionSource::kDefault;
  std::string text;  ///< "flag --capacity", "environment variable KVSTORE_NODE_CAPACITY", "FILE, line 3"; or empty.
};

struct OptionText {
  std::vector<std::string> values;
  OptionPlace place;
};

struct OptionSources {
  std::map<std::string, OptionText, std::less<>> options;  ///< By name; of several places the one that wins.
  std::set<std::string, std::less<>> switches;             ///< --check-config and others without a value, as given.
  std::string file;                                        ///< --config; empty: none.
  std::vector<std::string> unknown_variables;              ///< Misspelt, in words.
};

std::string with_place(const std::string& wrong, const OptionPlace& place);  ///< "WRONG (flag --capacity)".

std::string help_of(const std::vector<OptionRow>& rows);  ///< For --help.

/// A flag wins over the environment, the environment over the file. Names that no row has are refused, and two that
/// exclude one another. Returns "", or what is wrong.
std::string read_sources(int argc, const char* const* argv, const std::vector<OptionRow>& rows,
                         const std::set<std::string, std::less<>>& switches, OptionSources* sources);

}  // namespace kv
