#include "client/tools/model_config.h"

#include <gtest/gtest.h>

#include <sstream>
#include <stdexcept>

namespace kv {
namespace {

ModelShape read(const std::string& text) {
  std::istringstream json(text);
  return read_model_config(json);
}

TEST(ModelConfigTest, GroupedHeadsAreRead) {
  const ModelShape shape = read(R"({"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
                                    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256})");
  EXPECT_EQ(cache_bytes_per_token(shape, CacheFormat::kFp16).value(), 131'072u);
  EXPECT_EQ(layer_parameter_count(shape), 6'979'321'856.0);
  EXPECT_EQ(shape.vocabulary_size, 128'256u);
}

TEST(ModelConfigTest, TheHeadSizeMayDifferFromItsShareOfTheHiddenSize) {
  EXPECT_EQ(
      read(R"({"num_hidden_layers": 1, "hidden_size": 2560, "num_attention_heads": 32, "head_dim": 128})").head_size,
      128u);
  EXPECT_EQ(
      read(R"({"num_hidden_layers": 1, "hidden_size": 2560, "num_attention_heads": 32, "head_dim": null})").head_size,
      80u);
}

TEST(ModelConfigTest, LatentAttentionIsRead) {
  const ModelShape shape = read(R"({"num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
      "num_key_value_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
      "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_experts_per_tok": 8, "n_shared_experts": 1})");
  EXPECT_EQ(cache_bytes_per_token(shape, CacheFormat::kFp16).value(), 70'272u);
  EXPECT_EQ(cache_bytes_per_token(shape, CacheFormat::kFp8DsMla).value(), 40'016u);
  EXPECT_EQ(shape.ffn_size, 9u * 2048);
}

TEST(ModelConfigTest, OldNamesAndNestedOnesAreRead) {
  const ModelShape gpt2 = read(R"({"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257})");
  EXPECT_EQ(cache_bytes_per_token(gpt2, CacheFormat::kFp16).value(), 12u * 2 * 768 * 2);
  EXPECT_EQ(layer_parameter_count(gpt2), 12 * 12.0 * 768 * 768);
  EXPECT_EQ(
      read(R"({"text_config": {"num_hidden_layers": 5, "hidden_size": 64, "num_attention_heads": 4}})").layer_count,
      5u);
}

TEST(ModelConfigTest, WhatIsNoModelIsRefused) {
  for (const char* text :
       {"", "[]", "{}", R"({"num_hidden_layers": 0, "hidden_size": 64, "num_attention_heads": 4})",
        R"({"num_hidden_layers": -1, "hidden_size": 64, "num_attention_heads": 4})",
        R"({"num_hidden_layers": 1.5, "hidden_size": 64, "num_attention_heads": 4})",
        R"({"num_hidden_layers": "1", "hidden_size": 64, "num_attention_heads": 4})",
        R"({"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 0})",
        R"({"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 128})",  // no element a head
        R"({"num_hidden_layers": 99999999999, "hidden_size": 64, "num_attention_heads": 4})"}) {
    EXPECT_THROW(read(text), std::runtime_error) << text;
  }
}

}  // namespace
}  // namespace kv
