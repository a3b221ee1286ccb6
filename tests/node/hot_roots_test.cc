#include "store/node/hot_roots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "transport/frames/frame.h"

namespace kv {
namespace {

using Chain = std::vector<BlockHash>;

BlockHash block(std::uint64_t name) {
  BlockHash hash;
  for (std::size_t at = 0; at < hash.bytes.size(); at += 8) {
    const std::uint64_t word = (name + at) * 0x9E3779B97F4A7C15;
    std::memcpy(hash.bytes.data() + at, &word, sizeof word);
  }
  return hash;
}

/// `count` blocks that no other call gives.
void extend(Chain& chain, std::size_t count) {
  static std::uint64_t name = 0;
  for (std::size_t i = 0; i < count; ++i) chain.push_back(block(++name));
}
Chain fresh(std::size_t count) {
  Chain chain;
  extend(chain, count);
  return chain;
}
Chain behind(const Chain& root, std::size_t count) {
  Chain chain = root;
  extend(chain, count);
  return chain;
}

NamespaceId space_named(int name) {
  NamespaceId id;
  id.bytes[0] = static_cast<std::byte>(name);
  return id;
}

class HotRootsTest : public testing::Test {
 protected:
  /// As a client that knows the newest list.
  std::uint64_t match(const Chain& chain, std::uint32_t nodes = 8, int space = 0) {
    return roots.count(space_named(space), chain, hot_blocks(chain, space), nodes);
  }
  /// Matches of chains that were never seen.
  void pass(std::size_t count, std::uint32_t nodes = 8) {
    for (std::size_t i = 0; i < count; ++i) match(fresh(40), nodes);
  }
  std::size_t hot_blocks(const Chain& chain, int space = 0) {
    Known& known = known_[space];
    const auto list = roots.list(space_named(space));
    if (known.list != list) known = {list, {list->blocks.begin(), list->blocks.end()}};
    std::size_t count = 0;
    while (count < chain.size() && known.blocks.contains(chain[count])) ++count;
    return count;
  }

  HotRoots roots;

 private:
  struct Known {
    std::shared_ptr<const HotRoots::List> list;
    std::set<BlockHash> blocks;
  };
  std::map<int, Known> known_;  ///< As a client keeps it: a list is read once.
};

TEST_F(HotRootsTest, WhatAllBeginWithIsHotToItsLastBlockAndNothingBehindIt) {
  for (const std::size_t length : {1, 31, 32, 33, 300}) {
    const Chain root = fresh(length);
    for (int i = 0; i < 600; ++i) match(behind(root, 50));
    EXPECT_EQ(roots.list(space_named(0))->blocks.size(), length) << length;
    EXPECT_EQ(hot_blocks(root), length);
    EXPECT_EQ(roots.check(), "");
    pass(5000);
    EXPECT_EQ(roots.hot_block_count(), 0u) << "nobody begins with it any more";
  }
}

TEST_F(HotRootsTest, TheMostUsedBeginningsAreToldWithTheirShares) {
  EXPECT_TRUE(roots.most_used(10).empty());
  const Chain root = fresh(20), longer = behind(root, 30);
  for (int i = 0; i < 400; ++i) {
    match(behind(i % 2 == 0 ? longer : root, 5), 1);
    match(fresh(5), 1, 3);  // another namespace, where nothing is shared
  }
  const auto used = roots.most_used(10);
  ASSERT_EQ(used.size(), 2u);
  EXPECT_EQ(used[0].block_count, 20u);
  EXPECT_EQ(used[0].last, root.back());
  EXPECT_EQ(used[0].space, space_named(0));
  EXPECT_NEAR(used[0].share, 0.5, 0.1);
  EXPECT_TRUE(used[0].is_hot);
  EXPECT_EQ(used[1].block_count, 50u) << "from the beginning of the chain";
  EXPECT_EQ(used[1].last, longer.back());
  EXPECT_NEAR(used[1].share, 0.25, 0.1);
  EXPECT_EQ(roots.most_used(1).size(), 1u);
}

TEST_F(HotRootsTest, ARootOfNoMoreThanAShareIsNotHot) {
  // Its owner sees all matches that begin with it, and an eighth of the others: 5 of 100 here are 0.6 % of all.
  const Chain root = fresh(20);
  for (int i = 0; i < 40; ++i) {
    for (int j = 0; j < 5; ++j) match(behind(root, 10));
    pass(95);
    ASSERT_EQ(hot_blocks(root), 0u);
  }
  // And 20 are 2.5 %.
  for (int i = 0; i < 20; ++i) {
    for (int j = 0; j < 20; ++j) match(behind(root, 10));
    pass(80);
  }
  EXPECT_EQ(hot_blocks(root), 20u);
}

TEST_F(HotRootsTest, AHotRootStaysHotWhenItsMatchesGoToAllNodes) {
  // 3 % of all matches: a quarter of what its owner sees, of eight nodes; once it is hot, 3 % on each.
  const Chain root = fresh(20);
  for (int i = 0; i < 1024; ++i) i % 4 == 0 ? static_cast<void>(match(behind(root, 10))) : pass(1);
  ASSERT_EQ(hot_blocks(root), 20u);
  std::set<std::uint64_t> versions;
  for (int i = 0; i < 20'000; ++i) {
    i % 33 == 0 ? static_cast<void>(match(behind(root, 10))) : pass(1);
    versions.insert(roots.version(space_named(0)));
  }
  EXPECT_EQ(versions.size(), 1u) << "it flaps";
  EXPECT_EQ(hot_blocks(root), 20u);
}

TEST_F(HotRootsTest, NamespacesAreApartAndAVersionNamesAList) {
  EXPECT_EQ(roots.version(space_named(1)), 0u);
  const Chain root = fresh(20);
  for (int i = 0; i < 200; ++i) {
    match(behind(root, 10), 8, 1);
    match(fresh(10), 8, 2);
  }
  EXPECT_EQ(hot_blocks(root, 1), 20u);
  EXPECT_NE(roots.version(space_named(1)), 0u);
  EXPECT_EQ(roots.version(space_named(1)), roots.list(space_named(1))->version);
  EXPECT_EQ(roots.version(space_named(2)), 0u);
  EXPECT_TRUE(roots.list(space_named(2))->blocks.empty());

  HotRoots other;  // another node, or another life: equal lists have equal versions
  for (int i = 0; i < 100; ++i) other.count(space_named(1), behind(root, 10), 0, 8);
  EXPECT_EQ(other.version(space_named(1)), roots.version(space_named(1)));
  const std::uint64_t before = roots.version(space_named(1));
  const Chain longer = behind(root, 5);
  for (int i = 0; i < 600; ++i) match(behind(longer, 10), 8, 1);
  EXPECT_EQ(hot_blocks(longer, 1), 25u);
  EXPECT_NE(roots.version(space_named(1)), before);
}

TEST_F(HotRootsTest, WhatIsKeptIsBoundedWhateverClientsSend) {
  std::mt19937_64 random(1);
  std::vector<Chain> known;
  for (int i = 0; i < 6000; ++i) {
    Chain chain = known.empty() || random() % 3 == 0 ? fresh(1 + random() % 300) : known[random() % known.size()];
    chain.resize(1 + random() % chain.size());
    if (random() % 2 == 0) extend(chain, random() % 600);
    if (known.size() < 50) known.push_back(chain);
    const auto nodes = static_cast<std::uint32_t>(1 + random() % kHotNodesMax);
    const int space = static_cast<int>(random() % 200);
    roots.count(space_named(space), chain, random() % (chain.size() + 1), nodes, {.tenant = std::to_string(space % 7)});
    ASSERT_LE(roots.hot_block_count(), kHotBlocksMax);
    if (i % 97 == 0) {
      ASSERT_EQ(roots.check(), "") << i;
    }
  }
}

TEST_F(HotRootsTest, ARootIsNoLongerThanItsBound) {
  const Chain root = fresh(5000);
  for (int i = 0; i < 600; ++i) match(root, 1);
  EXPECT_EQ(hot_blocks(root), HotRoots::kRootBlocksMax);
  EXPECT_EQ(roots.check(), "");
}

TEST_F(HotRootsTest, OfMoreThanAListTakesTheMostUsedAreTaken) {
  std::vector<Chain> all;
  for (int i = 0; i < 8; ++i) all.push_back(fresh(1500));
  for (int i = 0; i < 3000; ++i) match(all[static_cast<std::size_t>(i % 10 < 3 ? 0 : i % 10 < 6 ? 1 : i % 8)], 1);
  EXPECT_EQ(hot_blocks(all[0]), 1500u);
  EXPECT_EQ(hot_blocks(all[1]), 1500u);
  EXPECT_EQ(roots.hot_block_count(), kHotBlocksMax);
  EXPECT_EQ(roots.check(), "");
}

TEST_F(HotRootsTest, AMatchThatSaysItCountsManyFoldIsOne) {
  const Chain root = fresh(20);
  for (int i = 0; i < 600; ++i) match(behind(root, 10), 4);
  ASSERT_EQ(hot_blocks(root), 20u);
  for (int i = 0; i < 3; ++i) roots.count(space_named(0), fresh(10), 0, kHotNodesMax);
  for (std::uint32_t i = 0; i < 2 * HotRoots::kReview; ++i) match(behind(root, 10), 4);
  EXPECT_EQ(hot_blocks(root), 20u) << "cooled by three matches that lied";
  EXPECT_EQ(roots.check(), "");
}

TEST_F(HotRootsTest, WhatOneOwnerSaysCoolsNoRootOfAnother) {
  const SpaceOwner red{.tenant = "red"}, blue{.tenant = "blue"};
  const Chain root = fresh(20);
  const auto match_red = [&] { roots.count(space_named(1), behind(root, 10), hot_blocks(root, 1), 4, red); };
  for (int i = 0; i < 600; ++i) match_red();
  ASSERT_EQ(hot_blocks(root, 1), 20u);
  // A hundred times as many matches, each said to count as often as can be said, of chains that all are alike, and of
  // chains that fill what is kept.
  const Chain loud = fresh(2000);
  for (int i = 0; i < 6000; ++i) {
    roots.count(space_named(2), i % 2 == 0 ? behind(loud, 100) : fresh(400), 0, kHotNodesMax, blue);
    if (i % 100 == 0) match_red();
    if (i % 500 == 0) {
      ASSERT_EQ(roots.check(), "") << i;
    }
  }
  EXPECT_EQ(hot_blocks(root, 1), 20u);
  EXPECT_EQ(hot_blocks(loud, 2), 0u) << "who exaggerates cools its own roots";
  const auto used = roots.most_used(10);
  EXPECT_TRUE(std::ranges::any_of(used, [](const auto& one) { return one.owner.tenant == "red" && one.is_hot; }));
  // Another root of the same owner finds room among what is kept.
  const Chain next = fresh(30);
  for (int i = 0; i < 1200; ++i) {
    roots.count(space_named(1), behind(next, 10), hot_blocks(next, 1), 4, red);
    roots.count(space_named(2), fresh(400), 0, kHotNodesMax, blue);
  }
  EXPECT_EQ(hot_blocks(next, 1), 30u);
  EXPECT_EQ(roots.check(), "");
}

/// The same, with every block counted: what HotRoots leaves out to be quick and small must not matter.
struct Model {
  std::map<BlockHash, double> weights;
  double total = 0;
  int count = 0;
  void match(const Chain& chain, std::size_t hot_blocks, std::uint32_t nodes) {
    total += nodes;
    for (std::size_t i = 0; i < chain.size(); ++i) weights[chain[i]] += i < hot_blocks ? nodes : 1;
    if (++count % HotRoots::kWindow != 0) return;
    total /= 2;
    for (auto& [hash, weight] : weights) weight /= 2;
    std::erase_if(weights, [](const auto& entry) { return entry.second < 0.01; });
  }
};

TEST_F(HotRootsTest, AgreesWithAModelThatCountsEveryBlock) {
  const char* const text = std::getenv("KV_SEED");
  const std::uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device()();
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::size_t hot_seen = 0;
  for (int world = 0; world < 6; ++world) {
    HotRoots counted;
    Model model;
    const std::uint32_t nodes = 1 + random() % 16;
    std::vector<Chain> prompts;
    const auto draw_prompts = [&] {
      prompts.clear();
      for (std::size_t i = 0, count = 1 + random() % 12; i < count; ++i) {
        Chain base = i > 0 && random() % 2 == 0 ? prompts[random() % i] : Chain();
        base.resize(base.empty() ? 0 : 1 + random() % base.size());
        extend(base, 1 + random() % 120);
        prompts.push_back(base);
      }
    };
    draw_prompts();
    for (int i = 1; i <= 6000; ++i) {
      if (random() % 2500 == 0) draw_prompts();
      const std::size_t which = std::min(random() % (prompts.size() + 1), random() % (prompts.size() + 1));
      Chain chain = which < prompts.size() ? prompts[which] : Chain();
      extend(chain, 1 + random() % 60);
      const auto list = counted.list(space_named(0));
      const std::set<BlockHash> hot(list->blocks.begin(), list->blocks.end());
      std::size_t hot_blocks = 0;
      while (hot_blocks < chain.size() && hot.contains(chain[hot_blocks])) ++hot_blocks;
      model.match(chain, hot_blocks, nodes);
      counted.count(space_named(0), chain, hot_blocks, nodes);
      if (i % HotRoots::kReview != 0 || i % HotRoots::kWindow == 0) continue;  // between two reviews a list is old
      ASSERT_EQ(counted.check(), "") << i;
      const auto now = counted.list(space_named(0));
      const std::set<BlockHash> listed(now->blocks.begin(), now->blocks.end());
      const double total = std::max(model.total, 256.0 * nodes);
      for (const BlockHash& hash : listed) ASSERT_GT(model.weights[hash] * 200, total) << "hot and rare, " << i;
      for (const auto& [hash, weight] : model.weights) {
        if (weight * 25 <= total) continue;
        ASSERT_TRUE(listed.contains(hash)) << weight / total << " of all, " << i;
      }
      hot_seen += listed.size();
    }
  }
  EXPECT_GT(hot_seen, 1000u) << "hardly anything was hot";
}

}  // namespace
}  // namespace kv
