// tests/node/admin_question.h: the request admin, as a raw client asks it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tests/node/node_world.h"

namespace kv {

inline auto admin_request(const std::string& path, const std::string& query = "") {
  return [=](FlatBufferBuilder& b) { return wire::CreateAdminRequestDirect(b, path.c_str(), query.c_str()); };
}

/// Fails the test and throws if the answer is none.
inline nlohmann::json json_of(const Answer& answer) {
  EXPECT_FALSE(answer.is_error()) << answer.message();
  const auto* const text = answer.as<wire::AdminResponse>().json();
  return nlohmann::json::parse(text == nullptr ? "" : text->str());
}

}  // namespace kv
