// tests/store/spill_fixture.h: a Store, a disk in memory, and what a node does between the two.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "memory_disk.h"
#include "store_fixture.h"

namespace kv {

/// A Store with a disk that does what it is told.
class SpillTest : public StoreFixture {
 protected:
  static constexpr std::size_t kBytes = 4096;

  MemoryDisk disk;
  std::size_t check_every = 1;  ///< Store::check() looks at everything.
  std::size_t step = 0;

  void restart() {
    disk.crash(disk.block_count());  // a new epoch
    create(config.arena.capacity_bytes, kBytes);
    load_all();
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
  void load_all(std::span<const DiskDrop> drops = {}) {
    const std::vector<DiskRecord> records = open_spaces();
    store->begin_load(now, disk.epoch(), drops);
    load(records);
    store->end_load(/*is_whole=*/true);
  }
  /// Whether there was room.
  bool load(std::span<const DiskRecord> records) {
    auto loaded = store->load_records(records);
    while (loaded.again) loaded = store->load_records({});
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
    for (const PinnedDiskBlock& block : prefix.on_disk) {
      auto one = disk.read(block.key);
      if (!one) {
        const DiskKey moved = store->read_failed(block.id, block.key).moved_to;
        if (moved != DiskKey{}) one = disk.read(moved);
      }
      if (!one || !verify_block(block.seed, one->bytes, one->checksums)) {
        if (one) {
          EXPECT_TRUE(store->read_failed(block.id, block.key).is_forgotten);
        }
        got.lost = prefix.on_disk.size() - got.disk;
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
    for (const auto& block : plan.incoming) {
      const DiskBlock& from = read[block.index - first];
      std::memcpy(block.bytes.data(), from.bytes.data(), from.bytes.size());
      EXPECT_EQ(store->commit(plan.put, from.checksums, now), CommitStatus::kStored);
    }
    if (plan.put != PutId{}) store->end_put(plan.put);
  }
  bool is_right(SpaceId space, const BlockHash& hash, std::span<const std::byte> bytes) {
    return has_bytes(bytes, checksum_seed(store->find_namespace(space)->id(), hash));
  }

  static constexpr std::uint64_t kBranches = 12;
  /// A tree of chains: `name` shares its first blocks with others of the same four.
  static std::vector<BlockHash> branch(std::uint64_t name) {
    std::vector<BlockHash> hashes = chain(name / 4 + 1, 3);
    for (const BlockHash& hash : chain(100 + name, 4)) hashes.push_back(hash);
    return hashes;
  }
  /// Drops some first part of `hashes`, at times everything; the disk keeps that. What goes of the tree is noted.
  void drop_some(SpaceId space, std::span<const BlockHash> hashes, std::mt19937_64& random,
                 std::set<BlockHash>& dropped) {
    DiskDrop kept;
    const auto top = hashes.first(1 + random() % hashes.size());
    ASSERT_TRUE(store->drop(space, random() % 10 == 0 ? std::span<const BlockHash>() : top, &kept));
    ASSERT_FALSE(disk.add_drops(std::span(&kept, 1)));
    for (std::uint64_t name = 0; name < kBranches; ++name) {
      bool is_below = kept.hash == BlockHash{};
      for (const BlockHash& hash : branch(name)) {
        is_below = is_below || hash == kept.hash;
        if (is_below) dropped.insert(hash);
      }
    }
  }
  /// How many blocks of the tree are found. Nothing that was dropped is.
  std::size_t count_found(SpaceId space, const std::set<BlockHash>& dropped) {
    std::size_t found = 0;
    for (std::uint64_t name = 0; name < kBranches; ++name) {
      const auto hashes = branch(name);
      const auto match = store->match(space, hashes, {.session = kAlice}, now).value();
      const std::size_t count = match.memory_block_count + match.disk_block_count;
      found += count;
      for (std::size_t i = 0; i < count; ++i) EXPECT_FALSE(dropped.contains(hashes[i]));
    }
    return found;
  }
};

}  // namespace kv
