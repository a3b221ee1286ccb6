#include "client/models/layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <stdexcept>
#include <string>

#include "client/models/model_config.h"

namespace kv {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ModelCache model_from(const std::string& text) {
  std::istringstream json(text);
  return read_model(json);
}

/// "full 2+1, window 512 3": layers that keep keys and values, and those that share them.
std::string describe(const ModelCache& model) {
  std::string text;
  for (const LayerGroup& group : model.groups) {
    if (!text.empty()) text += ", ";
    text += std::string(layer_kind_name(group.kind)) + " ";
    if (group.token_limit > 0) text += std::to_string(group.token_limit) + " ";
    text += std::to_string(group.layers.size());
    if (group.sharing_layer_count > 0) text += "+" + std::to_string(group.sharing_layer_count);
  }
  return text;
}

/// A model of eight layers, four heads of 16, and what is added.
std::string config(const std::string& family, const std::string& more) {
  return R"({"model_type": ")" + family +
         R"(", "num_hidden_layers": 8, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2)" +
         (more.empty() ? "" : ", " + more) + "}";
}

struct Case {
  const char *family, *more, *groups;
};
constexpr Case kCases[] = {
    {"llama", "", "full 8"},
    {"mistral", R"("sliding_window": 4096)", "window 4096 8"},
    {"mistral", R"("sliding_window": null)", "full 8"},
    {"qwen2", R"("sliding_window": 64, "use_sliding_window": false)", "full 8"},
    {"qwen2", R"("sliding_window": 64, "use_sliding_window": true, "max_window_layers": 5)", "full 5, window 64 3"},
    {"gemma2", R"("sliding_window": 64)", "full 4, window 64 4"},
    {"gemma3_text", R"("sliding_window": 64, "sliding_window_pattern": 4)", "full 2, window 64 6"},
    {"exaone4", R"("sliding_window": 64, "sliding_window_pattern": "LLLG")", "full 2, window 64 6"},
    {"gpt_oss", R"("sliding_window": 128)", "full 4, window 128 4"},
    {"gpt_oss", R"("sliding_window": 128, "layer_types": ["full_attention", "full_attention", "full_attention",
       "full_attention", "full_attention", "full_attention", "sliding_attention", "full_attention"])",
     "full 7, window 128 1"},
    {"llama4_text", R"("attention_chunk_size": 8192)", "full 2, chunk 8192 6"},
    {"llama4_text", R"("attention_chunk_size": 8192, "no_rope_layers": [])", "full 2, chunk 8192 6"},
    {"llama4_text", R"("attention_chunk_size": 32, "no_rope_layers": [1, 1, 0, 1, 1, 0, 0, 1])", "full 3, chunk 32 5"},
    {"llama4_text", R"("attention_chunk_size": null)", "full 8"},
    {"gemma3n_text", R"("sliding_window": 512, "num_kv_shared_layers": 2)", "full 1, window 512 5+2"},
    {"gemma3n_text", R"("sliding_window": 512, "num_kv_shared_layers": 0, "layer_types": ["sliding_attention",
       "full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention",
       "sliding_attention", "full_attention"])",
     "full 4, window 512 4"},
    {"jamba", R"("attn_layer_period": 4, "attn_layer_offset": 3)", "full 2, state 6"},
    {"bamba", R"("attn_layer_indices": [1, 5], "mamba_n_heads": 4)", "full 2, state 6"},
    {"falcon_h1", R"("mamba_n_heads": 4)", "full 8, state 8"},
    {"mamba", "", "state 8"},
    {"lfm2", R"("full_attn_idxs": [2, 5, 7])", "full 3, state 5"},
    {"lfm2", "", "full 8"},
    {"nemotron_h", R"("hybrid_override_pattern": "M-M*-ME-", "mamba_num_heads": 4)", "full 1, state 3"},
    {"granitemoehybrid",
     R"("mamba_n_heads": 4, "layer_types": ["mamba", "attention", "mamba", "mamba", "mamba", "mamba",
       "mamba", "mamba"])",
     "full 1, state 7"},
    {"qwen3_next", R"("linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
       "linear_value_head_dim": 16)",
     "full 2, state 6"},
    {"kimi_linear", R"("kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
       "linear_attn_config": {"full_attn_layers": [4, 8], "num_heads": 2, "head_dim": 16, "short_conv_kernel_size": 4})",
     "full 2, state 6"},
};

TEST(ModelLayersTest, EachFamilysLayersKeepWhatItsRuleSays) {
  for (const auto& [family, more, groups] : kCases)
    EXPECT_EQ(describe(model_from(config(family, more))), groups) << family;
}

TEST(ModelLayersTest, LayersAreCountedFromTheirBeginning) {
  EXPECT_THAT(model_from(config("gemma2", R"("sliding_window": 64)")).groups[0].layers, ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(model_from(config("llama4_text", R"("attention_chunk_size": 64)")).groups[0].layers, ElementsAre(3, 7));
  EXPECT_THAT(model_from(config("jamba", "")).groups[0].layers, ElementsAre(4));
  const ModelCache kimi = model_from(config("kimi_linear", R"("kv_lora_rank": 32, "qk_rope_head_dim": 8,
      "linear_attn_config": {"full_attn_layers": [4, 8], "num_heads": 2, "head_dim": 16, "short_conv_kernel_size": 4})"));
  EXPECT_THAT(kimi.groups[0].layers, ElementsAre(3, 7)) << "the file counts from 1";
}

TEST(ModelLayersTest, StatesHaveTheSizesOfTheirFamily) {
  const auto state = [](const ModelCache& model) {
    const LayerGroup& group = model.groups.back();
    return std::pair(group.convolution_size, group.recurrence_size);
  };
  const ModelCache next = model_from(config("qwen3_next", R"("linear_num_key_heads": 2, "linear_num_value_heads": 4,
      "linear_key_head_dim": 16, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 3)"));
  EXPECT_EQ(state(next), std::pair(std::uint64_t{(2 * 2 * 16 + 4 * 8) * 3}, std::uint64_t{4 * 16 * 8}));
  const ModelCache kimi = model_from(config("kimi_linear", R"("kv_lora_rank": 32, "qk_rope_head_dim": 8,
      "linear_attn_config": {"full_attn_layers": [4], "num_heads": 2, "head_dim": 16, "short_conv_kernel_size": 4})"));
  EXPECT_EQ(state(kimi), std::pair(std::uint64_t{3 * 2 * 16 * 4}, std::uint64_t{2 * 16 * 16}));
  EXPECT_EQ(kimi.shape.latent_size + kimi.shape.rope_size, 40u) << "its attention is MLA";
  const ModelCache mamba2 = model_from(config("bamba", R"("attn_layer_indices": [1], "mamba_n_heads": 4,
      "mamba_d_head": "auto", "mamba_expand": 2, "mamba_d_state": 8, "mamba_n_groups": 3, "mamba_d_conv": 4)"));
  EXPECT_EQ(state(mamba2), std::pair(std::uint64_t{(128 + 2 * 3 * 8) * 4}, std::uint64_t{128 * 8}));
  EXPECT_EQ(state(model_from(config("jamba", R"("mamba_d_state": 8)"))),
            std::pair(std::uint64_t{128 * 4}, std::uint64_t{128 * 8}));
  EXPECT_EQ(state(model_from(config("lfm2", R"("full_attn_idxs": [0], "conv_L_cache": 3)"))),
            std::pair(std::uint64_t{64 * 3}, std::uint64_t{0}));
}

TEST(ModelLayersTest, AStateWithoutAttentionIsAModelToo) {
  const ModelCache model =
      model_from(R"({"model_type": "mamba2", "num_hidden_layers": 3, "hidden_size": 64, "num_heads": 4,
      "head_dim": 32, "state_size": 16, "n_groups": 1, "time_step_limit": [-Infinity, Infinity], "eps": NaN,
      "note": "\"Infinity\""})");
  EXPECT_EQ(describe(model), "state 3");
  EXPECT_EQ(cache_bytes(model, CacheFormat::kFp16, 1000).value(), 3u * ((128 + 2 * 16) * 4 * 2 + 128 * 16 * 4));
}

TEST(ModelLayersTest, LayersThatAreNotKnownAreRefusedByName) {
  const auto why = [](const std::string& family, const std::string& more) -> std::string {
    try {
      model_from(config(family, more));
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  };
  const auto types = [](const std::string& type) {
    std::string text = "\"layer_types\": [\"" + type + "\"";
    for (int i = 1; i < 8; ++i) text += ", \"full_attention\"";
    return text + "]";
  };
  EXPECT_THAT(why("llama", types("chunked_attention")), HasSubstr("chunked_attention"));
  EXPECT_THAT(why("llama", types("sliding_attention")), HasSubstr("sliding_window is missing"));
  EXPECT_THAT(why("llama", types("mamba")), HasSubstr("llama is not known to keep states"));
  EXPECT_THAT(why("llama", types("heavily_compressed_attention")), HasSubstr("'heavily_compressed_attention'"));
  EXPECT_THAT(why("llama", R"("layer_types": ["full_attention"])"), HasSubstr("1 types of 8 layers"));
  EXPECT_THAT(why("llama", R"("layer_types": "full_attention")"), HasSubstr("layer_types is no list"));
  EXPECT_THAT(why("gemma3n_text", R"("sliding_window": 512)"), HasSubstr("num_kv_shared_layers is missing"));
  EXPECT_THAT(why("gemma3n_text", R"("sliding_window": 512, "num_kv_shared_layers": 8)"), HasSubstr("as many as"));
  EXPECT_THAT(why("gemma3n_text", R"("sliding_window": 512, "num_kv_shared_layers": 4)"), HasSubstr("no layer of that"))
      << "the only full layer is one that shares";
  EXPECT_THAT(why("llama", R"("num_kv_shared_layers": 1)"), HasSubstr("num_kv_shared_layers"));
  EXPECT_THAT(why("granitemoehybrid", ""), HasSubstr("layer_types is missing"));
  EXPECT_THAT(why("kimi_linear", ""), HasSubstr("layer_types is missing"));
  EXPECT_THAT(why("bamba", R"("attn_layer_indices": [8], "mamba_n_heads": 4)"), HasSubstr("8 is no layer"));
  EXPECT_THAT(why("nemotron_h", R"("hybrid_override_pattern": "M?")"), HasSubstr("'?' is not known"));
  EXPECT_THAT(why("jamba", R"("attn_layer_period": 0)"), HasSubstr("period"));
  EXPECT_THAT(why("jamba", R"("mamba_d_state": 16777216, "mamba_expand": 16777216)"), HasSubstr("no model's"));
  EXPECT_THAT(why("llama4_text", R"("attention_chunk_size": 64, "no_rope_layers": [1])"), HasSubstr("no_rope_layers"));
  EXPECT_THAT(why("llama", R"("is_encoder_decoder": true)"), HasSubstr("cross-attention"));
  EXPECT_THAT(why("llama", R"("cross_attention_layers": [3])"), HasSubstr("cross-attention"));
  EXPECT_EQ(why("llama", R"("cross_attention_layers": [], "is_encoder_decoder": false)"), "");
  EXPECT_THAT(why("rwkv", ""), HasSubstr("'rwkv' is not counted"));
}

}  // namespace
}  // namespace kv
