#include "client/model_config.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/assert.h"

namespace kv {
namespace {

using nlohmann::json;

const json* find(const json& config, std::string_view name) {
  const auto it = config.find(name);
  return it == config.end() || it->is_null() ? nullptr : &*it;
}

/// A number of the model. Only whole ones are accepted: a guess here is a wrong size later.
std::uint64_t number(const json& config, std::string_view name, std::uint64_t otherwise) {
  const json* const value = find(config, name);
  if (value == nullptr) return otherwise;
  if (!value->is_number_unsigned()) throw std::runtime_error(std::string(name) + " is no whole number");
  return value->get<std::uint64_t>();
}

std::uint64_t needed(const json& config, std::string_view name) {
  const std::uint64_t value = number(config, name, 0);
  if (value == 0) throw std::runtime_error(std::string(name) + " is missing");
  return value;
}

bool flag(const json& config, std::string_view name, bool otherwise) {
  const json* const value = find(config, name);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) throw std::runtime_error(std::string(name) + " is neither true nor false");
  return value->get<bool>();
}

json object(const json& config, std::string_view name) {
  const json* const value = find(config, name);
  if (value == nullptr) return json::object();
  if (!value->is_object()) throw std::runtime_error(std::string(name) + " is no object");
  return *value;
}

// -- number of KV heads: families differ in the name, and in the meaning of its absence

using KvHeads = std::uint64_t (*)(const json& config, std::uint64_t query_heads);

/// Without the name, one per query head: the family predates grouped heads.
std::uint64_t grouped(const json& config, std::uint64_t query_heads) {
  return number(config, "num_key_value_heads", query_heads);
}
/// Without the name, transformers uses the family's first model's number: an error here. Null: one per query head.
std::uint64_t grouped_always(const json& config, std::uint64_t query_heads) {
  if (!config.contains("num_key_value_heads")) throw std::runtime_error("num_key_value_heads is missing");
  return grouped(config, query_heads);
}
std::uint64_t one_each(const json&, std::uint64_t query_heads) { return query_heads; }
std::uint64_t bigcode(const json& config, std::uint64_t query_heads) {
  return flag(config, "multi_query", true) ? 1 : query_heads;
}
std::uint64_t falcon(const json& config, std::uint64_t query_heads) {
  if (flag(config, "new_decoder_architecture", false)) return number(config, "num_kv_heads", query_heads);
  return flag(config, "multi_query", true) ? 1 : number(config, "num_kv_heads", query_heads);
}
/// Falcon's configuration before transformers supported it.
std::uint64_t refined_web(const json& config, std::uint64_t query_heads) {
  return flag(config, "multi_query", false) ? 1 : number(config, "n_head_kv", query_heads);
}
std::uint64_t chatglm(const json& config, std::uint64_t query_heads) {
  return flag(config, "multi_query_attention", false) ? needed(config, "multi_query_group_num") : query_heads;
}
std::uint64_t mpt(const json& config, std::uint64_t query_heads) {
  const json attention = object(config, "attn_config");
  const json* const type = find(attention, "attn_type");
  if (type != nullptr && *type == "multiquery_attention") return 1;
  return type != nullptr && *type == "grouped_query_attention" ? needed(attention, "kv_n_heads") : query_heads;
}
std::uint64_t dbrx(const json& config, std::uint64_t) { return needed(object(config, "attn_config"), "kv_n_heads"); }

// -- the FFN of the experts that one token visits

using FfnSize = std::uint64_t (*)(const json& config, std::uint64_t hidden_size);

std::uint64_t dense(const json& config, std::uint64_t) { return number(config, "intermediate_size", 0); }
/// A token's cost: the experts that it visits, and the shared ones, not the size of all experts.
std::uint64_t experts(const json& config, std::uint64_t) {
  const std::uint64_t one = number(config, "intermediate_size", 0);
  const std::uint64_t visited =
      number(config, "num_experts_per_tok", number(config, "num_experts_per_token", number(config, "moe_topk", 0)));
  if (visited == 0) return one;
  return number(config, "moe_intermediate_size", one) * (visited + number(config, "n_shared_experts", 0)) +
         number(config, "shared_expert_intermediate_size", 0);
}
std::uint64_t inner(const json& config, std::uint64_t hidden_size) {
  return number(config, "n_inner", number(config, "ffn_hidden_size", 4 * hidden_size));
}
std::uint64_t neo(const json& config, std::uint64_t hidden_size) {
  return number(config, "intermediate_size", 4 * hidden_size);
}
std::uint64_t opt_ffn(const json& config, std::uint64_t) { return number(config, "ffn_dim", 0); }
std::uint64_t expanded(const json& config, std::uint64_t hidden_size) {
  return number(config, "expansion_ratio", 4) * hidden_size;
}
std::uint64_t glm_ffn(const json& config, std::uint64_t) {
  return number(config, "ffn_hidden_size", number(config, "inner_hidden_size", 0));
}
std::uint64_t dbrx_ffn(const json& config, std::uint64_t) {
  const json ffn = object(config, "ffn_config");
  return number(ffn, "ffn_hidden_size", 0) * number(ffn, "moe_top_k", 1);
}
/// The first Qwen counts both gated matrices under this name.
std::uint64_t qwen_ffn(const json& config, std::uint64_t) { return number(config, "intermediate_size", 0) / 2; }

// -- the families

struct Names {
  const char *layers, *hidden, *heads, *head_size;
};
constexpr Names kUsual = {"num_hidden_layers", "hidden_size", "num_attention_heads", "head_dim"};
constexpr Names kGpt2 = {"n_layer", "n_embd", "n_head", "head_dim"};
constexpr Names kRefined = {"n_layer", "hidden_size", "n_head", "head_dim"};
constexpr Names kNeo = {"num_layers", "hidden_size", "num_heads", "head_dim"};
constexpr Names kMosaic = {"n_layers", "d_model", "n_heads", "head_dim"};
constexpr Names kGlm = {"num_layers", "hidden_size", "num_attention_heads", "kv_channels"};
constexpr Names kQwen = {"num_hidden_layers", "hidden_size", "num_attention_heads", "kv_channels"};

struct Family {
  std::string_view model_type;
  Names names = kUsual;
  KvHeads kv_heads = grouped_always;
  FfnSize ffn_size = dense;
  bool has_gated_ffn = true;
  std::uint64_t head_size = 0;  ///< If absent in the file; 0: the hidden size over the heads.
};

/// Families whose layers all keep keys and values of one size per token, or a latent row. Names and defaults are those
/// of the configuration classes of transformers 4.57; for older families, of the model's own file.
constexpr Family kFamilies[] = {
    {"arcee", kUsual, grouped, dense, false},
    {"baichuan", kUsual, one_each},
    {"bloom", kRefined, one_each, inner, false},
    {"chatglm", kGlm, chatglm, glm_ffn},
    {"codegen", kGpt2, one_each, inner, false},
    {"cohere", kUsual, grouped},
    {"cohere2", kUsual, grouped},
    {"dbrx", kMosaic, dbrx, dbrx_ffn},
    {"deepseek", kUsual, grouped, experts},
    {"deepseek_v2", kUsual, grouped, experts},
    {"deepseek_v3", kUsual, grouped, experts},
    {"deepseek_v32", kUsual, grouped, experts},
    {"dots1", kUsual, grouped, experts},
    {"ernie4_5", kUsual, grouped_always, dense, true, 128},
    {"exaone4", kUsual, grouped},
    {"falcon", kUsual, falcon, inner, false},
    {"gemma", kUsual, grouped_always, dense, true, 256},
    {"gemma2", kUsual, grouped_always, dense, true, 256},
    {"gemma3_text", kUsual, grouped_always, dense, true, 256},
    {"glm", kUsual, grouped_always, dense, true, 128},
    {"glm4", kUsual, grouped_always, dense, true, 128},
    {"glm4_moe", kUsual, grouped_always, experts, true, 128},
    {"gpt2", kGpt2, one_each, inner, false},
    {"gpt_bigcode", kGpt2, bigcode, inner, false},
    {"gpt_neo", kNeo, one_each, neo, false},
    {"gpt_neox", kUsual, one_each, neo, false},
    {"gpt_oss", kUsual, grouped_always, experts, true, 64},
    {"gptj", kGpt2, one_each, inner, false},
    {"granite", kUsual, grouped},
    {"granitemoe", kUsual, grouped, experts},
    {"internlm", kUsual, one_each},
    {"internlm2", kUsual, grouped},
    {"internlm3", kUsual, grouped},
    {"kimi_k2", kUsual, grouped, experts},
    {"llama", kUsual, grouped},
    {"minicpm", kUsual, grouped},
    {"minicpm3", kUsual, grouped},
    {"mistral", kUsual, grouped_always},
    {"mixtral", kUsual, grouped_always, experts},
    {"mpt", kMosaic, mpt, expanded, false},
    {"nemotron", kUsual, grouped, dense, false},
    {"olmo", kUsual, grouped},
    {"olmo2", kUsual, grouped},
    {"olmo3", kUsual, grouped},
    {"olmoe", kUsual, grouped, experts},
    {"opt", kUsual, one_each, opt_ffn, false},
    {"persimmon", kUsual, one_each, dense, false},
    {"phi", kUsual, grouped, dense, false},
    {"phi3", kUsual, grouped},
    {"phimoe", kUsual, grouped_always, experts},
    {"qwen", kQwen, one_each, qwen_ffn},
    {"qwen2", kUsual, grouped_always},
    {"qwen2_5_vl", kUsual, grouped_always},
    {"qwen2_5_vl_text", kUsual, grouped_always},
    {"qwen2_moe", kUsual, grouped_always, experts},
    {"qwen2_vl", kUsual, grouped_always},
    {"qwen2_vl_text", kUsual, grouped_always},
    {"qwen3", kUsual, grouped_always, dense, true, 128},
    {"qwen3_moe", kUsual, grouped_always, experts},
    {"qwen3_vl_moe_text", kUsual, grouped_always, experts},
    {"qwen3_vl_text", kUsual, grouped_always, dense, true, 128},
    {"refinedweb", kRefined, refined_web, inner, false},
    {"refinedwebmodel", kRefined, refined_web, inner, false},
    {"seed_oss", kUsual, grouped_always, dense, true, 128},
    {"smollm3", kUsual, grouped_always},
    {"stablelm", kUsual, grouped_always},
    {"starcoder2", kUsual, grouped_always, dense, false},
};

const Family& family_of(const json& config) {
  const json* const type = find(config, "model_type");
  if (type == nullptr || !type->is_string())
    throw std::runtime_error("model_type is missing: it says by which names the model's numbers go");
  std::string name = type->get<std::string>();
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  const auto* const found = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                         [&](const Family& each) { return each.model_type == name; });
  if (found == std::end(kFamilies)) {
    throw std::runtime_error("model_type: '" + name.substr(0, 60) +
                             "' is not known; its layers may keep other things than keys and values of each token. "
                             "Give the shape by options instead");
  }
  return *found;
}

/// Refuses models with unequal layers: layers that share keys and values, or keep none, would count as full.
void refuse_odd_layers(const json& config) {
  for (const char* const name : {"num_kv_shared_layers", "cla_share_factor", "attn_layer_period", "block_configs"}) {
    const json* const value = find(config, name);
    if (value != nullptr && *value != 0 && *value != 1)
      throw std::runtime_error(std::string(name) + ": layers that differ are not counted; give the shape by options");
  }
}

}  // namespace

ModelShape read_model_config(std::istream& text) {
  json config = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) throw std::runtime_error("no JSON object");
  // A multimodal model keeps its language part's numbers one level down. Only this part has a cache.
  for (const char* const inner_name : {"text_config", "llm_config", "language_config"}) {
    if (const json* const inner_config = find(config, inner_name); inner_config && inner_config->is_object()) {
      config = json(*inner_config);
      break;
    }
  }
  const Family& family = family_of(config);
  refuse_odd_layers(config);
  ModelShape shape;
  shape.layer_count = needed(config, family.names.layers);
  shape.hidden_size = needed(config, family.names.hidden);
  shape.query_head_count = needed(config, family.names.heads);
  shape.kv_head_count = family.kv_heads(config, shape.query_head_count);
  KV_ASSERT(shape.query_head_count > 0);  // by needed()
  const std::uint64_t head_size = family.head_size != 0 ? family.head_size : shape.hidden_size / shape.query_head_count;
  shape.head_size = number(config, family.names.head_size, head_size);
  shape.latent_size = number(config, "kv_lora_rank", 0);
  if (shape.latent_size > 0) {
    shape.rope_size = number(config, "qk_rope_head_dim", 0);
    shape.kv_head_count = 1;
    shape.head_size = number(config, "qk_nope_head_dim", 0) + shape.rope_size;
    shape.has_sparse_index = number(config, "index_head_dim", 0) > 0;
  }
  shape.ffn_size = family.ffn_size(config, shape.hidden_size);
  shape.has_gated_ffn = family.has_gated_ffn;
  shape.vocabulary_size = number(config, "vocab_size", number(config, "padded_vocab_size", 0));
  if (!check_shape(shape)) throw std::runtime_error("the numbers are no model's");
  return shape;
}

}  // namespace kv
