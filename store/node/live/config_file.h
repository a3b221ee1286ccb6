// store/node/live/config_file.h: the TOML file of kvstore-node: its options with their lines, and values written into
// it, of which everything else stays as people wrote it.
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

/// `name = value` of a file. A value is a string ("" or ''), a number or true; several in [], also over several lines.
struct ConfigStatement {
  std::string name;
  std::vector<std::string> values;
  std::size_t line;  ///< Where it begins, counted from 1.
};
/// Returns "", or what is wrong: "line 3: ...". Whether there is such an option, and whether it takes these values, is
/// not looked at.
std::string read_config_text(std::string_view toml, std::vector<ConfigStatement>* statements);
/// "", or what is wrong: the path, and why it cannot be read.
std::string read_config_file(const std::string& path, std::string* text);

/// The text with these options set: their lines are replaced where they stand, comments behind them stay, and others
/// come at the end. Without sections, as kvstore-node has it.
std::string with_options(std::string_view toml, const std::vector<ConfigLine>& lines);

/// The same of a file, which is replaced in one step: whoever reads it sees the old one or the new one, also after a
/// power cut. Returns "", or what is wrong; then the file is as it was.
std::string write_config_file(const std::string& path, const std::vector<ConfigLine>& lines);

}  // namespace kv
