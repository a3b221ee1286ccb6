// Growing, static and sliding caches against a list of tokens. KV_SEED repeats a run.
#include "gpu/layer_caches/layer_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "gpu/layer_caches/growing_cache.h"
#include "gpu/layer_caches/static_cache.h"
#include "page_names.h"
#include "token_history.h"

namespace kv {
namespace {

class LayerCacheTest : public testing::Test {
 protected:
  const std::uint64_t seed = test_seed();
  std::mt19937_64 random{seed};
  TokenHistory history{{.batch_count = 2, .heads = 2, .key_size = 4, .value_size = 3}};
  testing::ScopedTrace trace{__FILE__, __LINE__, "seed " + std::to_string(seed)};

  std::int64_t below(std::int64_t n) { return std::int64_t(random() % std::uint64_t(n)); }
  std::vector<std::int64_t> random_sequences(std::int64_t count) {
    std::vector<std::int64_t> chosen(count);
    for (auto& sequence : chosen) sequence = below(history.shape.batch_count);
    return chosen;
  }
};

TEST_F(LayerCacheTest, AGrowingCacheKeepsEverything) {
  GrowingCache cache;
  for (int step = 0; step < 400; ++step) {
    const std::int64_t dice = below(10);
    if (dice < 7) {
      const auto view = cache.update(history.add(random, 1 + below(below(3) == 0 ? 9 : 2)));
      ASSERT_EQ(view->token_count(), history.token_count());
    } else if (dice < 9) {
      const std::int64_t keep = below(history.token_count() + 1);
      // A negative number says how many to take away; it cannot say none.
      const bool is_negative = keep < history.token_count() && below(2) == 0;
      ASSERT_TRUE(cache.crop(is_negative ? keep - history.token_count() : keep));
      history.crop(keep);
    } else {
      const auto chosen = random_sequences(1 + below(4));
      cache.select(chosen);
      history.select(chosen);
    }
    ASSERT_EQ(cache.token_count(), history.token_count());
    if (cache.view().tensor) {
      ASSERT_NO_FATAL_FAILURE(history.expect_equal(cache.view(), 0));
    }
  }
}

TEST_F(LayerCacheTest, ACropBeyondTheEndsIsRefused) {
  GrowingCache cache;
  ASSERT_TRUE(cache.update(history.add(random, 5)));
  EXPECT_EQ(cache.crop(6).error(), Errc::kBadRequest);
  EXPECT_EQ(cache.crop(-6).error(), Errc::kBadRequest);
  EXPECT_TRUE(cache.crop(-5));
  EXPECT_EQ(cache.token_count(), 0);
}

TEST_F(LayerCacheTest, AStaticCacheStaysWhereItIs) {
  StaticCache cache(history.shape, 16);
  const KvView first = cache.update(history.add(random, 3)).value();
  const std::byte* memory = first.tensor->layout().base(0, 0);
  for (int step = 0; step < 200; ++step) {
    const std::int64_t room = 16 - history.token_count();
    if (room > 0 && below(3) > 0) {
      const KvView view = cache.update(history.add(random, 1 + below(room))).value();
      ASSERT_EQ(view.tensor->layout().base(0, 0), memory);
      ASSERT_EQ(view.tensor->token_count(), 16);
      ASSERT_EQ(view.token_count(), history.token_count());
      ASSERT_NO_FATAL_FAILURE(history.expect_equal(view, 0));
    } else if (below(2) == 0) {
      const std::int64_t keep = below(history.token_count() + 1);
      ASSERT_TRUE(cache.crop(keep));
      history.crop(keep);
    } else {
      const auto chosen = random_sequences(2);
      cache.select(chosen);
      history.select(chosen);
    }
  }
}

TEST_F(LayerCacheTest, AStaticCacheThatIsFullRefusesWhole) {
  StaticCache cache(history.shape, 4);
  ASSERT_TRUE(cache.update(history.add(random, 3)));
  TokenHistory other = history;
  EXPECT_EQ(cache.update(other.add(random, 2)).error(), Errc::kTooLarge);
  EXPECT_EQ(cache.token_count(), 3);
  history.expect_equal(cache.update(history.add(random, 1)).value(), 0);
}

TEST_F(LayerCacheTest, AStaticCacheIsWrittenAtGivenPlaces) {
  StaticCache cache(history.shape, 8);
  ASSERT_TRUE(cache.update(history.add(random, 5)));
  TokenHistory other{history.shape};
  const std::vector<std::int64_t> places = {4, 1};
  const KvView view = cache.update_at(other.add(random, 2), places).value();
  for (std::size_t b = 0; b < 2; ++b) {
    history.sequences[b][4] = other.sequences[b][0];
    history.sequences[b][1] = other.sequences[b][1];
  }
  EXPECT_EQ(view.token_count(), 5);
  history.expect_equal(view, 0);
  EXPECT_EQ(cache.update_at(other.add(random, 1), std::vector<std::int64_t>{8}).error(), Errc::kTooLarge);
}

TEST_F(LayerCacheTest, ASlidingCacheRollsWhenItIsFull) {
  SlidingCache cache(history.shape, 4);
  history.expect_equal(cache.update(history.add(random, 3)).value(), 0);
  history.expect_equal(cache.update(history.add(random, 1)).value(), 0);
  EXPECT_EQ(cache.view().token_count(), 4);
  history.expect_equal(cache.update(history.add(random, 1)).value(), 1);
  EXPECT_EQ(cache.view().token_count(), 4);
  EXPECT_EQ(cache.token_count(), 5);
}

TEST_F(LayerCacheTest, APromptLongerThanTheWindowIsReadWholeAndItsEndKept) {
  SlidingCache cache(history.shape, 4);
  const KvView view = cache.update(history.add(random, 9)).value();
  EXPECT_EQ(view.token_count(), 9);
  history.expect_equal(view, 0);
  EXPECT_EQ(cache.view().token_count(), 4);
  history.expect_equal(cache.view(), 5);
}

TEST_F(LayerCacheTest, EveryTokenReadsItsWholeWindow) {
  for (int round = 0; round < 100; ++round) {
    const std::int64_t window = 1 + below(8);
    history = {.shape = {.batch_count = 2, .heads = 1, .key_size = 2, .value_size = 2}};
    SlidingCache cache(history.shape, window);
    for (int step = 0; step < 12; ++step) {
      const std::int64_t before = history.token_count();
      const KvView view = cache.update(history.add(random, 1 + below(6))).value();
      const std::int64_t first = history.token_count() - view.token_count();
      ASSERT_LE(first, std::max<std::int64_t>(0, before + 1 - window));  // the first added token's window
      ASSERT_NO_FATAL_FAILURE(history.expect_equal(view, first));
      ASSERT_EQ(cache.view().token_count(), std::min(window, history.token_count()));
      ASSERT_NO_FATAL_FAILURE(history.expect_equal(cache.view(), history.token_count() - cache.view().token_count()));
      if (below(4) == 0) {
        const auto chosen = random_sequences(2);
        cache.select(chosen);
        history.select(chosen);
      }
    }
  }
}

TEST_F(LayerCacheTest, ASlidingCacheIsCroppedOnlyWhileNothingHasLeft) {
  SlidingCache cache(history.shape, 4);
  ASSERT_TRUE(cache.update(history.add(random, 4)));
  EXPECT_TRUE(cache.crop(2));
  history.crop(2);
  history.expect_equal(cache.update(history.add(random, 2)).value(), 0);
  ASSERT_TRUE(cache.update(history.add(random, 1)));
  EXPECT_EQ(cache.crop(4).error(), Errc::kUnsupported);
  EXPECT_TRUE(cache.crop(5));
}

TEST_F(LayerCacheTest, AModelWithLayersOfSeveralKindsHasOneCacheForEach) {
  std::vector<std::unique_ptr<LayerCache>> layers;
  layers.push_back(std::make_unique<SlidingCache>(history.shape, 4));
  layers.push_back(std::make_unique<StaticCache>(history.shape, 32));
  for (int step = 0; step < 10; ++step) {
    const KvTensor added = history.add(random, 1 + below(3));
    for (const auto& layer : layers) {
      const KvView view = layer->update(added).value();
      history.expect_equal(view, history.token_count() - view.token_count());
      EXPECT_EQ(layer->token_count(), history.token_count());
    }
  }
}

TEST_F(LayerCacheTest, AViewWithAHoldOnItsMemoryOutlivesTheCache) {
  std::shared_ptr<const void> memory;
  const float* keys = nullptr;
  {
    GrowingCache cache;
    const KvView view = cache.update(history.add(random, 3)).value();
    memory = view.tensor->memory();
    keys = reinterpret_cast<const float*>(view.tensor->layout().base(0, 0));
    ASSERT_TRUE(cache.update(history.add(random, 9)));  // grows into other memory
  }
  EXPECT_EQ(keys[0], history.sequences[0][0].key[0]);
}

TEST_F(LayerCacheTest, ADroppedViewCostsNoMemory) {
  SlidingCache sliding(history.shape, 4);
  const std::int64_t own = sliding.memory_bytes();
  ASSERT_TRUE(sliding.update(history.add(random, 20)));
  EXPECT_GT(sliding.memory_bytes(), own);
  sliding.drop_view();
  EXPECT_EQ(sliding.memory_bytes(), own);
  EXPECT_EQ(own, 2 * 2 * 4 * (4 + 3) * 4);  // sequences, heads, tokens, features of K and V, bytes
  EXPECT_EQ(GrowingCache().memory_bytes(), 0);
}

TEST_F(LayerCacheTest, HalfPrecisionIsCopiedBitForBit) {
  const TokenShape shape{.batch_count = 1, .heads = 1, .key_size = 2, .value_size = 2, .element = Element::kBf16};
  KvTensor added(shape, 1);
  added.set_key(0, 0, 0, 1, 1.5F);
  GrowingCache cache;
  EXPECT_EQ(cache.update(added)->tensor->key(0, 0, 0, 1), 1.5F);
}

}  // namespace
}  // namespace kv
