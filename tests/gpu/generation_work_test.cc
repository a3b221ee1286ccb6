#include "gpu/paging/generation_work.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace kv {
namespace {

constexpr ModelShape kTextbookModel{.layer_count = 96,
                                    .kv_head_count = 96,
                                    .head_size = 128,
                                    .query_head_count = 96,
                                    .hidden_size = 12288,
                                    .ffn_size = 4 * 12288,
                                    .has_gated_ffn = false,
                                    .vocabulary_size = 50257};
constexpr Generation kTextbook{.batch = 64, .prompt_tokens = 512, .new_tokens = 32};

GenerationWork work_of(const ModelShape& shape) {
  return GenerationWork(uniform_cache(shape), layer_parameter_count(shape));
}

ModelShape one_layer(ModelShape shape) {
  shape.layer_count = 1;
  return shape;
}

TEST(GenerationWorkTest, TheTextbooksCacheIsFourTimesBatchLayersWidthAndTokens) {
  EXPECT_EQ(4ull * 64 * 96 * 12288 * (512 + 32), 164'282'499'072u);
  EXPECT_EQ(peak_cache_bytes(uniform_cache(kTextbookModel), CacheFormat::kFp16, kTextbook).value(), 164'282'499'072u);
}

TEST(GenerationWorkTest, TheTextbooksStepCostsWhatItSays) {
  const double b = 64, h = 12288, s = 544;
  const Work layer = work_of(one_layer(kTextbookModel)).last_step(kTextbook);
  EXPECT_EQ(layer.with_cache, 24 * b * h * h + 4 * b * h * s);
  EXPECT_EQ(layer.without_cache, 24 * b * s * h * h + 4 * b * s * s * h);
  EXPECT_EQ(layer.with_cache, 233'639'510'016.0);
  EXPECT_EQ(layer.without_cache, 127'099'893'448'704.0);
  EXPECT_EQ(layer.ratio(), 544);
  const Work all = work_of(kTextbookModel).last_step(kTextbook);
  EXPECT_NEAR(all.with_cache, 22.43e12, 0.005e12);
  EXPECT_NEAR(all.without_cache, 12'201.59e12, 0.005e12);
  EXPECT_EQ(work_of(kTextbookModel).step_logits(kTextbook).with_cache, 2 * b * h * 50257);
  EXPECT_EQ(work_of(kTextbookModel).step_logits(kTextbook).without_cache, 2 * b * s * h * 50257);
}

TEST(GenerationWorkTest, APassIsAsManyTimesTheStepThatReadsItAll) {  // F_u = s F_c at s = k + 1
  const ModelShape grouped{.layer_count = 3,
                           .kv_head_count = 2,
                           .head_size = 64,
                           .query_head_count = 10,
                           .hidden_size = 768,
                           .ffn_size = 2000};
  for (const ModelShape& shape : {kTextbookModel, one_layer(kTextbookModel), grouped}) {
    const GenerationWork work = work_of(shape);
    for (const std::uint64_t s : {1, 2, 17, 544, 100'000})
      EXPECT_DOUBLE_EQ(work.pass(s), static_cast<double>(s) * work.step(s - 1)) << s;
  }
}

TEST(GenerationWorkTest, OtherHeadsWidthsAndGatesCostWhatTheirMatricesHave) {
  const ModelShape shape{.layer_count = 1,
                         .kv_head_count = 2,
                         .head_size = 64,
                         .query_head_count = 10,
                         .hidden_size = 768,
                         .ffn_size = 2000};
  const double h = 768, q = 10 * 64, kv = 2 * 64, f = 2000;
  const double projections = 2 * h * q + 4 * h * kv + 2 * q * h;
  EXPECT_EQ(work_of(shape).step(41), projections + 2 * 3 * h * f + 4 * q * 42);
  ModelShape plain = shape;
  plain.has_gated_ffn = false;
  EXPECT_EQ(work_of(plain).step(41), projections + 2 * 2 * h * f + 4 * q * 42);
}

TEST(GenerationWorkTest, ALatentStepReadsLatentRowsAndAPassExpandsThem) {
  const ModelShape shape{.layer_count = 1,
                         .kv_head_count = 1,
                         .head_size = 192,
                         .latent_size = 512,
                         .rope_size = 64,
                         .query_head_count = 128,
                         .value_head_size = 128,
                         .query_latent_size = 1536,
                         .hidden_size = 7168,
                         .ffn_size = 18432};
  const double weights = 7168 * 1536.0 + 1536 * 128 * 192.0          // queries
                         + 7168 * 576.0 + 512 * 128 * (128 + 128.0)  // latent row, keys and values from it
                         + 128 * 128 * 7168.0 + 3 * 7168 * 18432.0;  // output, FFN
  EXPECT_EQ(layer_parameter_count(shape), weights);
  EXPECT_EQ(work_of(shape).step(99), 2 * weights + 2 * 128 * (576 + 512) * 100.0);
  EXPECT_EQ(work_of(shape).pass(100), 100 * 2 * weights + 2 * 128 * (192 + 128) * 100.0 * 100);
  ModelShape direct = shape;
  direct.query_latent_size = 0;
  EXPECT_EQ(layer_parameter_count(direct), weights - (7168 * 1536.0 + 1536 * 128 * 192.0) + 7168 * 128 * 192.0);
}

// -- layers that differ. The plain loop follows the words of LayerKind, one token at a time.

std::uint64_t tokens_read(const LayerGroup& group, std::uint64_t position) {
  std::uint64_t count = 0;
  for (std::uint64_t other = 0; other <= position; ++other) {
    const bool is_in_window = position - other < group.token_limit;
    const bool is_in_chunk = group.token_limit > 0 && position / group.token_limit == other / group.token_limit;
    count += group.kind == LayerKind::kWindow ? is_in_window : group.kind == LayerKind::kChunk ? is_in_chunk : 1;
  }
  return count;
}

/// In a pass a window's rows are as wide for the first tokens as for the last, and a chunk is a square.
std::uint64_t pairs_computed(const LayerGroup& group, std::uint64_t tokens) {
  std::uint64_t count = 0;
  for (std::uint64_t position = 0; position < tokens; ++position) {
    std::uint64_t last = tokens - 1;
    if (group.kind == LayerKind::kChunk)
      last = std::min(last, (position / group.token_limit + 1) * group.token_limit - 1);
    count += tokens_read(group, last);
  }
  return count;
}

TEST(GenerationWorkTest, SumsOfAllStepsAreThoseOfAPlainLoop) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto up_to = [&](std::uint64_t most) { return 1 + random() % most; };
  for (int round = 0; round < 60; ++round) {
    ModelCache model{.shape = {.layer_count = 9, .kv_head_count = 1, .head_size = 8, .query_head_count = up_to(4)},
                     .groups = {}};
    model.groups.push_back({.layers = {0, 1}});
    model.groups.push_back({.kind = LayerKind::kWindow, .token_limit = up_to(40), .layers = {2, 3, 4}});
    model.groups.push_back(
        {.kind = LayerKind::kChunk, .token_limit = up_to(40), .layers = {5}, .sharing_layer_count = 2});
    model.groups.push_back({.kind = LayerKind::kState, .layers = {8}, .recurrence_size = up_to(1000)});
    const double parameters = static_cast<double>(up_to(1000));
    const GenerationWork work(model, parameters);
    const Generation generation{.batch = up_to(5), .prompt_tokens = up_to(70), .new_tokens = up_to(50)};

    const double row = 4.0 * 8 * static_cast<double>(model.shape.query_head_count);
    const double token = 2 * parameters + 4 * static_cast<double>(model.groups[3].recurrence_size);
    Work sum;
    for (std::uint64_t i = 0; i < generation.new_tokens; ++i) {
      const std::uint64_t cached = generation.prompt_tokens + i;
      double step = token, pass = token * static_cast<double>(cached + 1);
      for (std::size_t g = 0; g < 3; ++g) {
        const LayerGroup& group = model.groups[g];
        const auto layers = static_cast<double>(group.layers.size() + group.sharing_layer_count);
        step += row * layers * static_cast<double>(tokens_read(group, cached));
        pass += row * layers * static_cast<double>(pairs_computed(group, cached + 1));
      }
      EXPECT_EQ(work.step(cached), step);
      EXPECT_EQ(work.pass(cached + 1), pass);
      sum.with_cache += static_cast<double>(generation.batch) * step;
      sum.without_cache += static_cast<double>(generation.batch) * pass;
    }
    EXPECT_EQ(work.steps(generation).with_cache, sum.with_cache);
    EXPECT_EQ(work.steps(generation).without_cache, sum.without_cache);
    double masked = 0;
    for (std::uint64_t i = 0; i < generation.prompt_tokens; ++i) masked += work.step(i);
    EXPECT_EQ(work.masked_pass(generation.prompt_tokens), masked);
  }
}

TEST(GenerationWorkTest, LogitsAreThoseOfEachStepAndOfThePrompt) {
  const GenerationWork work = work_of(kTextbookModel);
  Work sum{.with_cache = 2.0 * 64 * 512 * 12288 * 50257, .without_cache = 2.0 * 64 * 512 * 12288 * 50257};
  for (int step = 1; step <= 32; ++step) {
    sum.with_cache += 2.0 * 64 * 12288 * 50257;
    sum.without_cache += 2.0 * 64 * (512 + step) * 12288 * 50257;
  }
  EXPECT_DOUBLE_EQ(work.all_logits(kTextbook).with_cache, sum.with_cache);
  EXPECT_DOUBLE_EQ(work.all_logits(kTextbook).without_cache, sum.without_cache);
}

TEST(GenerationWorkTest, TheLongestGenerationIsStillCounted) {
  const GenerationWork work = work_of(one_layer(kTextbookModel));
  const Generation longest{.batch = 1, .prompt_tokens = (std::uint64_t{1} << 31) - 1, .new_tokens = 1};
  EXPECT_DOUBLE_EQ(work.steps(longest).with_cache, work.last_step(longest).with_cache);
  EXPECT_DOUBLE_EQ(work.steps(longest).without_cache, work.last_step(longest).without_cache);
}

TEST(GenerationWorkTest, AGenerationThatCannotBeIsRefused) {
  EXPECT_TRUE(check_generation(kTextbook));
  EXPECT_TRUE(check_generation({.batch = 1, .prompt_tokens = 1, .new_tokens = 0}));
  EXPECT_TRUE(check_generation({.batch = 1 << 20, .prompt_tokens = 1, .new_tokens = 2047}));
  EXPECT_EQ(check_generation({.batch = 1 << 20, .prompt_tokens = 1, .new_tokens = 2048}).error(), Errc::kBadRequest);
  EXPECT_EQ(check_generation({.batch = 0, .prompt_tokens = 1}).error(), Errc::kBadRequest);
  EXPECT_EQ(check_generation({.batch = 1, .prompt_tokens = 0, .new_tokens = 1}).error(), Errc::kBadRequest);
  EXPECT_EQ(check_generation({.batch = ~0ull, .prompt_tokens = 2, .new_tokens = 2}).error(), Errc::kBadRequest);
  EXPECT_EQ(check_generation({.batch = 1, .prompt_tokens = ~0ull, .new_tokens = 2}).error(), Errc::kBadRequest);
  EXPECT_EQ(
      peak_cache_bytes(uniform_cache(kTextbookModel), CacheFormat::kFp16, {.batch = 0, .prompt_tokens = 1}).error(),
      Errc::kBadRequest);
}

}  // namespace
}  // namespace kv
