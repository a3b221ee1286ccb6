// The disk tier: what goes there, in which order, what comes back, and what is evicted from it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <list>
#include <map>
#include <random>
#include <set>
#include <unordered_map>

#include "memory_disk.h"
#include "store_fixture.h"
#include "trace.h"

namespace kv {
namespace {

constexpr std::size_t kBytes = 4096;

class SpillTest : public StoreFixture {
 protected:
  MemoryDisk disk;
  std::size_t check_every = 1;  ///< Store::check() looks at everything.
  std::size_t step = 0;

  void restart() {
    disk.crash(disk.block_count());  // a new epoch
    create(config.arena.capacity_bytes, kBytes);
    const std::vector<DiskRecord> records = open_spaces();
    store->begin_load(now, disk.epoch());
    load(records);
    store->end_load(/*is_whole=*/true);
    check();
  }
  /// Those of the disk. Returns its records.
  std::vector<DiskRecord> open_spaces() {
    std::vector<DiskRecord> records;
    EXPECT_FALSE(
        disk.load([&](const NamespaceId&,
                      const std::string& record) { store->load_namespace(NamespaceRecord::parse(record).value()); },
                  [&](const DiskRecord& record) { return records.push_back(record), true; }));
    return records;
  }
  /// Whether there was room.
  bool load(std::span<const DiskRecord> records) {
    auto loaded = store->load_spilled(records);
    while (loaded.again) loaded = store->load_spilled({});
    return loaded.has_room;
  }
  void check() {
    if (++step % check_every == 0) {
      ASSERT_EQ(store->check(), "");
      DiskTier::Cursor cursor;
      std::size_t scrubbed = 0;
      do {
        scrubbed += store->blocks_to_scrub(cursor, 7).size();
      } while (cursor != DiskTier::Cursor());
      ASSERT_EQ(scrubbed, store->stats().disk_block_count);
    }
  }

  bool waits_for_disk = false;
  std::size_t waited = 0;  ///< Rounds of one put.
  /// The disk writes what there is to write, once.
  bool make_room() override {
    if (!waits_for_disk || ++waited > 200) return false;
    now += 1ms;
    const SpillWork work = store->spill_work(256 << 10, now);
    if (!work.empty()) run(work);
    return true;
  }

  /// `memory` and `on_disk` in blocks; `reserve` of the memory blocks are kept free.
  void create_tiers(std::size_t memory, std::size_t on_disk, std::size_t reserve = 4) {
    config.disk.capacity_bytes = on_disk * kBytes;
    if (config.disk.segment_bytes == 0) config.disk.segment_bytes = 16 * kBytes;
    config.spill.reserve = static_cast<double>(reserve) / static_cast<double>(memory);
    create(memory * kBytes, kBytes);
  }

  /// Does all the work that there is. Returns how many blocks were written.
  std::size_t spill(bool everything = false) {
    std::size_t written = 0;
    for (int calls = 0;; ++calls) {
      SpillWork work = store->spill_work(8 * kBytes, now, everything);
      if (work.empty()) return written;
      if (calls == 10'000) {
        ADD_FAILURE() << "there is always more to do";
        return written;
      }
      run(work);
      written += work.writes.size();
      if (disk.fails_writes) return 0;
    }
  }
  void run(const SpillWork& work) {
    store->finish_spill(work, carry_out(work, disk));
    check();
  }

  struct Got {
    std::size_t memory = 0, disk = 0, lost = 0;
  };
  /// Gets the chain as a session does: reads what is on disk, verifies, and puts back what should be in memory.
  Got get(SpaceId space, std::span<const BlockHash> hashes) {
    now += Duration(1000);
    const auto prefix = store->pin_prefix(space, hashes, {.session = kAlice, .disk = true}, now).value();
    Got got{.memory = prefix.blocks.size()};
    for (std::size_t i = 0; i < prefix.blocks.size(); ++i)
      EXPECT_TRUE(is_right(space, hashes[i], prefix.blocks[i].bytes));
    std::vector<DiskBlock> read;
    std::size_t promoted = 0;
    for (const Store::SpilledBlock& block : prefix.spilled) {
      auto one = disk.read(block.key);
      if (!one) {
        const DiskKey moved = store->read_failed(block.id, block.key).moved_to;
        if (moved != DiskKey{}) one = disk.read(moved);
      }
      if (!one || !verify_block(block.seed, one->bytes, one->checksums)) {
        if (one) {
          EXPECT_TRUE(store->read_failed(block.id, block.key).is_forgotten);
        }
        got.lost = prefix.spilled.size() - got.disk;
        break;
      }
      EXPECT_TRUE(has_bytes(one->bytes, block.seed));
      read.push_back(*one);
      ++got.disk;
      promoted += block.promote;
    }
    if (promoted > 0) promote(space, hashes.first(got.memory + std::min(promoted, got.disk)), got.memory, read);
    store->unpin(prefix);
    check();
    return got;
  }
  void promote(SpaceId space, std::span<const BlockHash> hashes, std::size_t first,
               const std::vector<DiskBlock>& read) {
    const auto plan = store->offer(space, hashes, {.session = kAlice}, now).value();
    for (const auto& block : plan.staged) {
      const DiskBlock& from = read[block.index - first];
      std::memcpy(block.bytes.data(), from.bytes.data(), from.bytes.size());
      EXPECT_EQ(store->commit(plan.put, from.checksums, now), Store::CommitStatus::kStored);
    }
    if (plan.put != PutId{}) store->end_put(plan.put);
  }
  bool is_right(SpaceId space, const BlockHash& hash, std::span<const std::byte> bytes) {
    return has_bytes(bytes, checksum_seed(store->find_namespace(space)->id(), hash));
  }
};

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
      for (const auto& block : plan.staged)
        ASSERT_EQ(store->commit(id, fill(block), now), Store::CommitStatus::kStored);
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
  EXPECT_EQ(std::ranges::count(match.held, Store::Held::kNowhere), 0);
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
  (*disk.bytes(prefix.spilled[2].key))[0] ^= std::byte{1};
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
  (*disk.bytes(prefix.spilled[5].key))[17] ^= std::byte{1};
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

/// A restart: memory is gone, the disk has what it has.
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

/// The erasures never reach the disk, as after a kill at once after the answer; only what the disk was told to keep
/// does. Random chains, drops, puts again, evictions, moves within the log and restarts, against a model.
TEST_F(SpillTest, WhatADropWasAnsweredForNeverComesBack) {
  const char* const chosen = std::getenv("KV_SEED");
  const std::uint64_t seed = chosen != nullptr ? std::strtoull(chosen, nullptr, 10) : std::random_device()();
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::size_t found = 0, checked = 0;
  for (int world = 0; world < 20 && !HasFailure(); ++world) {
    disk = MemoryDisk();
    config.disk.segment_bytes = (4 + random() % 12) * kBytes;
    create_tiers(16, 24 + random() % 200, 8);
    SpaceId space = open(kBytes);
    // A tree of chains: `name` shares its first blocks with those of the same tenth.
    const auto chain_of = [](std::uint64_t name) {
      std::vector<BlockHash> hashes = chain(name / 4 + 1, 3);
      for (const BlockHash& hash : chain(100 + name, 4)) hashes.push_back(hash);
      return hashes;
    };
    std::set<BlockHash> dropped;  // and not put again since
    for (int turn = 0; turn < 200 && !HasFailure(); ++turn) {
      const auto hashes = chain_of(random() % 12);
      switch (random() % 10) {
        case 0:
        case 1: {
          DiskDrop kept;
          const auto top = std::span(hashes).first(1 + random() % hashes.size());
          ASSERT_TRUE(store->drop(space, random() % 10 == 0 ? std::span<const BlockHash>() : top, &kept));
          ASSERT_FALSE(disk.add_drops(std::span(&kept, 1)));
          for (std::uint64_t name = 0; name < 12; ++name) {
            const auto other = chain_of(name);
            bool is_below = kept.hash == BlockHash{};
            for (const BlockHash& hash : other) {
              is_below = is_below || hash == kept.hash;
              if (is_below) dropped.insert(hash);
            }
          }
          break;
        }
        case 2: {  // killed; of what was not flushed some is lost
          disk.crash_unsynced(random() % (disk.unsynced_count() + 1));
          create(16 * kBytes, kBytes);
          space = open(kBytes);
          const std::vector<DiskRecord> records = open_spaces();
          store->begin_load(now, disk.epoch(), disk.drops());
          load(records);
          store->end_load(/*is_whole=*/true);
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
      for (std::uint64_t name = 0; name < 12; ++name) {
        const auto each = chain_of(name);
        const auto match = store->match(space, each, {.session = kAlice}, now).value();
        const std::size_t count = match.memory_block_count + match.disk_block_count;
        found += count;
        for (std::size_t i = 0; i < count; ++i) EXPECT_FALSE(dropped.contains(each[i])) << "turn " << turn;
        checked += dropped.size();
      }
    }
  }
  EXPECT_GT(found, 0u);
  EXPECT_GT(checked, 0u);
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
    const auto chain_of = [](std::uint64_t name) {
      std::vector<BlockHash> hashes = chain(name / 4 + 1, 3);
      for (const BlockHash& hash : chain(100 + name, 4)) hashes.push_back(hash);
      return hashes;
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
      const auto hashes = chain_of(random() % 12);
      switch (random() % 16) {
        case 0: {
          DiskDrop kept;
          const auto top = std::span(hashes).first(1 + random() % hashes.size());
          ASSERT_TRUE(store->drop(space, random() % 10 == 0 ? std::span<const BlockHash>() : top, &kept));
          ASSERT_FALSE(disk.add_drops(std::span(&kept, 1)));
          for (std::uint64_t name = 0; name < 12; ++name) {
            bool is_below = kept.hash == BlockHash{};
            for (const BlockHash& hash : chain_of(name)) {
              is_below = is_below || hash == kept.hash;
              if (is_below) dropped.insert(hash);
            }
          }
          break;
        }
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
          const std::vector<DiskRecord> records = open_spaces();
          store->begin_load(now, disk.epoch(), disk.drops());
          load(records);
          store->end_load(/*is_whole=*/true);
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
      for (std::uint64_t name = 0; name < 12; ++name) {
        const auto each = chain_of(name);
        const auto match = store->match(space, each, {.session = kAlice}, now).value();
        const std::size_t count = match.memory_block_count + match.disk_block_count;
        found += count;
        for (std::size_t i = 0; i < count; ++i) EXPECT_FALSE(dropped.contains(each[i])) << "turn " << turn;
      }
    }
  }
  EXPECT_GT(found, 0u);
  EXPECT_GT(moved, 0u);
  EXPECT_GT(ends, 0u);
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
  const std::vector<DiskRecord> records = open_spaces();
  store->begin_load(now, disk.epoch(), disk.drops());
  load(records);
  store->end_load(/*is_whole=*/true);
  EXPECT_GE(store->stats().disk_block_count, before);
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
    for (const auto& block : plan.staged) static_cast<void>(single->commit(plan.put, fill(block), now));
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
