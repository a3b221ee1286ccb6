// Namespaces that come and go: which is forgotten, what of it, and what stays.
#include <gtest/gtest.h>

#include <malloc.h>

#include <deque>
#include <set>

#include "memory_disk.h"
#include "store_fixture.h"

namespace kv {
namespace {

constexpr std::size_t kNamespaceBlockBytes = 4096;

class NamespaceTest : public StoreFixture {
 protected:
  void make(std::size_t count_max, std::size_t blocks_on_disk = 0) {
    config.namespace_count_max = count_max;
    config.lease_duration = 500ms;
    config.disk.capacity_bytes = blocks_on_disk * kNamespaceBlockBytes;
    config.disk.segment_bytes = 16 * kNamespaceBlockBytes;
    create(16 * kNamespaceBlockBytes, kNamespaceBlockBytes);
  }
  SpaceId open(std::uint64_t epoch, SessionId session = {}) { return store->open(record(epoch), session).value(); }
  static NamespaceRecord record(std::uint64_t epoch, std::size_t block_bytes = kNamespaceBlockBytes) {
    return NamespaceRecord::from_fields({{"model", "m"},
                                         {"block_bytes", std::to_string(block_bytes)},
                                         {"block_size", "4"},
                                         {"weights_epoch", std::to_string(epoch)}})
        .value();
  }
  bool is_known(SpaceId space) const { return store->find_namespace(space) != nullptr; }

  void spill() {
    for (;;) {
      const SpillWork work = store->spill_work(1 << 20, now, /*everything=*/true);
      if (work.empty()) return;
      store->finish_spill(work, carry_out(work, disk));
    }
  }
  std::vector<DiskRecord> begin_load() {
    std::vector<DiskRecord> records;
    store->begin_load(now, disk.epoch());
    EXPECT_FALSE(
        disk.load([&](const NamespaceId&,
                      const std::string& text) { store->load_namespace(NamespaceRecord::parse(text).value()); },
                  [&](const DiskRecord& found) { return records.push_back(found), true; }));
    return records;
  }
  void load(std::span<const DiskRecord> records) {
    for (auto loaded = store->load_records(records); loaded.again;) loaded = store->load_records({});
  }
  void restart() {
    disk.crash(disk.block_count());
    create(config.arena.capacity_bytes, kNamespaceBlockBytes);
    load(begin_load());
    store->end_load(/*is_whole=*/true);
  }
  std::size_t on_disk(SpaceId space, std::span<const BlockHash> hashes) {
    now += Duration(1000);
    return store->match(space, hashes, {}, now)->disk_block_count;
  }

  MemoryDisk disk;
};

TEST_F(NamespaceTest, TheLeastRecentlyUsedIdleOneMakesRoom) {
  make(3);
  const SpaceId a = open(1), b = open(2), c = open(3);
  match(a, chain(1, 1));  // a use, though it finds nothing
  const SpaceId d = open(4);
  EXPECT_TRUE(is_known(a) && !is_known(b) && is_known(c) && is_known(d));
  EXPECT_EQ(open(1), a) << "a use as well";
  open(5);
  EXPECT_TRUE(is_known(a) && !is_known(c) && is_known(d));
  EXPECT_EQ(store->stats().namespace_count, 3u);
  EXPECT_EQ(store->stats().forgotten_namespaces, 2u);
}

TEST_F(NamespaceTest, ANumberIsNeverAnotherNamespaces) {
  make(2);
  std::set<SpaceId> seen;
  for (std::uint64_t i = 0; i < 1000; ++i) EXPECT_TRUE(seen.insert(open(i)).second);
  const SpaceId old = *seen.begin();
  EXPECT_EQ(store->match(old, chain(1, 1), {}, now).error(), Errc::kNoNamespace);
  EXPECT_EQ(store->offer(old, chain(1, 1), {}, now).error(), Errc::kNoNamespace);
  EXPECT_EQ(store->drop(old, {}).error(), Errc::kNoNamespace);
  EXPECT_TRUE(seen.insert(open(0)).second) << "nor its own again, for who kept it may have missed a drop";
}

TEST_F(NamespaceTest, OneThatASessionHasOpenIsForgottenLast) {
  make(3);
  const SpaceId a = open(1, kAlice), b = open(2, kBob), c = open(3);
  match(c, chain(1, 1));
  const SpaceId d = open(4, kAlice);
  EXPECT_TRUE(is_known(a) && is_known(b) && !is_known(c));
  const SpaceId e = open(5);  // all are open: a session that lives for ever must not keep everybody else out
  EXPECT_TRUE(!is_known(a) && is_known(b) && is_known(d) && is_known(e));
  match(e, chain(1, 1));
  store->end_session(kAlice);
  open(6);
  EXPECT_TRUE(is_known(b) && !is_known(d) && is_known(e));
}

TEST_F(NamespaceTest, NothingInUseIsForgotten) {
  make(5);
  const SpaceId blocks = open(1), leased = open(2), kept = open(3), moved = open(4), put_into = open(5);
  put(blocks, chain(1, 1));
  for (const SpaceId space : {leased, kept, moved}) put(space, chain(2, 2));
  lease(leased, chain(2, 2));
  EXPECT_TRUE(store->retain(kept, chain(2, 2)));
  const auto prefix = store->pin_prefix(moved, chain(2, 2), {.session = kAlice}, now).value();
  const auto plan = store->offer(put_into, chain(3, 1), {.session = kBob}, now).value();
  // A drop takes the blocks out of the index; leases and moves still hold their slots.
  for (const SpaceId space : {leased, moved}) EXPECT_EQ(store->drop(space, {}).value(), 2u);
  for (std::uint64_t epoch = 6; epoch < 10; ++epoch) EXPECT_EQ(store->open(record(epoch)).error(), Errc::kBusy);
  EXPECT_EQ(store->check(), "");
  EXPECT_EQ(store->namespace_count(), 5u);
  EXPECT_EQ(open(1), blocks) << "those that are known are not refused";

  now += 1s;
  store->expire_leases(now);
  open(6);
  EXPECT_FALSE(is_known(leased));
  store->unpin(prefix);
  open(7);
  EXPECT_FALSE(is_known(moved));
  store->end_put(plan.put);
  open(8);
  EXPECT_FALSE(is_known(put_into));
  EXPECT_TRUE(is_known(blocks) && is_known(kept));
  EXPECT_EQ(match(kept, chain(2, 2)), 2u);
}

TEST_F(NamespaceTest, OneWhoseBlocksWereAllEvictedIsForgotten) {
  make(2);
  const SpaceId old = open(1), young = open(2);
  put(old, chain(1, 8));
  EXPECT_EQ(put(young, chain(2, 16)).stored, 16u);
  EXPECT_EQ(match(old, chain(1, 1)), 0u);
  open(3);
  EXPECT_FALSE(is_known(old));
  EXPECT_EQ(match(young, chain(2, 16)), 16u);
}

TEST_F(NamespaceTest, BlocksOnDiskKeepTheirNamespace) {
  make(2, 100);
  load(begin_load());
  store->end_load(true);
  const SpaceId old = open(1);
  put(old, chain(1, 8));
  spill();
  ASSERT_EQ(store->stats().block_count, 0u);
  for (std::uint64_t epoch = 2; epoch < 100; ++epoch) open(epoch);
  ASSERT_TRUE(is_known(old));
  EXPECT_EQ(on_disk(old, chain(1, 8)), 8u);
  restart();
  for (std::uint64_t epoch = 2; epoch < 100; ++epoch) open(epoch);
  EXPECT_EQ(on_disk(open(1), chain(1, 8)), 8u);
}

TEST_F(NamespaceTest, TheDiskKeepsTheRecordsOfWhatLiesThereAndNoOthers) {
  make(4, 8);
  load(begin_load());
  store->end_load(true);
  for (std::uint64_t epoch = 1; epoch <= 3; ++epoch) open(epoch);
  spill();
  EXPECT_EQ(disk.namespace_count(), 0u) << "nothing was written of them";
  put(open(1), chain(1, 4));
  put(open(2), chain(2, 8));
  spill();
  EXPECT_EQ(disk.namespace_count(), 2u);
  EXPECT_EQ(on_disk(open(1), chain(1, 4)), 0u) << "evicted from disk";
  for (std::uint64_t epoch = 3; epoch <= 7; ++epoch) open(epoch);
  spill();
  EXPECT_EQ(disk.namespace_count(), 1u);
  EXPECT_EQ(on_disk(open(2), chain(2, 8)), 8u);
  // Forgotten and opened again before the disk has heard of it.
  store->drop(open(2), {}).value();
  for (std::uint64_t epoch = 3; epoch <= 7; ++epoch) open(epoch);
  put(open(2), chain(2, 2));
  spill();
  EXPECT_EQ(disk.namespace_count(), 1u);
  restart();
  EXPECT_EQ(on_disk(open(2), chain(2, 8)), 2u);
}

TEST_F(NamespaceTest, ADiskThatFailsHearsOfItLater) {
  make(2, 100);
  load(begin_load());
  store->end_load(true);
  put(open(1), chain(1, 2));
  spill();
  disk.fails_writes = true;
  store->drop(open(1), {}).value();
  open(2), open(3);
  const auto work_once = [&] {
    const SpillWork work = store->spill_work(1 << 20, now, true);
    const bool is_empty = work.empty();
    store->finish_spill(work, carry_out(work, disk));
    return !is_empty;
  };
  EXPECT_TRUE(work_once());
  put(open(1), chain(1, 2));  // the record that is to be removed is needed again
  EXPECT_TRUE(work_once());
  disk.fails_writes = false;
  spill();
  EXPECT_EQ(disk.namespace_count(), 1u);
  restart();
  EXPECT_EQ(on_disk(open(1), chain(1, 2)), 2u);
  store->drop(open(1), {}).value();
  spill();
  restart();
  spill();
  EXPECT_EQ(disk.namespace_count(), 0u) << "a start finds records that nothing is left of";
}

TEST_F(NamespaceTest, WhatALoadHasYetToFindIsFoundThoughItsNamespaceWasForgotten) {
  make(8, 100);
  load(begin_load());
  store->end_load(true);
  for (std::uint64_t epoch = 1; epoch <= 6; ++epoch) put(open(epoch), chain(epoch, 2));
  spill();
  disk.crash(disk.block_count());
  for (std::size_t moment = 0; moment <= 12; ++moment) {
    SCOPED_TRACE(moment);
    create(config.arena.capacity_bytes, kNamespaceBlockBytes);
    open(1), open(2);
    store->drop(open(3), {}).value();  // of what is not there yet
    for (std::uint64_t epoch = 100; epoch < 130; ++epoch) open(epoch);
    EXPECT_EQ(store->check(), "");
    const auto records = begin_load();
    ASSERT_EQ(records.size(), 12u);
    load(std::span(records).first(moment));
    for (std::uint64_t epoch = 100; epoch < 130; ++epoch) static_cast<void>(store->open(record(epoch)));
    EXPECT_EQ(store->check(), "");
    load(std::span(records).subspan(moment));
    store->end_load(/*is_whole=*/true);
    EXPECT_EQ(store->check(), "");
    for (std::uint64_t epoch = 1; epoch <= 6; ++epoch)
      EXPECT_EQ(on_disk(open(epoch), chain(epoch, 2)), epoch == 3 ? 0u : 2u) << epoch;
  }
}

TEST_F(NamespaceTest, ALoadThatBrokeOffLeavesEveryRecordToTheNextStart) {
  make(4, 100);
  load(begin_load());
  store->end_load(true);
  for (std::uint64_t epoch = 1; epoch <= 3; ++epoch) put(open(epoch), chain(epoch, 2));
  spill();
  disk.crash(disk.block_count());
  create(config.arena.capacity_bytes, kNamespaceBlockBytes);
  const auto records = begin_load();
  load(std::span(records).first(2));
  store->end_load(/*is_whole=*/false);
  EXPECT_EQ(on_disk(open(1), chain(1, 2)), 0u);
  put(open(1), chain(50, 2));  // one more of it comes and goes, so that the namespace holds nothing that is known
  spill();
  store->drop(open(1), chain(50, 1)).value();
  spill();
  for (std::uint64_t epoch = 100; epoch < 110; ++epoch) open(epoch);
  spill();
  EXPECT_EQ(disk.namespace_count(), 3u);
  restart();
  for (std::uint64_t epoch = 1; epoch <= 3; ++epoch) EXPECT_EQ(on_disk(open(epoch), chain(epoch, 2)), 2u) << epoch;
}

TEST_F(NamespaceTest, OfTooManyOnDiskThoseWrittenLastAreThereAgainAndTheOthersNeverComeBack) {
  make(6, 100);
  load(begin_load());
  store->end_load(true);
  for (std::uint64_t epoch = 1; epoch <= 6; ++epoch) put(open(epoch), chain(epoch, 2)), spill();
  config.namespace_count_max = 4;
  restart();
  EXPECT_EQ(store->open(record(1)).error(), Errc::kBusy);
  for (std::uint64_t epoch = 3; epoch <= 6; ++epoch) EXPECT_EQ(on_disk(open(epoch), chain(epoch, 2)), 2u) << epoch;
  spill();
  EXPECT_EQ(disk.namespace_count(), 4u);
  config.namespace_count_max = 6;
  restart();
  EXPECT_EQ(on_disk(open(1), chain(1, 2)), 0u);
}

TEST_F(NamespaceTest, SizesOfBlocksComeAndGoWithTheirNamespaces) {
  make(3);
  const SpaceId kept = open(0);
  put(kept, chain(1, 2));
  EXPECT_TRUE(store->retain(kept, chain(1, 2)));  // memory moves between the sizes
  for (std::size_t bytes = 64; bytes < 64 + 2000; bytes += 4) {
    const SpaceId space = store->open(record(1, bytes)).value();
    put(space, chain(2, 2));
    ASSERT_LE(store->stats().classes.size(), 3u);
    EXPECT_EQ(store->drop(space, {}).value(), 2u);
  }
  EXPECT_EQ(match(kept, chain(1, 2)), 2u);
}

/// What 100,000 namespaces leave behind, in each of two rounds.
TEST_F(NamespaceTest, AHundredThousandLeaveNothingBehind) {
  for (const bool with_disk : {false, true}) {
    SCOPED_TRACE(with_disk);
    disk = MemoryDisk();
    make(1024, with_disk ? 64 : 0);
    if (with_disk) {
      load(begin_load());
      store->end_load(true);
    }
    const SpaceId kept = open(1'000'000'000);
    put(kept, chain(7, 4));
    EXPECT_TRUE(store->retain(kept, chain(7, 4)));
    std::uint64_t epoch = 0;
    const auto round = [&] {
      for (int i = 0; i < 50'000; ++i) {
        ++epoch;
        const SpaceId space = open(epoch, SessionId{1 + epoch % 100});
        if (i % 16 == 0) put(space, chain(epoch, 1 + epoch % 3));
        if (with_disk && i % 64 == 0) spill();
        if (i % 256 == 0) store->end_session(SessionId{1 + epoch % 100});
      }
      EXPECT_LE(store->stats().namespace_count, 1024u);
      EXPECT_EQ(store->check(), "");
      EXPECT_LE(disk.namespace_count(), 1024u);
      return store->stats().index_bytes;
    };
    const std::size_t once = round(), heap_once = ::mallinfo2().uordblks;
    const std::size_t twice = round(), heap_twice = ::mallinfo2().uordblks;
    EXPECT_LE(twice, once + once / 20);
    // The disk in memory keeps every block that was ever written, dead ones until their segment goes.
    if (!with_disk) {
      EXPECT_LE(heap_twice, heap_once + heap_once / 20);
    }
    EXPECT_EQ(match(kept, chain(7, 4)), 4u);
    if (!with_disk) continue;
    spill();
    restart();
    for (std::uint64_t again = 0; again < 2000; ++again) open(epoch++);
    EXPECT_EQ(store->check(), "");
    spill();
    EXPECT_LE(disk.namespace_count(), 64u) << "each with a block there";
  }
}

}  // namespace
}  // namespace kv
