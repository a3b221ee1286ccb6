// Several directories of a disk: what goes where, and what leaves one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "spill_fixture.h"

namespace kv {
namespace {

/// Of several directories, also when an engine's hashes are 64 bits, padded at either end.
TEST_F(SpillTest, ShortHashesOfAnEngineGoToAllDirectories) {
  DiskTier tier({.capacity_bytes = 1 << 20});
  tier.set_places({0, 3, 5, 7});
  for (const std::size_t at : {0, 8, 16, 24}) {
    std::map<DiskPlace, int> counts;
    for (std::uint64_t number = 0; number < 4000; ++number) {
      BlockHash hash;
      std::memcpy(hash.bytes.data() + at, &number, sizeof number);
      ++counts[place_of(tier.new_key(hash))];
    }
    ASSERT_EQ(counts.size(), 4u) << at;
    for (const auto& [place, count] : counts) EXPECT_NEAR(count, 1000, 150) << at;
  }
}

TEST_F(SpillTest, WhatLeavesADirectoryIsMovedInOrderAndCostsNothingElse) {
  create_tiers(16, 64, 8);
  store->set_disk_places({0, 1});
  const SpaceId space = open(kBytes);
  for (std::uint64_t name = 1; name <= 8; ++name) {
    put(space, chain(name, 8));
    spill(true);
  }
  const DiskTier::PlaceUse before = store->disk_place_use(0);
  ASSERT_GT(before.block_count, 16u);
  EXPECT_EQ(before.block_count + store->disk_place_use(1).block_count, 64u);
  const std::vector<DiskPlace> leaving = {0};
  store->set_disk_places({1}, leaving);
  std::uint64_t moved = 0;
  std::map<BlockHash, DiskKey> seen;
  while (store->disk_place_use(0).block_count > 0) {
    const SpillWork work = store->drain_work(0, 3 * kBytes, now);
    EXPECT_LE(work.writes.size(), 3u);
    for (const DiskWrite& write : work.writes) {
      EXPECT_EQ(place_of(write.record.key), 1);
      if (seen.contains(write.record.parent)) {
        EXPECT_LT(seen[write.record.parent], write.record.key);
      }
      seen[write.record.hash] = write.record.key;
    }
    moved += work.writes.size();
    run(work);
    ASSERT_LE(moved, before.block_count);
  }
  EXPECT_EQ(moved, before.block_count);
  disk.clear_place(0);
  store->forget_disk_place(0);
  store->set_disk_places({1});
  check();
  EXPECT_EQ(spill(), 0u) << "the log is as long as before: nothing is written again, and nothing evicted";
  for (std::uint64_t name = 1; name <= 8; ++name) EXPECT_EQ(get(space, chain(name, 8)).disk, 8u) << name;
}

/// Directories come, are emptied, stay after all, go, are given up, and have gone after a kill; meanwhile chains are
/// put, got, dropped and evicted, and writes fail. Nothing that was dropped comes back, no block is wrong, and none is
/// lost but by a directory that was given up or is gone.
TEST_F(SpillTest, DirectoriesComeAndGo) {
  std::mt19937_64 random(test_seed());
  std::size_t found = 0, moved = 0, ends = 0;
  for (int world = 0; world < 12 && !HasFailure(); ++world) {
    disk = MemoryDisk();
    config.disk.segment_bytes = (4 + random() % 12) * kBytes;
    create_tiers(16, 24 + random() % 200, 8);
    SpaceId space = open(kBytes);
    std::vector<DiskPlace> staying = {0}, leaving;
    if (random() % 2 == 0) staying.push_back(5);
    store->set_disk_places(staying);
    const auto tell = [&] { store->set_disk_places(staying, leaving); };
    const auto take = [&](std::vector<DiskPlace>& from) {
      const auto at = from.begin() + static_cast<std::ptrdiff_t>(random() % from.size());
      const DiskPlace place = *at;
      from.erase(at);
      return place;
    };
    const auto drain = [&](DiskPlace place) {
      const bool is_full = store->stats().disk_only_bytes > config.disk.capacity_bytes;
      const std::uint64_t before = store->stats().disk_block_count;
      const SpillWork work = store->drain_work(place, (1 + random() % 6) * kBytes, now);
      for (const DiskWrite& write : work.writes)
        EXPECT_NE(std::ranges::find(staying, place_of(write.record.key)), staying.end());
      disk.fails_writes = random() % 8 == 0;
      const SpillOutcome outcome = carry_out(work, disk);
      EXPECT_EQ(store->finish_spill(work, outcome), 0u);
      disk.fails_writes = false;
      moved += outcome.error ? 0 : work.writes.size();
      if (!is_full) {
        EXPECT_EQ(store->stats().disk_block_count, before);
      }
      check();
    };
    const auto end = [&](DiskPlace place) {
      ASSERT_EQ(store->disk_place_use(place).block_count, 0u);
      disk.clear_place(place);
      store->forget_disk_place(place);
      std::erase(leaving, place);
      tell();
      ++ends;
    };
    std::set<BlockHash> dropped;
    for (int turn = 0; turn < 250 && !HasFailure(); ++turn) {
      SCOPED_TRACE("turn " + std::to_string(turn));
      const auto hashes = branch(random() % kBranches);
      switch (random() % 16) {
        case 0: drop_some(space, hashes, random, dropped); break;
        case 1: {  // killed; what was leaving may be gone with the next start, or be back
          if (random() % 3 > 0) break;
          disk.crash_unsynced(random() % (disk.unsynced_count() + 1));
          for (; !leaving.empty(); leaving.pop_back()) {
            if (random() % 2 == 0)
              disk.clear_place(leaving.back());
            else
              staying.push_back(leaving.back());
          }
          create(16 * kBytes, kBytes);
          space = open(kBytes);
          tell();
          load_all(disk.drops());
          check();
          break;
        }
        case 2:
          for (DiskPlace place = 0; place < kPlaceCount; ++place) {
            if (std::ranges::find(staying, place) != staying.end() ||
                std::ranges::find(leaving, place) != leaving.end())
              continue;
            staying.push_back(place);
            break;
          }
          tell();
          break;
        case 3:
          if (staying.size() < 2) break;
          leaving.push_back(take(staying));
          tell();
          break;
        case 4:
          if (leaving.empty()) break;
          staying.push_back(take(leaving));
          tell();
          break;
        case 5:
        case 6:
          for (int i = 0; i < 200 && !leaving.empty() && store->disk_place_use(leaving.front()).block_count > 0; ++i)
            drain(leaving.front());
          if (!leaving.empty() && store->disk_place_use(leaving.front()).block_count == 0) end(leaving.front());
          break;
        case 7:
          if (!leaving.empty()) drain(leaving.back());
          break;
        case 8:
          if (leaving.empty() || random() % 4 > 0) break;
          for (int i = 0; i < 1000 && store->disk_place_use(leaving.back()).block_count > 0; ++i)
            store->give_up_disk_place(leaving.back(), now);
          end(leaving.back());
          break;
        case 9:
          if (random() % 4 == 0 && !leaving.empty()) store->evict_from_disk(5 * kBytes, now);
          break;
        case 10: ASSERT_FALSE(disk.flush()); break;
        case 11:
        case 12:
          put(space, hashes);
          for (const BlockHash& hash : hashes) dropped.erase(hash);
          [[fallthrough]];
        case 13: spill(/*everything=*/random() % 2 == 0); break;
        default: EXPECT_EQ(get(space, hashes).lost, 0u);
      }
      found += count_found(space, dropped);
    }
  }
  EXPECT_GT(found, 0u);
  EXPECT_GT(moved, 0u);
  EXPECT_GT(ends, 0u);
}

}  // namespace
}  // namespace kv
