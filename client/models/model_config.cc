#include "client/models/model_config.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "base/assert.h"
#include "client/models/config_fields.h"
#include "client/models/families.h"
#include "client/models/layers.h"

namespace kv {
namespace {

using namespace config;

/// Python writes numbers that JSON has no words for, such as the upper bound of Mamba 2's time steps. None of them is
/// read here, so they become null.
std::string without_infinities(std::istream& file) {
  std::string text(std::istreambuf_iterator<char>(file), {}), clean;
  bool is_in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = std::string_view(text).substr(i);
    const std::size_t length = rest.starts_with("Infinity") ? 8 : rest.starts_with("NaN") ? 3 : 0;
    if (!is_in_string && length > 0) {
      if (clean.ends_with('-')) clean.pop_back();
      clean += "null";
      i += length - 1;
      continue;
    }
    if (text[i] == '"') is_in_string = !is_in_string;
    clean += text[i];
    if (text[i] == '\\' && is_in_string && i + 1 < text.size()) clean += text[++i];
  }
  return clean;
}

void refuse_cross_attention(const json& config) {
  for (const char* const name : {"is_encoder_decoder", "add_cross_attention", "cross_attention_layers",
                                 "cross_attention_hidden_size", "num_cross_attention_heads"}) {
    const json* const value = find(config, name);
    const bool is_set = value != nullptr && *value != false && *value != 0 && !value->empty();
    if (is_set)
      throw std::runtime_error(std::string(name) +
                               ": cross-attention keeps keys and values of an encoder's output, not of a prefix");
  }
}

/// A multimodal model keeps its language part's numbers one level down, or two. Only this part has a cache of tokens;
/// a model that speaks has a second one for its voice, which engines keep apart.
json language_part(json config) {
  for (const char* const name : {"thinker_config", "text_config", "llm_config", "language_config"}) {
    refuse_cross_attention(config);
    if (const json* const inner = find(config, name); inner != nullptr && inner->is_object()) config = json(*inner);
  }
  refuse_cross_attention(config);
  return config;
}

void read_latent_attention(const json& config, ModelShape& shape) {
  shape.latent_size = number(config, "kv_lora_rank", 0);
  if (shape.latent_size == 0) return;
  shape.rope_size = number(config, "qk_rope_head_dim", 0);
  shape.kv_head_count = 1;
  shape.head_size = number(config, "qk_nope_head_dim", 0) + shape.rope_size;
  shape.value_head_size = number(config, "v_head_dim", 0);
  shape.query_latent_size = number(config, "q_lora_rank", 0);
  shape.has_sparse_index = number(config, "index_head_dim", 0) > 0;
}

void read_attention(const json& config, const Family& family, ModelShape& shape) {
  shape.query_head_count = needed(config, family.names.heads);
  shape.kv_head_count = family.kv_heads(config, shape.query_head_count);
  KV_ASSERT(shape.query_head_count > 0);  // by needed()
  const std::uint64_t head_size = family.head_size != 0 ? family.head_size : shape.hidden_size / shape.query_head_count;
  shape.head_size = number(config, {family.names.head_size, "attention_head_dim"}, head_size);
  read_latent_attention(config, shape);
}

bool has_attention(const LayerGroup& group) { return group.kind != LayerKind::kState; }

}  // namespace

ModelCache read_model(std::istream& file) {
  json config = json::parse(without_infinities(file), nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) throw std::runtime_error("no JSON object");
  config = language_part(std::move(config));
  const Family& family = family_of(config);
  ModelLayers layers = read_layers(config, family);
  ModelCache model{.shape = {.layer_count = layers.count}, .groups = std::move(layers.groups)};
  ModelShape& shape = model.shape;
  shape.hidden_size = needed(config, family.names.hidden);
  shape.ffn_size = family.ffn_size(config, shape.hidden_size);
  shape.has_gated_ffn = family.has_gated_ffn;
  shape.vocabulary_size = number(config, {"vocab_size", "padded_vocab_size"}, 0);
  const bool is_stateful_only = std::ranges::none_of(model.groups, has_attention);
  if (!is_stateful_only) read_attention(config, family, shape);
  ModelShape checked = shape;
  if (is_stateful_only) checked.kv_head_count = checked.head_size = 1;
  if (!check_shape(checked)) throw std::runtime_error("the numbers are no model's");
  return model;
}

ModelShape read_model_config(std::istream& file) {
  const ModelCache model = read_model(file);
  std::uint64_t layers = 0;
  for (const LayerGroup& group : model.groups) {
    if (!has_attention(group)) throw std::runtime_error("some layers keep states instead of keys and values");
    layers += group.layers.size();
  }
  if (layers != model.shape.layer_count) throw std::runtime_error("some layers keep no keys and values");
  return model.shape;
}

}  // namespace kv
