#include "client/models/families.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>

#include "client/models/config_fields.h"

namespace kv {
namespace {

using namespace config;

// -- number of KV heads: families differ in the name, and in the meaning of its absence

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

std::uint64_t dense(const json& config, std::uint64_t) { return number(config, "intermediate_size", 0); }
/// A token's cost: the experts that it visits, and the shared ones, not the size of all experts.
std::uint64_t experts(const json& config, std::uint64_t) {
  const std::uint64_t one = number(config, "intermediate_size", 0);
  const std::uint64_t visited =
      number(config, {"num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"}, 0);
  if (visited == 0) return one;
  const std::uint64_t shared = number(config, {"n_shared_experts", "num_shared_experts", "moe_num_shared_experts"}, 0);
  return number(config, "moe_intermediate_size", one) * (visited + shared) +
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
/// A shared expert beside the chosen ones. The dense layers between are as large.
std::uint64_t llama4_ffn(const json& config, std::uint64_t) {
  return number(config, "intermediate_size", 0) * (number(config, "num_experts_per_tok", 1) + 1);
}
/// Weights that no formula here counts: of states, of layers that differ. --parameters gives the cost of computing.
std::uint64_t unknown(const json&, std::uint64_t) { return 0; }

// -- the families

constexpr FieldNames kUsual = Family::kUsual;
constexpr FieldNames kGpt2 = {"n_layer", "n_embd", "n_head", "head_dim"};
constexpr FieldNames kRefined = {"n_layer", "hidden_size", "n_head", "head_dim"};
constexpr FieldNames kNeo = {"num_layers", "hidden_size", "num_heads", "head_dim"};
constexpr FieldNames kMosaic = {"n_layers", "d_model", "n_heads", "head_dim"};
constexpr FieldNames kGlm = {"num_layers", "hidden_size", "num_attention_heads", "kv_channels"};
constexpr FieldNames kQwen = {"num_hidden_layers", "hidden_size", "num_attention_heads", "kv_channels"};

/// Families whose layers keep keys and values of one size per token, a latent row or a state; client/models/layers.cc
/// says which layers. Names and defaults are those of the configuration classes of transformers 4.57, and of 5.19 for
/// ernie4_5_moe, gemma3n_text, kimi_linear, llama4_text, minimax_m2 and qwen3_omni_moe_text; for older families, of the
/// model's own file.
constexpr Family kFamilies[] = {
    {"arcee", kUsual, grouped, dense, false},
    {"baichuan", kUsual, one_each, dense},
    {"bamba", kUsual, grouped, unknown, true, 0, mamba2_state},
    {"bloom", kRefined, one_each, inner, false},
    {"chatglm", kGlm, chatglm, glm_ffn},
    {"codegen", kGpt2, one_each, inner, false},
    {"cohere", kUsual, grouped, dense},
    {"cohere2", kUsual, grouped, dense},
    {"dbrx", kMosaic, dbrx, dbrx_ffn},
    {"deepseek", kUsual, grouped, experts},
    {"deepseek_v2", kUsual, grouped, experts},
    {"deepseek_v3", kUsual, grouped, experts},
    {"deepseek_v32", kUsual, grouped, experts},
    {"dots1", kUsual, grouped, experts},
    {"ernie4_5", kUsual, grouped_always, dense, true, 128},
    {"ernie4_5_moe", kUsual, grouped_always, experts},
    {"exaone4", kUsual, grouped, dense},
    {"falcon", kUsual, falcon, inner, false},
    {"falcon_h1", kUsual, grouped, unknown, true, 0, mamba2_state},
    {"falcon_mamba", kUsual, one_each, unknown, true, 0, mamba_state},
    {"gemma", kUsual, grouped_always, dense, true, 256},
    {"gemma2", kUsual, grouped_always, dense, true, 256},
    {"gemma3_text", kUsual, grouped_always, dense, true, 256},
    {"gemma3n_text", kUsual, grouped_always, unknown, true, 256},
    {"glm", kUsual, grouped_always, dense, true, 128},
    {"glm4", kUsual, grouped_always, dense, true, 128},
    {"glm4_moe", kUsual, grouped_always, experts, true, 128},
    {"gpt2", kGpt2, one_each, inner, false},
    {"gpt_bigcode", kGpt2, bigcode, inner, false},
    {"gpt_neo", kNeo, one_each, neo, false},
    {"gpt_neox", kUsual, one_each, neo, false},
    {"gpt_oss", kUsual, grouped_always, experts, true, 64},
    {"gptj", kGpt2, one_each, inner, false},
    {"granite", kUsual, grouped, dense},
    {"granitemoe", kUsual, grouped, experts},
    {"granitemoehybrid", kUsual, grouped, unknown, true, 0, mamba2_state},
    {"internlm", kUsual, one_each, dense},
    {"internlm2", kUsual, grouped, dense},
    {"internlm3", kUsual, grouped, dense},
    {"jamba", kUsual, grouped, unknown, true, 0, mamba_state_of_inner},
    {"kimi_k2", kUsual, grouped, experts},
    {"kimi_linear", kUsual, grouped, unknown, true, 0, kimi_delta_state},
    {"lfm2", kUsual, grouped_always, unknown, true, 0, short_convolution_state},
    {"lfm2_moe", kUsual, grouped_always, unknown, true, 0, short_convolution_state},
    {"llama", kUsual, grouped, dense},
    {"llama4_text", kUsual, grouped_always, llama4_ffn, true, 128},
    {"mamba", kUsual, one_each, unknown, true, 0, mamba_state},
    {"mamba2", kUsual, one_each, unknown, true, 0, mamba2_state},
    {"minicpm", kUsual, grouped, dense},
    {"minicpm3", kUsual, grouped, dense},
    {"minimax_m2", kUsual, grouped_always, experts, true, 128},
    {"mistral", kUsual, grouped_always, dense},
    {"mixtral", kUsual, grouped_always, experts},
    {"mpt", kMosaic, mpt, expanded, false},
    {"nemotron", kUsual, grouped, dense, false},
    {"nemotron_h", kUsual, grouped_always, unknown, false, 128, mamba2_state},
    {"olmo", kUsual, grouped, dense},
    {"olmo2", kUsual, grouped, dense},
    {"olmo3", kUsual, grouped, dense},
    {"olmoe", kUsual, grouped, experts},
    {"opt", kUsual, one_each, opt_ffn, false},
    {"persimmon", kUsual, one_each, dense, false},
    {"phi", kUsual, grouped, dense, false},
    {"phi3", kUsual, grouped, dense},
    {"phimoe", kUsual, grouped_always, experts},
    {"qwen", kQwen, one_each, qwen_ffn},
    {"qwen2", kUsual, grouped_always, dense},
    {"qwen2_5_vl", kUsual, grouped_always, dense},
    {"qwen2_5_vl_text", kUsual, grouped_always, dense},
    {"qwen2_moe", kUsual, grouped_always, experts},
    {"qwen2_vl", kUsual, grouped_always, dense},
    {"qwen2_vl_text", kUsual, grouped_always, dense},
    {"qwen3", kUsual, grouped_always, dense, true, 128},
    {"qwen3_5_moe_text", kUsual, grouped_always, unknown, true, 256, delta_net_state},
    {"qwen3_5_text", kUsual, grouped_always, unknown, true, 256, delta_net_state},
    {"qwen3_moe", kUsual, grouped_always, experts},
    {"qwen3_next", kUsual, grouped_always, unknown, true, 256, delta_net_state},
    {"qwen3_omni_moe_text", kUsual, grouped_always, experts},
    {"qwen3_vl_moe_text", kUsual, grouped_always, experts},
    {"qwen3_vl_text", kUsual, grouped_always, dense, true, 128},
    {"refinedweb", kRefined, refined_web, inner, false},
    {"refinedwebmodel", kRefined, refined_web, inner, false},
    {"seed_oss", kUsual, grouped_always, dense, true, 128},
    {"smollm3", kUsual, grouped_always, dense},
    {"stablelm", kUsual, grouped_always, dense},
    {"starcoder2", kUsual, grouped_always, dense, false},
};

/// Families that are known, and are not what this code counts.
struct Refused {
  std::string_view model_type, why;
};
constexpr Refused kRefused[] = {
    {"deepseek_v4", "its layers keep compressed keys and values of many tokens in one row"},
    {"gemma4_text", "its full layers have other heads than its layers with windows"},
    {"longcat_flash", "each of its layers has two attentions"},
    {"mimo_v2_flash", "its full layers have other heads than its layers with windows"},
    {"minimax", "engines keep the states of its lightning attention in different types"},
    {"recurrent_gemma", "its states are none of those that are counted here"},
    {"rwkv", "its states are none of those that are counted here"},
    {"zamba", "its layers share one attention's weights and not its keys"},
    {"zamba2", "its layers share one attention's weights and not its keys"},
};

template <class Table>
const auto* find_in(const Table& table, const std::string& name) {
  const auto* const found =
      std::find_if(std::begin(table), std::end(table), [&](const auto& each) { return each.model_type == name; });
  return found == std::end(table) ? nullptr : found;
}

}  // namespace

const Family& family_of(const json& config) {
  const json* const type = find(config, "model_type");
  if (type == nullptr || !type->is_string() || type->get_ref<const std::string&>().empty())
    throw std::runtime_error("model_type is missing: it says by which names the model's numbers go");
  std::string name = type->get<std::string>();
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  if (const Refused* const refused = find_in(kRefused, name))
    throw std::runtime_error("model_type: '" + name + "' is not counted: " + std::string(refused->why));
  if (const Family* const family = find_in(kFamilies, name)) return *family;
  throw std::runtime_error("model_type: '" + name.substr(0, 60) +
                           "' is not known; its layers may keep other things than keys and values of each token. "
                           "Give the shape by options instead");
}

}  // namespace kv
