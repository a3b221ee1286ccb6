#include "store/policy/block_sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "store_fixture.h"

namespace kv {
namespace {

constexpr auto kPolicy = SampledNames::kPolicy, kCurve = SampledNames::kCurve;

std::vector<std::uint32_t> each_of(const BlockSample& sample, std::span<const BlockHash> hashes) {
  std::vector<std::uint32_t> positions;
  for (std::size_t i = 0; i < hashes.size(); ++i)
    if (sample.has(hashes[i])) positions.push_back(static_cast<std::uint32_t>(i));
  return positions;
}

TEST(BlockSampleTest, FindsTheBlocksThatALookAtEachFinds) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  BlockSample::Positions positions;
  for (int round = 0; round < 2000; ++round) {
    // Runs of the sample's blocks and of others: of one in 32 hardly any group has two.
    const bool has_runs = round % 2 == 0;
    std::vector<BlockHash> hashes(random() % 8 == 0 ? BlockSample::kAtOnce - random() % 3 : random() % 40);
    BlockSample sample{.seed = random()}, curve = sample;
    sample.take_one_in(std::uint64_t{1} << (random() % 18));
    curve.take_one_in(1 + random() % 1000);
    bool is_in = false;
    for (BlockHash& hash : hashes) {
      for (std::byte& byte : hash.bytes) byte = static_cast<std::byte>(random());
      if (random() % 3 == 0) is_in = !is_in;
      if (!has_runs || !is_in) continue;
      std::uint64_t word[4];
      std::memcpy(word, hash.bytes.data(), sizeof word);
      word[3] = word[0] ^ sample.seed;  // the least print
      std::memcpy(hash.bytes.data(), word, sizeof word);
    }
    const std::vector<std::uint32_t> wanted = each_of(sample, hashes);
    const std::size_t count = sample.find(hashes, positions);
    const std::vector<std::uint32_t> found(positions.begin(), positions.begin() + static_cast<std::ptrdiff_t>(count));
    ASSERT_EQ(found, wanted) << "up to " << sample.print_max << " of " << hashes.size();
    SampledNames before;
    before.look(hashes);
    EXPECT_FALSE(before.find(kPolicy, sample, hashes)) << "it did not know which";
    before.set({sample, std::nullopt});
    EXPECT_FALSE(before.find(kPolicy, sample, hashes)) << "not yet";
    before.look(hashes);
    ASSERT_TRUE(before.find(kPolicy, sample, hashes));
    EXPECT_EQ(*before.find(kPolicy, sample, hashes), wanted);
    EXPECT_FALSE(before.find(kCurve, curve, hashes));
    before.set({});
    EXPECT_TRUE(before.find(kPolicy, sample, hashes)) << "of what was looked at";
    before.set({sample, curve});
    before.look(hashes);
    ASSERT_TRUE(before.find(kPolicy, sample, hashes) && before.find(kCurve, curve, hashes));
    EXPECT_EQ(*before.find(kPolicy, sample, hashes), wanted);
    EXPECT_EQ(*before.find(kCurve, curve, hashes), each_of(curve, hashes));
    EXPECT_FALSE(before.find(kCurve, {.seed = curve.seed ^ 1, .print_max = curve.print_max}, hashes));
    if (hashes.empty()) continue;
    EXPECT_FALSE(before.find(kCurve, curve, std::span(hashes).first(hashes.size() - 1)));
    EXPECT_FALSE(before.find(kPolicy, sample, std::span(hashes).first(hashes.size() - 1)));
  }
}

/// An engine's own hashes may be 64 bits behind zeros or before them.
TEST(BlockSampleTest, HasOneInSoManyOfNamesWithZeros) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (const std::size_t at : {0, 24}) {
    BlockSample sample{.seed = random()};
    sample.take_one_in(16);
    std::vector<BlockHash> hashes(32'000);
    for (BlockHash& hash : hashes) {
      const std::uint64_t word = random();
      std::memcpy(hash.bytes.data() + at, &word, sizeof word);
    }
    EXPECT_NEAR(static_cast<double>(each_of(sample, hashes).size()), 2000, 300) << at;
  }
}

}  // namespace
}  // namespace kv
