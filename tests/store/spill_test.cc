// The disk tier: what goes there, in which order, what comes back, and what is evicted from it.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "spill_fixture.h"
#include "trace.h"

namespace kv {
namespace {

TEST_F(SpillTest, NothingIsWrittenWhileThereIsRoom) {
  create_tiers(20, 100);
  put(open(kBytes), chain(1, 16));
  EXPECT_EQ(spill(), 0u);
}

TEST_F(SpillTest, APrefixIsWrittenInItsOrderAndEvictedFromItsEnd) {
  create_tiers(20, 100);
  const SpaceId space = open(kBytes);
  put(space, chain(1, 18));
  SpillWork work = store->spill_work(1 << 20, now);
  ASSERT_EQ(work.writes.size(), 18u);  // all above the one that has to go, first
  for (std::size_t i = 0; i < 18; ++i) {
    EXPECT_EQ(work.writes[i].record.hash, chain(1, 18)[i]);
    EXPECT_EQ(work.writes[i].record.parent, i == 0 ? BlockHash{} : chain(1, 18)[i - 1]);
    EXPECT_EQ(work.writes[i].record.position, i);
  }
  EXPECT_EQ(match(space, chain(1, 18)), 18u) << "still in memory";
  run(work);
  EXPECT_EQ(spill(), 0u);
  const auto found = store->match(space, chain(1, 18), {}, now).value();
  EXPECT_EQ(found.memory_block_count, 16u);
  EXPECT_EQ(found.disk_block_count, 2u);
  EXPECT_EQ(store->stats().disk_only_bytes, 2 * kBytes);
}

TEST_F(SpillTest, ABlockBeingWrittenIsNotEvictedAndOneThatIsOnDiskGoesWithoutAWrite) {
  create_tiers(8, 100, 1);
  const SpaceId space = open(kBytes);
  put(space, chain(1, 8));
  SpillWork work = store->spill_work(1 << 20, now);
  ASSERT_EQ(work.writes.size(), 8u);
  EXPECT_EQ(put(space, chain(2, 1)).refused, 1u) << "every block is being written";
  run(work);
  EXPECT_EQ(put(space, chain(2, 8)).stored, 8u);
  EXPECT_EQ(store->stats().lost_unspilled_blocks, 0u);
  EXPECT_EQ(get(space, chain(1, 8)).disk, 8u);
}

TEST_F(SpillTest, WhenTheDiskIsTooSlowBlocksAreLostAndPutsAreNot) {
  create_tiers(8, 100, 1);
  const SpaceId space = open(kBytes);
  for (std::uint64_t name = 1; name <= 4; ++name) EXPECT_EQ(put(space, chain(name, 8)).stored, 8u);
  EXPECT_EQ(store->stats().lost_unspilled_blocks, 24u);
}

TEST_F(SpillTest, WriteThroughWritesWhatWasStoredAndItStaysInMemory) {
  config.spill.write_through = true;
  create_tiers(20, 100, 0);
  const SpaceId space = open(kBytes);
  put(space, chain(1, 6));
  EXPECT_EQ(spill(), 6u);
  EXPECT_EQ(match(space, chain(1, 6)), 6u);
  EXPECT_EQ(store->stats().disk_only_bytes, 0u);
  put(space, chain(2, 20));
  store->drop(space, chain(2, 5)).value();  // before it was written
  EXPECT_EQ(spill(), 4u);
}

TEST_F(SpillTest, WhatIsBeingWrittenKeepsThoseAboveItThoughTheyAreOnDisk) {
  config.spill.write_through = true;
  config.disk.capacity_bytes = 64 << 20;
  config.spill.reserve = 0;
  create(8 << 20, 64 << 10);
  const SpaceId small = open(64 << 10, "small"), large = open(1 << 20, "large");
  put(small, chain(1, 3));
  put(small, chain(2, 60));  // what follows lies elsewhere
  EXPECT_EQ(spill(), 63u);
  put(small, chain(1, 6));
  SpillWork work = store->spill_work(1 << 20, now);
  ASSERT_EQ(work.writes.size(), 3u);
  put(small, chain(3, 60));
  for (std::uint64_t name = 10; name < 20; ++name) put(large, chain(name, 4));  // takes slabs from the small ones
  run(work);
  EXPECT_GT(store->stats().slab_moves, 0u);
  EXPECT_EQ(match(small, chain(1, 6)), 6u);
}

TEST_F(SpillTest, WhatWasNeverUsedAgainIsEvictedUnwrittenWhileTheDiskIsBehind) {
  config.spill.skip_unused = true;
  create_tiers(16, 100, 8);
  const SpaceId space = open(kBytes);
  put(space, chain(1, 8));
  put(space, chain(2, 8));
  match(space, chain(1, 8));
  EXPECT_GT(spill(), 0u) << "once half of the reserve is free there is time to write";
  EXPECT_EQ(store->stats().spill_skipped_blocks, 4u) << "of chain 2";
  put(space, chain(3, 8));
  match(space, chain(3, 8));
  EXPECT_EQ(spill(), 8u) << "chain 1 was used";
  put(space, chain(4, 8));
  spill(/*everything=*/true);
  EXPECT_EQ(get(space, chain(4, 8)).disk, 8u) << "a stop skips nothing";
}

TEST_F(SpillTest, AFailedWriteChangesNothing) {
  create_tiers(8, 100, 1);
  const SpaceId space = open(kBytes);
  put(space, chain(1, 8));
  disk.fails_writes = true;
  EXPECT_EQ(spill(), 0u);
  EXPECT_EQ(match(space, chain(1, 8)), 8u);
  EXPECT_EQ(store->stats().disk_block_count, 0u);
  disk.fails_writes = false;
  EXPECT_EQ(spill(), 8u);
}

TEST_F(SpillTest, ABlockComesBackToMemoryWithItsSecondRead) {
  create_tiers(8, 100, 4);
  const SpaceId space = open(kBytes);
  put(space, chain(1, 8));
  spill();  // 4 remain
  const Got first = get(space, chain(1, 8));
  EXPECT_EQ(first.memory, 4u);
  EXPECT_EQ(first.disk, 4u);
  EXPECT_EQ(match(space, chain(1, 8)), 4u);
  EXPECT_EQ(get(space, chain(1, 8)).disk, 4u);
  EXPECT_EQ(match(space, chain(1, 8)), 8u);
  EXPECT_EQ(store->stats().disk_only_bytes, 0u);
  EXPECT_EQ(spill(), 0u) << "they are on disk still, and leave memory without a write";
  EXPECT_EQ(match(space, chain(1, 8)), 4u);
}

TEST_F(SpillTest, ABlockThatIsPutAgainMeetsItsCopyOnDisk) {
  create_tiers(8, 100, 8);
  const SpaceId space = open(kBytes);
  put(space, chain(1, 4));
  EXPECT_EQ(spill(), 4u);
  EXPECT_EQ(match(space, chain(1, 4)), 0u);
  EXPECT_EQ(put(space, chain(1, 4)).stored, 4u) << "a writer that does not ask first is not refused";
  EXPECT_EQ(spill(), 0u);
  EXPECT_EQ(get(space, chain(1, 4)).disk, 4u);
}

TEST_F(SpillTest, WhatIsDroppedIsGoneFromDiskToo) {
  create_tiers(8, 100, 8);
  const SpaceId space = open(kBytes);
  put(space, chain(1, 8));
  spill();
  EXPECT_EQ(store->drop(space, chain(1, 6)).value(), 3u);
  EXPECT_EQ(get(space, chain(1, 8)).disk, 5u);
  SpillWork work = store->spill_work(1 << 20, now);
  EXPECT_EQ(work.erased.size(), 3u);
  run(work);
  EXPECT_EQ(store->drop(space, {}).value(), 5u);
  EXPECT_EQ(get(space, chain(1, 8)).disk, 0u);
  spill();
}

TEST_F(SpillTest, ABlockInBothTiersIsDroppedOnce) {
  config.spill.write_through = true;
  create_tiers(20, 100, 0);
  const SpaceId space = open(kBytes);
  put(space, chain(1, 8));
  EXPECT_EQ(spill(), 8u);
  EXPECT_EQ(store->drop(space, chain(1, 3)).value(), 6u);
  EXPECT_EQ(store->stats().disk_block_count, 2u);
}

TEST_F(SpillTest, AnUnreadableBlockDoesNotKeepItsSegmentForEver) {
  create_tiers(16, 256, 16);
  const SpaceId space = open(kBytes);
  put(space, chain(1, 8));
  spill();
  const auto prefix = store->pin_prefix(space, chain(1, 8), {.session = kAlice, .disk = true}, now).value();
  (*disk.bytes(prefix.on_disk[2].key))[0] ^= std::byte{1};
  store->unpin(prefix);
  for (std::uint64_t name = 2; name <= 300; ++name) {
    ASSERT_TRUE(store->touch(space, chain(1, 8), now));  // alive and unread until its segment goes
    put(space, chain(name, 8));
    spill();
  }
  EXPECT_EQ(store->stats().lost_blocks, 1u);
  EXPECT_LE(disk.stats().file_bytes, (256 + 16) * kBytes * 5 / 4 + 4 * 16 * kBytes);
}

TEST_F(SpillTest, WhatIsDroppedWhileItIsBeingWrittenDoesNotComeBack) {
  create_tiers(8, 100, 8);
  const SpaceId space = open(kBytes);
  put(space, chain(1, 8));
  SpillWork work = store->spill_work(1 << 20, now);
  EXPECT_EQ(store->drop(space, chain(1, 3)).value(), 6u);
  run(work);
  const auto found = store->match(space, chain(1, 8), {}, now).value();
  EXPECT_EQ(found.memory_block_count + found.disk_block_count, 2u);
  work = store->spill_work(1 << 20, now);
  EXPECT_EQ(work.erased.size(), 6u);
  run(work);
}

TEST_F(SpillTest, ADamagedBlockIsForgottenWithAllBelowIt) {
  create_tiers(8, 100, 8);
  const SpaceId space = open(kBytes);
  put(space, chain(1, 8));
  spill();
  const auto prefix = store->pin_prefix(space, chain(1, 8), {.session = kAlice, .disk = true}, now).value();
  (*disk.bytes(prefix.on_disk[5].key))[17] ^= std::byte{1};
  store->unpin(prefix);
  const Got got = get(space, chain(1, 8));
  EXPECT_EQ(got.disk, 5u);
  EXPECT_EQ(got.lost, 3u);
  EXPECT_EQ(store->stats().lost_blocks, 1u);
  EXPECT_EQ(get(space, chain(1, 8)).lost, 0u) << "not tried again";
}

TEST_F(SpillTest, TheDiskKeepsItsCapacityAndLetsTheLeastRecentGo) {
  create_tiers(8, 32, 8);
  const SpaceId space = open(kBytes);
  for (std::uint64_t name = 1; name <= 10; ++name) {
    put(space, chain(name, 8));
    spill();
    if (name >= 2) {
      const Got got = get(space, chain(1, 8));
      EXPECT_EQ(got.memory + got.disk, 8u) << name;  // kept by use
    }
  }
  EXPECT_LE(store->stats().disk_only_bytes, 32 * kBytes);
  EXPECT_EQ(get(space, chain(2, 8)).disk, 0u);
  EXPECT_EQ(get(space, chain(10, 8)).disk, 8u);
}

TEST_F(SpillTest, TheLogStaysBoundedAndIsGivenBackInWhole) {
  config.disk.log_factor = 1.25;
  create_tiers(16, 256, 16);
  const SpaceId space = open(kBytes);
  std::uint64_t written = 0, stored = 0;
  for (std::uint64_t name = 1; name <= 300; ++name) {
    stored += put(space, chain(name, 8)).stored;
    written += spill();
    EXPECT_LE(disk.stats().file_bytes, (256 + 16) * kBytes * 5 / 4 + 4 * 16 * kBytes);
  }
  EXPECT_EQ(store->stats().disk_log_bytes, disk.stats().file_bytes);
  EXPECT_LE(static_cast<double>(written), 1.1 * static_cast<double>(stored));
}

TEST_F(SpillTest, AWholePrefixThatTheRewriteBudgetDoesNotCoverGoes) {
  config.disk.rewrite_share = 0;
  config.disk.log_factor = 1.25;
  create_tiers(16, 256, 16);
  const SpaceId space = open(kBytes);
  for (std::uint64_t name = 1; name <= 100; ++name) {
    put(space, chain(name, 8));
    spill();
    store->touch(space, chain(1, 8), now).value();  // recent: only its place in the log speaks against it
  }
  EXPECT_EQ(store->stats().rewritten_blocks, 0u);
  EXPECT_EQ(get(space, chain(1, 8)).disk, 0u);
}

/// Memory for larger blocks takes more calls to free than one. The disk's log is full meanwhile, and its oldest blocks
/// have copies among those that are being freed.
TEST_F(SpillTest, TheLogMovesNothingThatIsJustBeingEvictedFromMemory) {
  config.disk.capacity_bytes = 64 * kBytes;
  config.disk.segment_bytes = 16 * kBytes;
  config.disk.log_factor = 1;
  config.spill.write_through = true;
  config.spill.reserve = 0;
  create(1024 * kBytes, 64 * kBytes);
  const SpaceId small = open(kBytes, "small"), large = open(16 * kBytes, "large");
  put(small, chain(1, 1000));
  EXPECT_EQ(spill(), 1000u);
  put(small, chain(2, 24));  // used later than the long chain; memory is full
  const auto plan = store->offer(large, chain(3, 2), {.session = kAlice, .may_lose = true}, now).value();
  ASSERT_GT(store->stats().evicted_blocks, 0u);
  ASSERT_LT(store->stats().evicted_blocks, 900u) << "all in one call: nothing is left to be moved";
  const SpillWork work = store->spill_work(8 * kBytes, now);
  while (store->is_dropping()) store->drop_more(now);  // while the disk writes
  run(work);
  spill();
  if (plan.put != PutId{}) store->end_put(plan.put);
  check();
}

/// One LRU over both tiers' capacity, leaf ends first, is what two tiers should be as good as.
TEST_F(SpillTest, TwoTiersHitAsOneCacheOfTheSummedCapacityWould) {
  std::mt19937_64 random(test_seed());
  constexpr std::size_t kMemory = 256, kDisk = 1024;
  check_every = 64;
  config.disk.segment_bytes = 32 * kBytes;
  create_tiers(kMemory, kDisk, 16);
  const SpaceId space = open(kBytes);
  StoreConfig one_config;
  one_config.arena = config.arena;
  one_config.arena.capacity_bytes = (kMemory + kDisk) * kBytes;
  const auto single = Store::create(one_config).value();
  const SpaceId single_space = single->open(make_record("m", kBytes)).value();

  std::uint64_t asked = 0, hits = 0, single_hits = 0;
  for (int request = 0; request < 4000; ++request) {
    // Conversations that go on for a while: a shared first block, then turns.
    const std::uint64_t conversation = request / 40 * 10 + random() % 30;
    std::vector<BlockHash> hashes = {hash_of(7)};
    for (const BlockHash& hash : chain(conversation, 4 + random() % 20)) hashes.push_back(hash);
    asked += hashes.size();
    const Got got = get(space, hashes);
    hits += got.memory + got.disk;
    put(space, std::span(hashes));
    spill();
    const auto pinned = single->pin_prefix(single_space, hashes, {.session = kAlice}, now).value();
    single_hits += pinned.blocks.size();
    single->unpin(pinned);
    auto plan = single->offer(single_space, hashes, {.session = kAlice}, now).value();
    for (const auto& block : plan.incoming) static_cast<void>(single->commit(plan.put, fill(block), now));
    if (plan.put != PutId{}) single->end_put(plan.put);
  }
  const double rate = static_cast<double>(hits) / static_cast<double>(asked);
  const double single_rate = static_cast<double>(single_hits) / static_cast<double>(asked);
  std::printf("hit rate %.4f in two tiers, %.4f in one; %zu blocks lost unspilled\n", rate, single_rate,
              static_cast<std::size_t>(store->stats().lost_unspilled_blocks));
  EXPECT_NEAR(rate, single_rate, 0.02);
}

TEST_F(SpillTest, TheConversationTraceHitsAsOneLruOfTheSummedCapacity) {
  const auto trace = conversation_trace();
  if (!trace) GTEST_SKIP() << kNoTrace;
  const std::pair<std::size_t, double> rows[] = {{24000, 0.3257}, {94000, 0.3637}};
  for (const auto& [on_disk, expected] : rows) {
    disk = MemoryDisk();
    check_every = 4096;
    config.disk.segment_bytes = 256 * kBytes;
    create_tiers(6000, on_disk, 200);
    const SpaceId space = open(kBytes);
    std::uint64_t asked = 0, memory = 0, spilled = 0, written = 0, stored = 0;
    for (const auto& ids : *trace) {
      std::vector<BlockHash> hashes;
      for (const std::uint64_t id : ids) hashes.push_back(hash_of(id));
      const Got got = get(space, hashes);
      asked += hashes.size();
      memory += got.memory;
      spilled += got.disk;
      stored += put(space, hashes).stored;
      written += spill();
    }
    const double rate = static_cast<double>(memory + spilled) / static_cast<double>(asked);
    std::printf("6000 + %zu blocks: hit rate %.4f (%.4f expected), %.4f of it from memory; %.3f written for 1 stored\n",
                on_disk, rate, expected, static_cast<double>(memory) / static_cast<double>(asked),
                static_cast<double>(written) / static_cast<double>(stored));
    EXPECT_NEAR(rate, expected, 0.003);
  }
}

}  // namespace
}  // namespace kv
