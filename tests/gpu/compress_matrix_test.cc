// Group F of the matrix: caches that keep less than all tokens of a head.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "gpu/compress.h"
#include "tests/gpu/backend.h"
#include "tests/gpu/matrix.h"

namespace kv {
namespace {

using Ints = std::vector<std::int32_t>;
using Longs = std::vector<std::int64_t>;

/// key[t][h] = 10 t + h, as a dense source of one feature; the value is its negative.
TestCache counted_tokens(std::int64_t tokens, std::int64_t heads) {
  const Layout like =
      layouts::ragged(
          {.block_count = 1, .block_tokens = tokens, .heads = heads, .key_size = 1, .element = Element::kFp16})
          .value();
  TestCache source(like);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      source.set(0, Role::kKey, t, h, 0, static_cast<float>(10 * t + h));
      source.set(0, Role::kValue, t, h, 0, -static_cast<float>(10 * t + h));
    }
  }
  return source;
}

class CompressMatrixTest : public MatrixTest {
 protected:
  /// Keys of slots 0 to `count` - 1, untouched ones as -1.
  static std::vector<float> keys_of(const TestCache& cache, std::int64_t count) {
    std::vector<float> keys;
    for (std::int64_t slot = 0; slot < count; ++slot) {
      const bool is_canary = cache.code(0, Role::kKey, slot, 0, 0) == 0xA5A5;
      keys.push_back(is_canary ? -1 : cache.value(0, Role::kKey, slot, 0, 0));
      if (!is_canary) {
        EXPECT_EQ(cache.value(0, Role::kValue, slot, 0, 0), -keys.back());
      }
    }
    return keys;
  }
  static Layout folded(std::int64_t blocks, std::int64_t tokens) {
    return layouts::head_folded(
               {.block_count = blocks, .block_tokens = tokens, .key_size = 1, .element = Element::kFp16})
        .value();
  }
};

TEST_P(CompressMatrixTest, GoldenLastTokensOfEachHead) {
  TestCache source = counted_tokens(5, 2);
  TestCache cache(folded(5, 2));
  const Ints lengths = {3, 2}, windows = {2, 3, 1, 2};
  const Longs slots = {0, 2, 6, 8};
  const auto rows = plan_keep_rows({KeepMode::kLast, 2, lengths, windows, {}, slots});
  ASSERT_TRUE(rows);
  ASSERT_TRUE(backend().scatter_kept(cache, *rows, source));
  EXPECT_EQ(keys_of(cache, 10), (std::vector<float>{10, 20, 1, 11, 21, -1, 40, -1, 31, 41}));
}

TEST_P(CompressMatrixTest, GoldenMeansAndDroppedWindows) {
  const Ints lengths = {5, 3}, windows = {3, 0, 2, 1}, offsets = {1, 1, 0, -1};
  const Longs slots = {0, 4, 10, 12};
  TestCache source = counted_tokens(8, 2);
  TestCache cache(folded(8, 2));
  const auto rows = plan_keep_rows({KeepMode::kMean, 2, lengths, windows, offsets, slots});
  ASSERT_TRUE(rows);
  ASSERT_TRUE(backend().scatter_kept(cache, *rows, source));
  EXPECT_EQ(keys_of(cache, 15), (std::vector<float>{0, 20, 40, -1, 1, 11, 21, 31, 41, -1, 55, 70, 51, 61, 71}));
  EXPECT_EQ(cache.value(0, Role::kLogCount, 1, 0, 0), static_cast<float>(std::log(3.0)));
  EXPECT_EQ(cache.value(0, Role::kLogCount, 10, 0, 0), static_cast<float>(std::log(2.0)));
  EXPECT_EQ(cache.value(0, Role::kLogCount, 0, 0, 0), 0.0F);
  TestCache dropped(folded(8, 2));
  const auto kept = plan_keep_rows({KeepMode::kDrop, 2, lengths, windows, offsets, slots});
  ASSERT_TRUE(kept);
  ASSERT_TRUE(backend().scatter_kept(dropped, *kept, source));
  EXPECT_EQ(keys_of(dropped, 15), (std::vector<float>{0, 40, -1, -1, 1, 11, 21, 31, 41, -1, 70, -1, 51, 61, 71}));
}

/// A device cannot refuse rows that lie in its memory: each one that is not within is skipped as a whole.
TEST_P(CompressMatrixTest, RowsThatAreNotWithinTouchNothing) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  TestCache source = counted_tokens(8, 2);
  const KeepRow good{.slot = 3, .token = 1, .head = 1, .token_count = 2};
  std::vector<KeepRow> bad(13, good);
  bad[0].slot = -1, bad[1].slot = 16, bad[2].slot = kMax;
  bad[3].token = -1, bad[4].token = 7, bad[5].token = 8, bad[6].token = kMax, bad[7].token = -kMax;
  bad[8].head = -1, bad[9].head = 2, bad[10].token_count = 0, bad[11].token_count = -1;
  bad[12].token_count = std::numeric_limits<std::int32_t>::max();
  for (std::size_t i = 0; i < bad.size(); ++i) {
    SCOPED_TRACE(i);
    TestCache cache(folded(8, 2));
    const TestCache before = cache;
    const auto kept = backend().scatter_kept(cache, {&bad[i], 1}, source);
    if (backend().refuses_slots()) {
      EXPECT_EQ(kept.error(), Errc::kBadRequest);
    } else {
      EXPECT_TRUE(kept);
    }
    EXPECT_TRUE(same_bytes(cache, before));
  }
}

/// An offset of -1 keeps the whole sequence: the window then says nothing, whatever it holds.
TEST_P(CompressMatrixTest, AWindowCountsOnlyWithAnOffset) {
  TestCache source = counted_tokens(3, 2);
  const Ints lengths = {3}, windows = {50, -7}, offsets = {-1, -1};
  const Longs slots = {0, 3};
  for (const KeepMode mode : {KeepMode::kMean, KeepMode::kDrop}) {
    TestCache cache(folded(4, 2));
    const auto rows = plan_keep_rows({mode, 2, lengths, windows, offsets, slots});
    ASSERT_TRUE(rows);
    ASSERT_TRUE(backend().scatter_kept(cache, *rows, source));
    EXPECT_EQ(keys_of(cache, 7), (std::vector<float>{0, 10, 20, 1, 11, 21, -1}));
  }
  EXPECT_EQ(plan_keep_rows({KeepMode::kLast, 2, lengths, windows, {}, slots}).error(), Errc::kBadRequest);
  const Ints late = {0, -1};
  EXPECT_EQ(plan_keep_rows({KeepMode::kMean, 2, lengths, windows, late, slots}).error(), Errc::kBadRequest);
}

/// Every combination of batch, heads, head size and element, windows and offsets at their edges and at random.
TEST_P(CompressMatrixTest, RowsAreWhatTheDefinitionsSay) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE(seed_text(seed));
  std::mt19937_64 random(seed);
  std::size_t turn = 0;
  for (const std::int64_t batch : {1, 40}) {
    for (const std::int64_t heads : {1, 40}) {
      for (std::int64_t size = 32; size <= 256; size += 32) {
        for (const KeepMode mode : {KeepMode::kLast, KeepMode::kMean, KeepMode::kDrop}) {
          Element element = ++turn % 2 == 0 ? Element::kFp16 : Element::kBf16;
          if (mode == KeepMode::kLast && turn % 3 == 0) element = Element::kInt8;
          SCOPED_TRACE("batch " + std::to_string(batch) + " H " + std::to_string(heads) + " D " + std::to_string(size));
          Ints lengths, windows, offsets;
          Longs slots;
          std::int64_t tokens = 0, next_slot = 1;
          for (std::int64_t b = 0; b < batch; ++b) {
            lengths.push_back(static_cast<std::int32_t>(1 + random() % 9));
            tokens += lengths.back();
            for (std::int64_t h = 0; h < heads; ++h) {
              const auto n = static_cast<std::size_t>(lengths.back());
              const std::size_t edges[] = {0, 1, n, random() % (n + 1)};
              const std::size_t window = edges[random() % 4];
              const std::size_t places[] = {0, n - window, (n - window) / 2};
              windows.push_back(static_cast<std::int32_t>(window));
              offsets.push_back(random() % 4 == 0 ? -1 : static_cast<std::int32_t>(places[random() % 3]));
              slots.push_back(random() % 10 == 0 ? -1 : next_slot);
              if (slots.back() >= 0)
                next_slot += static_cast<std::int64_t>(n) + static_cast<std::int64_t>(random() % 2);
            }
          }
          const CacheShape shape{.block_count = next_slot / 4 + 3,
                                 .block_tokens = 4,
                                 .heads = heads,
                                 .key_size = size,
                                 .layer_count = 2,
                                 .element = element};
          TestCache source(dense_rows(layouts::ragged({.block_count = 1,
                                                       .block_tokens = tokens,
                                                       .heads = heads,
                                                       .key_size = size,
                                                       .layer_count = 2,
                                                       .element = element})
                                          .value(),
                                      tokens));
          source.fill_random(random);
          for (std::int64_t t = 0; element != Element::kInt8 && t < tokens;
               ++t) {  // random bits would mostly be huge or NaN
            for (std::int64_t h = 0; h < heads; ++h) {
              for (std::int64_t f = 0; f < size; ++f) {
                for (const Role role : {Role::kKey, Role::kValue}) {
                  source.set(static_cast<std::int64_t>(random() % 2), role, t, h, f,
                             static_cast<float>(static_cast<int>(random() % 2000) - 1000) / 128);
                }
              }
            }
          }
          TestCache cache(layouts::head_folded(shape).value());
          TestCache want = cache;
          const auto token = [&](std::int64_t layer, Role role, std::int64_t t, std::int64_t h, std::int64_t f) {
            return source.value(layer, role, t, h, f);
          };
          std::int64_t start = 0;
          for (std::int64_t b = 0; b < batch; ++b) {
            const std::int64_t n = lengths[static_cast<std::size_t>(b)];
            for (std::int64_t h = 0; h < heads; ++h) {
              const auto i = static_cast<std::size_t>(b * heads + h);
              const std::int64_t w = windows[i];
              std::int64_t p = offsets[i];
              if (slots[i] < 0) continue;
              std::int64_t slot = slots[i];
              for (std::int64_t j = 0; j < n;) {
                std::int64_t span = 1;
                bool is_kept = true;
                if (mode == KeepMode::kLast) {
                  is_kept = j >= n - w;
                } else if (p != -1 && w != 0 && j == p) {
                  span = w;
                  is_kept = mode == KeepMode::kMean;
                }
                for (std::int64_t layer = 0; is_kept && layer < 2; ++layer) {
                  for (const Role role : {Role::kKey, Role::kValue}) {
                    for (std::int64_t f = 0; f < size; ++f) {
                      if (span == 1) {
                        std::memcpy(want.at(layer, want.column(role), slot, 0, f),
                                    source.at(layer, source.column(role), start + j, h, f),
                                    static_cast<std::size_t>(element_bytes(element)));
                        continue;
                      }
                      float sum = 0;
                      for (std::int64_t k = 0; k < span; ++k) sum += token(layer, role, start + j + k, h, f);
                      want.set(layer, role, slot, 0, f, sum / static_cast<float>(span));
                    }
                  }
                  want.set(layer, Role::kLogCount, slot, 0, 0, static_cast<float>(std::log(static_cast<double>(span))));
                }
                slot += is_kept ? 1 : 0;
                j += span;
              }
            }
            start += n;
          }
          const auto rows = plan_keep_rows({mode, heads, lengths, windows, offsets, slots});
          ASSERT_TRUE(rows);
          const bool has_means = std::ranges::any_of(*rows, [](const KeepRow& row) { return row.token_count > 1; });
          if (has_means && element == Element::kInt8) continue;
          ASSERT_TRUE(backend().scatter_kept(cache, *rows, source));
          ASSERT_TRUE(same_bytes(cache, want));
        }
      }
    }
  }
}

TEST_P(CompressMatrixTest, RefusesWindowsBeyondTheSequenceAndMeansOfIntegers) {
  const Ints lengths = {3};
  const Longs slots = {0};
  EXPECT_EQ(plan_keep_rows({KeepMode::kLast, 1, lengths, Ints{4}, {}, slots}).error(), Errc::kBadRequest);
  EXPECT_EQ(plan_keep_rows({KeepMode::kMean, 1, lengths, Ints{2}, Ints{2}, slots}).error(), Errc::kBadRequest);
  EXPECT_EQ(plan_keep_rows({KeepMode::kMean, 1, lengths, Ints{2}, Ints{-2}, slots}).error(), Errc::kBadRequest);
  EXPECT_EQ(plan_keep_rows({KeepMode::kMean, 1, lengths, Ints{2, 1}, Ints{0, 0}, slots}).error(), Errc::kBadRequest);
  TestCache source = counted_tokens(3, 1);
  TestCache cache(folded(1, 2));
  const TestCache before = cache;
  const auto rows = plan_keep_rows({KeepMode::kLast, 1, lengths, Ints{3}, {}, slots});  // three tokens, two slots
  ASSERT_TRUE(rows);
  if (!backend().refuses_slots()) return;  // a device skips what does not fit
  EXPECT_EQ(backend().scatter_kept(cache, *rows, source).error(), Errc::kBadRequest);
  EXPECT_TRUE(same_bytes(cache, before));
  const Layout bytes = layouts::head_folded({.block_count = 4, .key_size = 1, .element = Element::kInt8}).value();
  TestCache narrow(bytes);
  TestCache numbers(
      layouts::ragged({.block_count = 1, .block_tokens = 3, .heads = 1, .key_size = 1, .element = Element::kInt8})
          .value());
  const auto means = plan_keep_rows({KeepMode::kMean, 1, lengths, Ints{2}, Ints{0}, slots});
  ASSERT_TRUE(means);
  EXPECT_EQ(backend().scatter_kept(narrow, *means, numbers).error(), Errc::kMismatch);
}

KV_INSTANTIATE_MATRIX(CompressMatrixTest);

}  // namespace
}  // namespace kv
