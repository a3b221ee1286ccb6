// What expected yield learns, and when.
#include "store/policy/yield_policy.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "store_fixture.h"
#include "yield_counts.h"

namespace kv {
namespace {

class DeferredLearningTest : public testing::Test {
 protected:
  static std::vector<BlockHash> chain(std::uint64_t session, std::size_t count) {
    std::vector<BlockHash> hashes(count);
    std::mt19937_64 words(session);
    for (BlockHash& hash : hashes) {
      for (std::size_t at = 0; at < hash.bytes.size(); at += 8) {
        const std::uint64_t word = words();
        std::memcpy(hash.bytes.data() + at, &word, sizeof word);
      }
    }
    return hashes;
  }
  static void tell(YieldPolicy& policy, const std::vector<BlockHash>& hashes, std::size_t found, std::uint64_t tick,
                   const SampledNames* sampled = nullptr) {
    EvictionPolicy::Request request{.tree = TreeId{0}, .hashes = hashes, .found_count = found, .block_size = 16};
    request.sampled = sampled;
    policy.asked(request);
    request.sampled = nullptr;
    policy.offered(request, {}, Tick{tick});
  }
  static void learn_all(YieldPolicy& policy) {
    while (policy.learn()) {
    }
  }
};

/// One policy learns after each request, the other in slices at random moments: in the end both know the same. Also if
/// memory grows and shrinks in between, and if the other is told which blocks are of the sample, or of an older one.
TEST_F(DeferredLearningTest, WhatIsLearnedDoesNotDependOnWhen) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  YieldPolicy at_once(3), later(3);
  at_once.set_capacity(2000);
  later.set_capacity(2000);
  SampledNames sampled;
  for (std::uint64_t i = 1; i <= 3000; ++i) {
    const auto hashes = chain(random() % (random() % 2 == 0 ? 40 : 4000), 1 + random() % 60);
    const std::size_t found = random() % (hashes.size() + 1);
    sampled.set({later.sample(), std::nullopt});
    sampled.look(hashes);
    if (i > 1000 && random() % 100 == 0) {  // both have something to keep
      const std::uint64_t capacity = std::uint64_t{1000} << (random() % 8);
      at_once.set_capacity(capacity);
      later.set_capacity(capacity);
    }
    tell(at_once, hashes, found, i);
    tell(later, hashes, found, i, random() % 2 == 0 ? &sampled : nullptr);
    learn_all(at_once);
    for (std::size_t slices = random() % 40 == 0 ? random() % 60 : 0; slices > 0; --slices) later.learn();
    if (i % 250 != 0) continue;
    learn_all(later);
    ASSERT_EQ(later.unlearned_uses(), 0u);
    ASSERT_EQ(at_once.version(), later.version()) << i;
    for (std::uint32_t of_class = 0; of_class < YieldTable::kSilentClasses; ++of_class) {
      for (std::uint64_t age = 0; age < 10'000; age += 1 + age / 2)
        ASSERT_EQ(at_once.worth(of_class, age), later.worth(of_class, age)) << i << " " << of_class << " " << age;
      for (std::uint32_t age = 0; age < YieldTable::kAges; ++age)
        ASSERT_EQ(at_once.table()->counts(of_class).hits[age], later.table()->counts(of_class).hits[age]) << i;
    }
  }
  EXPECT_TRUE(later.table()->knows()) << "something was learned";
}

TEST_F(DeferredLearningTest, WhatNobodyLearnsIsCountedAndTakesNoMoreRoom) {
  YieldPolicy policy(1);
  policy.set_capacity(1000);
  const std::uint32_t version = policy.version();
  for (std::uint64_t i = 0; i < 300; ++i) tell(policy, chain(i, 100), 0, i + 1);
  EXPECT_EQ(policy.unlearned_uses(), 300 * 200 - (1u << 14));
  EXPECT_EQ(policy.version(), version) << "no request learns";
  EXPECT_EQ(policy.table()->counts(5).time[0], 0);
  const std::size_t before = policy.memory_bytes();
  for (std::uint64_t i = 300; i < 600; ++i) tell(policy, chain(i, 100), 0, i + 1);
  EXPECT_LE(policy.memory_bytes(), before + 16 * AgeClock::kMarksMax);
  learn_all(policy);
  const std::uint64_t lost = policy.unlearned_uses();
  tell(policy, chain(1, 100), 0, 1000);
  EXPECT_EQ(policy.unlearned_uses(), lost) << "there is room again";
}

TEST_F(DeferredLearningTest, MoreMemoryForgetsNothingOfWhatWasCounted) {
  YieldPolicy policy(3);
  policy.set_capacity(2000);
  std::mt19937_64 random(9);
  const auto load = [&](std::uint64_t requests) {
    for (std::uint64_t i = 0; i < requests; ++i) {
      tell(policy, chain(random() % 30, 1 + random() % 60), 0, i + 1);
      learn_all(policy);
    }
  };
  const auto all_uses = [&] {
    double uses = 0;
    for (std::uint32_t of_class = 0; of_class < YieldTable::kSilentClasses; ++of_class)
      uses += sum_of(policy.table()->counts(of_class), false);
    return uses;
  };
  load(200);  // before the contest with LRU, which finds more than nothing
  ASSERT_TRUE(policy.refuses());
  const double before = all_uses();
  ASSERT_GT(before, 1000);
  const double worth = policy.worth(5, 100);
  for (const std::uint64_t capacity : std::to_array<std::uint64_t>({4000, 16'000})) {
    const std::uint32_t version = policy.version();
    policy.set_capacity(capacity);
    EXPECT_TRUE(policy.refuses()) << "as it was, until the next lesson";
    learn_all(policy);
    EXPECT_GT(policy.version(), version);
    EXPECT_NEAR(all_uses(), before, 1e-6 * before);
    EXPECT_GT(policy.worth(5, 100), worth / 2);
    EXPECT_LT(policy.worth(5, 100), worth * 2);
  }
  EXPECT_EQ(policy.table()->unit(), 250);
  load(10);
  EXPECT_GT(all_uses(), before) << "the new shadow counts";
}

TEST_F(DeferredLearningTest, WhatWasLearnedBeforeARestartIsInForceAtOnceAndGivesWay) {
  YieldPolicy policy(3);
  std::vector<YieldTable::Counts> before(YieldTable::kSilentClasses);
  for (YieldTable::Counts& each : before) {
    each.hits.fill(1e6);  // far more than a node can have counted since
    each.time.fill(1e9);
  }
  policy.set_before(31.25, before);
  EXPECT_FALSE(policy.refuses());
  policy.set_capacity(2000);  // waits for its turn, and is not lost
  learn_all(policy);
  EXPECT_TRUE(policy.refuses());
  EXPECT_EQ(policy.table()->unit(), 31.25);
  double uses = 0;
  for (std::uint32_t of_class = 0; of_class < YieldTable::kSilentClasses; ++of_class)
    uses += sum_of(policy.table()->with_before(of_class), false);
  EXPECT_NEAR(uses, 16'384, 1);
  EXPECT_GT(policy.worth(5, 0), 3e-4);  // it leans on what is believed before anything is known
  EXPECT_LT(policy.worth(5, 0), 2e-3);
  // Now blocks come back at once, all the time: 1,000 times as soon.
  for (std::uint64_t i = 0; i < 3000; ++i) {
    tell(policy, chain(i % 3, 20), 0, i + 1);
    learn_all(policy);
  }
  EXPECT_LT(sum_of(policy.table()->with_before(5), false) - sum_of(policy.table()->counts(5), false),
            0.8 * 16'384 / YieldTable::kSilentClasses);
}

/// What left went with all that was behind it; the search for where that ends looks at few of them.
TEST_F(DeferredLearningTest, KnownBlocksAreThoseUpToTheFirstThatIsNotRemembered) {
  std::mt19937_64 random(5);
  YieldPolicy policy(1);
  policy.set_capacity(1'000'000);
  std::size_t off = 0;
  for (std::uint64_t i = 0; i < 300; ++i) {
    const auto hashes = chain(i, 1 + random() % 3000);
    const std::size_t found = random() % 2 == 0 ? 0 : random() % (hashes.size() + 1);
    const std::size_t known = random() % 4 == 0 ? found : found + random() % (hashes.size() - found + 1);
    for (std::size_t k = known; k-- > found;) policy.left(TreeId{0}, hashes[k], {.use_count = 2});
    const std::size_t told =
        policy.known_count({.tree = TreeId{0}, .hashes = hashes, .found_count = found, .block_size = 16});
    EXPECT_GE(told, known) << i;
    off += told != known;
  }
  EXPECT_LE(off, 15u) << "one look-up in 64 finds another block's, where the search ends";
}

}  // namespace
}  // namespace kv
