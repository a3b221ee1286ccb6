// What comes back from the disk after a stop or a crash, and what was dropped and does not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "spill_fixture.h"

namespace kv {
namespace {

TEST_F(SpillTest, ARestartFindsWhatIsOnDiskInPrefixesWithoutGaps) {
  create_tiers(16, 100, 8);
  const SpaceId space = open(kBytes);
  put(space, chain(1, 16));
  spill();
  put(space, chain(2, 4));
  store->drop(space, chain(1, 12)).value();
  spill();
  restart();
  EXPECT_EQ(get(space, chain(1, 16)).disk, 11u) << "what was dropped stays away";
  EXPECT_EQ(get(space, chain(2, 4)).disk, 0u) << "was in memory only";
  put(space, chain(3, 16));
  EXPECT_EQ(spill(), 16u) << "new keys are larger than old ones";
}

TEST_F(SpillTest, AStopSavesWhatIsInMemory) {
  create_tiers(64, 1000, 2);
  const SpaceId space = open(kBytes);
  for (std::uint64_t name = 1; name <= 12; ++name) {
    EXPECT_EQ(put(space, chain(name, 16)).stored, 16u);
    spill();
  }
  spill(/*everything=*/true);
  restart();
  EXPECT_EQ(store->stats().disk_block_count, 12u * 16);
  for (std::uint64_t name = 1; name <= 12; ++name) EXPECT_EQ(get(space, chain(name, 16)).disk, 16u) << name;
}

TEST_F(SpillTest, ACrashLosesTheLastWritesAndNothingElse) {
  for (std::size_t kept = 0; kept <= 24; ++kept) {
    disk = MemoryDisk();
    create_tiers(8, 100, 8);
    SpaceId space = open(kBytes);
    for (std::uint64_t name = 1; name <= 3; ++name) {
      put(space, chain(name, 8));
      spill();
    }
    disk.crash(kept);
    restart();
    space = open(kBytes);
    std::size_t found = 0;
    for (std::uint64_t name = 1; name <= 3; ++name) found += get(space, chain(name, 8)).disk;
    EXPECT_EQ(found, kept);
  }
}

TEST_F(SpillTest, ALoadThatIsCutShortLeavesTheRestForTheNextStart) {
  create_tiers(8, 100, 8);
  const SpaceId space = open(kBytes);
  for (std::uint64_t name = 1; name <= 3; ++name) {
    put(space, chain(name, 8));
    spill();
  }
  disk.crash(disk.block_count());
  create(8 * kBytes, kBytes);
  ASSERT_EQ(open(kBytes), space);
  std::vector<DiskRecord> records;
  ASSERT_FALSE(disk.load([](const NamespaceId&, const std::string&) {},
                         [&](const DiskRecord& record) { return records.push_back(record), records.size() < 12; }));
  store->begin_load(now, disk.epoch());
  EXPECT_TRUE(load(records));
  EXPECT_EQ(store->end_load(/*is_whole=*/false), 8u) << "chain 3; of chain 2 the first blocks were not reached";
  spill(/*everything=*/true);
  restart();
  for (std::uint64_t name = 1; name <= 3; ++name) EXPECT_EQ(get(space, chain(name, 8)).disk, 8u) << name;
}

TEST_F(SpillTest, AFullTierLoadsTheNewestAndDropsTheRest) {
  create_tiers(8, 100, 8);
  const SpaceId space = open(kBytes);
  for (std::uint64_t name = 1; name <= 8; ++name) {
    put(space, chain(name, 8));
    spill();
  }
  config.disk.capacity_bytes = 24 * kBytes;  // was configured smaller
  restart();
  EXPECT_EQ(get(space, chain(8, 8)).disk, 8u);
  EXPECT_EQ(get(space, chain(6, 8)).disk, 8u);
  EXPECT_EQ(get(space, chain(5, 8)).disk, 0u);
  spill();
  EXPECT_LE(disk.block_count(), 26u);
}

TEST_F(SpillTest, ALoadGoesOnWhileBlocksArePutAndDropped) {
  create_tiers(16, 200, 8);
  const SpaceId space = open(kBytes);
  for (std::uint64_t name = 1; name <= 8; ++name) {
    put(space, chain(name, 8));
    spill(true);
  }
  disk.crash(disk.block_count());
  create(16 * kBytes, kBytes);
  const SpaceId again = open(kBytes);
  ASSERT_EQ(again, space);
  std::vector<DiskRecord> records;
  ASSERT_FALSE(disk.load([](const NamespaceId&, const std::string&) {},
                         [&](const DiskRecord& record) { return records.push_back(record), true; }));
  store->begin_load(now, disk.epoch());
  for (std::size_t i = 0; i < records.size(); i += 5) {
    EXPECT_TRUE(load(std::span(records).subspan(i, std::min<std::size_t>(5, records.size() - i))));
    check();
    if (i == 20) put(space, chain(2, 8));
    if (i == 30) {
      EXPECT_GT(store->drop(space, chain(8, 3)).value(), 0u);
    }
    spill();
  }
  EXPECT_GT(store->end_load(/*is_whole=*/true), 40u);
  spill();
  for (const std::uint64_t name : {1, 2, 3, 4, 5, 6, 7}) {
    const Got got = get(space, chain(name, 8));
    EXPECT_EQ(got.memory + got.disk, 8u) << name;
  }
  EXPECT_EQ(get(space, chain(8, 8)).disk, 2u);
}

TEST_F(SpillTest, ALoadThatBrokeOffGoesOnFromTheNewestAgain) {
  create_tiers(16, 200, 8);
  const SpaceId space = open(kBytes);
  for (std::uint64_t name = 1; name <= 3; ++name) {
    put(space, chain(name, 8));
    spill(true);
  }
  disk.crash(disk.block_count());
  create(16 * kBytes, kBytes);
  const std::vector<DiskRecord> records = open_spaces();
  store->begin_load(now, disk.epoch());
  for (const std::size_t seen : {5, 12, 12, 0, 24}) {
    load(std::span(records).first(seen));
    check();
  }
  EXPECT_EQ(store->end_load(/*is_whole=*/true), 24u);
  for (std::uint64_t name = 1; name <= 3; ++name) EXPECT_EQ(get(space, chain(name, 8)).disk, 8u) << name;
}

TEST_F(SpillTest, ABlockThatWasWrittenAgainDuringALoadIsDroppedForGood) {
  create_tiers(16, 200, 8);
  SpaceId space = open(kBytes);
  put(space, chain(1, 8));
  spill(true);
  disk.crash(disk.block_count());
  create(16 * kBytes, kBytes);
  const std::vector<DiskRecord> records = open_spaces();
  space = open(kBytes);
  store->begin_load(now, disk.epoch());
  put(space, chain(1, 8));
  spill(true);
  EXPECT_EQ(disk.block_count(), 16u);
  load(records);
  store->end_load(/*is_whole=*/true);
  EXPECT_EQ(store->drop(space, chain(1, 1)).value(), 8u);
  spill(true);
  restart();
  space = open(kBytes);
  EXPECT_EQ(get(space, chain(1, 8)).disk, 0u) << "neither copy";
}

TEST_F(SpillTest, WhatIsDroppedWhileThereIsNoDiskYetIsNotFoundThere) {
  create_tiers(16, 200, 8);
  SpaceId space = open(kBytes), other = open(kBytes, "other");
  for (std::uint64_t name = 1; name <= 3; ++name) {
    put(space, chain(name, 8));
    put(other, chain(name, 8));
    spill(true);
  }
  disk.crash(disk.block_count());
  create(16 * kBytes, kBytes);
  const std::vector<DiskRecord> records = open_spaces();
  space = open(kBytes), other = open(kBytes, "other");
  EXPECT_EQ(store->drop(space, chain(2, 3)).value(), 0u) << "so far";
  EXPECT_EQ(store->drop(other, {}).value(), 0u);
  put(other, chain(3, 2));
  store->begin_load(now, disk.epoch());
  EXPECT_TRUE(load(records));
  store->end_load(/*is_whole=*/true);
  for (int start = 0; start < 2; ++start) {
    SCOPED_TRACE(start);
    spill(true);
    EXPECT_EQ(get(space, chain(1, 8)).disk, 8u);
    EXPECT_EQ(get(space, chain(2, 8)).disk, 2u);
    EXPECT_EQ(get(space, chain(3, 8)).disk, 8u);
    EXPECT_EQ(get(other, chain(1, 8)).disk, 0u);
    EXPECT_EQ(get(other, chain(3, 8)).disk, 2u) << "put after the drop";
    restart();
    space = open(kBytes), other = open(kBytes, "other");
  }
}

TEST_F(SpillTest, WhatIsDroppedAtAnyMomentOfALoadDoesNotComeBack) {
  for (std::size_t moment = 0; moment <= 24; ++moment) {
    for (const std::size_t again : {0, 4, 8}) {
      SCOPED_TRACE(std::to_string(moment) + ", put again " + std::to_string(again));
      disk = MemoryDisk();
      create_tiers(16, 200, 8);
      SpaceId space = open(kBytes);
      put(space, chain(1, 8));
      spill(true);
      put(space, chain(2, 8));
      spill(true);
      put(space, chain(3, 8));
      spill(true);
      disk.crash(disk.block_count());
      create(16 * kBytes, kBytes);
      const std::vector<DiskRecord> records = open_spaces();
      space = open(kBytes);
      ASSERT_EQ(records.size(), 24u);
      store->begin_load(now, disk.epoch());
      load(std::span(records).first(moment));
      EXPECT_TRUE(store->drop(space, chain(2, 3)));
      if (again > 0) put(space, chain(2, again));
      spill(/*everything=*/true);
      load(std::span(records).subspan(moment));
      store->end_load(/*is_whole=*/true);
      for (int start = 0; start < 2; ++start) {
        spill(true);
        EXPECT_EQ(get(space, chain(1, 8)).disk, 8u);
        EXPECT_EQ(get(space, chain(2, 8)).disk, std::max<std::size_t>(2, again));
        restart();
        space = open(kBytes);
      }
    }
  }
}

/// The erasures never reach the disk, as after a kill at once after the answer; only what the disk was told to keep
/// does. Random chains, drops, puts again, evictions, moves within the log and restarts, against a model.
TEST_F(SpillTest, WhatADropWasAnsweredForNeverComesBack) {
  std::mt19937_64 random(test_seed());
  std::size_t found = 0, checked = 0;
  for (int world = 0; world < 20 && !HasFailure(); ++world) {
    disk = MemoryDisk();
    config.disk.segment_bytes = (4 + random() % 12) * kBytes;
    create_tiers(16, 24 + random() % 200, 8);
    SpaceId space = open(kBytes);
    std::set<BlockHash> dropped;  // and not put again since
    for (int turn = 0; turn < 200 && !HasFailure(); ++turn) {
      SCOPED_TRACE("turn " + std::to_string(turn));
      const auto hashes = branch(random() % kBranches);
      switch (random() % 10) {
        case 0:
        case 1: drop_some(space, hashes, random, dropped); break;
        case 2: {  // killed; of what was not flushed some is lost
          disk.crash_unsynced(random() % (disk.unsynced_count() + 1));
          create(16 * kBytes, kBytes);
          space = open(kBytes);
          load_all(disk.drops());
          if (random() % 2 == 0) {  // and cleaned up, as the driver does
            spill();
            ASSERT_FALSE(disk.flush());
            ASSERT_FALSE(disk.forget_drops(DiskKey{std::uint64_t{disk.epoch()} << 40}));
          }
          break;
        }
        case 3: ASSERT_FALSE(disk.flush()); break;
        case 4:
        case 5:
        case 6:
          put(space, hashes);
          for (const BlockHash& hash : hashes) dropped.erase(hash);
          [[fallthrough]];
        case 7: spill(/*everything=*/random() % 2 == 0); break;
        default: get(space, hashes);
      }
      found += count_found(space, dropped);
      checked += dropped.size();
    }
  }
  EXPECT_GT(found, 0u);
  EXPECT_GT(checked, 0u);
}

/// A prompt that all share is moved as the log's old end is given back, and something else is dropped: what hangs below
/// the prompt is still there after a restart.
TEST_F(SpillTest, ADropCostsNothingThatHangsBelowABlockMovedLater) {
  config.disk.segment_bytes = 8 * kBytes;
  create_tiers(16, 24, 8);
  const SpaceId space = open(kBytes);
  const auto shared = chain(1, 2);
  put(space, shared);
  spill(true);
  std::size_t dropped_at = 0;
  for (std::uint64_t name = 2; name <= 40; ++name) {
    auto hashes = shared;
    for (const BlockHash& hash : chain(name, 2)) hashes.push_back(hash);
    put(space, hashes);
    spill(true);
    if (name == 30) {
      DiskDrop kept;
      ASSERT_TRUE(store->drop(space, hashes, &kept));
      ASSERT_FALSE(disk.add_drops(std::span(&kept, 1)));
      dropped_at = disk.block_count();
    }
  }
  ASSERT_GT(dropped_at, 0u);
  ASSERT_GT(store->stats().rewritten_blocks, 0u);
  const std::uint64_t before = store->stats().disk_block_count;
  disk.crash(disk.block_count());
  create(16 * kBytes, kBytes);
  open(kBytes);
  load_all(disk.drops());
  EXPECT_GE(store->stats().disk_block_count, before);
}

}  // namespace
}  // namespace kv
