#include "client/c/stats_json.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

namespace kv::c_api {
namespace {

using Json = nlohmann::ordered_json;

/// Names chosen by others need not be UTF-8, which JSON must be: readers get bytes from 0x80 on as Latin-1 instead of
/// an invalid document.
std::string latin_1(std::string_view text) {
  std::string utf8;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80) utf8 += static_cast<char>(0xC0 | (byte >> 6));
    utf8 += byte < 0x80 ? c : static_cast<char>(0x80 | (byte & 0x3F));
  }
  return utf8;
}

/// Whole numbers are written without a point.
Json number(double value) { return value == std::floor(value) ? Json(static_cast<std::int64_t>(value)) : Json(value); }

/// `chosen` and `nodes` as in a node's status page; processors in the kernel's format, such as "0-3,8".
Json numa_of(const NumaStatus& numa) {
  return {{"nodes", numa.place.node_count},
          {"chosen", Json(numa.place.choice.memory)},
          {"processors", number_list_text(numa.place.choice.processors)},
          {"misplaced_ratio", numa.misplaced_ratio ? number(*numa.misplaced_ratio) : Json()},
          {"why_not", latin_1(numa.place.why_not)}};
}

Json context_of(const NamedContext& context) {
  Json document = {
      {"name", latin_1(context.name)},
      {"tags", Json::array()},
      {"namespace_id", latin_1(context.namespace_id)},
      {"model", latin_1(context.model)},
      {"block_size", context.block_size},
      {"wanted_blocks", context.wanted_blocks},
      {"kept_blocks", context.kept_blocks},
      {"kept_bytes", context.kept_bytes},
      {"why", latin_1(context.why ? context.why.message() : "")},
      {"lost_blocks", context.lost_blocks},
      {"priority", context.priority},
      {"yielded_blocks", context.yielded_blocks},
      {"sliding", context.is_sliding},
      {"ttl_us", context.ttl.count()},
      {"created_us", context.created.count()},
      {"expires_us", context.expires.count()},
      {"used_us", context.used.count()},
      {"written_tokens", context.written_tokens},
      {"read_tokens", context.read_tokens},
      {"stored_token_seconds", static_cast<std::uint64_t>(std::clamp(context.stored_token_seconds, 0.0, 1e18))},
      {"warming", context.is_warming}};
  for (const std::string& tag : context.tags) document["tags"].push_back(latin_1(tag));
  if (context.memory_blocks) document["memory_blocks"] = *context.memory_blocks;
  if (context.disk_blocks) document["disk_blocks"] = *context.disk_blocks;
  return document;
}

std::string text_of(const Json& document) { return document.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/true); }

}  // namespace

std::string stats_json(const std::vector<NodeAnswer>& nodes, const NumaStatus& numa) {
  std::string list;
  for (const NodeAnswer& node : nodes) {
    // As the node wrote it: accept() takes no stack for nested values, whoever sent them, but dump() does.
    const bool is_json = nlohmann::json::accept(node.json);
    // A silent node stays in the list: readers look for it.
    Json entry = {{"name", latin_1(node.name)}};
    if (node.error || !is_json) entry["error"] = latin_1(node.error ? node.error.message() : "the answer is no JSON");
    std::string text = text_of(entry);
    text.pop_back();
    list += (list.empty() ? "" : ",") + text + ",\"answer\":" + (is_json ? node.json : "null") + '}';
  }
  return "{\"nodes\":[" + list + "],\"numa\":" + text_of(numa_of(numa)) + '}';
}

std::string miss_json(const MissReport& report) {
  const auto seconds = [](std::chrono::microseconds time) { return static_cast<double>(time.count() / 1000) / 1000; };
  Json document = {{"blocks", report.block_count},
                   {"disk_blocks", report.disk_block_count},
                   {"whole", report.is_whole},
                   {"reason", miss_kind_name(report.kind)},
                   {"node", latin_1(report.node)}};
  if (report.why) document["error"] = latin_1(report.why.message());
  document["left_seconds"] = seconds(report.left);
  document["idle_seconds"] = seconds(report.idle);
  document["remembers_seconds"] = seconds(report.remembers);
  document["stored_blocks"] = report.stored_blocks;
  document["lookups"] = report.lookups;
  document["empty_lookups"] = report.empty_lookups;
  document["others"] = Json::array();
  for (const MissReport::Other& other : report.others) {
    Json differs = Json::array();
    for (const FieldDifference& each : other.differs) {
      differs.push_back({{"field", latin_1(each.field)}, {"here", latin_1(each.here)}, {"there", latin_1(each.there)}});
    }
    document["others"].push_back({{"namespace_id", to_hex(other.id.bytes)},
                                  {"has_block", other.has_block},
                                  {"block_count", other.block_count},
                                  {"stored_blocks", other.stored_blocks},
                                  {"lookups", other.lookups},
                                  {"empty_lookups", other.empty_lookups},
                                  {"differs", std::move(differs)}});
  }
  document["text"] = Json::array();
  for (const std::string& line : report.text()) document["text"].push_back(latin_1(line));
  return text_of(document);
}

std::string context_json(const NamedContext& context) { return text_of(context_of(context)); }

std::string archived_json(const ArchivedContext& archived, bool is_imported) {
  Json document = {{"name", latin_1(archived.name)}, {"namespace_id", latin_1(archived.namespace_id)},
                   {"blocks", archived.blocks},      {"wanted_blocks", archived.wanted_blocks},
                   {"bytes", archived.bytes},        {"signed", archived.is_signed}};
  if (is_imported) {
    document["stored_blocks"] = archived.stored_blocks;
    document["context"] = context_of(archived.context);
  }
  return text_of(document);
}

std::string contexts_json(const ContextList& list) {
  Json document = {{"contexts", Json::array()}, {"silent", Json::array()}};
  for (const NamedContext& context : list.contexts) document["contexts"].push_back(context_of(context));
  for (const auto& [node, error] : list.silent)
    document["silent"].push_back({{"node", latin_1(node)}, {"error", latin_1(error.message())}});
  return text_of(document);
}

}  // namespace kv::c_api
