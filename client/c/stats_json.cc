#include "client/c/stats_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <string_view>

namespace kv::c_api {
namespace {

/// Bytes from 0x7F on are escaped one by one. Names chosen by others need not be UTF-8, which JSON must be: readers get
/// them as Latin-1 instead of an invalid document.
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

/// JSON cannot express infinity or NaN.
void append_number(std::string& out, double value) {
  char number[40];
  // 17 digits preserve every double. Not printf: an engine's locale may have a decimal comma.
  const auto end = std::to_chars(number, std::end(number), value, std::chars_format::general, 17).ptr;
  out += std::isfinite(value) ? std::string_view(number, end) : "null";
}

void append_values(std::string& out, const std::vector<std::pair<std::string, double>>& values) {
  bool first = true;
  for (const auto& [name, value] : values) {
    if (!first) out += ',';
    first = false;
    append_json(out, name);
    out += ':';
    append_number(out, value);
  }
}

/// `chosen` and `nodes` as in a node's status page; processors in the kernel's format, such as "0-3,8".
void append_numa(std::string& out, const NumaStatus& numa) {
  out += "{\"nodes\":" + std::to_string(numa.place.node_count) + ",\"chosen\":[";
  for (const unsigned node : numa.place.choice.memory) {
    if (out.back() != '[') out += ',';
    out += std::to_string(node);
  }
  out += "],\"processors\":";
  append_json(out, number_list_text(numa.place.choice.processors));
  out += ",\"misplaced_ratio\":";
  append_number(out, numa.misplaced_ratio.value_or(std::nan("")));
  out += ",\"why_not\":";
  append_json(out, numa.place.why_not);
  out += '}';
}

}  // namespace

std::string stats_json(const std::vector<NodeStats>& nodes, const NumaStatus& numa) {
  std::string out = "{\"nodes\":[";
  for (const NodeStats& node : nodes) {
    // After the list's opening bracket, or the previous node.
    if (out.back() == '}') out += ',';
    out += "{\"name\":";
    append_json(out, node.name);
    // A silent node stays in the list, with empty values: readers look for it.
    if (node.error) {
      out += ",\"error\":";
      append_json(out, node.error.message());
    }
    out += ",\"values\":{";
    append_values(out, node.values);
    out += "},\"namespaces\":[";
    bool first = true;
    for (const NodeStats::Namespace& space : node.namespaces) {
      if (!first) out += ',';
      first = false;
      out += "{\"record\":";
      append_json(out, space.record);
      out += ",\"block_count\":" + std::to_string(space.block_count) +
             ",\"total_bytes\":" + std::to_string(space.total_bytes) +
             ",\"stored_blocks\":" + std::to_string(space.stored_blocks) +
             ",\"lookups\":" + std::to_string(space.lookups) +
             ",\"empty_lookups\":" + std::to_string(space.empty_lookups) + '}';
    }
    out += ']';
    if (!node.tenants.empty()) {
      out += ",\"tenants\":[";
      first = true;
      for (const NodeStats::Tenant& tenant : node.tenants) {
        if (!first) out += ',';
        first = false;
        out += "{\"name\":";
        append_json(out, tenant.name);
        out += ",\"values\":{";
        append_values(out, tenant.values);
        out += "}}";
      }
      out += ']';
    }
    out += '}';
  }
  out += "],\"numa\":";
  append_numa(out, numa);
  return out + '}';
}

std::string miss_json(const MissReport& report) {
  const auto number = [](std::uint64_t value) { return std::to_string(value); };
  // From whole milliseconds, so that the locale's decimal point cannot appear.
  const auto seconds = [](std::chrono::microseconds time) {
    const auto ms = static_cast<std::uint64_t>(time.count()) / 1000;
    const std::string rest = std::to_string(ms % 1000);
    return std::to_string(ms / 1000) + '.' + std::string(3 - rest.size(), '0') + rest;
  };
  std::string out = "{\"blocks\":" + number(report.block_count) +
                    ",\"disk_blocks\":" + number(report.disk_block_count) +
                    ",\"whole\":" + (report.is_whole ? "true" : "false") + ",\"reason\":";
  append_json(out, miss_kind_name(report.kind));
  out += ",\"node\":";
  append_json(out, report.node);
  if (report.why) {
    out += ",\"error\":";
    append_json(out, report.why.message());
  }
  out += ",\"left_seconds\":" + seconds(report.left) + ",\"idle_seconds\":" + seconds(report.idle) +
         ",\"remembers_seconds\":" + seconds(report.remembers) + ",\"stored_blocks\":" + number(report.stored_blocks) +
         ",\"lookups\":" + number(report.lookups) + ",\"empty_lookups\":" + number(report.empty_lookups) +
         ",\"others\":[";
  for (const MissReport::Other& other : report.others) {
    if (out.back() == '}') out += ',';
    out += "{\"namespace_id\":";
    append_json(out, to_hex(other.id.bytes));
    out += std::string(",\"has_block\":") + (other.has_block ? "true" : "false") +
           ",\"block_count\":" + number(other.block_count) + ",\"stored_blocks\":" + number(other.stored_blocks) +
           ",\"lookups\":" + number(other.lookups) + ",\"empty_lookups\":" + number(other.empty_lookups) +
           ",\"differs\":[";
    for (const FieldDifference& each : other.differs) {
      if (out.back() == '}') out += ',';
      out += "{\"field\":";
      append_json(out, each.field);
      out += ",\"here\":";
      append_json(out, each.here);
      out += ",\"there\":";
      append_json(out, each.there);
      out += '}';
    }
    out += "]}";
  }
  out += "],\"text\":[";
  for (const std::string& line : report.text()) {
    if (out.back() == '"') out += ',';
    append_json(out, line);
  }
  return out + "]}";
}

std::string context_json(const NamedContext& context) {
  std::string out = "{\"name\":";
  append_json(out, context.name);
  out += ",\"tags\":[";
  for (const std::string& tag : context.tags) {
    if (out.back() != '[') out += ',';
    append_json(out, tag);
  }
  out += "],\"namespace_id\":";
  append_json(out, context.namespace_id);
  out += ",\"model\":";
  append_json(out, context.model);
  const auto add = [&](const char* name, std::uint64_t value) {
    out += std::string(",\"") + name + "\":" + std::to_string(value);
  };
  const auto add_time = [&](const char* name, std::chrono::microseconds time) {
    add(name, static_cast<std::uint64_t>(time.count()));
  };
  add("block_size", context.block_size);
  add("wanted_blocks", context.wanted_blocks);
  add("kept_blocks", context.kept_blocks);
  add("kept_bytes", context.kept_bytes);
  out += ",\"why\":";
  append_json(out, context.why ? context.why.message() : "");
  add("lost_blocks", context.lost_blocks);
  add("priority", context.priority);
  add("yielded_blocks", context.yielded_blocks);
  out += std::string(",\"sliding\":") + (context.is_sliding ? "true" : "false");
  add_time("ttl_us", context.ttl);
  add_time("created_us", context.created);
  add_time("expires_us", context.expires);
  add_time("used_us", context.used);
  add("written_tokens", context.written_tokens);
  add("read_tokens", context.read_tokens);
  // A whole number, so that the locale's decimal point cannot appear.
  add("stored_token_seconds", static_cast<std::uint64_t>(std::clamp(context.stored_token_seconds, 0.0, 1e18)));
  out += std::string(",\"warming\":") + (context.is_warming ? "true" : "false");
  if (context.memory_blocks) add("memory_blocks", *context.memory_blocks);
  if (context.disk_blocks) add("disk_blocks", *context.disk_blocks);
  return out + "}";
}

std::string archived_json(const ArchivedContext& archived, bool is_imported) {
  std::string out = "{\"name\":";
  append_json(out, archived.name);
  out += ",\"namespace_id\":";
  append_json(out, archived.namespace_id);
  const auto add = [&](const char* name, std::uint64_t value) {
    out += std::string(",\"") + name + "\":" + std::to_string(value);
  };
  add("blocks", archived.blocks);
  add("wanted_blocks", archived.wanted_blocks);
  add("bytes", archived.bytes);
  out += archived.is_signed ? ",\"signed\":true" : ",\"signed\":false";
  if (!is_imported) return out + "}";
  add("stored_blocks", archived.stored_blocks);
  return out + ",\"context\":" + context_json(archived.context) + "}";
}

std::string contexts_json(const ContextList& list) {
  std::string out = "{\"contexts\":[";
  for (const NamedContext& context : list.contexts) {
    if (out.back() == '}') out += ',';
    out += context_json(context);
  }
  out += "],\"silent\":[";
  for (const auto& [node, error] : list.silent) {
    if (out.back() == '}') out += ',';
    out += "{\"node\":";
    append_json(out, node);
    out += ",\"error\":";
    append_json(out, error.message());
    out += '}';
  }
  return out + "]}";
}

}  // namespace kv::c_api
