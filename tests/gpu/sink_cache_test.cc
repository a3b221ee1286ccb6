// Attention sinks with a rolling window: the trace, the bounds, and that every key in a view is the original key
// rotated for the position it has there. KV_SEED repeats a run.
#include "gpu/layer_caches/sink_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "page_names.h"
#include "token_history.h"

namespace kv {
namespace {

using testing::Each;
using testing::ElementsAre;

std::vector<std::int64_t> tokens_of(const SinkWindow& window) {
  std::vector<std::int64_t> tokens;
  for (const auto& row : window.rows()) tokens.push_back(row.token);
  return tokens;
}

TEST(SinkWindowTest, NothingMovesUntilTheWindowIsFull) {
  SinkWindow window(2, 8);
  EXPECT_EQ(window.add(5).first_position, 0);
  for (std::int64_t token = 5; token < 8; ++token) EXPECT_EQ(window.add(1).first_position, token);
  EXPECT_THAT(tokens_of(window), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(window.rows(), Each(testing::Property(&SinkWindow::Row::delta, 0)));  // full, and still unmoved

  EXPECT_EQ(window.add(1).first_position, 7);
  EXPECT_THAT(tokens_of(window), ElementsAre(0, 1, 3, 4, 5, 6, 7, 8));
  const auto rows = window.rows();
  EXPECT_EQ(rows[1].delta(), 0);
  EXPECT_EQ(rows[2].delta(), -1);
  EXPECT_EQ(rows[6].delta(), -1);
  EXPECT_EQ(rows[7].delta(), 0);  // computed where it belongs
}

TEST(SinkWindowTest, MovesAddUp) {
  SinkWindow window(2, 8);
  window.add(8);
  window.add(1);
  window.add(3);
  EXPECT_THAT(tokens_of(window), ElementsAre(0, 1, 6, 7, 8, 9, 10, 11));
  const auto rows = window.rows();
  EXPECT_EQ(rows[2].delta(), -4);  // token 6: stored at 6, now at 2
  EXPECT_EQ(rows[4].stored_position, 7);
  EXPECT_EQ(rows[4].delta(), -3);  // token 8: stored at 7, now at 4
}

TEST(SinkWindowTest, AnOverlongPromptIsComputedWholeAndThenMoved) {
  SinkWindow window(2, 8);
  const SinkWindow::Step step = window.add(20);
  EXPECT_EQ(step.first_position, 0);
  EXPECT_THAT(step.added, ElementsAre(0, 1, 14, 15, 16, 17, 18, 19));
  EXPECT_THAT(tokens_of(window), ElementsAre(0, 1, 14, 15, 16, 17, 18, 19));
  EXPECT_EQ(window.rows()[2].delta(), -12);
  EXPECT_EQ(window.rows()[7].delta(), -12);
  EXPECT_EQ(window.add(1).first_position, 7);
}

TEST(SinkWindowTest, APromptThatFitsTheWindowExactlyIsNotMoved) {
  SinkWindow window(2, 8);
  window.add(8);
  EXPECT_THAT(window.rows(), Each(testing::Property(&SinkWindow::Row::delta, 0)));
  SinkWindow longer(2, 8);
  longer.add(9);  // one token too many: it is dropped, as if it had come later
  EXPECT_THAT(tokens_of(longer), ElementsAre(0, 1, 3, 4, 5, 6, 7, 8));
}

TEST(SinkWindowTest, PositionsAreConsecutiveAndPlacesAreNotShared) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    const auto size = std::int64_t(1 + random() % 10), sinks = std::int64_t(random() % std::uint64_t(size));
    SinkWindow window(sinks, size);
    for (int step = 0; step < 15; ++step) {
      window.add(std::int64_t(1 + random() % (random() % 4 == 0 ? 14 : 2)));
      const auto rows = window.rows();
      ASSERT_EQ(std::int64_t(rows.size()), std::min(size, window.token_count()));
      std::vector<bool> is_taken(size);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto position = std::int64_t(i);
        ASSERT_EQ(rows[i].position, position);
        ASSERT_EQ(rows[i].token, position < sinks ? position : window.token_count() - std::int64_t(rows.size() - i));
        ASSERT_FALSE(is_taken.at(rows[i].place));
        is_taken[rows[i].place] = true;
        ASSERT_LE(rows[i].delta(), 0);
      }
    }
  }
}

class SinkCacheTest : public testing::TestWithParam<RopeStyle> {
 protected:
  static constexpr std::int64_t kRotarySize = 4;
  const std::vector<double> frequencies = {1.0, 0.01};  // base 1e4
  const std::uint64_t seed = test_seed();
  std::mt19937_64 random{seed};
  testing::ScopedTrace trace{__FILE__, __LINE__, "seed " + std::to_string(seed)};
  TokenHistory history{{.batch_count = 2, .heads = 2, .key_size = 6, .value_size = 3}};  // keys before their rotation

  Rotation rotation() const {
    return {.style = GetParam(), .rotary_size = kRotarySize, .frequencies = frequencies.data()};
  }
  /// One head's key as the model stores it: rotated for its position.
  std::vector<double> rotated(std::span<const float> key, std::int64_t position) const {
    std::vector<double> result(key.begin(), key.end());
    for (std::int64_t i = 0; i < kRotarySize / 2; ++i) {
      const std::int64_t first = GetParam() == RopeStyle::kNeox ? i : 2 * i;
      const std::int64_t second = GetParam() == RopeStyle::kNeox ? i + kRotarySize / 2 : 2 * i + 1;
      const double angle = double(position) * frequencies[i], c = std::cos(angle), s = std::sin(angle);
      result[first] = key[first] * c - key[second] * s;
      result[second] = key[second] * c + key[first] * s;
    }
    return result;
  }
  std::span<const float> key_of(std::int64_t sequence, std::int64_t token, std::int64_t head) const {
    return std::span(history.sequences[sequence][token].key)
        .subspan(head * history.shape.key_size, history.shape.key_size);
  }
  /// Random tokens, keys rotated for positions from `first_position` on.
  KvTensor add(std::int64_t token_count, std::int64_t first_position) {
    KvTensor added = history.add(random, token_count);
    const std::int64_t first = history.token_count() - token_count;
    for (std::int64_t b = 0; b < history.shape.batch_count; ++b) {
      for (std::int64_t t = 0; t < token_count; ++t) {
        for (std::int64_t h = 0; h < history.shape.heads; ++h) {
          const auto key = rotated(key_of(b, first + t, h), first_position + t);
          for (std::size_t f = 0; f < key.size(); ++f) added.set_key(b, h, t, std::int64_t(f), float(key[f]));
        }
      }
    }
    return added;
  }
  /// Token i of the view is tokens[i] of the history, at position i.
  void expect_view(const KvView& view, const std::vector<std::int64_t>& tokens) const {
    ASSERT_EQ(view.token_count(), std::int64_t(tokens.size()));
    for (std::int64_t b = 0; b < history.shape.batch_count; ++b) {
      for (std::int64_t i = 0; i < view.token_count(); ++i) {
        for (std::int64_t h = 0; h < history.shape.heads; ++h) {
          const auto key = rotated(key_of(b, tokens[i], h), i);
          for (std::size_t f = 0; f < key.size(); ++f) {
            ASSERT_NEAR(view.tensor->key(b, h, view.begin + i, std::int64_t(f)), key[f], 2e-6) << "position " << i;
          }
          for (std::int64_t f = 0; f < history.shape.value_size; ++f) {
            ASSERT_EQ(view.tensor->value(b, h, view.begin + i, f),
                      history.sequences[b][tokens[i]].value[h * history.shape.value_size + f]);
          }
        }
      }
    }
  }
};

TEST_P(SinkCacheTest, EveryKeyIsTurnedToItsPlace) {
  for (int round = 0; round < 20; ++round) {
    const auto size = std::int64_t(1 + random() % 9), sinks = std::int64_t(random() % std::uint64_t(size));
    history = {.shape = {.batch_count = 2, .heads = 2, .key_size = 6, .value_size = 3}};
    SinkCache cache(history.shape, sinks, size, rotation());
    for (int step = 0; step < 20; ++step) {
      const auto count = std::int64_t(1 + random() % (random() % 5 == 0 ? 14 : 2));
      const std::int64_t before = history.token_count();
      const KvView view = cache.update(add(count, cache.next_position(count))).value();
      // What is read: the sinks, the newest of the rest, and the added ones, as many as fit; or all, if they do not
      // fit.
      const std::int64_t cached = std::min(before, size);
      const std::int64_t read = count <= size - sinks ? std::min(cached, size - count) : cached;
      std::vector<std::int64_t> tokens;
      for (std::int64_t i = 0; i < read; ++i) tokens.push_back(i < sinks ? i : before - read + i);
      for (std::int64_t i = 0; i < count; ++i) tokens.push_back(before + i);
      ASSERT_NO_FATAL_FAILURE(expect_view(view, tokens));
      if (random() % 6 == 0) {
        const std::vector<std::int64_t> chosen = {std::int64_t(random() % 2), std::int64_t(random() % 2)};
        cache.select(chosen);
        history.select(chosen);
      }
    }
  }
}

TEST_P(SinkCacheTest, AKeyIsAsExactAfterThousandMovesAsAfterOne) {
  SinkCache cache(history.shape, 1, 400, rotation());
  for (int step = 0; step < 1000; ++step) ASSERT_TRUE(cache.update(add(1, cache.next_position(1))));
  const KvView view = cache.update(add(1, cache.next_position(1))).value();
  std::vector<std::int64_t> tokens = {0};
  for (std::int64_t token = 602; token <= 1000; ++token) tokens.push_back(token);
  expect_view(view, tokens);
}

TEST_P(SinkCacheTest, ItIsCroppedOnlyWhileNothingWasDropped) {
  SinkCache cache(history.shape, 1, 4, rotation());
  ASSERT_TRUE(cache.update(add(4, 0)));
  EXPECT_TRUE(cache.crop(-2));
  history.crop(2);
  expect_view(cache.update(add(1, cache.next_position(1))).value(), {0, 1, 2});
  ASSERT_TRUE(cache.update(add(2, cache.next_position(2))));
  EXPECT_EQ(cache.crop(4).error(), Errc::kUnsupported);
  EXPECT_TRUE(cache.crop(5));
  EXPECT_EQ(cache.crop(6).error(), Errc::kBadRequest);
}

INSTANTIATE_TEST_SUITE_P(Styles, SinkCacheTest, testing::Values(RopeStyle::kNeox, RopeStyle::kGptj),
                         [](const auto& style) { return style.param == RopeStyle::kNeox ? "Neox" : "Gptj"; });

}  // namespace
}  // namespace kv
