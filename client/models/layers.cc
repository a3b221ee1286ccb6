#include "client/models/layers.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "client/models/config_fields.h"

namespace kv {
namespace {

using namespace config;

// Far above any model: bounds the memory that a file can ask for.
constexpr std::uint64_t kLayerMax = 1 << 16;

struct Layer {
  bool has_attention = true, has_state = false;
  LayerKind kind = LayerKind::kFull;  ///< Of its attention.
  std::uint64_t token_limit = 0;
};
using Layers = std::vector<Layer>;

constexpr Layer kState{.has_attention = false, .has_state = true};
constexpr Layer kNothing{.has_attention = false};

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

Layer window_of(const json& config) {
  return {.kind = LayerKind::kWindow, .token_limit = needed(config, "sliding_window")};
}

Layer chunk_of(const json& config) {
  if (find(config, "attention_chunk_size") == nullptr)
    throw std::runtime_error("attention_chunk_size is missing: layer_types has chunked_attention");
  return {.kind = LayerKind::kChunk, .token_limit = needed(config, "attention_chunk_size")};
}

/// Words of transformers' layer_types, of now and of old.
Layer layer_of_type(const json& config, const json& type) {
  const std::string name = type.is_string() ? type.get<std::string>() : type.dump();
  if (is_one_of(name, {"full_attention", "attention", "indexed_attention", "deepseek_sparse_attention"})) return {};
  if (name == "sliding_attention") return window_of(config);
  if (name == "chunked_attention") return chunk_of(config);
  if (is_one_of(name, {"linear_attention", "mamba", "mamba2", "conv", "recurrent"})) return kState;
  if (name == "hybrid") return {.has_state = true};
  if (is_one_of(name, {"moe", "mlp"})) return kNothing;
  throw std::runtime_error("layer_types: '" + name.substr(0, 60) + "' is not known");
}

/// Nemotron-H's letters, one a layer.
Layers layers_of_pattern(const std::string& pattern) {
  Layers layers;
  for (const char letter : pattern) {
    if (letter != 'M' && letter != '*' && letter != '-' && letter != 'E')
      throw std::runtime_error(std::string("hybrid_override_pattern: '") + letter + "' is not known");
    layers.push_back(letter == 'M' ? kState : letter == '*' ? Layer{} : kNothing);
  }
  return layers;
}

/// Some families list the layers with attention; the others have states.
Layers listed(const json& config, const char* name, std::uint64_t count, std::uint64_t first, const Layer& other) {
  const auto numbers = list(config, name);
  Layers layers(count, other);
  for (const json& number : numbers.value_or(json::array())) {
    const std::uint64_t at = number.is_number_unsigned() ? number.get<std::uint64_t>() - first : count;
    if (at >= count) throw std::runtime_error(std::string(name) + ": " + number.dump() + " is no layer");
    layers[at] = Layer{};
  }
  return layers;
}

/// Full attention in each layer whose number leaves `offset` over, divided by the period.
Layers every(std::uint64_t count, std::uint64_t period, std::uint64_t offset, const Layer& other) {
  if (period == 0) throw std::runtime_error("a period of layers is 0");
  Layers layers(count, other);
  for (std::uint64_t i = offset; i < count; i += period) layers[i] = Layer{};
  return layers;
}

/// Families with states that have no layer_types: their own rules.
Layers layers_with_states(const json& config, std::string_view family, std::uint64_t count) {
  if (is_one_of(family, {"mamba", "mamba2", "falcon_mamba"})) return Layers(count, kState);
  if (family == "falcon_h1") return Layers(count, Layer{.has_state = true});
  if (family == "jamba")
    return every(count, number(config, "attn_layer_period", 8), number(config, "attn_layer_offset", 4), kState);
  if (family == "bamba") return listed(config, "attn_layer_indices", count, 0, kState);
  if (is_one_of(family, {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"})) {
    const std::uint64_t period = number(config, "full_attention_interval", 4);
    return every(count, period, period - 1, kState);
  }
  if (is_one_of(family, {"lfm2", "lfm2_moe"})) {
    return list(config, "full_attn_idxs") ? listed(config, "full_attn_idxs", count, 0, kState) : Layers(count);
  }
  if (const json published = object(config, "linear_attn_config"); family == "kimi_linear" && !published.empty()) {
    if (!list(published, "full_attn_layers")) throw std::runtime_error("full_attn_layers is missing");
    return listed(published, "full_attn_layers", count, 1, kState);  // counted from 1
  }
  throw std::runtime_error(std::string(family) + ": layer_types is missing: which layers keep states?");
}

/// 1: rotated keys, and a chunk; 0: neither.
Layers llama4_layers(const json& config, std::uint64_t count) {
  if (find(config, "attention_chunk_size") == nullptr) return Layers(count);
  const auto rotated = list(config, "no_rope_layers");
  const std::uint64_t period = number(config, "no_rope_layer_interval", 4);
  if (!rotated) return every(count, period, period - 1, chunk_of(config));
  if (rotated->size() < count) throw std::runtime_error("no_rope_layers: shorter than the layers");
  Layers layers(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    if ((*rotated)[i] != 0) layers[i] = chunk_of(config);
  }
  return layers;
}

/// Families whose windows depend on the layer's number, without layer_types: every so-manieth layer is full.
std::uint64_t window_pattern(const json& config, std::string_view family) {
  constexpr std::pair<std::string_view, std::uint64_t> kPatterns[] = {
      {"cohere2", 4},      {"exaone4", 4}, {"gemma2", 2}, {"gemma3_text", 6},
      {"gemma3n_text", 5}, {"gpt_oss", 2}, {"olmo3", 4}};
  for (const auto& [name, period] : kPatterns) {
    if (name != family) continue;
    const json* const own = find(config, "sliding_window_pattern");  // a text in some, with the same period
    return own != nullptr && own->is_number_unsigned() && *own != 0 ? own->get<std::uint64_t>() : period;
  }
  return 0;
}

Layers layers_with_windows(const json& config, std::string_view family, std::uint64_t count) {
  const json* const window = find(config, "sliding_window");
  if (window == nullptr || (window->is_number_integer() && window->get<std::int64_t>() <= 0)) return Layers(count);
  const bool is_switched = is_one_of(family, {"qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen2_vl", "qwen2_5_vl"}) ||
                           config.contains("use_sliding_window");
  if (is_switched) {
    Layers layers(count);
    if (!flag(config, "use_sliding_window", false)) return layers;
    const std::uint64_t first = number(config, "max_window_layers", 0);
    for (std::uint64_t i = first; i < count; ++i) layers[i] = window_of(config);
    return layers;
  }
  if (const std::uint64_t period = window_pattern(config, family); period > 0)
    return every(count, period, period - 1, window_of(config));
  if (is_one_of(family, {"mistral", "mixtral", "starcoder2", "phi3", "phimoe"}))
    return Layers(count, window_of(config));
  return Layers(count);
}

Layers layers_one_by_one(const json& config, const Family& family) {
  auto types = list(config, "layer_types");
  if (!types) types = list(config, "layers_block_type");
  if (types) {
    Layers layers;
    for (const json& type : *types) layers.push_back(layer_of_type(config, type));
    const std::uint64_t count = number(config, family.names.layers, layers.size());
    if (family.state_size == nullptr && count != layers.size())
      throw std::runtime_error("layer_types: " + std::to_string(layers.size()) + " types of " + std::to_string(count) +
                               " layers");
    return layers;
  }
  const json* const pattern = find(config, "hybrid_override_pattern");
  if (family.state_size != nullptr && pattern != nullptr && pattern->is_string())
    return layers_of_pattern(pattern->get<std::string>());
  const std::uint64_t count = needed(config, family.names.layers);
  if (count > kLayerMax) throw std::runtime_error("the numbers are no model's");
  if (family.state_size != nullptr) return layers_with_states(config, family.model_type, count);
  if (family.model_type == "llama4_text") return llama4_layers(config, count);
  return layers_with_windows(config, family.model_type, count);
}

/// Refuses models with unequal layers: layers that share keys and values, or keep none, would count as full.
void refuse_odd_layers(const json& config, std::string_view family) {
  // The value that means nothing odd, and the family with a rule for others.
  constexpr std::tuple<const char*, int, std::string_view> kFields[] = {{"num_kv_shared_layers", 0, "gemma3n_text"},
                                                                        {"cla_share_factor", 1, ""},
                                                                        {"attn_layer_period", 1, "jamba"},
                                                                        {"block_configs", 0, ""}};
  for (const auto& [name, usual, known] : kFields) {
    const json* const value = find(config, name);
    if (value != nullptr && *value != 0 && *value != usual && family != known)
      throw std::runtime_error(std::string(name) + ": layers that differ are not counted; give the shape by options");
  }
}

/// Gemma 3n: the last layers read what the last layer of their kind before them keeps.
std::uint64_t sharing_layers(const json& config, std::string_view family, std::uint64_t count) {
  if (family != "gemma3n_text") return 0;
  if (find(config, "num_kv_shared_layers") == nullptr) throw std::runtime_error("num_kv_shared_layers is missing");
  const std::uint64_t sharing = number(config, "num_kv_shared_layers", 0);
  if (sharing >= count) throw std::runtime_error("num_kv_shared_layers: as many as there are layers");
  return sharing;
}

LayerGroup& group_for(std::vector<LayerGroup>& groups, LayerKind kind, std::uint64_t token_limit) {
  for (LayerGroup& group : groups) {
    if (group.kind == kind && group.token_limit == token_limit) return group;
  }
  return groups.emplace_back(LayerGroup{.kind = kind, .token_limit = token_limit});
}

}  // namespace

ModelLayers read_layers(const json& config, const Family& family) {
  refuse_odd_layers(config, family.model_type);
  const Layers layers = layers_one_by_one(config, family);
  if (layers.size() > kLayerMax) throw std::runtime_error("the numbers are no model's");
  const std::uint64_t own_count = layers.size() - sharing_layers(config, family.model_type, layers.size());
  std::vector<LayerGroup> groups;
  for (std::uint32_t i = 0; i < layers.size(); ++i) {
    const Layer& layer = layers[i];
    if (layer.has_attention) {
      LayerGroup& group = group_for(groups, layer.kind, layer.token_limit);
      if (i < own_count) {
        group.layers.push_back(i);
      } else {
        ++group.sharing_layer_count;
      }
      if (group.layers.empty()) throw std::runtime_error("num_kv_shared_layers: no layer of that kind before them");
    }
    if (layer.has_state) {
      if (family.state_size == nullptr)
        throw std::runtime_error("layer_types: " + std::string(family.model_type) + " is not known to keep states");
      LayerGroup& group = group_for(groups, LayerKind::kState, 0);
      const StateSize size = family.state_size(config);
      group.convolution_size = size.convolution;
      group.recurrence_size = size.recurrence;
      group.layers.push_back(i);
    }
  }
  if (groups.empty()) throw std::runtime_error("layer_types: no layer keeps anything");
  std::ranges::sort(groups, {}, [](const LayerGroup& group) {
    const int order = group.kind == LayerKind::kFull ? 0 : group.kind == LayerKind::kState ? 2 : 1;
    return std::pair(order, group.token_limit);
  });
  return {.count = layers.size(), .groups = std::move(groups)};
}

}  // namespace kv
