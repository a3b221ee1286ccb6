#include "client/tools/node_stats.h"

#include <cctype>
#include <utility>

#include "base/text/printable.h"
#include "client/tools/text_table.h"

namespace kv {
namespace {

const nlohmann::json* find_in(const nlohmann::json& object, std::string_view name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

}  // namespace

Result<std::vector<NodeSaid>> ask_nodes(ToolClient& client, NodeQuestion question, std::chrono::microseconds deadline) {
  auto answers = client.run(client->ask(std::move(question), deadline));
  if (!answers) return answers.error();
  std::vector<NodeSaid> nodes;
  for (NodeAnswer& answer : *answers) {
    NodeSaid& node = nodes.emplace_back();
    node.name = std::move(answer.name);
    node.error = answer.error;
    node.why = printable(answer.why);
    if (node.error) continue;
    auto said = nlohmann::json::parse(answer.json, nullptr, /*allow_exceptions=*/false);
    if (said.is_object()) {
      node.said = std::move(said);
    } else {
      node.error = Errc::kBadFrame;
    }
  }
  return nodes;
}

std::string parameter(std::string_view name, std::string_view value) {
  constexpr const char* kDigits = "0123456789ABCDEF";
  std::string out;
  const auto append = [&out](std::string_view text) {
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (std::isalnum(byte) || std::string_view("-_./:").find(c) != std::string_view::npos) {
        out += c;
      } else {
        out += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
      }
    }
  };
  append(name);
  out += '=';
  append(value);
  return out;
}

Result<std::vector<NodeStats>> ask_stats(ToolClient& client, std::chrono::microseconds deadline) {
  constexpr int kPartsMax = 4096;  // stops a node that never ends
  auto nodes = ask_nodes(client, {.path = "/stats.json"}, deadline);
  if (!nodes) return nodes;
  for (NodeStats& node : *nodes) {
    std::string next = text_in(node.said, "next");
    for (int part = 0; part < kPartsMax && !next.empty(); ++part) {
      const auto more =
          ask_nodes(client, {.path = "/stats.json", .query = parameter("after", next), .node = node.name}, deadline);
      if (!more || more->size() != 1) break;
      for (nlohmann::json& space : rows_in(more->front().said, "namespaces"))
        node.said["namespaces"].push_back(std::move(space));
      next = text_in(more->front().said, "next");
    }
  }
  return nodes;
}

double number_in(const nlohmann::json& object, std::string_view name, double otherwise) {
  const nlohmann::json* const found = find_in(object, name);
  if (found == nullptr) return otherwise;
  if (found->is_boolean()) return found->get<bool>() ? 1 : 0;
  return found->is_number() ? found->get<double>() : otherwise;
}

std::uint64_t count_in(const nlohmann::json& object, std::string_view name) {
  const double number = number_in(object, name);
  return number > 0 && number < 1e19 ? static_cast<std::uint64_t>(number) : 0;
}

std::string text_in(const nlohmann::json& object, std::string_view name) {
  const nlohmann::json* const found = find_in(object, name);
  return found != nullptr && found->is_string() ? found->get<std::string>() : std::string();
}

std::vector<nlohmann::json> rows_in(const nlohmann::json& object, std::string_view name) {
  std::vector<nlohmann::json> rows;
  if (const nlohmann::json* const found = find_in(object, name); found != nullptr && found->is_array()) {
    for (const nlohmann::json& each : *found) {
      if (each.is_object()) rows.push_back(each);
    }
  }
  return rows;
}

std::map<std::string, double> values_in(const nlohmann::json& object, std::string_view name) {
  std::map<std::string, double> values;
  const nlohmann::json* const found = find_in(object, name);
  if (found == nullptr || !found->is_object()) return values;
  for (const auto& [key, value] : found->items()) {
    if (value.is_number()) values.emplace(key, value.get<double>());
  }
  return values;
}

std::string count_text(const nlohmann::json& object, std::string_view name) {
  return format_count(count_in(object, name));
}
std::string bytes_text(const nlohmann::json& object, std::string_view name) {
  return format_bytes(count_in(object, name));
}

const nlohmann::json& values_of(const NodeStats& stats) {
  static const nlohmann::json kNone = nlohmann::json::object();
  const nlohmann::json* const values = find_in(stats.said, "values");
  return values == nullptr ? kNone : *values;
}

LookedUp lookups_between(const NodeStats& before, const NodeStats& now) {
  const auto counts = [](const NodeStats& of) {
    return LookupCounts{{stat(of, "match_hit_blocks"), stat(of, "match_disk_blocks"), stat(of, "match_miss_blocks")},
                        {stat(of, "get_hit_blocks"), stat(of, "get_disk_blocks"), stat(of, "get_miss_blocks")}};
  };
  return lookups_between(counts(before), counts(now));
}

}  // namespace kv
