// Calls of a Store do a bounded part of what is large, and later ones go on.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "store_fixture.h"

namespace kv {
namespace {

TEST(StoreBoundsTest, OneCallEvictsSomeHundredBlocksAndTheNextGoesOn) {
  StoreConfig config;
  config.arena.capacity_bytes = 3000 * 64;
  config.arena.touch = false;
  const auto store = Store::create(config).value();
  const SpaceId space = store->open(make_record("m", 64)).value();
  const TimePoint now{1s};
  const auto put = [&](std::uint64_t name) {
    auto plan = store->offer(space, chain(name, 3000), {}, now).value();
    const PutId id = plan.put;
    std::vector<std::size_t> incoming;
    for (;;) {
      incoming.push_back(plan.incoming.size());
      for (std::size_t i = 0; i < plan.incoming.size(); ++i) store->commit(id, std::vector<std::uint64_t>{0}, now);
      if (!plan.again) break;
      plan = store->offer_more(id, now).value();
    }
    store->end_put(id);
    return incoming;
  };
  EXPECT_EQ(put(1).size(), 3000 * Steps::kBlock / Shelf::kStepsPerCall + 1) << "into free memory";
  const std::vector<std::size_t> incoming = put(2);
  EXPECT_EQ(std::accumulate(incoming.begin(), incoming.end(), std::size_t{0}), 3000u);
  EXPECT_GE(incoming.size(), 3000 * Steps::kRemoval / Shelf::kStepsMax);
  EXPECT_LE(store->stats().work_steps_call_max, Shelf::kStepsMax);
  EXPECT_EQ(store->check(), "");
}

class StoreSlicesTest : public StoreFixture {};

TEST_F(StoreSlicesTest, ALargeDropVanishesAtOnceAndIsFreedInSlices) {
  create(4000 * 64);
  const SpaceId space = open(64);
  put(space, chain(1, 3000));
  put(space, chain(2, 10));
  const LeaseId held = lease(space, chain(1, 2990));
  std::size_t count = store->drop(space, chain(1, 100)).value();
  EXPECT_GT(count, 0u);
  EXPECT_LT(count, 2901u);
  EXPECT_TRUE(store->is_dropping());
  EXPECT_EQ(match(space, chain(1, 3000)), 99u);
  EXPECT_EQ(store->check(), "");
  while (store->is_dropping()) {
    const std::size_t more = store->drop_more(now);
    EXPECT_LE(more, Shelf::kStepsPerCall / Steps::kRemoval + 1);
    count += more;
    EXPECT_EQ(store->check(), "");
  }
  EXPECT_EQ(count, 2901u);
  EXPECT_EQ(store->stats().dropped_blocks, 2901u);
  EXPECT_EQ(store->stats().allocated_bytes, 110u * 64) << "a leased block's memory stays";
  EXPECT_EQ(store->stats().leased_bytes, 64u);
  EXPECT_TRUE(store->release(kAlice, held));
  EXPECT_EQ(store->stats().allocated_bytes, 109u * 64);
  EXPECT_EQ(match(space, chain(2, 10)), 10u);
}

TEST_F(StoreSlicesTest, WhatIsBeingDroppedMakesRoomBeforeAnythingIsEvicted) {
  create(4000 * 64);
  const SpaceId space = open(64), other = open(64, "other");
  put(other, chain(9, 1000));
  put(space, chain(1, 3000));
  store->drop(space, {}).value();
  EXPECT_TRUE(store->is_dropping());
  EXPECT_EQ(match(space, chain(1, 1)), 0u);
  EXPECT_EQ(put(space, chain(1, 3000)).stored, 3000u) << "the same chain again, while the old one is freed";
  EXPECT_EQ(match(other, chain(9, 1000)), 1000u);
  EXPECT_EQ(store->stats().evicted_blocks, 0u);
  EXPECT_EQ(match(space, chain(1, 3000)), 3000u);
}

TEST_F(StoreSlicesTest, APutBelowABlockThatIsBeingDroppedDoesNotBringItBack) {
  create(4000 * 64);
  const SpaceId space = open(64);
  put(space, chain(1, 2000));
  const auto hashes = chain(1, 2002);
  const auto plan = store->offer(space, hashes, {.session = kAlice}, now).value();
  ASSERT_EQ(plan.incoming.size(), 2u);
  store->drop(space, chain(1, 1)).value();
  ASSERT_TRUE(store->is_dropping());
  for (const auto& block : plan.incoming) store->commit(plan.put, fill(block), now);
  EXPECT_EQ(match(space, hashes), 0u);
  EXPECT_EQ(store->check(), "");
  while (store->is_dropping()) store->drop_more(now);
  store->end_put(plan.put);
  EXPECT_EQ(match(space, hashes), 0u);
  EXPECT_EQ(store->stats().allocated_bytes, 0u);
}

TEST_F(StoreSlicesTest, ManyLeasesOfASessionEndInSlicesAndTheirBlocksAreFree) {
  config.lease_count_per_session_max = 2000;
  create(400 * 64);
  const SpaceId space = open(64);
  put(space, chain(1, 400));
  for (int i = 0; i < 2000; ++i) ASSERT_NE(lease(space, chain(1, 1 + i % 400)), LeaseId{});
  store->end_session(kAlice);
  EXPECT_GT(store->stats().lease_count, 0u);
  EXPECT_EQ(store->check(), "");
  for (int i = 0; i < 50; ++i) store->expire_leases(now);
  EXPECT_EQ(store->stats().lease_count, 0u);
  EXPECT_EQ(put(space, chain(2, 400)).stored, 400u);
}

TEST_F(StoreSlicesTest, LeasesOnAChainThatForksAtEachBlockEndInSlices) {
  config.lease_count_per_session_max = 2000;
  config.lease_duration = 1s;
  create(1000 * 64);
  const SpaceId space = open(64);
  const auto hashes = chain(1, 500);
  put(space, hashes);
  for (std::size_t i = 1; i < 500; ++i) {
    std::vector<BlockHash> fork(hashes.begin(), hashes.begin() + static_cast<std::ptrdiff_t>(i));
    fork.push_back(hash_of(mix(1000 + i)));
    ASSERT_EQ(put(space, fork).stored, 1u);
  }
  for (const bool by_time : {false, true}) {
    for (std::size_t i = 0; i < 1500; ++i) ASSERT_NE(lease(space, chain(1, 500 - i * 7 % 500)), LeaseId{});
    EXPECT_EQ(store->stats().leased_bytes, 500u * 64);
    if (by_time) {
      now += 1h;
    } else {
      store->end_session(kAlice);
      EXPECT_GT(store->stats().lease_count, 0u);
    }
    for (int i = 0; i < 50; ++i) {
      store->expire_leases(now);
      EXPECT_EQ(store->check(), "");  // of steps too
    }
    EXPECT_EQ(store->stats().lease_count, 0u);
    EXPECT_EQ(store->stats().leased_bytes, 0u);
  }
}

}  // namespace
}  // namespace kv
