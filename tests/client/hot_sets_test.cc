#include "client/hot/hot_sets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "tests/client/named_chain.h"

namespace kv {
namespace {

constexpr std::size_t kHotNodes = 3;

class HotSetsTest : public testing::Test {
 protected:
  /// As an answer that names a version, and the list that it is asked for then.
  void say(std::size_t node, std::uint64_t version, std::span<const BlockHash> blocks, std::uint32_t space = 0) {
    if (sets.hear(space, node, version, now)) sets.learn(space, node, version, blocks, now);
  }
  HotSets::Roots roots(std::uint32_t space = 0) const { return sets.roots(space, chain, now); }
  std::span<const BlockHash> first(std::size_t count) const { return std::span(chain).first(count); }

  HotSets sets{kHotNodes};
  TimePoint now{1h};
  const std::vector<BlockHash> chain = chain_of(1, 40);
};

TEST_F(HotSetsTest, ARootIsWhatAnyNodeTakesForHot) {  // 1
  EXPECT_EQ(roots().now, 0u);
  say(0, 7, first(10));
  EXPECT_EQ(roots().now, 10u);
  say(1, 8, first(20));
  EXPECT_EQ(roots().now, 20u);
  say(1, 0, {});
  EXPECT_EQ(roots().now, 10u) << "node 0 still says so";
  EXPECT_EQ(roots(1).now, 0u) << "another space";
  std::vector<BlockHash> holed(chain.begin(), chain.begin() + 30);
  holed.erase(holed.begin() + 5);
  say(0, 9, holed);
  EXPECT_EQ(roots().now, 5u) << "a node may say anything";
}

TEST_F(HotSetsTest, BlocksThatOneNodeAloneReportsCanBeLeftOut) {
  say(0, 7, first(10));
  say(1, 8, first(4));
  say(2, 9, std::span(chain).subspan(20, 2));
  EXPECT_EQ(sets.hot_blocks(0).size(), 12u);
  EXPECT_EQ(sets.hot_blocks(0, 0).size(), 6u) << "node 1 reports the first four too";
  EXPECT_EQ(sets.hot_blocks(0, 1).size(), 12u);
  EXPECT_EQ(sets.hot_blocks(0, 2).size(), 10u);
  EXPECT_EQ(sets.hot_blocks(0, kHotNodes).size(), 12u) << "no such node";
  sets.forget_node(1, now);
  EXPECT_EQ(sets.hot_blocks(0, 0).size(), 2u);
}

TEST_F(HotSetsTest, ANodeIsAskedOnlyWhenItsVersionIsNews) {
  EXPECT_FALSE(sets.hear(0, 0, 0, now));
  EXPECT_TRUE(sets.hear(0, 0, 5, now));
  EXPECT_TRUE(sets.hear(0, 0, 5, now)) << "nobody has asked yet";
  sets.learn(0, 0, 5, first(3), now);
  EXPECT_FALSE(sets.hear(0, 0, 5, now));
  EXPECT_TRUE(sets.hear(0, 1, 5, now)) << "another node's word is its own";
  EXPECT_FALSE(sets.hear(0, 0, 0, now)) << "nothing is hot: there is nothing to ask for";
  EXPECT_EQ(roots().now, 0u);
}

TEST_F(HotSetsTest, EachSpaceIsMetOnce) {
  EXPECT_TRUE(sets.meet(0));
  EXPECT_FALSE(sets.meet(0));
  EXPECT_TRUE(sets.meet(1));
  say(0, 7, first(10));
  EXPECT_FALSE(sets.meet(0));
  EXPECT_FALSE(roots().before);
}

TEST_F(HotSetsTest, WhatNodesSayFirstToAClientThatHasJustBegunIsNoChange) {  // 2
  say(0, 7, first(10));
  EXPECT_EQ(roots().now, 10u);
  EXPECT_FALSE(roots().before);
  now += HotSets::kMeetTime - Duration(1);
  say(1, 8, first(20));
  EXPECT_EQ(roots().now, 20u);
  EXPECT_FALSE(roots().before);
}

/// Such as one that comes back: what was put while it was away, or had counted nothing yet, lies by the root before.
TEST_F(HotSetsTest, WhatANodeSaysFirstThatComesLaterIsAChange) {  // 2
  say(0, 0, {});
  say(1, 7, first(5));
  now += HotSets::kMeetTime;
  say(2, 8, first(10));
  EXPECT_EQ(roots().now, 10u);
  EXPECT_EQ(roots().before, 5u);
  sets.forget_node(2, now += 10s);
  EXPECT_EQ(roots().now, 5u);
  EXPECT_EQ(roots().before, 10u);
  say(2, 9, first(3));
  say(2, 8, first(10));
  EXPECT_EQ(roots().now, 10u);
  EXPECT_EQ(roots().before, 5u);
}

TEST_F(HotSetsTest, AChainHasItsFormerPlaceForAWhileAfterAChange) {  // 2
  say(0, 0, {});
  say(0, 7, first(10));
  EXPECT_EQ(roots().now, 10u);
  EXPECT_EQ(roots().before, 0u);
  now += HotSets::kChangeTime - Duration(1);
  EXPECT_EQ(roots().before, 0u);
  now += Duration(1);
  EXPECT_FALSE(roots().before);

  say(0, 8, first(25));  // it grows
  EXPECT_EQ(roots().before, 10u);
  now += 1min;
  say(0, 9, first(15));  // and shrinks: the latest change counts
  EXPECT_EQ(roots().now, 15u);
  EXPECT_EQ(roots().before, 25u);
  now += 1min;
  say(0, 0, {});
  EXPECT_EQ(roots().now, 0u);
  EXPECT_EQ(roots().before, 15u);
  now += HotSets::kChangeTime;
  EXPECT_FALSE(roots().before);
}

TEST_F(HotSetsTest, AChangeElsewhereConcernsNoOtherChain) {
  say(0, 7, first(10));
  std::vector<BlockHash> more(chain.begin(), chain.begin() + 10);
  const auto other = chain_of(2, 5);
  more.insert(more.end(), other.begin(), other.end());
  say(0, 8, more);
  EXPECT_FALSE(roots().before);
  EXPECT_EQ(sets.roots(0, other, now).now, 5u);
  EXPECT_EQ(sets.roots(0, other, now).before, 0u);
  say(1, 9, first(10));  // what is hot already stays so
  EXPECT_FALSE(roots().before);
}

TEST_F(HotSetsTest, ANodeThatSaysTooMuchCountsForNothing) {  // 3
  say(0, 1, first(10));
  for (std::uint32_t space = 1; space < 100; ++space) say(1, space, chain_of(space, 4096), space);
  EXPECT_EQ(roots().now, 10u);
  say(1, 1000, first(20));
  EXPECT_EQ(roots().now, 10u);
  for (std::uint32_t space = 1; space < 100; ++space) say(1, 0, {}, space);
  say(1, 1001, first(20));
  EXPECT_EQ(roots().now, 20u) << "it has room again";
  std::vector<BlockHash> twice(50, chain[0]);
  say(1, 1002, twice);
  EXPECT_EQ(roots().now, 10u);
}

TEST_F(HotSetsTest, AGetGoesWhereAMatchFoundIt) {
  say(0, 0, {});
  say(0, 7, first(10));
  EXPECT_EQ(sets.place_of(0, first(20), now).hot_blocks, 10u);
  sets.found(0, chain[19], {.hot_blocks = 0, .node = 2});
  EXPECT_EQ(sets.place_of(0, first(20), now).hot_blocks, 0u);
  EXPECT_EQ(sets.place_of(0, first(20), now).node, 2u);
  EXPECT_EQ(sets.place_of(0, first(19), now).hot_blocks, 10u);
  EXPECT_FALSE(sets.place_of(0, first(19), now).node);
  EXPECT_EQ(sets.place_of(1, first(20), now).hot_blocks, 0u) << "of another space nothing is known";
  sets.forget(chain[19]);
  EXPECT_EQ(sets.place_of(0, first(20), now).hot_blocks, 10u);
  sets.found(0, chain[19], {.hot_blocks = 0, .node = 2});
  const auto others = chain_of(9, HotSets::kFoundMax);
  for (std::size_t i = 0; i + 1 < others.size(); ++i) sets.found(0, others[i], {3});
  EXPECT_EQ(sets.place_of(0, first(20), now).hot_blocks, 0u);
  sets.found(0, others.back(), {3});
  EXPECT_EQ(sets.place_of(0, first(20), now).hot_blocks, 10u) << "the oldest is forgotten";
  EXPECT_EQ(sets.place_of(0, {}, now).hot_blocks, 0u);
}

/// What roots() says, from the whole history of words.
TEST_F(HotSetsTest, AgreesWithAModelThatRemembersEverything) {
  const char* const text = std::getenv("KV_SEED");
  const std::uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device()();
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int world = 0; world < 200; ++world) {
    HotSets tested(kHotNodes);
    std::vector<std::set<BlockHash>> words(kHotNodes);
    std::vector<bool> heard(kHotNodes);
    std::optional<TimePoint> began;
    struct Past {
      std::set<BlockHash> hot;  ///< Before a change,
      TimePoint end;            ///< which came then.
      bool is_change;
    };
    std::vector<Past> past;
    const auto hot_now = [&] {
      std::set<BlockHash> hot;
      for (const auto& word : words) hot.insert(word.begin(), word.end());
      return hot;
    };
    const auto leading = [&](const std::set<BlockHash>& hot) {
      std::size_t count = 0;
      while (count < chain.size() && hot.contains(chain[count])) ++count;
      return count;
    };
    for (std::uint64_t version = 1; version < 30; ++version) {
      const std::size_t node = random() % kHotNodes, length = random() % 12;
      const auto blocks = random() % 4 == 0 ? chain_of(2, length)
                                            : std::vector<BlockHash>(
                                                  chain.begin(), chain.begin() + static_cast<std::ptrdiff_t>(length));
      now += (random() % 120) * 1s;
      if (!began) began = now;
      past.push_back({hot_now(), now, heard[node] || now >= *began + HotSets::kMeetTime});
      tested.learn(0, node, version, blocks, now);
      words[node] = {blocks.begin(), blocks.end()};
      heard[node] = true;
      now += (random() % 2) * 1s;
      const HotSets::Roots roots = tested.roots(0, chain, now);
      ASSERT_EQ(roots.now, leading(hot_now()));
      // Only prefixes are said here: the chain's root before its latest change was the one that was longer or shorter.
      std::optional<std::size_t> before;
      for (auto one = past.rbegin(); one != past.rend(); ++one) {
        if (leading(one->hot) == roots.now) continue;
        if (one->is_change && now - one->end < HotSets::kChangeTime) before = leading(one->hot);
        break;
      }
      if (before) {
        ASSERT_EQ(roots.before, before) << version;
      } else if (roots.before) {
        // A first answer hides the change before it, which may still be followed: one that really was.
        ASSERT_TRUE(std::ranges::any_of(past, [&](const Past& one) {
          return one.is_change && leading(one.hot) == *roots.before && now - one.end < HotSets::kChangeTime;
        })) << version;
      }
    }
  }
}

}  // namespace
}  // namespace kv
