#include "gpu/paging/cache_size.h"

#include <gtest/gtest.h>

namespace kv {
namespace {

constexpr ModelShape kLlama2_7B{.layer_count = 32,
                                .kv_head_count = 32,
                                .head_size = 128,
                                .query_head_count = 32,
                                .hidden_size = 4096,
                                .ffn_size = 11008};
constexpr ModelShape kLlama3_8B{.layer_count = 32,
                                .kv_head_count = 8,
                                .head_size = 128,
                                .query_head_count = 32,
                                .hidden_size = 4096,
                                .ffn_size = 14336};
constexpr ModelShape kLlama3_70B{.layer_count = 80, .kv_head_count = 8, .head_size = 128};
constexpr ModelShape kDeepSeekV3{
    .layer_count = 61, .kv_head_count = 1, .head_size = 192, .latent_size = 512, .rope_size = 64};
constexpr ModelShape kGpt3{.layer_count = 96,
                           .kv_head_count = 96,
                           .head_size = 128,
                           .query_head_count = 96,
                           .hidden_size = 12288,
                           .ffn_size = 4 * 12288,
                           .has_gated_ffn = false};

std::uint64_t bytes(const ModelShape& shape, CacheFormat format) {
  return cache_bytes_per_token(shape, format).value();
}

TEST(CacheSizeTest, KnownModelsHaveKnownSizes) {
  EXPECT_EQ(bytes(kLlama2_7B, CacheFormat::kFp16), 524'288u);
  EXPECT_EQ(bytes(kLlama3_8B, CacheFormat::kFp16), 131'072u);
  EXPECT_EQ(bytes(kLlama3_70B, CacheFormat::kFp16), 327'680u);
  EXPECT_EQ(bytes(kGpt3, CacheFormat::kFp16), 4'718'592u);
  EXPECT_EQ(64u * (512 + 32) * bytes(kGpt3, CacheFormat::kFp16), 164'282'499'072u);
  EXPECT_EQ(bytes({.layer_count = 24, .kv_head_count = 2, .head_size = 128}, CacheFormat::kFp16), 24'576u);
  EXPECT_EQ(bytes({.layer_count = 24, .kv_head_count = 2, .head_size = 64}, CacheFormat::kFp16), 12'288u);
  EXPECT_EQ(bytes(kDeepSeekV3, CacheFormat::kFp16), 70'272u);
}

TEST(CacheSizeTest, QuantisedFormatsCountTheirScales) {
  EXPECT_EQ(bytes(kLlama3_8B, CacheFormat::kFp32), 262'144u);
  EXPECT_EQ(bytes(kLlama3_8B, CacheFormat::kFp8), 65'536u);
  EXPECT_EQ(bytes(kLlama3_8B, CacheFormat::kInt8PerTokenHead), 67'584u);
  EXPECT_EQ(bytes(kLlama3_8B, CacheFormat::kNvFp4), 36'864u);
  EXPECT_EQ(bytes(kDeepSeekV3, CacheFormat::kFp8DsMla), 40'016u);
  ModelShape sparse = kDeepSeekV3;
  sparse.has_sparse_index = true;
  EXPECT_EQ(bytes(sparse, CacheFormat::kFp8DsMla), 40'016u + 8'052u);
}

TEST(CacheSizeTest, AFormatThatDoesNotFitIsRefused) {
  EXPECT_EQ(cache_bytes_per_token(kLlama3_8B, CacheFormat::kFp8DsMla).error(), Errc::kUnsupported);
  EXPECT_EQ(cache_bytes_per_token(kDeepSeekV3, CacheFormat::kNvFp4).error(), Errc::kUnsupported);
  EXPECT_EQ(cache_bytes_per_token(kDeepSeekV3, CacheFormat::kInt8PerTokenHead).error(), Errc::kUnsupported);
  EXPECT_EQ(cache_bytes_per_token({.layer_count = 2, .kv_head_count = 1, .head_size = 72}, CacheFormat::kNvFp4).error(),
            Errc::kUnsupported);
  ModelShape other = kDeepSeekV3;
  other.rope_size = 32;
  EXPECT_EQ(cache_bytes_per_token(other, CacheFormat::kFp8DsMla).error(), Errc::kUnsupported);
}

TEST(CacheSizeTest, AShapeThatCannotBeIsRefused) {
  EXPECT_EQ(check_shape({}).error(), Errc::kBadRequest);
  EXPECT_EQ(check_shape({.layer_count = 1, .kv_head_count = 1}).error(), Errc::kBadRequest);
  EXPECT_EQ(check_shape({.layer_count = 1, .head_size = 1}).error(), Errc::kBadRequest);
  EXPECT_EQ(check_shape({.kv_head_count = 1, .head_size = 1}).error(), Errc::kBadRequest);
  EXPECT_EQ(check_shape({.layer_count = 1 << 24, .kv_head_count = 1 << 24, .head_size = 1}).error(), Errc::kBadRequest);
  EXPECT_EQ(check_shape({.layer_count = (1 << 24) + 1, .kv_head_count = 1, .head_size = 1}).error(), Errc::kBadRequest);
  EXPECT_EQ(check_shape({.layer_count = 1 << 24, .latent_size = 1 << 24}).error(), Errc::kBadRequest);
  EXPECT_TRUE(check_shape({.layer_count = 1, .latent_size = 512}));
  EXPECT_TRUE(check_shape(kGpt3));
}

TEST(CacheSizeTest, FormatNamesAreReadBack) {
  for (const CacheFormat format : kCacheFormats) EXPECT_EQ(cache_format_from_name(cache_format_name(format)), format);
  EXPECT_EQ(cache_format_from_name("bf16"), CacheFormat::kFp16);
  EXPECT_EQ(cache_format_from_name("int3"), std::nullopt);
}

TEST(CacheSizeTest, ATokenOfATextbookModelCostsAsTextbooksSay) {
  // One layer of multi-head attention with hidden size h and an FFN of 4h: 24 h^2 and 4 h for each token that is read.
  const double h = 12288;
  for (const double cached : {0.0, 1.0, 543.0, 100'000.0}) {
    EXPECT_EQ(2 * layer_parameter_count(kGpt3) + attention_flops(kGpt3, 1, cached),
              96 * (24 * h * h + 4 * h * (cached + 1)));
  }
}

TEST(CacheSizeTest, AttentionOfManyTokensIsTheSumOfTheirs) {
  double sum = 0;
  for (int i = 0; i < 100; ++i) sum += attention_flops(kLlama3_8B, 1, 1000 + i);
  EXPECT_DOUBLE_EQ(attention_flops(kLlama3_8B, 100, 1000), sum);
  EXPECT_EQ(attention_flops(kLlama3_8B, 0, 1000), 0);
}

TEST(CacheSizeTest, WeightsAreThoseOfTheLayers) {
  // Llama 3 8B: 8,030,261,248 with embeddings and logits, 128256 * 4096 each, and 65 norms of 4096.
  EXPECT_EQ(layer_parameter_count(kLlama3_8B), 8'030'261'248.0 - 2 * 128256.0 * 4096 - 65 * 4096);
}

TEST(CacheSizeTest, ASequenceKeepsWhatItsLayersReadLater) {
  // One token of a layer: 2 heads of 8, keys and values, 2 bytes each.
  ModelCache model{.shape = {.layer_count = 7, .kv_head_count = 2, .head_size = 8}, .groups = {}};
  model.groups.push_back({.layers = {0, 4}, .sharing_layer_count = 1});
  model.groups.push_back({.kind = LayerKind::kWindow, .token_limit = 100, .layers = {1, 2}});
  model.groups.push_back({.kind = LayerKind::kChunk, .token_limit = 50, .layers = {3}});
  model.groups.push_back({.kind = LayerKind::kState, .layers = {5}, .convolution_size = 10, .recurrence_size = 30});
  const std::uint64_t token = 2 * 2 * 8 * 2, state = 10 * 2 + 30 * 4;
  EXPECT_EQ(cache_bytes(model, CacheFormat::kFp16, 49).value(), token * 49 * (2 + 2 + 1) + state);
  EXPECT_EQ(cache_bytes(model, CacheFormat::kFp16, 51).value(), token * (51 * (2 + 2) + 50) + state);
  EXPECT_EQ(cache_bytes(model, CacheFormat::kFp16, 101).value(), token * (101 * 2 + 100 * 2 + 50) + state);
  EXPECT_EQ(cache_bytes(model, CacheFormat::kFp32, 1).value(), 2 * token * 5 + 10 * 4 + 30 * 4);
  EXPECT_EQ(cache_bytes(model, CacheFormat::kFp8, 1).value(), token / 2 * 5 + state) << "states are not quantised";
  EXPECT_EQ(cache_bytes(model, CacheFormat::kFp8DsMla, 1).error(), Errc::kUnsupported);
  EXPECT_EQ(cache_bytes(model, CacheFormat::kFp16, kTokenCountMax + 1).error(), Errc::kBadRequest);

  const ModelCache full = without_windows(model);
  ASSERT_EQ(full.groups.size(), 2u);
  EXPECT_EQ(full.groups[0].layers, (std::vector<std::uint32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(full.groups[0].sharing_layer_count, 1u);
  EXPECT_EQ(cache_bytes(full, CacheFormat::kFp16, 1000).value(), token * 1000 * 5 + state);
}

TEST(CacheSizeTest, FetchingWinsAboveTheBreakEvenBandwidth) {
  const BreakEven even = break_even(131'072, 2 * 8e9, 1e15);
  EXPECT_DOUBLE_EQ(even.recompute_seconds, 16e-6);
  EXPECT_DOUBLE_EQ(even.bandwidth, 131'072 / 16e-6);
  EXPECT_NEAR(even.fetch_speedup(50e9), 6.1, 0.01);  // 2.6 us against 16 us
}

}  // namespace
}  // namespace kv
