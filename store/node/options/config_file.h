// store/node/options/config_file.h: the TOML file of kvstore-node: reads its options with their lines, and writes
// values into it. All other text stays as people wrote it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace kv {

struct ConfigLine {
  std::string name;
  std::vector<std::string> values;
  bool is_list = false;
};

/// `name = value` in a file. A value is a string ("" or ''), a number or true; or a list in [], on any number of lines.
struct ConfigStatement {
  std::string name;
  std::vector<std::string> values;
  std::size_t line;  ///< Its first line, counted from 1.
};
/// Returns "", or the error: "line 3: ...". Does not check whether such options exist and take these values.
std::string read_config_text(std::string_view toml, std::vector<ConfigStatement>* statements);
/// Returns "", or the error: the path, and why it cannot be read.
std::string read_config_file(const std::string& path, std::string* text);

/// The text with these options set: their lines are replaced in place, with their comments kept, and new ones are added
/// at the end. Without sections, like kvstore-node's files.
std::string with_options(std::string_view toml, const std::vector<ConfigLine>& lines);

/// Does the same to a file, which is replaced in one step: readers see the old one or the new one, also after a power
/// cut. Returns "", or the error; then the file is unchanged.
std::string write_config_file(const std::string& path, const std::vector<ConfigLine>& lines);

}  // namespace kv
