// tests/client/said.h: what a node answers to questions of people and tools.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "client/client.h"

namespace kv {

inline nlohmann::json said(const NodeAnswer& answer) {
  EXPECT_FALSE(answer.error) << answer.name << ": " << answer.error.message();
  return nlohmann::json::parse(answer.json);
}

}  // namespace kv
