#include "store/node/status/record_fields.h"

#include <algorithm>
#include <string_view>

namespace kv {

std::map<std::string, std::string> shown_fields(const NamespaceRecord& record, std::size_t chars_max) {
  std::map<std::string, std::string> fields;
  std::string_view text = record.text();
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view key = line.substr(0, equals), value = line.substr(equals + 1);
    fields[std::string(key)] =
        key == "salt" || key == NamespaceRecord::kNodeSalt ? "(set)" : std::string(value.substr(0, chars_max));
  }
  return fields;
}

}  // namespace kv
