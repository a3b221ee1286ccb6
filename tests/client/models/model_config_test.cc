#include "client/models/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <stdexcept>

namespace kv {
namespace {

using testing::HasSubstr;

ModelShape read(const std::string& text) {
  std::istringstream json(text);
  return read_model_config(json);
}

TEST(ModelConfigTest, GroupedHeadsAreRead) {
  const ModelShape shape =
      read(R"({"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
                                    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256})");
  EXPECT_EQ(cache_bytes_per_token(shape, CacheFormat::kFp16).value(), 131'072u);
  EXPECT_EQ(layer_parameter_count(shape), 6'979'321'856.0);
  EXPECT_EQ(shape.vocabulary_size, 128'256u);
}

TEST(ModelConfigTest, TheHeadSizeMayDifferFromItsShareOfTheHiddenSize) {
  EXPECT_EQ(
      read(
          R"({"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 2560, "num_attention_heads": 32, "head_dim": 128})")
          .head_size,
      128u);
  EXPECT_EQ(
      read(
          R"({"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 2560, "num_attention_heads": 32, "head_dim": null})")
          .head_size,
      80u);
}

TEST(ModelConfigTest, LatentAttentionIsRead) {
  const ModelShape shape =
      read(R"({"model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
      "num_key_value_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
      "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_experts_per_tok": 8, "n_shared_experts": 1})");
  EXPECT_EQ(cache_bytes_per_token(shape, CacheFormat::kFp16).value(), 70'272u);
  EXPECT_EQ(cache_bytes_per_token(shape, CacheFormat::kFp8DsMla).value(), 40'016u);
  EXPECT_EQ(shape.ffn_size, 9u * 2048);
  EXPECT_EQ(layer_parameter_count(shape), 0) << "without the size of a value";
}

TEST(ModelConfigTest, OldNamesAndNestedOnesAreRead) {
  const ModelShape gpt2 =
      read(R"({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257})");
  EXPECT_EQ(cache_bytes_per_token(gpt2, CacheFormat::kFp16).value(), 12u * 2 * 768 * 2);
  EXPECT_EQ(layer_parameter_count(gpt2), 12 * 12.0 * 768 * 768);
  EXPECT_EQ(
      read(
          R"({"model_type": "llava", "text_config": {"model_type": "llama", "num_hidden_layers": 5, "hidden_size": 64, "num_attention_heads": 4}})")
          .layer_count,
      5u);
}

struct Published {
  const char* name;
  const char* config;
  std::uint64_t bytes_per_token;  ///< 2 x layers x KV heads x head size x 2 bytes.
};
constexpr Published kPublished[] = {
    {"Falcon-7B",
     R"({"model_type": "falcon", "num_hidden_layers": 32, "hidden_size": 4544, "num_attention_heads": 71,
         "multi_query": true, "new_decoder_architecture": false})",
     8192},
    {"Falcon-7B, as it was published first",
     R"({"model_type": "RefinedWebModel", "n_layer": 32, "hidden_size": 4544, "n_head": 71, "multi_query": true})",
     8192},
    {"Falcon-40B",
     R"({"model_type": "falcon", "num_hidden_layers": 60, "hidden_size": 8192, "num_attention_heads": 128,
         "num_kv_heads": 8, "multi_query": true, "new_decoder_architecture": true})",
     122'880},
    {"Falcon-40B, as it was published first",
     R"({"model_type": "RefinedWeb", "n_layer": 60, "hidden_size": 8192, "n_head": 128, "n_head_kv": 8})", 122'880},
    {"Falcon-RW-1B",
     R"({"model_type": "falcon", "num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 32,
         "multi_query": false, "new_decoder_architecture": false})",
     24 * 2 * 2048 * 2},
    {"StarCoder", R"({"model_type": "gpt_bigcode", "n_layer": 40, "n_embd": 6144, "n_head": 48, "multi_query": true})",
     20'480},
    {"StarCoder 2", R"({"model_type": "starcoder2", "num_hidden_layers": 40, "hidden_size": 6144,
                        "num_attention_heads": 48, "num_key_value_heads": 4})",
     81'920},
    {"ChatGLM2-6B", R"({"model_type": "chatglm", "num_layers": 28, "hidden_size": 4096, "num_attention_heads": 32,
                        "kv_channels": 128, "multi_query_attention": true, "multi_query_group_num": 2})",
     28'672},
    {"MPT-7B", R"({"model_type": "mpt", "n_layers": 32, "d_model": 4096, "n_heads": 32})", 524'288},
    {"MPT with grouped heads", R"({"model_type": "mpt", "n_layers": 32, "d_model": 4096, "n_heads": 32,
                                   "attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": 8}})",
     131'072},
    {"DBRX", R"({"model_type": "dbrx", "n_layers": 40, "d_model": 6144, "n_heads": 48,
                 "attn_config": {"kv_n_heads": 8}})",
     163'840},
    {"BLOOM-176B", R"({"model_type": "bloom", "n_layer": 70, "hidden_size": 14336, "n_head": 112})", 4'014'080},
    {"GPT-NeoX-20B",
     R"({"model_type": "gpt_neox", "num_hidden_layers": 44, "hidden_size": 6144, "num_attention_heads": 64})",
     44 * 2 * 6144 * 2},
    {"GPT-Neo-2.7B", R"({"model_type": "gpt_neo", "num_layers": 32, "hidden_size": 2560, "num_heads": 20})",
     32 * 2 * 2560 * 2},
    {"gpt-oss-20b", R"({"model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880,
                        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64})",
     49'152},
    {"Gemma-2B", R"({"model_type": "gemma", "num_hidden_layers": 18, "hidden_size": 2048, "num_attention_heads": 8,
                     "num_key_value_heads": 1})",
     18'432},
    {"Gemma-3-27B", R"({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 62,
                        "hidden_size": 5376, "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128}})",
     507'904},
    {"Qwen-7B", R"({"model_type": "qwen", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
                    "kv_channels": 128, "intermediate_size": 22016})",
     524'288},
    {"Qwen2.5-7B", R"({"model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28,
                       "num_key_value_heads": 4})",
     57'344},
    {"Mistral-7B", R"({"model_type": "mistral", "num_hidden_layers": 32, "hidden_size": 4096,
                       "num_attention_heads": 32, "num_key_value_heads": 8})",
     131'072},
    {"Phi-2", R"({"model_type": "phi", "num_hidden_layers": 32, "hidden_size": 2560, "num_attention_heads": 32,
                  "num_key_value_heads": null})",
     327'680},
    {"MiniMax-M2", R"({"model_type": "minimax_m2", "num_hidden_layers": 62, "hidden_size": 3072,
                       "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128})",
     62 * 2 * 8 * 128 * 2},
    {"ERNIE-4.5-21B-A3B", R"({"model_type": "ernie4_5_moe", "num_hidden_layers": 28, "hidden_size": 2560,
                              "num_attention_heads": 20, "num_key_value_heads": 4})",
     28 * 2 * 4 * 128 * 2},
    {"Qwen3-Omni-30B-A3B, its thinker",
     R"({"model_type": "qwen3_omni_moe",
         "thinker_config": {"model_type": "qwen3_omni_moe_thinker", "audio_config": {"num_hidden_layers": 32},
           "text_config": {"model_type": "qwen3_omni_moe_text", "num_hidden_layers": 48, "hidden_size": 2048,
                           "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128}},
         "talker_config": {"text_config": {"model_type": "qwen3_omni_moe_talker_text", "num_hidden_layers": 20}}})",
     48 * 2 * 4 * 128 * 2},
    {"MiniCPM3-4B", R"({"model_type": "minicpm3", "num_hidden_layers": 62, "hidden_size": 2560,
                        "num_attention_heads": 40, "num_key_value_heads": 40, "kv_lora_rank": 256,
                        "qk_rope_head_dim": 32, "qk_nope_head_dim": 64})",
     62 * 288 * 2},
};

TEST(ModelConfigTest, EveryFamilyIsReadByItsOwnNames) {
  for (const Published& model : kPublished)
    EXPECT_EQ(cache_bytes_per_token(read(model.config), CacheFormat::kFp16).value(), model.bytes_per_token)
        << model.name;
}

TEST(ModelConfigTest, NothingIsGuessed) {
  const auto why = [](const std::string& config) -> std::string {
    try {
      read(config);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  };
  const std::string shape = R"("num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32)";
  EXPECT_THAT(why("{" + shape + "}"), HasSubstr("model_type is missing"));
  EXPECT_THAT(why(R"({"model_type": 7, )" + shape + "}"), HasSubstr("model_type is missing"));
  EXPECT_THAT(why(R"({"model_type": "jambalaya", )" + shape + "}"), HasSubstr("'jambalaya' is not known"));
  EXPECT_THAT(why(R"({"model_type": "jamba", )" + shape + "}"), HasSubstr("states instead of keys and values"));
  EXPECT_THAT(why(R"({"model_type": "Gemma4_text", )" + shape + "}"), HasSubstr("other heads"));
  EXPECT_THAT(why(R"({"model_type": "mistral", )" + shape + "}"), HasSubstr("num_key_value_heads is missing"));
  EXPECT_THAT(why(R"({"model_type": "dbrx", "n_layers": 40, "d_model": 6144, "n_heads": 48})"),
              HasSubstr("kv_n_heads is missing"));
  EXPECT_THAT(why(R"({"model_type": "falcon", "multi_query": 1, )" + shape + "}"), HasSubstr("multi_query"));
  EXPECT_THAT(why(R"({"model_type": "mpt", "n_layers": 1, "d_model": 64, "n_heads": 4, "attn_config": []})"),
              HasSubstr("attn_config is no object"));
  EXPECT_THAT(why(R"({"model_type": "llama", "num_kv_shared_layers": 15, )" + shape + "}"),
              HasSubstr("num_kv_shared_layers"));
}

TEST(ModelConfigTest, WhatIsNoModelIsRefused) {
  for (const char* text :
       {"", "[]", "{}",
        R"({"model_type": "llama", "num_hidden_layers": 0, "hidden_size": 64, "num_attention_heads": 4})",
        R"({"model_type": "llama", "num_hidden_layers": -1, "hidden_size": 64, "num_attention_heads": 4})",
        R"({"model_type": "llama", "num_hidden_layers": 1.5, "hidden_size": 64, "num_attention_heads": 4})",
        R"({"model_type": "llama", "num_hidden_layers": "1", "hidden_size": 64, "num_attention_heads": 4})",
        R"({"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 0})",
        R"({"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 128})",  // no
                                                                                                              // element
                                                                                                              // a head
        R"({"model_type": "llama", "num_hidden_layers": 99999999999, "hidden_size": 64, "num_attention_heads": 4})"}) {
    EXPECT_THROW(read(text), std::runtime_error) << text;
  }
}

}  // namespace
}  // namespace kv
