#include "client/models/known_models.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "client/models/model_config.h"
#include "gpu/paging/generation_work.h"

namespace kv {
namespace {

ModelCache model_of(const KnownModel& model) {
  std::istringstream json{std::string(model.config)};
  return read_model(json);
}

TEST(KnownModelsTest, EachIsReadAndNamesItsSource) {
  EXPECT_GE(known_models().size(), 15u);
  EXPECT_TRUE(std::ranges::is_sorted(known_models(), {}, &KnownModel::name));
  for (const KnownModel& model : known_models()) {
    EXPECT_NO_THROW(model_of(model)) << model.name;
    EXPECT_FALSE(model.source.empty()) << model.name;
    EXPECT_EQ(known_model(model.name), &model);
  }
  EXPECT_NE(known_model("Llama-3.1-8B"), nullptr);
  EXPECT_EQ(known_model("llama-3.1-8"), nullptr);
  EXPECT_EQ(known_model(""), nullptr);
}

TEST(KnownModelsTest, ATokenTakesTheBytesThatOthersPublished) {
  const std::pair<const char*, std::uint64_t> published[] = {
      {"deepseek-v3", 70'272},   {"gpt-oss-20b", 49'152},    {"gpt3-175b", 4'718'592}, {"llama-2-7b", 524'288},
      {"llama-3.1-8b", 131'072}, {"llama-3.3-70b", 327'680}, {"mistral-7b", 131'072},  {"qwen2.5-7b", 57'344},
      {"gemma-3-27b", 507'904},  {"qwen3-8b", 147'456},      {"phi-4", 204'800},       {"gemma-2-9b", 344'064},
  };
  for (const auto& [name, bytes] : published)
    EXPECT_EQ(cache_bytes(model_of(*known_model(name)), CacheFormat::kFp16, 1).value(), bytes) << name;
}

// All weights that a model card publishes: those of the layers, embeddings and output, and a few norms and biases.
TEST(KnownModelsTest, TheWeightsAreThoseOfTheModelCard) {
  struct Card {
    const char* name;
    double weights;
    bool has_tied_embeddings;
  };
  constexpr Card kCards[] = {
      {"llama-2-7b", 6'738'415'616, false},
      {"llama-3.1-8b", 8'030'261'248, false},
      {"llama-3.3-70b", 70'553'706'496, false},
      {"qwen2.5-7b", 7'615'616'512, false},
      {"qwen3-8b", 8'190'735'360, false},
      {"mistral-7b", 7'248'023'552, false},
      {"phi-4", 14'659'507'200, false},
      {"gemma-2-9b", 9'241'705'984, true},
      {"gpt3-175b", 174.6e9, true},
  };
  for (const auto& [name, weights, is_tied] : kCards) {
    const ModelShape shape = model_of(*known_model(name)).shape;
    const double embeddings = static_cast<double>(shape.hidden_size) * static_cast<double>(shape.vocabulary_size);
    EXPECT_NEAR(layer_parameter_count(shape) + (is_tied ? 1 : 2) * embeddings, weights, 3e-4 * weights) << name;
  }
}

// Of experts and latent attention, the weights that one token meets.
TEST(KnownModelsTest, TheActiveWeightsAreThoseOfTheModelCard) {
  const std::pair<const char*, double> cards[] = {
      {"deepseek-v3", 37e9},  {"ernie-4.5-21b-a3b", 3e9}, {"gpt-oss-120b", 5.1e9},
      {"gpt-oss-20b", 3.6e9}, {"kimi-k2", 32e9},          {"llama-4-scout", 17e9},
      {"minimax-m2", 10e9},   {"mixtral-8x7b", 12.9e9},   {"qwen3-30b-a3b", 3.3e9},
  };
  for (const auto& [name, active] : cards) {
    const ModelShape shape = model_of(*known_model(name)).shape;
    const double output = static_cast<double>(shape.hidden_size) * static_cast<double>(shape.vocabulary_size);
    // Cards count one or two matrices of the vocabulary, and round.
    const double layers = layer_parameter_count(shape);
    EXPECT_GT(layers + 2 * output, 0.93 * active) << name;
    EXPECT_LT(layers, 1.03 * active) << name;
  }
}

TEST(KnownModelsTest, TheTextbooksExampleIsWorkedOut) {
  const ModelCache gpt3 = model_of(*known_model("gpt3-175b"));
  const Generation generation{.batch = 64, .prompt_tokens = 512, .new_tokens = 32};
  EXPECT_EQ(peak_cache_bytes(gpt3, CacheFormat::kFp16, generation).value(), 164'282'499'072u);
  const Work step = GenerationWork(gpt3, layer_parameter_count(gpt3)).last_step(generation);
  EXPECT_EQ(step.with_cache, 96 * 233'639'510'016.0);
  EXPECT_EQ(step.ratio(), 544);
}

}  // namespace
}  // namespace kv
