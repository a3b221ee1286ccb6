// client/tools/node_stats.h: what nodes answer to questions of people and tools, read from JSON; docs/wire.md has the
// answers.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/lookup_counts.h"
#include "client/tools/tool_client.h"

namespace kv {

/// The answer of one node.
struct NodeSaid {
  std::string name;
  error_code error;                                ///< Of a node that did not answer, or not by a JSON object.
  std::string why;                                 ///< Its words, if it refused.
  nlohmann::json said = nlohmann::json::object();  ///< Empty after an error.
};
Result<std::vector<NodeSaid>> ask_nodes(ToolClient& client, NodeQuestion question, std::chrono::microseconds deadline);
/// For a query: "name=value".
std::string parameter(std::string_view name, std::string_view value);

using NodeStats = NodeSaid;  ///< To /stats.json.
/// Of each node, with all its namespaces.
Result<std::vector<NodeStats>> ask_stats(ToolClient& client, std::chrono::microseconds deadline);

// A member of an object; 0, empty, if the node does not report it, or says something else there.
double number_in(const nlohmann::json& object, std::string_view name, double otherwise = 0);
std::uint64_t count_in(const nlohmann::json& object, std::string_view name);
std::string text_in(const nlohmann::json& object, std::string_view name);
/// Of objects alone.
std::vector<nlohmann::json> rows_in(const nlohmann::json& object, std::string_view name);
/// The numbers among the members.
std::map<std::string, double> values_in(const nlohmann::json& object, std::string_view name);
std::string count_text(const nlohmann::json& object, std::string_view name);
std::string bytes_text(const nlohmann::json& object, std::string_view name);

// The same of the values of a node.
const nlohmann::json& values_of(const NodeStats& stats);
inline bool has_stat(const NodeStats& stats, std::string_view name) { return values_of(stats).contains(name); }
inline double stat(const NodeStats& stats, std::string_view name) { return number_in(values_of(stats), name); }
inline std::string count_text(const NodeStats& stats, std::string_view name) {
  return count_text(values_of(stats), name);
}
inline std::string bytes_text(const NodeStats& stats, std::string_view name) {
  return bytes_text(values_of(stats), name);
}
LookedUp lookups_between(const NodeStats& before, const NodeStats& now);

}  // namespace kv
