// Whole policies in a Store.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "store/policy/eviction_policy.h"
#include "store/policy/yield_policy.h"
#include "store_fixture.h"

namespace kv {
namespace {

class PolicyTest : public testing::Test {
 protected:
  static constexpr std::size_t kBytes = 64;

  static std::vector<BlockHash> chain(std::uint64_t session, std::size_t first, std::size_t count) {
    std::vector<BlockHash> hashes(count);
    for (std::size_t i = 0; i < count; ++i) {
      std::uint64_t word = session * 1'000'003 + first + i + 1;
      for (std::byte& byte : hashes[i].bytes) {
        word = word * 6364136223846793005 + 1442695040888963407;
        byte = static_cast<std::byte>(word >> 56);
      }
    }
    return hashes;
  }

  struct Run {
    std::unique_ptr<Store> store;
    SpaceId space{};
    TimePoint now{std::chrono::seconds(1)};
    std::size_t hits = 0, references = 0;
  };
  static Run start(PolicyKind policy, std::size_t blocks) {
    StoreConfig config;
    config.policy = policy;
    config.hash_seed = 5;
    config.arena.capacity_bytes = blocks * kBytes;
    config.arena.granule_bytes = 4096;
    config.arena.touch = false;
    Run run;
    run.store = Store::create(config).value();
    run.space = run.store
                    ->open(NamespaceRecord::from_fields(
                               {{"model", "m"}, {"block_size", "512"}, {"block_bytes", std::to_string(kBytes)}})
                               .value())
                    .value();
    return run;
  }

  /// Looks a prompt up and stores what is missing.
  static OfferPlan request(Run& run, std::span<const BlockHash> hashes) {
    run.now += std::chrono::milliseconds(1);
    run.hits += run.store->match(run.space, hashes, {}, run.now)->memory_block_count;
    run.references += hashes.size();
    auto plan = run.store->offer(run.space, hashes, {}, run.now).value();
    std::size_t incoming = plan.incoming.size();
    while (plan.again) {
      const auto more = run.store->offer_more(plan.put, run.now).value();
      incoming += more.incoming.size();
      plan.again = more.again;
      plan.refused_count = more.refused_count;
      plan.refused_why = more.refused_why;
    }
    const std::vector<std::uint64_t> sums(1, 0);
    for (std::size_t i = 0; i < incoming; ++i) run.store->commit(plan.put, sums, run.now);
    if (plan.put != PutId{}) run.store->end_put(plan.put);
    while (run.store->learn()) {
    }
    return plan;
  }

  /// Sessions of six turns that come back after a while, and three times as many prompts that never do.
  static Run sessions_and_strangers(PolicyKind policy) {
    Run run = start(policy, 2048);
    std::deque<std::pair<std::uint64_t, std::size_t>> sessions;  // and their blocks so far
    std::uint64_t next = 0;
    for (int i = 0; i < 8000; ++i) {
      if (i % 4 != 0) {
        request(run, chain(1'000'000 + next++, 0, 12));
        continue;
      }
      if (sessions.size() < 70) sessions.emplace_back(next++, 2);
      auto [session, blocks] = sessions.front();
      sessions.pop_front();
      request(run, chain(session, 0, blocks));
      if (blocks < 12) sessions.emplace_back(session, blocks + 2);
    }
    EXPECT_EQ(run.store->check(), "");
    return run;
  }
};

TEST_F(PolicyTest, YieldKeepsWhatComesBackWhereLruKeepsWhatCameLast) {
  const Run lru = sessions_and_strangers(PolicyKind::kLru), yield = sessions_and_strangers(PolicyKind::kYield);
  EXPECT_LT(lru.hits * 50, lru.references);
  EXPECT_GT(yield.hits * 10, yield.references);
  EXPECT_EQ(lru.store->stats().not_admitted_blocks, 0u);
  EXPECT_GT(yield.store->stats().not_admitted_blocks, 0u);
  EXPECT_EQ(yield.store->stats().refused_blocks, 0u) << "that is for lack of memory";
}

TEST_F(PolicyTest, WhatIsNotAdmittedIsToldSo) {
  Run run = sessions_and_strangers(PolicyKind::kYield);
  const std::uint64_t before = run.store->stats().not_admitted_blocks;
  std::size_t refused = 0;
  for (std::uint64_t i = 0; i < 50; ++i) {
    const auto plan = request(run, chain(2'000'000 + i, 0, 12));
    refused += plan.refused_count;
    if (plan.refused_count > 0) {
      EXPECT_EQ(plan.refused_why, Errc::kNotAdmitted);
    }
  }
  EXPECT_GT(refused, 0u);
  EXPECT_EQ(run.store->stats().not_admitted_blocks - before, refused);
}

TEST_F(PolicyTest, AnEmptyStoreTakesEverything) {
  for (const PolicyKind policy : {PolicyKind::kLru, PolicyKind::kLfu, PolicyKind::kYield}) {
    Run run = start(policy, 512);
    for (std::uint64_t i = 0; i < 17; ++i) EXPECT_EQ(request(run, chain(i, 0, 30)).refused_count, 0u);
    EXPECT_EQ(run.store->stats().evicted_blocks, 0u);
  }
}

TEST_F(PolicyTest, MemoryStaysWithinSixteenBytesABlockAndFourMebibytes) {
  for (const std::uint64_t blocks : {1'000u, 100'000u, 3'000'000u}) {
    YieldPolicy policy(1);
    policy.set_capacity(blocks);
    const std::uint64_t per_block = sizeof(Usage);
    std::mt19937_64 random(1);
    for (int i = 0; i < 3000; ++i) {
      std::vector<BlockHash> hashes = chain(random(), 0, 100);
      policy.asked({.tree = TreeId{0},
                    .hashes = hashes,
                    .found_count = 0,
                    .block_size = 16,
                    .hint = static_cast<ReuseHint>(i % 7),
                    .tenant = random() % 1000});
      policy.offered({TreeId{0}, hashes, 0, 16}, {}, Tick{random() % 1000 + 1000 * static_cast<std::uint64_t>(i)});
      for (int k = 0; k < 4; ++k) policy.learn();
    }
    EXPECT_LE(policy.memory_bytes() + per_block * blocks, 16 * blocks + (4 << 20)) << blocks;
  }
}

}  // namespace
}  // namespace kv
