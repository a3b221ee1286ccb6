#include "reference_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "page_names.h"

namespace kv {
namespace {

constexpr double kTolerance = 1e-6;

const std::vector<float> kQuery = {1, 0.5F};
const std::vector<float> kKeys = {1, 0, 0, 1, 1, 1, -1, 2};
const std::vector<float> kValues = {1, 0, 0, 1, 2, 2, -1, 3};

AttentionState attend_to(std::size_t begin, std::size_t end) {
  const auto part = [&](const std::vector<float>& rows) {
    return std::span(rows).subspan(2 * begin, 2 * (end - begin));
  };
  return attend(kQuery, part(kKeys), part(kValues), 1.0);
}

TEST(ReferenceAttentionTest, HalvesMergeToTheWhole) {
  const AttentionState a = attend_to(0, 2), b = attend_to(2, 4);
  EXPECT_NEAR(a.log_sum, 1.474077, kTolerance);
  EXPECT_NEAR(b.log_sum, 1.701413, kTolerance);
  EXPECT_NEAR(a.output[0], 0.622459, kTolerance);
  EXPECT_NEAR(a.output[1], 0.377541, kTolerance);
  EXPECT_NEAR(b.output[0], 1.452723, kTolerance);
  EXPECT_NEAR(b.output[1], 2.182426, kTolerance);
  EXPECT_NEAR(1 / (1 + std::exp(b.log_sum - a.log_sum)), 0.443409, kTolerance);  // the weight of a
  for (const AttentionState& whole : {merge(a, b), merge(b, a), attend_to(0, 4)}) {
    EXPECT_NEAR(whole.output[0], 1.084576, kTolerance);
    EXPECT_NEAR(whole.output[1], 1.382123, kTolerance);
    EXPECT_NEAR(whole.log_sum, 2.287339, kTolerance);
  }
}

TEST(ReferenceAttentionTest, NoTokenAddsNothing) {
  const AttentionState none = attend_to(0, 0), all = attend_to(0, 4);
  EXPECT_THAT(none.output, testing::ElementsAre(0, 0));
  EXPECT_EQ(none.log_sum, -std::numeric_limits<double>::infinity());
  EXPECT_EQ(merge(all, none).output, all.output);
  EXPECT_EQ(merge(none, all).output, all.output);
  EXPECT_EQ(merge(none, all).log_sum, all.log_sum);
  const AttentionState nothing = merge(none, none);  // not NaN
  EXPECT_EQ(nothing.output, none.output);
  EXPECT_EQ(nothing.log_sum, none.log_sum);
  EXPECT_EQ(merge(std::vector<PartialAttention>(2, {.weighted_sum = {0, 0}}), 2).output, none.output);
}

TEST(ReferenceAttentionTest, LargeScoresDoNotOverflow) {
  const std::vector<float> query = {100}, keys = {50, 60, -60}, values = {1, 2, 3};
  const AttentionState state = attend(query, keys, values, 1.0);  // e^6000 is no double
  EXPECT_NEAR(state.output[0], 2, kTolerance);
  EXPECT_NEAR(state.log_sum, 6000, kTolerance);
}

TEST(ReferenceAttentionTest, TheSinglePassEqualsSoftmax) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, 3);
  for (int round = 0; round < 200; ++round) {
    const std::size_t head_size = 1 + random() % 8, count = 1 + random() % 30;
    std::vector<float> query(head_size), keys(head_size * count), values(head_size * count);
    for (auto* numbers : {&query, &keys, &values}) {
      for (float& number : *numbers) number = normal(random);
    }
    const double scale = 1 / std::sqrt(double(head_size));
    std::vector<double> weights(count), output(head_size);
    double sum = 0;
    for (std::size_t t = 0; t < count; ++t) {
      double score = 0;
      for (std::size_t f = 0; f < head_size; ++f) score += double{query[f]} * keys[t * head_size + f];
      sum += weights[t] = std::exp(score * scale);
    }
    for (std::size_t t = 0; t < count; ++t) {
      for (std::size_t f = 0; f < head_size; ++f) output[f] += weights[t] / sum * values[t * head_size + f];
    }
    const AttentionState state = attend(query, keys, values, scale);
    EXPECT_NEAR(state.log_sum, std::log(sum), 1e-9);
    for (std::size_t f = 0; f < head_size; ++f) EXPECT_NEAR(state.output[f], output[f], 1e-9);
  }
}

}  // namespace
}  // namespace kv
