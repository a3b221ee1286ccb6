#include "client/cluster_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <stdexcept>

namespace kv {
namespace {

std::vector<BlockHash> random_hashes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<BlockHash> hashes(count);
  for (BlockHash& hash : hashes) {
    for (std::size_t i = 0; i < 4; ++i) {
      const std::uint64_t word = random();
      std::memcpy(hash.bytes.data() + 8 * i, &word, sizeof word);
    }
  }
  return hashes;
}

std::vector<ClusterMap::Node> nodes_named(std::initializer_list<const char*> names) {
  std::vector<ClusterMap::Node> nodes;
  for (const char* name : names) nodes.push_back({name, 1.0});
  return nodes;
}

TEST(ClusterMapTest, OwnersOfTheGoldenBlocksNeverChange) {
  const std::vector<ClusterMap::Node> nodes{{"a", 1}, {"b", 2}, {"c", 0.5}, {"tcp://10.0.0.4:7700", 1}};
  const ClusterMap map(nodes);
  std::string owners, equal_owners;
  const ClusterMap equal(nodes_named({"a", "b", "c", "tcp://10.0.0.4:7700"}));
  for (int i = 0; i < 64; ++i) {
    BlockHash hash;
    for (std::size_t j = 0; j < 32; ++j) hash.bytes[j] = static_cast<std::byte>(i * 7 + static_cast<int>(j) * 31);
    owners += static_cast<char>('0' + map.owner(hash));
    equal_owners += static_cast<char>('0' + equal.owner(hash));
  }
  EXPECT_EQ(owners, "1111101131113103111033310131021110210013310131221110113010131011");
  EXPECT_EQ(equal_owners, "1211101132113103121233302131023110220013310131221120333020131022");
}

/// 64 bits of an engine, padded to 32 bytes at either end, or numbers that only count up.
TEST(ClusterMapTest, AnEnginesShortHashesAreSpreadAsWellAsLongOnes) {
  const ClusterMap map(nodes_named({"a", "b", "c", "d"}));
  for (const std::size_t at : {0, 8, 16, 24}) {
    for (const bool counts_up : {false, true}) {
      std::vector<std::size_t> counts(4);
      const auto hashes = random_hashes(20'000, 3);
      for (std::size_t i = 0; i < hashes.size(); ++i) {
        BlockHash hash;
        const std::uint64_t number = counts_up ? i : hash_prefix(hashes[i]);
        std::memcpy(hash.bytes.data() + at, &number, sizeof number);
        ++counts[map.owner(hash)];
      }
      for (const std::size_t count : counts) EXPECT_NEAR(static_cast<double>(count), 5000, 300) << at << counts_up;
    }
  }
}

TEST(ClusterMapTest, ANodeHoldsBlocksInProportionToItsWeight) {
  const std::vector<ClusterMap::Node> nodes{{"one", 1}, {"two", 2}, {"three", 3}, {"four", 4}};
  const ClusterMap map(nodes);
  const auto hashes = random_hashes(100'000, 1);
  const auto parts = map.split(hashes);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const double expected = 100'000 * nodes[i].weight / 10;
    EXPECT_NEAR(static_cast<double>(parts[i].size()), expected, 0.04 * expected) << nodes[i].name;
  }
}

TEST(ClusterMapTest, EqualWeightsGiveTheSameOwnersWhateverTheWeight) {
  std::vector<ClusterMap::Node> nodes = nodes_named({"a", "b", "c", "d", "e"});
  const ClusterMap ones(nodes);
  nodes[0].weight = 1.0000000001;  // takes the path with logarithms
  const ClusterMap nearly_ones(nodes);
  for (const BlockHash& hash : random_hashes(10'000, 2)) EXPECT_EQ(ones.owner(hash), nearly_ones.owner(hash));
}

TEST(ClusterMapTest, AddingANodeMovesOnlyTheBlocksThatItGets) {
  const ClusterMap before(nodes_named({"a", "b", "c", "d"}));
  const ClusterMap after(nodes_named({"a", "b", "c", "d", "e"}));
  std::size_t moved = 0;
  for (const BlockHash& hash : random_hashes(50'000, 3)) {
    if (before.owner(hash) == after.owner(hash)) continue;
    ++moved;
    EXPECT_EQ(after.owner(hash), 4u);
  }
  EXPECT_NEAR(static_cast<double>(moved), 10'000, 500);
}

TEST(ClusterMapTest, TheOrderOfTheListDoesNotMatter) {
  const ClusterMap one(std::vector<ClusterMap::Node>{{"a", 1}, {"b", 2}, {"c", 3}});
  const ClusterMap other(std::vector<ClusterMap::Node>{{"c", 3}, {"a", 1}, {"b", 2}});
  constexpr std::size_t kOther[] = {1, 2, 0};
  for (const BlockHash& hash : random_hashes(10'000, 4)) EXPECT_EQ(kOther[one.owner(hash)], other.owner(hash));
}

TEST(ClusterMapTest, SplitKeepsEveryPositionOnceAndInOrder) {
  const ClusterMap map(nodes_named({"a", "b", "c"}));
  const auto hashes = random_hashes(1000, 5);
  const auto parts = map.split(hashes);
  std::vector<std::uint32_t> all;
  for (std::size_t node = 0; node < parts.size(); ++node) {
    EXPECT_TRUE(std::is_sorted(parts[node].begin(), parts[node].end()));
    for (const std::uint32_t position : parts[node]) EXPECT_EQ(map.owner(hashes[position]), node);
    all.insert(all.end(), parts[node].begin(), parts[node].end());
  }
  std::sort(all.begin(), all.end());
  std::vector<std::uint32_t> expected(hashes.size());
  std::iota(expected.begin(), expected.end(), 0u);
  EXPECT_EQ(all, expected);
}

TEST(ClusterMapTest, BadListsAreRefused) {
  EXPECT_THROW(ClusterMap(std::vector<ClusterMap::Node>{}), std::invalid_argument);
  EXPECT_THROW(ClusterMap(nodes_named({"a", "a"})), std::invalid_argument);
  EXPECT_THROW(ClusterMap(nodes_named({""})), std::invalid_argument);
  for (const double weight : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    EXPECT_THROW(ClusterMap(std::vector<ClusterMap::Node>{{"a", weight}}), std::invalid_argument) << weight;
  }
}

}  // namespace
}  // namespace kv
