#include "client/cluster/cluster_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <sstream>
#include <stdexcept>

#include "client/core/client_core.h"

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

/// As if they had left: what the others own stays where it is.
TEST(ClusterMapTest, WithoutSomeNodesTheRestOwnsWhatItWouldIfTheyHadLeft) {
  const std::vector<ClusterMap::Node> nodes{{"a", 1}, {"b", 2}, {"c", 0.5}, {"d", 1}, {"e", 0}};
  const ClusterMap map(nodes, 8);
  const std::size_t away[] = {1, 3};
  const ClusterMap rest = map.without(away);
  const ClusterMap left(std::vector<ClusterMap::Node>{{"a", 1}, {"b", 0}, {"c", 0.5}, {"d", 0}, {"e", 0}}, 8);
  EXPECT_EQ(rest.owner_count(), 2u);
  EXPECT_EQ(rest.node_count(), 5u);
  const auto chain = random_hashes(2000, 9);
  const auto whole = map.extents(chain, 3), now = rest.extents(chain, 3), then = left.extents(chain, 3);
  ASSERT_EQ(whole.size(), now.size());
  ASSERT_EQ(then.size(), now.size());
  for (std::size_t i = 0; i < now.size(); ++i) {
    EXPECT_EQ(now[i].begin, whole[i].begin);
    EXPECT_EQ(now[i].node, then[i].node);
    if (whole[i].node == 0 || whole[i].node == 2) {
      EXPECT_EQ(now[i].node, whole[i].node);
    }
  }
  const std::size_t all[] = {0, 1, 2, 3};
  EXPECT_EQ(map.without(all).owner_count(), 4u) << "nobody would be left";
  EXPECT_EQ(map.without({}).owner_count(), 4u);
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

/// As above, of anchors: the same share of any engine's hashes.
TEST(ClusterMapTest, AnEnginesShortHashesHaveAsManyAnchorsAsLongOnes) {
  const ClusterMap map(nodes_named({"a", "b"}), 64);
  for (const std::size_t at : {0, 8, 16, 24}) {
    std::vector<BlockHash> chain(64'000);
    for (std::size_t i = 0; i < chain.size(); ++i) {
      const std::uint64_t number = i;
      std::memcpy(chain[i].bytes.data() + at, &number, sizeof number);
    }
    EXPECT_NEAR(static_cast<double>(map.extents(chain).size()), 1000, 120) << at;  // 18 of each 1,000 are cut by force
  }
}

TEST(ClusterMapTest, ANodeHoldsExtentsInProportionToItsWeight) {
  const std::vector<ClusterMap::Node> nodes{{"one", 1}, {"two", 2}, {"three", 3}, {"four", 4}};
  const ClusterMap map(nodes, 4);
  const auto hashes = random_hashes(400'000, 1);
  std::vector<double> counts(nodes.size());
  for (const ClusterMap::Extent& extent : map.extents(hashes)) {
    counts[extent.node] += static_cast<double>(extent.end - extent.begin);
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const double expected = 400'000 * nodes[i].weight / 10;
    EXPECT_NEAR(counts[i], expected, 0.04 * expected) << nodes[i].name;
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

/// The owner of each block, by the name of its node.
std::vector<std::string> owners_by_name(const ClusterMap& map, std::span<const ClusterMap::Node> nodes,
                                        std::span<const BlockHash> chain, std::size_t hot_blocks = 0) {
  std::vector<std::string> owners;
  for (const ClusterMap::Extent& extent : map.extents(chain, hot_blocks)) {
    EXPECT_EQ(extent.begin, owners.size()) << "a gap";
    owners.resize(extent.end, nodes[extent.node].name);
  }
  EXPECT_EQ(owners.size(), chain.size());
  return owners;
}

TEST(ClusterMapTest, ExtentsOfTheGoldenChainNeverChange) {
  const ClusterMap map(nodes_named({"a", "b", "c", "tcp://10.0.0.4:7700"}), 256);
  std::ostringstream extents;
  for (const ClusterMap::Extent& extent : map.extents(random_hashes(3000, 42))) {
    extents << extent.begin << ":" << extent.node << " ";
  }
  EXPECT_EQ(extents.str(), "0:2 26:0 345:3 459:2 508:0 1201:2 1456:0 1619:3 1665:0 2018:0 ");
  extents.str("");  // the same behind a root that has the first cut in it
  for (const ClusterMap::Extent& extent : map.extents(random_hashes(3000, 42), 100)) {
    extents << extent.begin << ":" << extent.node << " ";
  }
  EXPECT_EQ(extents.str(), "0:2 345:3 459:2 508:0 1201:2 1456:0 1619:3 1665:0 2018:0 ");
}

/// What the class comment says, written down once more and block by block. Draws node lists, lengths and hashes: random
/// ones, short ones, and chains that somebody chose to have no anchor, or nothing but anchors.
class RuleTest : public testing::Test {
 protected:
  RuleTest() {
    const char* const text = std::getenv("KV_SEED");
    seed_ = text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device()();
    random_.seed(seed_);
    RecordProperty("seed", std::to_string(seed_));
  }
  std::size_t pick(std::size_t low, std::size_t high) {
    return std::uniform_int_distribution<std::size_t>(low, high)(random_);
  }
  void draw() {
    nodes_.clear();
    for (std::size_t i = 0, count = pick(2, 12); i < count; ++i) {
      nodes_.push_back({"node" + std::to_string(i), pick(0, 1) == 0 ? 1.0 : static_cast<double>(pick(1, 9))});
    }
    extent_blocks_ = pick(0, 3) == 0 ? pick(1, 3) : pick(4, 60);
    chain_ = blocks(pick(0, 1500), pick(0, 5));
  }
  std::vector<BlockHash> blocks(std::size_t count, std::size_t kind) {
    std::vector<BlockHash> chain;
    BlockHash hash = random_hashes(1, random_()).front();
    while (chain.size() < count) {
      for (std::size_t at = 0; at < hash.bytes.size(); at += 8) {
        const std::uint64_t word = random_();
        std::memcpy(hash.bytes.data() + at, &word, sizeof word);
      }
      if (kind == 0) std::fill(hash.bytes.begin() + 8, hash.bytes.end(), std::byte{0});
      if (kind == 1) std::fill(hash.bytes.begin(), hash.bytes.end() - 8, std::byte{0});
      if (kind == 2 && extent_blocks_ > 1 && is_natural(hash)) continue;  // of 1, all are
      if (kind == 3 && !is_natural(hash)) continue;
      chain.push_back(hash);
    }
    return chain;
  }
  bool is_natural(const BlockHash& hash) const {
    return XXH3_64bits_withSeed(hash.bytes.data(), hash.bytes.size(), 0x726F68636E61) % extent_blocks_ == 0;
  }
  std::vector<std::string> model(const ClusterMap& map, std::span<const BlockHash> chain,
                                 std::size_t hot_blocks = 0) const {
    std::vector<std::string> owners;
    if (chain.empty()) return owners;
    std::size_t anchor = std::min(hot_blocks, chain.size() - 1);
    for (std::size_t i = 0; i < chain.size(); ++i) {
      if (i > anchor && (is_natural(chain[i]) || i - anchor == 4 * extent_blocks_)) anchor = i;
      owners.push_back(nodes_[map.owner(chain[anchor])].name);
    }
    return owners;
  }

  std::uint64_t seed_ = 0;
  std::mt19937_64 random_;
  std::vector<ClusterMap::Node> nodes_;
  std::size_t extent_blocks_ = 1;
  std::vector<BlockHash> chain_;
};

TEST_F(RuleTest, OwnersAreWhatTheModelSaysOnEveryClientAndForEveryPrefix) {
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE("KV_SEED=" + std::to_string(seed_) + ", round " + std::to_string(round));
    draw();
    const ClusterMap map(nodes_, extent_blocks_);
    const auto owners = owners_by_name(map, nodes_, chain_);
    ASSERT_EQ(owners, model(map, chain_));
    for (const ClusterMap::Extent& extent : map.extents(chain_)) {  // 4
      ASSERT_LE(extent.end - extent.begin, map.extent_blocks_max());
      ASSERT_LT(extent.begin, extent.end);
    }

    std::vector<ClusterMap::Node> shuffled = nodes_;  // 1: another client's list
    std::shuffle(shuffled.begin(), shuffled.end(), random_);
    ASSERT_EQ(owners_by_name(ClusterMap(shuffled, extent_blocks_), shuffled, chain_), owners);

    const std::size_t length = pick(0, chain_.size());  // 2: a call that is given less of the chain
    const auto of_prefix = owners_by_name(map, nodes_, std::span(chain_).first(length));
    ASSERT_TRUE(std::equal(of_prefix.begin(), of_prefix.end(), owners.begin()));

    std::vector<OwnedChain> parts = split_chain(map, chain_);  // what nodes are asked
    std::size_t count = 0;
    for (const OwnedChain& part : parts) {
      ASSERT_TRUE(part.positions.empty()) << "an extent is one piece";
      for (std::size_t i = 0; i < part.hashes.size(); ++i) {
        ASSERT_EQ(part.hashes[i], chain_[part.position(i)]);
        ASSERT_EQ(nodes_[part.node].name, owners[part.position(i)]);
      }
      count += part.hashes.size();
    }
    ASSERT_EQ(count, chain_.size());
  }
}

TEST_F(RuleTest, TheFirstExtentIsPlacedByTheBlockBehindTheHotRoot) {
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE("KV_SEED=" + std::to_string(seed_) + ", round " + std::to_string(round));
    draw();
    const ClusterMap map(nodes_, extent_blocks_);
    const std::size_t hot_blocks = pick(0, chain_.size() + 10);
    const auto owners = owners_by_name(map, nodes_, chain_, hot_blocks);
    ASSERT_EQ(owners, model(map, chain_, hot_blocks));
    const auto extents = map.extents(chain_, hot_blocks);
    for (std::size_t i = 0; i < extents.size(); ++i) {  // 4
      const std::size_t root = i == 0 ? std::min(hot_blocks, chain_.size() - 1) : 0;
      ASSERT_LE(extents[i].end - extents[i].begin - root, map.extent_blocks_max());
    }
    if (hot_blocks >= chain_.size()) continue;
    const std::size_t length = pick(hot_blocks + 1, chain_.size());  // 2: of what lies behind the root
    const auto of_prefix = owners_by_name(map, nodes_, std::span(chain_).first(length), hot_blocks);
    ASSERT_TRUE(std::equal(of_prefix.begin(), of_prefix.end(), owners.begin()));
  }
}

TEST(ClusterMapTest, PromptsThatShareOnlyTheirHotRootLieOnAllNodes) {
  const std::vector<ClusterMap::Node> nodes = nodes_named({"a", "b", "c", "d"});
  const ClusterMap map(nodes, 256);
  const auto root = random_hashes(32, 8);
  std::vector<int> counts(nodes.size()), without(nodes.size());
  for (std::uint64_t prompt = 0; prompt < 400; ++prompt) {
    std::vector<BlockHash> chain = root;
    const auto own = random_hashes(20, 100 + prompt);
    chain.insert(chain.end(), own.begin(), own.end());
    ++counts[map.extents(chain, root.size()).front().node];
    ++without[map.extents(chain).front().node];
  }
  EXPECT_THAT(counts, testing::Each(testing::Gt(70)));
  EXPECT_THAT(without, testing::Contains(400)) << "the system prompt's owner has all of it";
}

TEST_F(RuleTest, AChangeNearTheStartMovesNothingBehindTheNextAnchor) {  // 3
  std::size_t kept = 0;
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE("KV_SEED=" + std::to_string(seed_) + ", round " + std::to_string(round));
    draw();
    const ClusterMap map(nodes_, extent_blocks_);
    const std::size_t changed = pick(0, std::min<std::size_t>(100, chain_.size()));
    std::vector<BlockHash> other = blocks(pick(0, 100), 4);  // longer or shorter than what it stands for
    const std::size_t start = other.size();
    other.insert(other.end(), chain_.begin() + static_cast<std::ptrdiff_t>(changed), chain_.end());

    std::size_t anchor = changed;
    while (anchor < chain_.size() && !is_natural(chain_[anchor])) ++anchor;
    const auto before = owners_by_name(map, nodes_, chain_), after = owners_by_name(map, nodes_, other);
    for (std::size_t i = anchor; i < chain_.size(); ++i) ASSERT_EQ(after[i - changed + start], before[i]) << i;
    kept += chain_.size() - anchor;
  }
  EXPECT_GT(kept, 10'000u) << "hardly anything was looked at";
}

TEST_F(RuleTest, WithoutANodeOnlyItsExtentsMove) {  // 5
  for (int round = 0; round < 100; ++round) {
    SCOPED_TRACE("KV_SEED=" + std::to_string(seed_) + ", round " + std::to_string(round));
    draw();
    std::vector<ClusterMap::Node> left = nodes_;
    const std::string gone = left[pick(0, left.size() - 1)].name;
    std::erase_if(left, [&](const ClusterMap::Node& node) { return node.name == gone; });
    const auto before = owners_by_name(ClusterMap(nodes_, extent_blocks_), nodes_, chain_);
    const auto after = owners_by_name(ClusterMap(left, extent_blocks_), left, chain_);
    for (std::size_t i = 0; i < chain_.size(); ++i) ASSERT_TRUE(before[i] == gone || after[i] == before[i]) << i;
  }
}

TEST(ClusterMapTest, WhoChoosesHashesCannotPutALongChainOnOneNode) {
  const std::vector<ClusterMap::Node> nodes = nodes_named({"a", "b", "c", "d"});
  const ClusterMap map(nodes, 256);
  std::vector<BlockHash> chain;
  for (const BlockHash& hash : random_hashes(42'000, 6)) {
    const BlockHash pair[] = {chain.empty() ? hash : chain.back(), hash};
    if (map.extents(pair).size() == 1) chain.push_back(hash);  // no anchor
  }
  chain.resize(40'960);
  const auto extents = map.extents(chain);
  ASSERT_EQ(extents.size(), 40u);  // of 1,024 blocks
  std::vector<int> counts(nodes.size());
  for (const ClusterMap::Extent& extent : extents) ++counts[extent.node];
  EXPECT_THAT(counts, testing::Each(testing::Gt(2)));
}

TEST(ClusterMapTest, BlocksOfASetStandAlone) {
  const ClusterMap map(nodes_named({"a", "b", "c"}));
  const auto hashes = random_hashes(1000, 5);
  std::vector<bool> seen(hashes.size());
  for (const OwnedChain& part : split_set(map, hashes)) {
    for (std::size_t i = 0; i < part.hashes.size(); ++i) {
      EXPECT_EQ(map.owner(part.hashes[i]), part.node);
      EXPECT_EQ(part.hashes[i], hashes[part.positions[i]]);
      EXPECT_FALSE(seen[part.positions[i]]);
      seen[part.positions[i]] = true;
    }
  }
  EXPECT_THAT(seen, testing::Each(true));
}

TEST(ClusterMapTest, AGroupOfNamesLiesWhereItsFirstNameBelongs) {
  const ClusterMap map(nodes_named({"a", "b", "c"}));
  const auto hashes = random_hashes(1000, 5);
  std::vector<std::uint32_t> groups;
  for (std::size_t left = hashes.size(); left > 0; left -= groups.back())
    groups.push_back(static_cast<std::uint32_t>(std::min<std::size_t>(left, 1 + groups.size() % 5)));
  std::size_t seen = 0, group_count = 0;
  for (const OwnedChain& part : split_set(map, hashes, groups)) {
    std::size_t first = 0;
    for (const std::uint32_t count : part.group_counts) {
      EXPECT_EQ(map.owner(part.hashes[first]), part.node);
      for (std::size_t i = first; i < first + count; ++i) {
        EXPECT_EQ(part.positions[i], part.positions[first] + (i - first));
        EXPECT_EQ(part.hashes[i], hashes[part.positions[i]]);
      }
      first += count;
    }
    EXPECT_EQ(first, part.hashes.size());
    seen += first;
    group_count += part.group_counts.size();
  }
  EXPECT_EQ(seen, hashes.size());
  EXPECT_EQ(group_count, groups.size());
}

TEST(ClusterMapTest, OneNodeOwnsEverythingInTheExtentsThatManyNodesWouldOwn) {
  const ClusterMap map(nodes_named({"a"})), other(nodes_named({"a", "b", "c"}));
  const auto chain = random_hashes(5000, 7);
  const auto extents = map.extents(chain), others = other.extents(chain);
  ASSERT_EQ(extents.size(), others.size());
  for (std::size_t i = 0; i < extents.size(); ++i) {
    EXPECT_EQ(extents[i].node, 0u);
    EXPECT_EQ(extents[i].end, others[i].end);
  }
  EXPECT_TRUE(map.extents({}).empty());
}

TEST(ClusterMapTest, BadListsAreRefused) {
  EXPECT_THROW(ClusterMap(std::vector<ClusterMap::Node>{}), std::invalid_argument);
  EXPECT_THROW(ClusterMap(nodes_named({"a", "a"})), std::invalid_argument);
  EXPECT_THROW(ClusterMap(nodes_named({""})), std::invalid_argument);
  for (const double weight : {-1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    EXPECT_THROW(ClusterMap(std::vector<ClusterMap::Node>{{"a", weight}}), std::invalid_argument) << weight;
  }
  EXPECT_THROW(ClusterMap(std::vector<ClusterMap::Node>{{"a", 0}, {"b", 0}}), std::invalid_argument);
  for (const std::size_t extent_blocks : {std::size_t{0}, (std::size_t{1} << 20) + 1}) {
    try {
      ClusterMap(nodes_named({"a"}), extent_blocks);
      FAIL() << extent_blocks;
    } catch (const std::invalid_argument& error) {
      EXPECT_EQ(error.what(), "extent_blocks: is " + std::to_string(extent_blocks) + ", must be 1..1048576");
    }
  }
}

TEST(ClusterMapTest, AnUncutMapHasOneExtentAChain) {
  const ClusterMap map(nodes_named({"a"}), 1);
  std::vector<BlockHash> chain(3000);
  for (std::size_t i = 0; i < chain.size(); ++i)
    chain[i].bytes[0] = std::byte(i), chain[i].bytes[1] = std::byte(i >> 8);
  ASSERT_EQ(map.extents(chain).size(), chain.size());
  for (const std::size_t root : {0u, 7u}) {
    const auto whole = map.uncut().extents(chain, root);
    ASSERT_EQ(whole.size(), 1u);
    EXPECT_EQ(whole[0].begin, 0u);
    EXPECT_EQ(whole[0].end, chain.size());
    EXPECT_EQ(whole[0].anchor, root);
  }
  EXPECT_TRUE(map.uncut().extents({}).empty());
}

TEST(ClusterMapTest, ANodeWithoutWeightOwnsNothingAndChangesNothingForTheOthers) {
  const ClusterMap with(std::vector<ClusterMap::Node>{{"a", 1}, {"gone", 0}, {"b", 1}, {"c", 1}}, 8);
  const ClusterMap without(std::vector<ClusterMap::Node>{{"a", 1}, {"b", 1}, {"c", 1}}, 8);
  EXPECT_EQ(with.node_count(), 4u);
  EXPECT_EQ(with.owner_count(), 3u);
  constexpr std::size_t kNumbers[] = {0, 2, 3};  // of the same names in the first
  std::mt19937_64 random(1);
  for (int i = 0; i < 10'000; ++i) {
    BlockHash hash;
    for (std::byte& each : hash.bytes) each = std::byte(random());
    const std::size_t owner = without.owner(hash);
    ASSERT_EQ(with.owner(hash), kNumbers[owner]);
    // The one after it in the order is who would own the block if that node were not there.
    const std::size_t next = with.owner(hash, kNumbers[owner]);
    ASSERT_NE(next, kNumbers[owner]);
    ASSERT_NE(next, 1u);
    std::vector<ClusterMap::Node> rest = {{"a", 1}, {"b", 1}, {"c", 1}};
    rest[owner].weight = 0;
    ASSERT_EQ(next, kNumbers[ClusterMap(rest, 8).owner(hash)]);
  }
  const ClusterMap alone(std::vector<ClusterMap::Node>{{"a", 0}, {"b", 1}}, 8);
  EXPECT_EQ(alone.owner(BlockHash{}), 1u);
  EXPECT_EQ(alone.owner(BlockHash{}, 1), 1u) << "there is no other";
}

}  // namespace
}  // namespace kv
