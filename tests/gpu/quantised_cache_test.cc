#include "gpu/layer_caches/quantised_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "page_names.h"
#include "token_history.h"

namespace kv {
namespace {

using testing::ElementsAre;

std::vector<float> there_and_back(const std::vector<float>& numbers, const GroupFormat& format) {
  std::vector<float> back(numbers.size());
  dequantise_groups(quantise_groups(numbers, format), format, back);
  return back;
}

TEST(GroupQuantiseTest, TheFirstNumberIsInTheLowestBits) {
  const QuantisedGroups two = quantise_groups(std::vector<float>{0, 1, 2, 3}, {.bits = 2, .group_size = 4});
  EXPECT_THAT(two.codes, ElementsAre(0b11'10'01'00));
  EXPECT_THAT(two.zeros, ElementsAre(0x0000));
  EXPECT_THAT(two.scales, ElementsAre(0x3C00));  // 1.0
  const QuantisedGroups four = quantise_groups(std::vector<float>{-1, 14, 2, 0}, {.bits = 4, .group_size = 4});
  EXPECT_THAT(four.codes, ElementsAre(0xF0, 0x13));
  EXPECT_THAT(four.zeros, ElementsAre(0xBC00));  // -1.0
}

TEST(GroupQuantiseTest, TiesGoToTheEvenCode) {
  // scale 1: 0.5 and 2.5 lie between two codes
  EXPECT_THAT(there_and_back({0, 0.5F, 2.5F, 3}, {.bits = 2, .group_size = 4}), ElementsAre(0, 0, 2, 3));
}

TEST(GroupQuantiseTest, EqualNumbersComeBackExactly) {
  EXPECT_THAT(there_and_back({1.5F, 1.5F, 1.5F, 1.5F}, {.bits = 2, .group_size = 4}), testing::Each(1.5F));
}

TEST(GroupQuantiseTest, AGroupDoesNotSeeItsNeighbours) {
  EXPECT_THAT(there_and_back({1000, 0, 2000, 3000, 0, 1, 2, 3}, {.bits = 2, .group_size = 4}),
              ElementsAre(1000, 0, 2000, 3000, 0, 1, 2, 3));
}

TEST(GroupQuantiseTest, NumbersBeyondHalfPrecisionAreTakenForItsLimits) {
  for (const float number : there_and_back({1e30F, -1e30F, 0, 5}, {.bits = 4, .group_size = 4})) {
    EXPECT_TRUE(std::isfinite(number));
  }
}

TEST(GroupQuantiseTest, SizesAreThePublishedOnes) {
  const std::vector<float> numbers(640);
  const auto ratio = [&](GroupFormat format) {
    const QuantisedGroups groups = quantise_groups(numbers, format);
    return 640 * 2.0 / double(groups.codes.size() + 2 * (groups.scales.size() + groups.zeros.size()));
  };
  EXPECT_NEAR(ratio({.bits = 2, .group_size = 32}), 5.33, 0.01);  // against 16 bits
  EXPECT_NEAR(ratio({.bits = 2, .group_size = 64}), 6.4, 1e-9);
}

TEST(GroupQuantiseTest, TheErrorIsHalfAScale) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.5F, 2);
  for (const int bits : {2, 4, 8}) {
    for (int round = 0; round < 50; ++round) {
      std::vector<float> numbers(64);
      for (float& number : numbers) number = normal(random);
      const auto [least, greatest] = std::minmax_element(numbers.begin(), numbers.end());
      const float range = *greatest - *least, largest = std::max(std::abs(*least), std::abs(*greatest));
      const auto back = there_and_back(numbers, {.bits = bits, .group_size = 64});
      // fp16 has 11 bits: its rounding moves the zero by 2^-11 of it, and the scale by 2^-11 of the range at most.
      const float bound = range / float((1 << bits) - 1) * 0.501F + (largest + range) / 2048;
      for (std::size_t i = 0; i < 64; ++i) ASSERT_NEAR(back[i], numbers[i], bound);
    }
  }
}

class QuantisedCacheTest : public testing::Test {
 protected:
  const std::uint64_t seed = test_seed();
  std::mt19937_64 random{seed};
  testing::ScopedTrace trace{__FILE__, __LINE__, "seed " + std::to_string(seed)};
  TokenHistory history{{.batch_count = 2, .heads = 2, .key_size = 4, .value_size = 8}};

  KvView part(const KvView& view, std::int64_t begin) { return {view.tensor, begin, view.end}; }
};

TEST_F(QuantisedCacheTest, RecentTokensAreWholeAndOldOnesAreRoundedOnce) {
  QuantisedCache cache(history.shape, {.bits = 4, .group_size = 8, .residual_tokens = 10});
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<float>> rounded;  // (sequence, token) as first seen
  for (int step = 0; step < 150; ++step) {
    const std::int64_t quantised = cache.quantised_count();
    const auto added = std::int64_t(1 + random() % (random() % 8 == 0 ? 30 : 2));
    const KvView view = cache.update(history.add(random, added)).value();
    ASSERT_EQ(view.token_count(), history.token_count());
    ASSERT_NO_FATAL_FAILURE(history.expect_equal(part(view, quantised), quantised));  // also what was just quantised
    ASSERT_GE(cache.token_count() - cache.quantised_count(), std::min<std::int64_t>(10, cache.token_count()));
    ASSERT_LT(cache.token_count() - cache.quantised_count(), 10 + 8);
    for (std::int64_t b = 0; b < history.shape.batch_count; ++b) {
      for (std::int64_t t = 0; t < quantised; ++t) {
        std::vector<float> numbers;
        for (std::int64_t h = 0; h < 2; ++h) {
          for (std::int64_t f = 0; f < 4; ++f) {
            numbers.push_back(view.tensor->key(b, h, t, f));
            ASSERT_NEAR(numbers.back(), history.sequences[b][t].key[h * 4 + f], 0.4);
          }
          for (std::int64_t f = 0; f < 8; ++f) {
            numbers.push_back(view.tensor->value(b, h, t, f));
            ASSERT_NEAR(numbers.back(), history.sequences[b][t].value[h * 8 + f], 0.4);
          }
        }
        ASSERT_EQ(rounded.try_emplace({b, t}, numbers).first->second, numbers);
      }
    }
  }
}

TEST_F(QuantisedCacheTest, ALongPromptIsReadWholeAndThenQuantised) {
  QuantisedCache cache(history.shape, {.bits = 2, .group_size = 8, .residual_tokens = 8});
  history.expect_equal(cache.update(history.add(random, 100)).value(), 0);
  EXPECT_EQ(cache.quantised_count(), 88);
}

TEST_F(QuantisedCacheTest, QuantisedTokensTakeTheirBitsAndTwoNumbersAGroup) {
  QuantisedCache cache(history.shape, {.bits = 4, .group_size = 8, .residual_tokens = 8});
  ASSERT_TRUE(cache.update(history.add(random, 96)));
  constexpr std::int64_t token_bytes = 2 * 2 * (4 + 8) * 4;  // sequences, heads, features of K and V, bytes
  EXPECT_GT(cache.memory_bytes(), 96 * token_bytes);         // the view that was read
  cache.drop_view();
  const std::int64_t numbers = 88 * token_bytes / 4, whole = 8 * token_bytes;
  EXPECT_EQ(cache.memory_bytes(), numbers / 2 + numbers / 8 * 4 + whole);
}

TEST_F(QuantisedCacheTest, SequencesAreSelectedWithTheirBlocks) {
  QuantisedCache cache(history.shape, {.bits = 8, .group_size = 8, .residual_tokens = 3});
  ASSERT_TRUE(cache.update(history.add(random, 20)));
  cache.select(std::vector<std::int64_t>{1, 1, 0});
  history.select({1, 1, 0});
  const KvView view = cache.update(history.add(random, 1)).value();
  history.expect_equal(part(view, 16), 16);
  for (std::int64_t b = 0; b < 3; ++b) {
    for (std::int64_t t = 0; t < 16; ++t)
      EXPECT_NEAR(view.tensor->key(b, 1, t, 2), history.sequences[b][t].key[6], 0.03);
  }
}

TEST_F(QuantisedCacheTest, ItIsCroppedToWholeBlocksOrWholeTokens) {
  QuantisedCache cache(history.shape, {.bits = 8, .group_size = 8, .residual_tokens = 4});
  ASSERT_TRUE(cache.update(history.add(random, 30)));  // 24 quantised
  EXPECT_TRUE(cache.crop(26));
  EXPECT_EQ(cache.crop(20).error(), Errc::kUnsupported);
  EXPECT_EQ(cache.crop(27).error(), Errc::kBadRequest);
  EXPECT_TRUE(cache.crop(16));
  EXPECT_EQ(cache.token_count(), 16);
  history.crop(16);
  const KvView view = cache.update(history.add(random, 1)).value();
  history.expect_equal(part(view, 16), 16);
}

}  // namespace
}  // namespace kv
