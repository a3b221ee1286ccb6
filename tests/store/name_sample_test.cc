#include "store/name_sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "store_fixture.h"

namespace kv {
namespace {

TEST(NameSampleTest, FindsTheBlocksThatALookAtEachFinds) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  SampleLook::Positions positions;
  for (int round = 0; round < 2000; ++round) {
    // Runs of the sample's blocks and of others: of one in 32 hardly any group has two.
    const bool has_runs = round % 2 == 0;
    std::vector<BlockHash> hashes(random() % 8 == 0 ? SampleLook::kAtOnce - random() % 3 : random() % 40);
    const auto mask = static_cast<std::uint32_t>((std::uint64_t{1} << (random() % 18)) - 1);
    const NameSample sample{.mask = mask, .wanted = static_cast<std::uint32_t>(random()) & mask};
    std::vector<std::uint32_t> wanted;
    bool is_in = false;
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      for (std::byte& byte : hashes[i].bytes) byte = static_cast<std::byte>(random());
      if (random() % 3 == 0) is_in = !is_in;
      if (has_runs && is_in) std::memcpy(hashes[i].bytes.data() + 16, &sample.wanted, sizeof sample.wanted);
      std::uint32_t word = 0;
      std::memcpy(&word, hashes[i].bytes.data() + 16, sizeof word);
      if (word % (std::uint64_t{mask} + 1) == sample.wanted) wanted.push_back(static_cast<std::uint32_t>(i));
    }
    const std::size_t count = SampleLook::find(sample, hashes, positions);
    const std::vector<std::uint32_t> found(positions.begin(), positions.begin() + static_cast<std::ptrdiff_t>(count));
    ASSERT_EQ(found, wanted) << "one in " << mask + std::uint64_t{1} << " of " << hashes.size();
    SampledNames before;
    before.look(hashes);
    EXPECT_FALSE(before.fits(sample, hashes)) << "it did not know which";
    before.set(sample);
    EXPECT_FALSE(before.fits(sample, hashes)) << "not yet";
    before.look(hashes);
    EXPECT_TRUE(before.fits(sample, hashes));
    EXPECT_TRUE(std::ranges::equal(before.positions(), wanted));
    before.set(std::nullopt);
    EXPECT_TRUE(before.fits(sample, hashes)) << "of what was looked at";
    const PrintSample prints{.seed = random(),
                             .threshold = static_cast<std::uint32_t>(random() >> (32 + random() % 8))};
    EXPECT_FALSE(before.fits(prints, hashes));
    before.set(sample, prints);
    before.look(hashes);
    EXPECT_TRUE(before.fits(prints, hashes) && before.fits(sample, hashes));
    std::vector<std::uint32_t> by_print;
    for (std::size_t i = 0; i < hashes.size(); ++i)
      if (prints.has(hashes[i])) by_print.push_back(static_cast<std::uint32_t>(i));
    EXPECT_TRUE(std::ranges::equal(before.positions(), wanted));
    EXPECT_TRUE(std::ranges::equal(before.curve_positions(), by_print));
    EXPECT_FALSE(before.fits({.seed = prints.seed, .threshold = prints.threshold ^ 1}, hashes));
    if (hashes.empty()) continue;
    EXPECT_FALSE(before.fits(prints, std::span(hashes).first(hashes.size() - 1)));
    EXPECT_FALSE(before.fits(sample, std::span(hashes).first(hashes.size() - 1)));
    EXPECT_FALSE(before.fits({.mask = 2 * mask + 1, .wanted = sample.wanted}, hashes));
  }
}

}  // namespace
}  // namespace kv
