// More memory for blocks, or less, while the Store runs: nothing but what is worth least goes, and no byte is wrong.
#include <gtest/gtest.h>

#include <deque>
#include <set>

#include "tests/store/store_fixture.h"

namespace kv {
namespace {

constexpr std::size_t kGranule = 64 << 10;

class CapacityTest : public StoreFixture {
 protected:
  void start(std::size_t granules, std::size_t granules_max) {
    config.arena.capacity_bytes_max = granules_max * kGranule;
    config.arena.huge_pages = false;
    create(granules * kGranule, kGranule);
  }
  void copy(std::span<const CapacityDesk::Relocation> relocations) {
    for (const CapacityDesk::Relocation& each : relocations)
      std::memcpy(each.into.data(), each.from.data(), each.from.size());
  }
  /// As the node does it. False: something is in use.
  bool shrink(std::size_t granules) {
    EXPECT_TRUE(store->set_capacity(granules * kGranule));
    for (int i = 0; i < 1000 && !store->is_shrunk(); ++i) {
      now += 1ms;  // the evictor rests between two searches that find nothing
      const auto relocations = store->relocate(4 * kGranule, may_lose, now);
      copy(relocations);
      store->end_relocation(relocations);
      EXPECT_EQ(store->check(), "");
    }
    if (!store->is_shrunk()) return false;
    store->pages().discard(granules * kGranule);
    return true;
  }
  void grow(std::size_t granules) {
    ASSERT_EQ(store->pages().commit(granules * kGranule), error_code());
    ASSERT_TRUE(store->set_capacity(granules * kGranule));
  }
  /// Blocks of the chain that are there, each with its own bytes.
  std::size_t verified(SpaceId space, std::span<const BlockHash> hashes) {
    const auto pinned = store->pin_prefix(space, hashes, {}, now).value();
    const NamespaceId name = store->find_namespace(space)->id();
    for (const PinnedBlock& block : pinned.blocks) {
      const std::uint64_t seed = checksum_seed(name, hashes[block.index]);
      EXPECT_TRUE(has_bytes(block.bytes, seed)) << "block " << block.index;
      std::vector<std::uint64_t> sums(stripe_count(block.bytes.size()));
      block_checksums(seed, block.bytes, sums);
      EXPECT_TRUE(std::ranges::equal(sums, block.checksums));
    }
    store->unpin(pinned);
    return pinned.blocks.size();
  }
};

TEST_F(CapacityTest, ShrinkingKeepsWhatWasUsedLastWhereverItLies) {
  start(64, 64);
  const SpaceId space = open(kGranule);
  for (std::uint64_t i = 0; i < 64; ++i) ASSERT_EQ(put(space, chain(i, 1)).stored, 1u);
  for (std::uint64_t i = 0; i < 16; ++i) ASSERT_EQ(match(space, chain(i, 1)), 1u);  // half of what stays lies high
  ASSERT_TRUE(shrink(32));
  EXPECT_EQ(store->stats().capacity_bytes, 32 * kGranule);
  EXPECT_EQ(store->stats().block_count, 32u);
  for (std::uint64_t i = 0; i < 64; ++i) EXPECT_EQ(verified(space, chain(i, 1)), i < 16 || i >= 48 ? 1u : 0u) << i;
}

TEST_F(CapacityTest, AChainThatIsLongerThanWhatStaysLosesItsEnd) {
  start(16, 16);
  const SpaceId space = open(kGranule);
  ASSERT_EQ(put(space, chain(1, 16)).stored, 16u);
  ASSERT_TRUE(shrink(8));
  EXPECT_EQ(verified(space, chain(1, 16)), 8u);
}

TEST_F(CapacityTest, MemoryThatIsGivenBackIsTakenFromTheSystemAnewAndHoldsBlocks) {
  start(8, 32);
  const SpaceId space = open(kGranule);
  for (std::uint64_t i = 0; i < 40; ++i) put(space, chain(i, 1));
  EXPECT_EQ(store->stats().block_count, 8u);
  grow(32);
  for (std::uint64_t i = 0; i < 40; ++i) put(space, chain(i, 1));
  EXPECT_EQ(store->stats().block_count, 32u);
  ASSERT_TRUE(shrink(4));
  EXPECT_EQ(store->pages().committed_bytes(), 4 * kGranule);
  grow(32);
  for (std::uint64_t i = 100; i < 128; ++i) EXPECT_EQ(put(space, chain(i, 1)).stored, 1u);
  for (std::uint64_t i = 100; i < 128; ++i) EXPECT_EQ(verified(space, chain(i, 1)), 1u);
  EXPECT_EQ(store->stats().block_count, 32u);
}

TEST_F(CapacityTest, LeasedAndRetainedBlocksMoveAndStayPromised) {
  start(32, 32);
  const SpaceId space = open(kGranule);
  for (std::uint64_t i = 0; i < 16; ++i) put(space, chain(i, 2));
  const LeaseId promised = lease(space, chain(15, 2));
  ASSERT_NE(promised, LeaseId{});
  ASSERT_EQ(store->retain(space, chain(14, 2)).value(), 2u);
  ASSERT_TRUE(shrink(8));
  EXPECT_EQ(verified(space, chain(15, 2)), 2u);
  EXPECT_EQ(verified(space, chain(14, 2)), 2u);
  EXPECT_EQ(store->stats().lease_count, 1u);
  EXPECT_TRUE(store->release(kAlice, promised));
  EXPECT_EQ(store->unretain(space, chain(14, 2)).value(), 2u);
}

TEST_F(CapacityTest, BlocksThatAreReadAndSlotsThatAreFilledAreWaitedFor) {
  start(8, 8);
  const SpaceId space = open(kGranule);
  for (std::uint64_t i = 0; i < 6; ++i) put(space, chain(i, 1));
  const auto last = chain(5, 1), fresh = chain(9, 1);
  const auto read = store->pin_prefix(space, last, {}, now).value();
  auto plan = store->offer(space, fresh, {.session = kAlice}, now).value();
  ASSERT_EQ(plan.incoming.size(), 1u);  // behind the end that is to come
  EXPECT_FALSE(shrink(4));
  EXPECT_TRUE(has_bytes(read.blocks[0].bytes, checksum_seed(store->find_namespace(space)->id(), last[0])));
  store->unpin(read);
  EXPECT_FALSE(shrink(4)) << "the put writes there";
  EXPECT_EQ(store->commit(plan.put, fill(plan.incoming[0]), now), CommitStatus::kStored);
  store->end_put(plan.put);
  EXPECT_TRUE(shrink(4));
  EXPECT_EQ(verified(space, fresh), 1u);
}

TEST_F(CapacityTest, ABlockThatCameIntoUseWhileItWasCopiedStaysWhereItIs) {
  start(4, 4);
  const SpaceId space = open(kGranule);
  for (std::uint64_t i = 0; i < 4; ++i) put(space, chain(i, 1));
  ASSERT_TRUE(store->set_capacity(3 * kGranule));
  const auto relocations = store->relocate(8 * kGranule, true, now);
  ASSERT_EQ(relocations.size(), 1u);
  EXPECT_EQ(store->check(), "");
  const auto hashes = chain(3, 1);
  const auto read = store->pin_prefix(space, hashes, {}, now).value();
  copy(relocations);
  store->end_relocation(relocations);
  EXPECT_FALSE(store->is_shrunk());
  EXPECT_EQ(read.blocks[0].bytes.data(), relocations[0].from.data());
  store->unpin(read);
  EXPECT_TRUE(shrink(3));
  EXPECT_EQ(verified(space, hashes), 1u);
}

TEST_F(CapacityTest, ABlockDroppedWhileItWasCopiedIsGone) {
  start(4, 4);
  const SpaceId space = open(kGranule);
  for (std::uint64_t i = 0; i < 4; ++i) put(space, chain(i, 1));
  ASSERT_TRUE(store->set_capacity(3 * kGranule));
  const auto relocations = store->relocate(8 * kGranule, true, now);
  ASSERT_EQ(relocations.size(), 1u);
  ASSERT_EQ(store->drop(space, chain(3, 1)).value(), 1u);
  copy(relocations);
  store->end_relocation(relocations);
  EXPECT_TRUE(store->is_shrunk());
  EXPECT_EQ(match(space, chain(3, 1)), 0u);
}

TEST_F(CapacityTest, AShrinkThatIsTakenBackGivesEverySlotBack) {
  start(16, 16);
  const SpaceId space = open(kGranule / 4);
  put(space, chain(1, 64));
  ASSERT_TRUE(store->set_capacity(8 * kGranule));
  EXPECT_EQ(store->check(), "");
  ASSERT_TRUE(store->set_capacity(16 * kGranule));
  EXPECT_EQ(verified(space, chain(1, 64)), 64u);
  EXPECT_EQ(store->stats().evicted_blocks, 0u);
}

TEST_F(CapacityTest, WrongCapacitiesAreRefused) {
  start(8, 16);
  EXPECT_EQ(store->set_capacity(0).error(), Errc::kBadRequest);
  EXPECT_EQ(store->set_capacity(17 * kGranule).error(), Errc::kBadRequest);
  EXPECT_EQ(store->set_capacity(8 * kGranule - 4096).error(), Errc::kBadRequest);
  open(3 * kGranule);
  EXPECT_EQ(store->set_capacity(2 * kGranule).error(), Errc::kTooLarge);
  EXPECT_TRUE(shrink(3));
  config.arena.capacity_bytes_max = 0;
  create(8 * kGranule, kGranule);
  EXPECT_EQ(store->set_capacity(4 * kGranule).error(), Errc::kUnsupported);
}

TEST_F(CapacityTest, LowerLimitsTakeNothingAwayAndHoldForWhatComes) {
  start(16, 16);
  const SpaceId space = open(kGranule);
  for (std::uint64_t i = 0; i < 8; ++i) put(space, chain(i, 1));
  for (std::uint64_t i = 0; i < 4; ++i) ASSERT_NE(lease(space, chain(i, 1)), LeaseId{});
  ASSERT_EQ(store->retain(space, chain(7, 1)).value(), 1u);
  StoreConfig lower = config;
  lower.lease_count_max = 2;
  lower.leased_fraction_max = 0.1;
  lower.retained_fraction_max = 0.01;
  lower.namespace_count_max = 1;
  store->set_limits(lower);
  EXPECT_EQ(store->stats().lease_count, 4u);
  EXPECT_EQ(lease(space, chain(5, 1)), LeaseId{});
  EXPECT_EQ(store->retain(space, chain(6, 1)).error(), Errc::kBusy);
  EXPECT_EQ(store->open(make_record("other", kGranule)).error(), Errc::kBusy);
  store->set_limits(config);
  EXPECT_NE(lease(space, chain(5, 1)), LeaseId{});
}

/// Puts, reads, promises, drops and sizes of every kind, while the capacity goes up and down under them.
TEST_F(CapacityTest, WhateverElseHappensNoByteIsWrong) {
  std::mt19937_64 random(test_seed());
  const auto any = [&](std::uint64_t below) { return random() % below; };
  start(48, 96);
  const std::vector<SpaceId> spaces = {open(kGranule, "a"), open(kGranule / 2, "b"), open(3 * kGranule / 2, "c")};
  std::deque<PinnedPrefix> reads;
  std::vector<CapacityDesk::Relocation> copying;
  std::size_t granules = 48;
  std::uint64_t moved = 0;
  const auto random_chain = [&] { return chain(any(60), 1 + any(6)); };
  for (int step = 0; step < 6000; ++step) {
    now += Duration(1000 * (1 + any(1000)));
    const SpaceId space = spaces[any(3)];
    switch (any(12)) {
      case 0:
      case 1:
      case 2:
      case 3: put(space, random_chain()); break;
      case 4: {
        const auto hashes = random_chain();
        reads.push_back(store->pin_prefix(space, hashes, {}, now).value());
        for (const PinnedBlock& block : reads.back().blocks)
          ASSERT_TRUE(has_bytes(block.bytes, checksum_seed(store->find_namespace(space)->id(), hashes[block.index])));
        break;
      }
      case 5:
        if (!reads.empty()) store->unpin(reads.front()), reads.pop_front();
        break;
      case 6: lease(space, random_chain()); break;
      case 7:
        if (any(4) == 0) static_cast<void>(store->drop(space, random_chain()));
        while (store->is_dropping()) store->drop_more(now);
        break;
      case 8:
        if (copying.empty()) {
          copying = store->relocate(8 * kGranule, true, now);
          moved += copying.size();
        } else {
          copy(copying);
          store->end_relocation(copying);
          copying.clear();
        }
        break;
      case 9:
        if (store->is_shrunk()) store->pages().discard(granules * kGranule);
        break;
      case 10: {
        const std::size_t wanted = 8 + any(89);
        if (wanted > granules && store->pages().commit(wanted * kGranule)) break;
        ASSERT_TRUE(store->set_capacity(wanted * kGranule));
        granules = wanted;
        break;
      }
      case 11: store->expire_leases(now); break;
    }
    if (step % 50 == 0) {
      ASSERT_EQ(store->check(), "") << step;
    }
  }
  copy(copying);
  store->end_relocation(copying);
  for (const auto& read : reads) store->unpin(read);
  EXPECT_GT(moved, 20u) << "or nothing was tested";
  now += 1h;
  for (int i = 0; i < 100; ++i) store->expire_leases(now);
  EXPECT_TRUE(shrink(8));
}

}  // namespace
}  // namespace kv
