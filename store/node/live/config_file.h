// store/node/live/config_file.h: values written into a TOML file, of which everything else stays as people wrote it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kv {

struct ConfigLine {
  std::string name;
  std::vector<std::string> values;
  bool is_list = false;
};

/// The text with these options set: their lines are replaced where they stand, comments behind them stay, and others
/// come at the end. Without sections, as kvstore-node has it.
std::string with_options(std::string_view toml, const std::vector<ConfigLine>& lines);

/// The same of a file, which is replaced in one step: whoever reads it sees the old one or the new one, also after a
/// power cut. Returns "", or what is wrong; then the file is as it was.
std::string write_config_file(const std::string& path, const std::vector<ConfigLine>& lines);

}  // namespace kv
