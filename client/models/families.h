// client/models/families.h: by which names each family's config.json goes. The key is its "model_type".
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "client/models/states.h"

namespace kv {

struct FieldNames {
  const char *layers, *hidden, *heads, *head_size;
};

struct Family {
  static constexpr FieldNames kUsual = {"num_hidden_layers", "hidden_size", "num_attention_heads", "head_dim"};
  using KvHeads = std::uint64_t (*)(const nlohmann::json& config, std::uint64_t query_heads);
  using FfnSize = std::uint64_t (*)(const nlohmann::json& config, std::uint64_t hidden_size);

  std::string_view model_type;
  FieldNames names;
  KvHeads kv_heads;
  FfnSize ffn_size;  ///< Of the experts that one token visits; 0: its weights are in no formula here.
  bool has_gated_ffn = true;
  std::uint64_t head_size = 0;     ///< If absent in the file; 0: the hidden size over the heads.
  ReadState state_size = nullptr;  ///< Of families with states beside attention, or instead.
};

/// Throws std::runtime_error with the reason for a family that is unknown, or known to keep other things.
const Family& family_of(const nlohmann::json& config);

}  // namespace kv
