// client/tools/json_text.h: a JSON document as text.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace kv {

/// The document may hold a node's own words. Bytes that are not UTF-8 become U+FFFD; dump() alone would throw.
inline std::string json_text(const nlohmann::json& document, int indent = 2) {
  return document.dump(indent, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

}  // namespace kv
