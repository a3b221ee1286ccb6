#include "gpu/verified.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/checksum.h"
#include "gpu/named_layouts.h"
#include "tests/gpu/matrix.h"
#include "tests/gpu/test_cache.h"

namespace kv {
namespace {

/// Four blocks of 32 tokens out of a cache of pages of 16, 90 KiB each: more than a stripe.
class VerifiedTest : public testing::Test {
 protected:
  static constexpr std::int64_t kBlocks = 4;
  static constexpr std::int64_t kTokens = 32;

  void SetUp() override {
    random_.seed(seed_);
    source_.fill_random(random_);
    slots_ = random_slots(random_, kBlocks * kTokens, source_.layout().slot_count(), false);
    block_bytes_ = static_cast<std::size_t>(layouts::store_block_bytes(blocks_.layout()));
    stripes_ = stripe_count(block_bytes_);
    sums_.resize(kBlocks * stripes_);
    ASSERT_GT(stripes_, 1u);
    ASSERT_TRUE(gather_with_checksums(blocks_.bound(), source_.bound(), Rows::slots(slots_.data()), seeds_, sums_));
  }

  std::span<std::byte> block(std::size_t i) { return {blocks_.bound().bases[0] + i * block_bytes_, block_bytes_}; }

  static CacheShape shape() {
    return {
        .block_count = 10, .block_tokens = 16, .heads = 5, .key_size = 96, .layer_count = 3, .element = Element::kInt8};
  }
  const std::uint64_t seed_ = test_seed();
  testing::ScopedTrace trace_{__FILE__, __LINE__, seed_text(seed_)};
  std::mt19937_64 random_;
  TestCache source_{layouts::hnd(shape()).value()};
  TestCache pages_{layouts::fractal_nz({.block_count = 10,
                                        .block_tokens = 16,
                                        .heads = 5,
                                        .key_size = 96,
                                        .layer_count = 3,
                                        .element = Element::kInt8})
                       .value()};
  TestCache blocks_{layouts::store_block(source_.layout(), 5, kBlocks, kTokens).value()};
  std::vector<std::int64_t> slots_;
  std::vector<std::uint64_t> seeds_ = {11, 22, 33, 44};
  std::vector<std::uint64_t> sums_;
  std::size_t block_bytes_ = 0;
  std::size_t stripes_ = 0;
};

TEST_F(VerifiedTest, GatheredBlocksHaveTheChecksumsOfTheirBytes) {
  TestCache want(blocks_.layout());
  copy_elements(want, Rows::range(), source_, Rows::slots(slots_.data()), kBlocks * kTokens);
  EXPECT_TRUE(same_bytes(blocks_, want));
  for (std::size_t i = 0; i < kBlocks; ++i) {
    EXPECT_TRUE(verify_block(seeds_[i], block(i), std::span(sums_).subspan(i * stripes_, stripes_)));
  }
}

TEST_F(VerifiedTest, SoundBlocksArriveInPagesOfAnotherLayout) {
  TestCache want = pages_;
  copy_elements(want, Rows::slots(slots_.data()), blocks_, Rows::range(), kBlocks * kTokens);
  EXPECT_EQ(scatter_verified(pages_.bound(), Rows::slots(slots_.data()), blocks_.bound(), seeds_, sums_).value(),
            kBlocks);
  EXPECT_TRUE(same_bytes(pages_, want));
}

TEST_F(VerifiedTest, NothingIsWrittenFromTheFirstWrongBitOn) {
  for (std::size_t wrong = 0; wrong < kBlocks; ++wrong) {
    for (const std::size_t place : {std::size_t{0}, block_bytes_ / 2, block_bytes_ - 1}) {
      TestCache cache = pages_;
      TestCache want = pages_;
      copy_elements(want, Rows::slots(slots_.data()), blocks_, Rows::range(),
                    static_cast<std::int64_t>(wrong) * kTokens);
      block(wrong)[place] ^= std::byte{4};
      EXPECT_EQ(scatter_verified(cache.bound(), Rows::slots(slots_.data()), blocks_.bound(), seeds_, sums_).value(),
                static_cast<std::int64_t>(wrong));
      EXPECT_TRUE(same_bytes(cache, want));
      block(wrong)[place] ^= std::byte{4};
    }
  }
}

TEST_F(VerifiedTest, ABlockUnderAnotherNameIsWrong) {
  std::swap(seeds_[1], seeds_[2]);
  EXPECT_EQ(scatter_verified(pages_.bound(), Rows::slots(slots_.data()), blocks_.bound(), seeds_, sums_).value(), 1);
}

TEST_F(VerifiedTest, RefusesCountsAndSlotsThatDoNotFitBeforeItWrites) {
  const TestCache before = pages_;
  const Rows rows = Rows::slots(slots_.data());
  EXPECT_EQ(scatter_verified(pages_.bound(), rows, blocks_.bound(), seeds_, std::span(sums_).first(3)).error(),
            Errc::kMismatch);
  slots_.back() = pages_.layout().slot_count();
  EXPECT_EQ(scatter_verified(pages_.bound(), rows, blocks_.bound(), seeds_, sums_).error(), Errc::kBadRequest);
  EXPECT_EQ(scatter_verified(pages_.bound(), rows, source_.bound(), seeds_, sums_).error(), Errc::kMismatch);
  EXPECT_TRUE(same_bytes(pages_, before));
}

TEST_F(VerifiedTest, EachRowOfEachBlockTurnsByItsOwnDelta) {
  std::vector<std::int64_t> deltas(kBlocks * kTokens);
  for (std::size_t i = 0; i < deltas.size(); ++i) deltas[i] = static_cast<std::int64_t>(i * i % 1000);
  const double frequencies[] = {1, 0.5, 0.25, 0.125};
  Operation turn(Operation::Kind::kRotate);
  turn.rotation = {.rotary_size = 8, .frequencies = frequencies, .deltas = deltas.data()};
  TestCache want = pages_;
  const Rows rows = Rows::slots(slots_.data());
  ASSERT_TRUE(scatter(want.bound(), rows, blocks_.bound(), kBlocks * kTokens, turn));
  EXPECT_EQ(scatter_verified(pages_.bound(), rows, blocks_.bound(), seeds_, sums_, turn).value(), kBlocks);
  EXPECT_TRUE(same_bytes(pages_, want));
}

TEST_F(VerifiedTest, RefusesRowsInBlocksThatAStoreBlockCuts) {
  const TestCache before = pages_;
  const std::vector<std::int64_t> blocks = {0, 1, 2};
  const auto done = scatter_verified(pages_.bound(), Rows::blocks(blocks.data(), 48), blocks_.bound(), seeds_, sums_);
  EXPECT_EQ(done.error(), Errc::kBadRequest);
  EXPECT_TRUE(same_bytes(pages_, before));
}

TEST_F(VerifiedTest, RowsAfterARowAreTheSameRows) {
  const std::vector<std::int32_t> pairs = {0, 3, 1, 2, 0, 7};
  const Rows kinds[] = {Rows::range(5), Rows::slots(slots_.data()), Rows::blocks(slots_.data(), 4),
                        Rows::blocks(pairs.data() + 1, 4, 2)};
  for (const Rows& rows : kinds) {
    for (std::int64_t row = 0; row < 4; ++row) EXPECT_EQ(rows.after(8).slot(row), rows.slot(8 + row));
  }
}

}  // namespace
}  // namespace kv
