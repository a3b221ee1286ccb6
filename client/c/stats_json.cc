#include "client/c/stats_json.h"

#include <cmath>
#include <cstdio>
#include <string_view>

namespace kv::c_api {
namespace {

void append_json(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7F) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += escaped;
    } else {
      out += c;
    }
  }
  out += '"';
}

}  // namespace

std::string stats_json(const std::vector<NodeStats>& nodes) {
  std::string out = "{\"nodes\":[";
  for (const NodeStats& node : nodes) {
    if (out.back() == '}') out += ',';
    out += "{\"name\":";
    append_json(out, node.name);
    if (node.error) {
      out += ",\"error\":";
      append_json(out, node.error.message());
    }
    out += ",\"values\":{";
    bool first = true;
    for (const auto& [name, value] : node.values) {
      if (!first) out += ',';
      first = false;
      append_json(out, name);
      char number[40];
      std::snprintf(number, sizeof number, ":%.17g", value);
      out += std::isfinite(value) ? number : ":null";
    }
    out += "},\"namespaces\":[";
    first = true;
    for (const NodeStats::Namespace& space : node.namespaces) {
      if (!first) out += ',';
      first = false;
      out += "{\"record\":";
      append_json(out, space.record);
      out += ",\"block_count\":" + std::to_string(space.block_count) +
             ",\"total_bytes\":" + std::to_string(space.total_bytes) + '}';
    }
    out += "]}";
  }
  return out + "]}";
}

}  // namespace kv::c_api
