#include "client/tools/model_config.h"

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace kv {
namespace {

/// The first of `names` that is there and no null. A number of the model must be a whole one.
std::uint64_t number(const nlohmann::json& config, std::initializer_list<const char*> names, std::uint64_t otherwise) {
  for (const char* name : names) {
    const auto it = config.find(name);
    if (it == config.end() || it->is_null()) continue;
    if (!it->is_number_unsigned()) throw std::runtime_error(std::string(name) + " is no whole number");
    return it->get<std::uint64_t>();
  }
  return otherwise;
}

std::uint64_t needed(const nlohmann::json& config, std::initializer_list<const char*> names) {
  const std::uint64_t value = number(config, names, 0);
  if (value == 0) throw std::runtime_error(std::string(*names.begin()) + " is missing");
  return value;
}

std::uint64_t ffn_size(const nlohmann::json& config, std::uint64_t hidden_size, bool is_gpt2) {
  const std::uint64_t dense = number(config, {"intermediate_size", "n_inner"}, is_gpt2 ? 4 * hidden_size : 0);
  const std::uint64_t visited = number(config, {"num_experts_per_tok", "num_experts_per_token"}, 0);
  if (visited == 0) return dense;
  const std::uint64_t expert = number(config, {"moe_intermediate_size"}, dense);
  return expert * (visited + number(config, {"n_shared_experts"}, 0)) +
         number(config, {"shared_expert_intermediate_size"}, 0);
}

}  // namespace

ModelShape read_model_config(std::istream& json) {
  nlohmann::json config = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) throw std::runtime_error("no JSON object");
  if (config.contains("text_config") && config["text_config"].is_object()) {
    config = nlohmann::json(config["text_config"]);
  }
  const bool is_gpt2 = config.contains("n_embd");
  ModelShape shape;
  shape.layer_count = needed(config, {"num_hidden_layers", "n_layer"});
  shape.hidden_size = needed(config, {"hidden_size", "n_embd"});
  shape.query_head_count = needed(config, {"num_attention_heads", "n_head"});
  shape.kv_head_count = number(config, {"num_key_value_heads"}, shape.query_head_count);
  shape.head_size = number(config, {"head_dim"}, shape.hidden_size / shape.query_head_count);
  shape.latent_size = number(config, {"kv_lora_rank"}, 0);
  if (shape.latent_size > 0) {
    shape.rope_size = number(config, {"qk_rope_head_dim"}, 0);
    shape.kv_head_count = 1;
    shape.head_size = number(config, {"qk_nope_head_dim"}, 0) + shape.rope_size;
    shape.has_sparse_index = number(config, {"index_head_dim"}, 0) > 0;
  }
  shape.ffn_size = ffn_size(config, shape.hidden_size, is_gpt2);
  shape.has_gated_ffn = !is_gpt2;
  shape.vocabulary_size = number(config, {"vocab_size"}, 0);
  if (!check_shape(shape)) throw std::runtime_error("the numbers are no model's");
  return shape;
}

}  // namespace kv
