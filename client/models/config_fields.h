// client/models/config_fields.h: entries of a config.json. A wrong one is an error that names it: a guess here is a
// wrong size later. Null counts as absent.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace kv::config {

using nlohmann::json;

inline const json* find(const json& config, std::string_view name) {
  const auto it = config.find(name);
  return it == config.end() || it->is_null() ? nullptr : &*it;
}

/// Far above any model; a larger number is a mistake.
inline constexpr std::uint64_t kNumberMax = std::uint64_t{1} << 24;

/// A whole number that is at least 0.
inline std::uint64_t number(const json& config, std::string_view name, std::uint64_t otherwise) {
  const json* const value = find(config, name);
  if (value == nullptr) return otherwise;
  if (!value->is_number_unsigned()) throw std::runtime_error(std::string(name) + " is no whole number");
  if (*value > kNumberMax) throw std::runtime_error(std::string(name) + ": " + value->dump() + " is no model's");
  return value->get<std::uint64_t>();
}

/// The first that is there, by whichever of the names.
inline std::uint64_t number(const json& config, std::initializer_list<std::string_view> names,
                            std::uint64_t otherwise) {
  for (const std::string_view name : names) {
    if (find(config, name) != nullptr) return number(config, name, otherwise);
  }
  return otherwise;
}

inline std::uint64_t needed(const json& config, std::initializer_list<std::string_view> names) {
  const std::uint64_t value = number(config, names, 0);
  if (value == 0) throw std::runtime_error(std::string(*names.begin()) + " is missing");
  return value;
}
inline std::uint64_t needed(const json& config, std::string_view name) { return needed(config, {name}); }

inline bool flag(const json& config, std::string_view name, bool otherwise) {
  const json* const value = find(config, name);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) throw std::runtime_error(std::string(name) + " is neither true nor false");
  return value->get<bool>();
}

inline json object(const json& config, std::string_view name) {
  const json* const value = find(config, name);
  if (value == nullptr) return json::object();
  if (!value->is_object()) throw std::runtime_error(std::string(name) + " is no object");
  return *value;
}

/// Nothing if it is absent or empty: both mean the family's default.
inline std::optional<json> list(const json& config, std::string_view name) {
  const json* const value = find(config, name);
  if (value == nullptr || (value->is_array() && value->empty())) return std::nullopt;
  if (!value->is_array()) throw std::runtime_error(std::string(name) + " is no list");
  return *value;
}

}  // namespace kv::config
