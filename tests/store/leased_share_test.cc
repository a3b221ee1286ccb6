// How much of a Store leases may keep.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "store_fixture.h"

namespace kv {
namespace {

class LeasedShareTest : public StoreFixture {
 protected:
  static constexpr std::size_t kBytes = 4096;

  void SetUp() override {
    config.lease_duration = 500ms;
    config.leased_fraction_max = 0.5;  // 4 blocks
    create(8 * kBytes, kBytes);
    space = open(kBytes);
  }
  /// `count` blocks of chain 1, and one that is called `name`.
  std::vector<BlockHash> fork(std::size_t count, std::uint64_t name) {
    auto hashes = chain(1, count);
    hashes.push_back(hash_of(mix(name)));
    return hashes;
  }
  ReadDesk::Match leased_match(std::span<const BlockHash> hashes, SessionId session = kAlice) {
    return store->match(space, hashes, {.session = session, .lease = true}, now).value();
  }
  std::uint64_t leased_blocks() {
    EXPECT_EQ(store->check(), "");
    EXPECT_EQ(store->stats().leased_bytes % kBytes, 0u);
    return store->stats().leased_bytes / kBytes;
  }
  SpaceId space{};
};

TEST_F(LeasedShareTest, ALeaseBelowAndAtTheShareIsGrantedAndOneBeyondIsNot) {
  put(space, chain(1, 5));
  EXPECT_NE(lease(space, chain(1, 3)), LeaseId{});
  EXPECT_EQ(leased_blocks(), 3u);
  EXPECT_NE(lease(space, chain(1, 4)), LeaseId{});
  EXPECT_EQ(leased_blocks(), 4u);
  const ReadDesk::Match over = leased_match(chain(1, 5));
  EXPECT_EQ(over.memory_block_count, 5u) << "the match answers all the same";
  EXPECT_EQ(over.lease, LeaseId{});
  EXPECT_EQ(over.lease_error, Errc::kBusy);
  EXPECT_EQ(leased_blocks(), 4u);
  EXPECT_EQ(store->stats().leases_granted, 2u);
  EXPECT_EQ(store->stats().leases_refused, 1u);
  EXPECT_EQ(store->stats().pinned_count, 2u);
  EXPECT_NE(lease(space, chain(1, 4), kBob), LeaseId{}) << "at the bound, but nothing more is kept for it";
}

TEST_F(LeasedShareTest, WhatLeasesLeaveIsThereForPuts) {
  put(space, chain(1, 8));
  lease(space, chain(1, 8));
  EXPECT_EQ(put(space, chain(2, 8)).refused, 0u);
  lease(space, chain(2, 4));
  lease(space, chain(2, 8));
  EXPECT_EQ(put(space, chain(3, 8)).stored, 4u);
}

TEST_F(LeasedShareTest, SharedBlocksCountOnce) {
  for (const std::uint64_t name : {7, 8, 9}) put(space, fork(2, name));
  const LeaseId first = lease(space, fork(2, 7)), second = lease(space, fork(2, 8), kBob);
  EXPECT_NE(second, LeaseId{});
  EXPECT_EQ(leased_blocks(), 4u);
  EXPECT_EQ(leased_match(fork(2, 9)).lease_error, Errc::kBusy);
  EXPECT_TRUE(store->release(kAlice, first));
  EXPECT_EQ(leased_blocks(), 3u);
  const LeaseId third = lease(space, fork(2, 9));
  EXPECT_NE(third, LeaseId{});
  EXPECT_TRUE(store->release(kBob, second));
  EXPECT_TRUE(store->release(kAlice, third));
  EXPECT_EQ(leased_blocks(), 0u);
}

TEST_F(LeasedShareTest, TheEndOfALeaseAboveAnotherGivesNothingBack) {
  put(space, chain(1, 4));
  const LeaseId upper = lease(space, chain(1, 3)), lower = lease(space, chain(1, 4)), again = lease(space, chain(1, 4));
  EXPECT_TRUE(store->release(kAlice, upper));
  EXPECT_EQ(leased_blocks(), 4u) << "all that it kept is kept still";
  EXPECT_TRUE(store->release(kAlice, lower));
  EXPECT_EQ(leased_blocks(), 4u);
  const LeaseId top = lease(space, chain(1, 1));
  EXPECT_TRUE(store->release(kAlice, again));
  EXPECT_EQ(leased_blocks(), 1u);
  EXPECT_TRUE(store->release(kAlice, top));
  EXPECT_EQ(leased_blocks(), 0u);
}

TEST_F(LeasedShareTest, EveryEndOfALeaseGivesBack) {
  put(space, chain(1, 4));
  const LeaseId held = lease(space, chain(1, 4));
  store->unpin(store->pin_prefix(space, chain(1, 4), {.session = kAlice, .lease = held}, now).value());
  EXPECT_EQ(leased_blocks(), 0u) << "fetched";
  lease(space, chain(1, 4));
  store->end_session(kAlice);
  EXPECT_EQ(leased_blocks(), 0u) << "its session's end";
  lease(space, chain(1, 4));
  EXPECT_EQ(leased_blocks(), 4u);
  now += 500ms;
  store->expire_leases(now);
  EXPECT_EQ(leased_blocks(), 0u) << "its time is over";
}

TEST_F(LeasedShareTest, OfADroppedPrefixOnlyTheLeasedBlockIsKept) {
  put(space, chain(1, 4));
  const LeaseId held = lease(space, chain(1, 4)), upper = lease(space, chain(1, 2));
  EXPECT_EQ(store->drop(space, chain(1, 3)).value(), 2u);
  EXPECT_EQ(leased_blocks(), 3u) << "two that are here, and the last one until its lease ends";
  EXPECT_EQ(store->stats().allocated_bytes, 3 * kBytes);
  EXPECT_TRUE(store->release(kAlice, upper));
  EXPECT_EQ(leased_blocks(), 1u);
  put(space, chain(1, 4));
  lease(space, chain(1, 3), kBob);
  EXPECT_EQ(leased_blocks(), 4u);
  EXPECT_EQ(leased_match(chain(1, 4)).lease_error, Errc::kBusy) << "the old last block counts beside the new one";
  EXPECT_TRUE(store->release(kAlice, held));
  EXPECT_NE(lease(space, chain(1, 4)), LeaseId{});
  store->drop(space, {}).value();
  EXPECT_EQ(leased_blocks(), 2u);
  store->end_session(kAlice);
  store->end_session(kBob);
  EXPECT_EQ(leased_blocks(), 0u);
  EXPECT_EQ(store->stats().allocated_bytes, 0u);
}

TEST_F(LeasedShareTest, BlocksThatComeAndGoBesideALeaseChangeNothing) {
  put(space, chain(1, 4));
  const LeaseId held = lease(space, chain(1, 3));
  for (std::size_t at = 0; at < 4; ++at) {
    put(space, fork(at, 7));  // an edge is split
    EXPECT_EQ(leased_blocks(), 3u);
    store->drop(space, fork(at, 7)).value();  // and is whole again
    EXPECT_EQ(leased_blocks(), 3u);
  }
  put(space, fork(2, 7));
  const LeaseId beside = lease(space, fork(2, 7));
  EXPECT_EQ(leased_blocks(), 4u);
  EXPECT_TRUE(store->release(kAlice, held));
  EXPECT_EQ(leased_blocks(), 3u);
  EXPECT_TRUE(store->release(kAlice, beside));
  EXPECT_EQ(leased_blocks(), 0u);
}

TEST_F(LeasedShareTest, BytesCountNotBlocks) {
  const SpaceId wide = open(2 * kBytes, "wide");
  put(wide, chain(1, 2));
  put(space, chain(1, 2));
  EXPECT_NE(lease(wide, chain(1, 1)), LeaseId{});
  EXPECT_NE(lease(space, chain(1, 1)), LeaseId{});
  EXPECT_EQ(store->match(wide, chain(1, 2), {.session = kAlice, .lease = true}, now)->lease_error, Errc::kBusy);
  EXPECT_NE(lease(space, chain(1, 2)), LeaseId{});
  EXPECT_EQ(leased_blocks(), 4u);
}

TEST_F(LeasedShareTest, AShareBeyondTheArenaIsRefused) {
  for (const double fraction : {-0.1, 1.1}) {
    config.leased_fraction_max = fraction;
    EXPECT_EQ(Store::create(config).error(), Errc::kBadRequest);
  }
}

}  // namespace
}  // namespace kv
