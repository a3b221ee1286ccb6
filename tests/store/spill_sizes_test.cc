// A disk below memory that is short of slots of a size, not of bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "spill_fixture.h"

namespace kv {
namespace {

/// Memory is short of slots of a size, not of bytes.
class ManySizesSpillTest : public SpillTest {
 protected:
  ManySizesSpillTest() {
    config.disk.capacity_bytes = 256 << 20;
    config.spill.reserve = 1.0 / 32;
    may_lose = false;
    waits_for_disk = true;
    check_every = 16;
  }
  /// Puts the chain and waits for the disk as often as it takes.
  void put_whole(SpaceId space, std::span<const BlockHash> hashes) {
    waited = 0;
    const Stored stored = put(space, hashes);
    ASSERT_EQ(stored.refused, 0u) << "after " << waited << " writes";
    waited_max = std::max(waited_max, waited);
  }
  std::size_t found(SpaceId space, std::span<const BlockHash> hashes) {
    const auto match = store->match(space, hashes, {}, now).value();
    return match.memory_block_count + match.disk_block_count;
  }
  /// Of a set, with a length each, as put_whole().
  void put_set(SpaceId set, std::span<const BlockHash> hashes, std::span<const std::uint32_t> lengths) {
    waited = 0;
    now += Duration(1000);
    auto plan = store->offer_set(set, hashes, {.session = kAlice, .lengths = lengths, .may_lose = false}, now).value();
    const PutId id = plan.put;
    for (;;) {
      for (const auto& block : plan.incoming) ASSERT_EQ(store->commit(id, fill(block), now), CommitStatus::kStored);
      if (plan.refused_count == 0) break;
      ASSERT_TRUE(plan.again || make_room());
      plan = store->offer_more(id, now, false).value();
    }
    if (id != PutId{}) store->end_put(id);
  }
  std::size_t waited_max = 0;
};

TEST_F(ManySizesSpillTest, OfChainsOfManySizesAllIsKept) {
  create(8 << 20, 64 << 10);
  std::vector<SpaceId> spaces;
  for (const std::size_t bytes : {1000, 4096, 20'000, 65'536, 100'000, 131'072, 262'144})
    spaces.push_back(open(bytes, "s" + std::to_string(bytes)));
  std::mt19937_64 random(test_seed());
  std::vector<std::pair<SpaceId, std::vector<BlockHash>>> all;
  for (std::uint64_t name = 1; name <= 300; ++name) {
    all.emplace_back(spaces[random() % spaces.size()], chain(name, 1 + random() % 4));
    put_whole(all.back().first, all.back().second);
    if (random() % 4 == 0) match(all[random() % all.size()].first, all[random() % all.size()].second);
  }
  for (const auto& [space, hashes] : all) ASSERT_EQ(found(space, hashes), hashes.size());
  const StoreStats stats = store->stats();
  EXPECT_EQ(stats.lost_unspilled_blocks, 0u);
  EXPECT_GT(stats.slab_moves, 0u);
}

TEST_F(ManySizesSpillTest, OfASetOfManyLengthsAllIsKept) {
  create(4 << 20, 64 << 10);
  const SpaceId set =
      store
          ->open(NamespaceRecord::from_fields({{"model", "s"}, {"kind", "set"}, {"block_bytes_max", "400000"}}).value())
          .value();
  std::mt19937_64 random(test_seed());
  const auto names = chain(1, 200);
  for (std::size_t i = 0; i < names.size(); i += 4) {
    std::vector<std::uint32_t> lengths;
    for (int k = 0; k < 4; ++k)
      lengths.push_back(static_cast<std::uint32_t>(1 + random() % (400'000 >> random() % 12)));
    put_set(set, std::span(names).subspan(i, 4), lengths);
  }
  const auto match = store->match_set(set, names, {}, now).value();
  EXPECT_EQ(std::ranges::count(match.held, ReadDesk::Held::kNowhere), 0);
  EXPECT_EQ(store->stats().lost_unspilled_blocks, 0u);
  EXPECT_GT(store->stats().slab_moves, 0u);
}

/// Below the block that lies in the way hang hundreds that lie elsewhere, beside blocks in use.
TEST_F(ManySizesSpillTest, AllBelowABlockInTheWayIsWrittenInFewRounds) {
  config.spill.reserve = 0;
  create(32 * (64 << 10), 64 << 10);
  const SpaceId small = open(4096, "small"), large = open(64 << 10, "large");
  auto prompt = chain(1, 3);
  put(small, std::span(prompt).first(2));
  put(small, chain(2, 14));  // the rest of the slab
  for (std::uint64_t slab = 1; slab < 32; ++slab) {
    for (std::uint64_t i = 0; i < 8; ++i) {
      prompt[2] = hash_of(slab * 8 + i);
      ASSERT_EQ(put(small, prompt).stored, 1u);
    }
    ASSERT_EQ(put(small, chain(100 + slab, 8)).stored, 8u);
  }
  for (std::uint64_t slab = 1; slab < 32; ++slab) match(small, chain(100 + slab, 8));
  put_whole(large, chain(3, 1));
  EXPECT_EQ(store->stats().slab_moves, 1u);
  EXPECT_EQ(store->stats().evicted_blocks, 16u + 31 * 8);
  EXPECT_EQ(store->stats().lost_unspilled_blocks, 0u);
  for (std::uint64_t name = 8; name < 32 * 8; ++name) {
    prompt[2] = hash_of(name);
    ASSERT_EQ(found(small, prompt), 3u);
  }
  EXPECT_LE(waited_max, 8u) << "of 256 KiB each";
}

TEST_F(ManySizesSpillTest, WhileVictimsAreBeingWrittenNoOthersAreAskedFor) {
  config.spill.reserve = 0;
  waits_for_disk = false;
  create(64 * (64 << 10), 64 << 10);
  const SpaceId small = open(4096, "small"), large = open(64 << 10, "large");
  for (std::uint64_t name = 0; name < 64; ++name) put(small, chain(name, 16));  // a slab each
  EXPECT_FALSE(store->wants_spill());
  EXPECT_EQ(put(large, chain(100, 1)).refused, 1u);
  ASSERT_TRUE(store->wants_spill());
  const SpillWork work = store->spill_work(256 << 10, now);
  ASSERT_EQ(work.writes.size(), 16u);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(put(large, chain(100, 1)).refused, 1u);
  EXPECT_FALSE(store->wants_spill());
  run(work);
  EXPECT_EQ(put(large, chain(100, 1)).stored, 1u);
  EXPECT_EQ(store->stats().evicted_blocks, 16u);
  EXPECT_EQ(store->stats().lost_unspilled_blocks, 0u);
  EXPECT_EQ(spill(), 16u) << "the next in advance";
  EXPECT_EQ(put(large, chain(101, 1)).stored, 1u);
}

TEST_F(ManySizesSpillTest, WhatIsOnDiskGivesWayBeforeWhatIsALittleOlder) {
  config.spill.reserve = 0;
  config.spill.write_through = true;
  waits_for_disk = false;
  create(64 * (64 << 10), 64 << 10);
  const SpaceId small = open(4096, "small"), large = open(64 << 10, "large");
  for (std::uint64_t name = 0; name < 64; ++name) put(small, chain(name, 16));  // a slab each
  const SpillWork work = store->spill_work(64 << 10, now);
  ASSERT_EQ(work.writes.size(), 16u);
  EXPECT_EQ(work.writes[0].record.hash, chain(63, 1)[0]) << "written through: the newest first";
  run(work);
  for (std::uint64_t name = 1; name < 63; ++name) match(small, chain(name, 16));
  EXPECT_EQ(put(large, chain(100, 1)).stored, 1u);
  EXPECT_EQ(match(small, chain(0, 16)), 16u);
  EXPECT_EQ(match(small, chain(63, 16)), 0u);
  EXPECT_EQ(found(small, chain(63, 16)), 16u);
}

/// As many sizes, and a disk that does nothing.
TEST_F(ManySizesSpillTest, AfterTheWaitMemoryIsServedWhateverTheDiskDoes) {
  waits_for_disk = false;
  create(4 << 20, 64 << 10);
  const SpaceId small = open(4096, "small"), large = open(300'000, "large");
  for (std::uint64_t name = 0; name < 64; ++name) put(small, chain(name, 16));
  EXPECT_EQ(put(large, chain(100, 4)).stored, 0u);
  disk.fails_writes = true;
  const SpillWork work = store->spill_work(256 << 10, now);
  may_lose = true;  // also with a write under way
  EXPECT_EQ(put(large, chain(100, 4)).stored, 4u);
  run(work);
  EXPECT_EQ(put(large, chain(101, 4)).stored, 4u);
  EXPECT_GT(store->stats().lost_unspilled_blocks, 0u);
}

/// Free bytes beyond the reserve, in which no further block fits.
TEST_F(ManySizesSpillTest, FreeBytesThatNoBlockFitsAreNoRoom) {
  create((4 << 20) - (400 << 10), 64 << 10);
  const SpaceId space = open(1 << 20);
  put_whole(space, chain(1, 3));
  EXPECT_FALSE(store->wants_spill());
  put_whole(space, chain(2, 3));
  EXPECT_EQ(found(space, chain(1, 3)), 3u);
  EXPECT_EQ(store->stats().lost_unspilled_blocks, 0u);
}

}  // namespace
}  // namespace kv
