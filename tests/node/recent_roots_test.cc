#include "store/node/mover/recent_roots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "tests/client/named_chain.h"

namespace kv {
namespace {

using Lengths = std::vector<std::size_t>;

class RecentRootsTest : public testing::Test {
 protected:
  void hear(std::size_t count) { roots.hear(space, std::span(chain).first(count), now); }
  Lengths told() const { return roots.roots(space, chain, now); }

  RecentRoots roots;
  TimePoint now{1h};
  const NamespaceId space{};
  const std::vector<BlockHash> chain = chain_of(1, 40);
};

TEST_F(RecentRootsTest, WhatIsHeardFirstWasAlwaysSo) {  // 2
  EXPECT_EQ(told(), Lengths{0}) << "nothing was heard";
  hear(10);
  EXPECT_EQ(told(), Lengths{10});
  EXPECT_EQ(roots.roots(space, std::span(chain).first(4), now), Lengths{4});
  EXPECT_EQ(roots.roots(space, chain_of(2, 40), now), Lengths{0}) << "another chain";
  EXPECT_EQ(roots.roots(NamespaceId{{std::byte{1}}}, chain, now), Lengths{0}) << "another namespace";
}

TEST_F(RecentRootsTest, ARootThatGrewOrShrankHasBothLengthsForAWhile) {  // 1
  for (const std::size_t next : {12u, 3u, 0u}) {
    roots = {};
    hear(5);
    now += 1s;
    hear(next);
    EXPECT_EQ(told(), (Lengths{next, 5}));
    now += RecentRoots::kTime - 1ns;
    EXPECT_EQ(told(), (Lengths{next, 5}));
    now += 1ns;
    EXPECT_EQ(told(), Lengths{next});
  }
}

TEST_F(RecentRootsTest, ARootThatIsForgottenAndKnownAgainWasBoth) {
  hear(11);
  now += 1s;
  hear(5);
  EXPECT_EQ(told(), (Lengths{5, 11}));
  now += 1s;
  hear(11);
  EXPECT_EQ(told(), (Lengths{11, 5}));
}

TEST_F(RecentRootsTest, OfManyLengthsTheLatestAreTold) {  // 3
  for (const std::size_t count : {0u, 2u, 4u, 6u, 8u, 10u}) {
    hear(count);
    now += 1s;
  }
  EXPECT_EQ(told(), (Lengths{10, 8, 6, 4}));
}

TEST_F(RecentRootsTest, WhatIsHotNoMoreIsKeptForAWhileAndNotWhereItIsTooMuch) {  // 3
  hear(40);
  now += 1s;
  hear(0);
  EXPECT_EQ(roots.kept_block_count(), 40u);
  now += RecentRoots::kTime;
  hear(0);
  EXPECT_EQ(roots.kept_block_count(), 0u);
  for (std::uint64_t name = 1; name < 20; ++name) {
    now += 1s;
    roots.hear(space, chain_of(name, RecentRoots::kBlocksMax / 8), now);
    EXPECT_LE(roots.kept_block_count(), RecentRoots::kBlocksMax + RecentRoots::kBlocksMax / 4);
  }
}

/// Of one chain whose root takes any length, among others: what was so last and before is told, and nothing that was
/// not so within the time.
TEST_F(RecentRootsTest, TellsTheLastTwoLengthsAndNoneThatWasNot) {
  const char* const text = std::getenv("KV_SEED");
  const std::uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device()();
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int world = 0; world < 200; ++world) {
    struct Past {
      std::size_t count;
      TimePoint until = TimePoint::max();
    };
    std::vector<Past> past;
    roots = {};
    for (int step = 0; step < 40; ++step) {
      now += (1 + random() % 90) * 1s;
      const std::size_t count = random() % 3 == 0 && !past.empty() ? past.back().count : random() % 12;
      auto hot = chain_of(2, random() % 5);
      hot.insert(hot.end(), chain.begin(), chain.begin() + static_cast<std::ptrdiff_t>(count));
      roots.hear(space, hot, now);
      if (past.empty() || past.back().count != count) {
        if (!past.empty()) past.back().until = now;
        past.push_back({count});
      }
      now += (random() % 90) * 1s;
      const Lengths lengths = told();
      ASSERT_EQ(lengths.front(), count);
      ASSERT_LE(lengths.size(), RecentRoots::kRootsMax);
      const auto was_so = [&](std::size_t length) {
        return std::ranges::any_of(past, [&](const Past& one) {
          return one.count == length && (one.until == TimePoint::max() || now - one.until < RecentRoots::kTime);
        });
      };
      for (const std::size_t length : lengths) ASSERT_TRUE(was_so(length)) << length << " in step " << step;
      if (past.size() < 2 || now - past[past.size() - 2].until >= RecentRoots::kTime) continue;
      ASSERT_NE(std::ranges::find(lengths, past[past.size() - 2].count), lengths.end()) << "in step " << step;
    }
  }
}

}  // namespace
}  // namespace kv
