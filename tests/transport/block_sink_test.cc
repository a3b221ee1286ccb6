#include "transport/frames/block_sink.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <random>

#include "tests/transport/sim_world.h"

namespace kv {
namespace {

std::vector<std::byte> random_bytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (auto& each : bytes) each = static_cast<std::byte>(random());
  return bytes;
}

/// Blocks as they travel, and a place for each to land.
struct Blocks {
  explicit Blocks(const std::vector<std::size_t>& sizes) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      sent.push_back(random_bytes(sizes[i], i));
      landed.emplace_back(sizes[i], std::byte{0xEE});
      sums.emplace_back(stripe_count(sizes[i]));
      block_checksums(1000 + i, sent[i], sums[i]);
      payload.insert(payload.end(), sent[i].begin(), sent[i].end());
    }
    for (std::size_t i = 0; i < sizes.size(); ++i) targets.push_back({landed[i], 1000 + i, 0, sums[i]});
  }
  std::vector<std::vector<std::byte>> sent, landed;
  std::vector<std::vector<std::uint64_t>> sums;
  std::vector<BlockTarget> targets;
  std::vector<std::byte> payload;
};

/// Gives `payload` to the sink, at most `step()` bytes a time, as a stream would.
template <class Step>
void feed(PayloadSink& sink, std::span<const std::byte> payload, Step step) {
  while (!payload.empty()) {
    std::array<asio::mutable_buffer, 16> buffers;
    const std::size_t count = sink.next(buffers);
    ASSERT_GE(count, 1u);
    ASSERT_LE(count, buffers.size());
    std::size_t left = std::min<std::size_t>(payload.size(), step()), moved = 0;
    for (std::size_t i = 0; i < count && left > 0; ++i) {
      ASSERT_GT(buffers[i].size(), 0u);
      const std::size_t n = std::min(left, buffers[i].size());
      std::memcpy(buffers[i].data(), payload.data() + moved, n);
      moved += n;
      left -= n;
    }
    sink.filled(moved);
    payload = payload.subspan(moved);
  }
}

const std::vector<std::vector<std::size_t>> kShapes = {
    {1},
    {kStripeBytes},
    {kStripeBytes - 1, kStripeBytes + 1},
    {1, 1, 1, 7, kStripeBytes, 1},
    {3 * kStripeBytes, 3 * kStripeBytes + 17, 5},
    std::vector<std::size_t>(40, 4096),
};

TEST(BlockSinkTest, LandsEveryShapeInEveryStepSize) {
  for (const auto& shape : kShapes) {
    for (const std::size_t step : {std::size_t{977}, kStripeBytes - 1, kStripeBytes, kStripeBytes + 1, SIZE_MAX}) {
      Blocks blocks(shape);
      BlockSink sink(blocks.targets);
      feed(sink, blocks.payload, [=] { return step; });
      EXPECT_EQ(blocks.landed, blocks.sent);
      EXPECT_EQ(sink.good_count(), shape.size());
      EXPECT_FALSE(sink.failed());
    }
  }
}

TEST(BlockSinkTest, LandsOneByteAtATime) {
  Blocks blocks({3, kStripeBytes + 2, 1});
  BlockSink sink(blocks.targets);
  feed(sink, blocks.payload, [] { return 1; });
  EXPECT_EQ(blocks.landed, blocks.sent);
  EXPECT_EQ(sink.good_count(), 3u);
}

TEST(BlockSinkTest, OneBadByteAnywhereEndsTheGoodPrefixAtItsBlock) {
  const std::uint64_t seed = seed_or(7);
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 100; ++round) {
    Blocks blocks({kStripeBytes + 100, 2 * kStripeBytes, 10, 3 * kStripeBytes - 1});
    std::size_t at = random() % blocks.payload.size(), block = 0;
    blocks.payload[at] ^= static_cast<std::byte>(1 << (random() % 8));
    for (std::size_t left = at; left >= blocks.sent[block].size(); ++block) left -= blocks.sent[block].size();
    BlockSink sink(blocks.targets);
    feed(sink, blocks.payload, [&] { return 1 + random() % (3 * kStripeBytes); });
    EXPECT_EQ(sink.good_count(), block) << "byte " << at;
    EXPECT_TRUE(sink.failed());
  }
}

TEST(BlockSinkTest, BlocksInEachOthersPlaceFail) {
  Blocks blocks({4096, 4096});
  std::rotate(blocks.payload.begin(), blocks.payload.begin() + 4096, blocks.payload.end());
  BlockSink sink(blocks.targets);
  feed(sink, blocks.payload, [] { return SIZE_MAX; });
  EXPECT_EQ(sink.good_count(), 0u);
}

TEST(BlockSinkTest, ASegmentIsVerifiedAtItsPlaceInTheBlock) {
  Blocks blocks({4 * kStripeBytes + 9});
  std::vector<std::byte> landed(2 * kStripeBytes);
  const auto sums = std::span<const std::uint64_t>(blocks.sums[0]).subspan(1, 2);
  const auto payload = std::span<const std::byte>(blocks.payload).subspan(kStripeBytes, landed.size());
  for (const std::size_t first_stripe : {1, 2}) {
    const BlockTarget target{landed, 1000, first_stripe, sums};
    BlockSink sink(std::span(&target, 1));
    feed(sink, payload, [] { return 50'000; });
    EXPECT_EQ(sink.good_count(), first_stripe == 1 ? 1u : 0u);
  }
}

TEST(BlockSinkTest, WithoutChecksumsNothingIsVerified) {
  Blocks blocks({100, 100});
  for (auto& target : blocks.targets) target.checksums = {};
  BlockSink sink(blocks.targets);
  feed(sink, blocks.payload, [] { return 33; });
  EXPECT_EQ(sink.good_count(), 2u);
}

TEST(BlockSinkTest, AfterCancelNoTargetIsTouchedAgain) {
  const std::uint64_t seed = seed_or(11);
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 50; ++round) {
    auto blocks = std::make_unique<Blocks>(std::vector<std::size_t>{kStripeBytes + 5, 100, 2 * kStripeBytes});
    const auto payload = blocks->payload;
    BlockSink sink(blocks->targets);
    const std::size_t cut = random() % (payload.size() + 1);
    feed(sink, std::span(payload).first(cut), [&] { return 1 + random() % 10'000; });
    sink.cancel();
    const std::size_t good = sink.good_count();
    blocks.reset();  // the targets are gone: the sanitizer sees any further touch
    feed(sink, std::span(payload).subspan(cut), [&] { return 1 + random() % 100'000; });
    EXPECT_EQ(sink.good_count(), good);
  }
}

}  // namespace
}  // namespace kv
