// Checksums in the pass that moves blocks, on every backend, against base/checksum.h and plain scatter.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "base/checksum.h"
#include "gpu/named_layouts.h"
#include "gpu/verified.h"
#include "tests/gpu/backend.h"
#include "tests/gpu/matrix.h"

namespace kv {
namespace {

class VerifiedMatrixTest : public MatrixTest {
 protected:
  const std::uint64_t seed_ = test_seed();
  testing::ScopedTrace trace_{__FILE__, __LINE__, seed_text(seed_)};
  std::mt19937_64 random_{seed_};
};
KV_INSTANTIATE_MATRIX(VerifiedMatrixTest);

TEST_P(VerifiedMatrixTest, ChecksumsOfEveryLengthAreBitForBitThoseOfBase) {
  std::vector<std::size_t> lengths;
  for (std::size_t i = 1; i <= 300; ++i) lengths.push_back(i);
  for (std::size_t i = 0; i < 40; ++i) lengths.push_back(300 + random_() % 4000);
  for (const std::size_t around : {1024, 2048, 65536, 131072}) {
    for (const std::size_t off : {-65, -64, -63, -1, 0, 1, 63, 64, 65, 240, 241}) lengths.push_back(around + off);
  }
  lengths.push_back(1'153'434);
  for (const std::size_t length : lengths) {
    std::vector<std::byte> bytes(2 * length + 8);
    for (std::byte& each : bytes) each = static_cast<std::byte>(random_());
    const std::size_t start = random_() % 8;  // memory is not aligned for words either
    const std::uint64_t seeds[] = {random_(), random_() % 3};
    const auto blocks = std::span<const std::byte>(bytes).subspan(start, 2 * length);
    const auto sums = backend().checksums(blocks, length, seeds);
    ASSERT_TRUE(sums);
    std::vector<std::uint64_t> want(2 * stripe_count(length));
    block_checksums(seeds[0], blocks.first(length), std::span(want).first(stripe_count(length)));
    block_checksums(seeds[1], blocks.last(length), std::span(want).last(stripe_count(length)));
    ASSERT_EQ(*sums, want) << "of " << length << " bytes";
  }
}

TEST_P(VerifiedMatrixTest, SoundBlocksLandAndWrongOnesDoNot) {
  for (const NamedMaker& maker : copy_layouts()) {
    for (const std::int64_t block_tokens : {16, 48}) {  // a shift, and a division
      SCOPED_TRACE(maker.name);
      const CacheShape shape{.block_count = 20, .block_tokens = 16, .heads = 4, .key_size = 64, .layer_count = 5};
      CacheShape latent = shape;
      latent.value_size = 64;
      const Layout layout = maker.make(maker.may_differ ? latent : shape).value();
      TestCache source(layout), cache(layout);
      source.fill_random(random_);
      cache.fill_random(random_);
      constexpr std::int64_t kBlocks = 5;
      TestCache blocks(layouts::store_block(layout, 1, kBlocks, block_tokens).value());
      const std::int64_t tokens = kBlocks * block_tokens;
      const auto from = random_slots(random_, tokens, layout.slot_count(), false);
      const auto to = random_slots(random_, tokens, layout.slot_count(), true);
      std::vector<std::uint64_t> seeds(kBlocks);
      for (std::uint64_t& each : seeds) each = random_();
      TestCache want_blocks = blocks;
      copy_elements(want_blocks, Rows::range(), source, Rows::slots(from.data()), tokens);
      const auto sums = backend().gather_with_checksums(blocks, source, Rows::slots(from.data()), seeds, Operation());
      ASSERT_TRUE(sums);
      ASSERT_TRUE(same_bytes(blocks, want_blocks));
      const auto block_bytes = static_cast<std::size_t>(dense_block_bytes(blocks.layout()));
      const std::size_t stripes = stripe_count(block_bytes);
      const auto block = [&](std::size_t i) {
        return std::span<std::byte>(blocks.bound().bases.front() + i * block_bytes, block_bytes);
      };
      for (std::size_t i = 0; i < kBlocks; ++i) {
        EXPECT_TRUE(verify_block(seeds[i], block(i), std::span(*sums).subspan(i * stripes, stripes)));
      }

      const std::size_t wrong = random_() % kBlocks, place = random_() % block_bytes;
      block(wrong)[place] ^= std::byte{1};
      TestCache want = cache;
      std::vector<std::uint32_t> want_verdicts(kBlocks);
      for (std::size_t i = 0; i < kBlocks; ++i) {
        const bool is_refused = i == wrong || (i > wrong && backend().ends_at_wrong_block());
        want_verdicts[i] = is_refused ? 1 : 0;
        const auto first = static_cast<std::int64_t>(i) * block_tokens;
        if (!is_refused) copy_elements(want, Rows::slots(to.data() + first), blocks, Rows::range(first), block_tokens);
      }
      const auto verdicts =
          backend().scatter_verified(cache, Rows::slots(to.data()), blocks, seeds, *sums, Operation());
      ASSERT_TRUE(verdicts);
      EXPECT_EQ(*verdicts, want_verdicts);
      EXPECT_TRUE(same_bytes(cache, want));
    }
  }
}

TEST_P(VerifiedMatrixTest, WhatIsComputedOnTheWayIsVerifiedTooAndTurnsRowByRow) {
  const CacheShape shape{.block_count = 8, .block_tokens = 16, .heads = 2, .key_size = 32, .layer_count = 2};
  TestCache source(layouts::nhd(shape).value());
  source.fill_random(random_);
  TestCache blocks(layouts::store_block(source.layout(), 1, 4, 16).value());
  const auto slots = random_slots(random_, 64, source.layout().slot_count(), false);
  const std::uint64_t seeds[] = {1, 2, 3, 4};
  const auto sums = backend().gather_with_checksums(blocks, source, Rows::slots(slots.data()), seeds, Operation());
  ASSERT_TRUE(sums);
  std::vector<std::int64_t> deltas(64);
  for (std::size_t i = 0; i < deltas.size(); ++i) deltas[i] = static_cast<std::int64_t>(i % 16 == 3 ? 0 : i);
  const double frequencies[] = {1, 0.5, 0.25, 0.125};
  Operation turn(Operation::Kind::kRotate);
  turn.rotation = {.rotary_size = 8, .frequencies = frequencies, .deltas = deltas.data()};
  if (GetParam() == "Cuda") turn = Operation();  // the deltas would have to lie on the device
  TestCache cache(layouts::hnd(shape).value()), want = cache;
  blocks.bound().bases.front()[dense_block_bytes(blocks.layout()) * 3] ^= std::byte{1};
  ASSERT_TRUE(backend().permute(want, Rows::slots(slots.data()), blocks, Rows::range(), 48, turn));
  const auto verdicts = backend().scatter_verified(cache, Rows::slots(slots.data()), blocks, seeds, *sums, turn);
  ASSERT_TRUE(verdicts);
  EXPECT_EQ(*verdicts, (std::vector<std::uint32_t>{0, 0, 0, 1}));
  EXPECT_TRUE(same_bytes(cache, want));
}

TEST_P(VerifiedMatrixTest, RefusesWhatIsNotTheStores) {
  const CacheShape shape{.block_count = 4, .block_tokens = 16, .heads = 2, .key_size = 32};
  TestCache cache(layouts::nhd(shape).value()), blocks(layouts::store_block(cache.layout(), 1, 2).value());
  const TestCache before = cache;
  const std::vector<std::uint64_t> seeds(2), sums(2), three(3);
  const std::vector<std::int64_t> ids = {0, 1, 2, 3};
  EXPECT_EQ(backend().scatter_verified(cache, Rows::range(), cache, seeds, sums, Operation()).error(), Errc::kMismatch);
  EXPECT_FALSE(backend().scatter_verified(cache, Rows::range(), blocks, three, three, Operation()));
  EXPECT_EQ(backend().scatter_verified(cache, Rows::blocks(ids.data(), 32), blocks, seeds, sums, Operation()).error(),
            Errc::kBadRequest);
  EXPECT_TRUE(same_bytes(cache, before));
}

}  // namespace
}  // namespace kv
