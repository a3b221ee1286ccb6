// Sets in a Store, beside chains: lookups, lengths, leases, pins, eviction, the disk tier, restarts. The random test at
// the end does all of it at once and knows what each name may hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "memory_disk.h"
#include "store/memory/size_class.h"
#include "store_fixture.h"

namespace kv {
namespace {

using Held = ReadDesk::Held;
using Status = CommitStatus;

NamespaceRecord set_record(const std::string& model, std::size_t length_max) {
  return NamespaceRecord::from_fields(
             {{"model", model}, {"kind", "set"}, {"block_bytes_max", std::to_string(length_max)}})
      .value();
}

class SetTest : public StoreFixture {
 protected:
  MemoryDisk disk;

  SpaceId open_set(std::size_t length_max, const std::string& model = "s") {
    return store->open(set_record(model, length_max)).value();
  }
  /// Offers the blocks and commits all that is wanted. The status of each: nothing where it was stored already.
  std::vector<std::optional<Status>> put_set(SpaceId set, std::span<const BlockHash> hashes,
                                             std::span<const std::uint32_t> lengths) {
    now += Duration(1000);
    std::vector<std::optional<Status>> result(hashes.size());
    const SetPuts::OfferOptions options{.session = kAlice, .lengths = lengths, .may_lose = may_lose};
    auto plan = store->offer_set(set, hashes, options, now).value();
    for (const std::uint32_t i : plan.wanted) result[i] = Status::kRefused;
    const PutId id = plan.put;
    for (;;) {
      for (const auto& block : plan.incoming) {
        EXPECT_EQ(block.bytes.size(), lengths[block.index]);
        result[block.index] = store->commit(id, fill(block), now);
      }
      if (!plan.again && (plan.refused_count == 0 || !make_room())) break;
      plan = store->offer_more(id, now, may_lose).value();
    }
    if (id != PutId{}) store->end_put(id);
    return result;
  }
  std::size_t put_all(SpaceId set, std::span<const BlockHash> hashes, std::uint32_t length) {
    const std::vector<std::uint32_t> lengths(hashes.size(), length);
    const auto result = put_set(set, hashes, lengths);
    return static_cast<std::size_t>(std::ranges::count(result, Status::kStored));
  }
  ReadDesk::SetMatch match_set(SpaceId set, std::span<const BlockHash> hashes, bool lease = false,
                               SessionId session = kAlice) {
    now += Duration(1000);
    return store->match_set(set, hashes, {.session = session, .lease = lease}, now).value();
  }
  std::string held(SpaceId set, std::span<const BlockHash> hashes) {  // "m" in memory, "d" on disk, "." nowhere
    std::string text;
    for (const Held each : match_set(set, hashes).held) text += ".md"[static_cast<int>(each)];
    return text;
  }
  std::uint64_t seed_of(SpaceId set, const BlockHash& hash, std::size_t length) {
    return store->find_namespace(set)->checksum_seed(hash, length);
  }
  void spill(bool everything = false) {
    for (;;) {
      const SpillWork work = store->spill_work(64 << 10, now, everything);
      if (work.empty()) return;
      store->finish_spill(work, carry_out(work, disk));
      ASSERT_EQ(store->check(), "");
    }
  }
  void restart(std::span<const DiskDrop> drops = {}) {
    store->begin_load(now, disk.epoch(), drops);
    std::vector<DiskRecord> records;
    ASSERT_FALSE(
        disk.load([&](const NamespaceId&,
                      const std::string& record) { store->load_namespace(NamespaceRecord::parse(record).value()); },
                  [&](const DiskRecord& record) { return records.push_back(record), true; }));
    auto loaded = store->load_records(records);
    while (loaded.again) loaded = store->load_records({});
    store->end_load(/*is_whole=*/true);
    ASSERT_EQ(store->check(), "");
  }
};

TEST(SizeClassTest, ASlotIsAtMostAThirtyThirdLongerThanItsBlockInALargeArena) {
  std::set<std::size_t> classes;
  for (std::size_t length = 2049; length <= 1 << 20; length += 1 + length / 999) {
    const std::size_t slot = set_slot_bytes(length, 1 << 30, std::size_t{64} << 30);
    ASSERT_GE(slot, length);
    ASSERT_LE((slot - length) * 33, slot) << length;
    classes.insert(slot);
  }
  EXPECT_LE(classes.size(), 9u * 32 + 1);
  for (std::size_t length = 1; length <= 70'000; ++length) {
    const std::size_t slot = set_slot_bytes(length, 70'000, 1 << 20);
    ASSERT_TRUE(slot >= length && slot <= 70'000 && (slot < 64 || slot <= 2 * length || slot == 64)) << length;
  }
}

TEST_F(SetTest, EachNameIsLookedUpAloneAndKeepsItsLength) {
  create(8 << 20);
  const SpaceId set = open_set(100'000);
  const auto hashes = chain(1, 5);
  const std::vector<std::uint32_t> lengths = {1, 65536, 65537, 100'000, 64};
  const auto first = put_set(set, hashes, lengths);
  for (const auto& status : first) EXPECT_EQ(status, Status::kStored);
  const std::vector<BlockHash> asked = {hashes[3], chain(2, 1)[0], hashes[0], hashes[3]};
  const auto match = match_set(set, asked);
  EXPECT_EQ(match.held, (std::vector{Held::kInMemory, Held::kNowhere, Held::kInMemory, Held::kInMemory}));
  EXPECT_EQ(match.lengths, (std::vector<std::uint32_t>{100'000, 0, 1, 100'000}));
  const auto pinned = store->pin_set(set, asked, {}, now).value();
  ASSERT_EQ(pinned.pinned.blocks.size(), 3u);
  EXPECT_EQ(pinned.looked_count, 4u);
  for (const auto& block : pinned.pinned.blocks) {
    const std::uint64_t seed = seed_of(set, asked[block.index], block.bytes.size());
    EXPECT_TRUE(has_bytes(block.bytes, seed));
    EXPECT_TRUE(verify_block(seed, block.bytes, block.checksums));
  }
  store->unpin(pinned.pinned);
  const auto spaces = store->list_spaces(nullptr);
  const SpaceDesk::View& stats = *std::ranges::find(spaces, set, &SpaceDesk::View::id);
  EXPECT_EQ(stats.block_count, 5u);
  EXPECT_EQ(stats.total_bytes, 1u + 65536 + 65537 + 100'000 + 64);
  EXPECT_EQ(store->stats().set_block_count, 5u);
  EXPECT_EQ(store->stats().set_bytes, stats.total_bytes);
}

TEST_F(SetTest, ASecondPutNeverReplacesWhateverItsLength) {
  create(8 << 20);
  const SpaceId set = open_set(100'000);
  const auto hashes = chain(1, 1);
  put_all(set, hashes, 5000);
  for (const std::uint32_t length : {5000u, 4999u, 70'000u}) {
    EXPECT_FALSE(put_set(set, hashes, {&length, 1})[0].has_value());
    EXPECT_EQ(match_set(set, hashes).lengths[0], 5000u);
  }
}

/// Two writers offer a name at the same time, with two lengths: the first to commit wins, and the other is told.
TEST_F(SetTest, OfTwoPutsOfOneNameTheFirstToCommitWins) {
  create(8 << 20);
  const SpaceId set = open_set(200'000);
  const auto hashes = chain(1, 1);
  const std::uint32_t one = 66'000, other = 131'000;
  const auto first = store->offer_set(set, hashes, {.session = kAlice, .lengths = {&one, 1}}, now).value();
  const auto second = store->offer_set(set, hashes, {.session = kBob, .lengths = {&other, 1}}, now).value();
  const auto third = store->offer_set(set, hashes, {.session = kBob, .lengths = {&one, 1}}, now).value();
  EXPECT_EQ(store->commit(first.put, fill(first.incoming[0]), now), Status::kStored);
  EXPECT_EQ(store->commit(second.put, fill(second.incoming[0]), now), Status::kConflict);
  EXPECT_EQ(store->commit(third.put, fill(third.incoming[0]), now), Status::kAlreadyStored);
  for (const PutId put : {first.put, second.put, third.put}) store->end_put(put);
  EXPECT_EQ(match_set(set, hashes).lengths[0], one);
}

TEST_F(SetTest, WrongKindsAndLengthsAreRefused) {
  create(8 << 20);
  const SpaceId set = open_set(1000), of_chain = open(4096);
  const auto hashes = chain(1, 2);
  const std::vector<std::uint32_t> lengths = {1, 1000}, zero = {1, 0}, too_long = {1001, 1}, one = {1};
  EXPECT_EQ(store->match(set, hashes, {}, now).error(), Errc::kUnsupported);
  EXPECT_EQ(store->pin_prefix(set, hashes, {}, now).error(), Errc::kUnsupported);
  EXPECT_EQ(store->offer(set, hashes, {}, now).error(), Errc::kUnsupported);
  EXPECT_EQ(store->match_set(of_chain, hashes, {}, now).error(), Errc::kUnsupported);
  EXPECT_EQ(store->pin_set(of_chain, hashes, {}, now).error(), Errc::kUnsupported);
  EXPECT_EQ(store->offer_set(of_chain, hashes, {.lengths = lengths}, now).error(), Errc::kUnsupported);
  EXPECT_EQ(store->erase(of_chain, hashes, nullptr, now).error(), Errc::kUnsupported);
  for (const auto& bad : {zero, too_long, one})
    EXPECT_EQ(store->offer_set(set, hashes, {.lengths = bad}, now).error(), Errc::kBadRequest);
  EXPECT_EQ(store->offer_set(set, {}, {}, now).error(), Errc::kBadRequest);
  EXPECT_EQ(store->open(set_record("large", 9 << 20)).error(), Errc::kTooLarge);
}

TEST_F(SetTest, EvictionTakesTheLeastRecentlyUsedBlockOfEitherKind) {
  create(10 * 4096, 4096);
  const SpaceId set = open_set(4096), of_chain = open(4096);
  const auto blocks = chain(1, 5), prompt = chain(2, 5), more = chain(3, 4);
  EXPECT_EQ(put_all(set, blocks, 4096), 5u);
  put(of_chain, prompt);
  held(set, std::span(blocks).first(2));  // used again: now the three others are the oldest, then the chain
  EXPECT_EQ(put_all(set, more, 4096), 4u);
  EXPECT_EQ(held(set, blocks), "mm...");
  EXPECT_EQ(match(of_chain, prompt), 4u);
  EXPECT_EQ(held(set, more), "mmmm");
}

TEST_F(SetTest, AWholeLeaseIsKeptAndReleased) {
  create(10 * 4096, 4096);
  const SpaceId set = open_set(4096);
  const auto promised = chain(1, 4), others = chain(2, 12);
  put_all(set, promised, 4000);
  const auto match = match_set(set, promised, /*lease=*/true);
  ASSERT_NE(match.lease, LeaseId{});
  EXPECT_EQ(store->stats().lease_count, 4u);
  EXPECT_EQ(store->stats().leased_bytes, 4u * 4096);
  EXPECT_EQ(put_all(set, others, 4000), 6u);
  EXPECT_EQ(held(set, promised), "mmmm");
  EXPECT_FALSE(store->release(kBob, match.lease));
  EXPECT_TRUE(store->release(kAlice, match.lease));
  EXPECT_EQ(store->stats().lease_count, 0u);
  EXPECT_EQ(store->stats().leased_bytes, 0u);
  EXPECT_EQ(store->release(kAlice, match.lease).error(), Errc::kStaleLease);
}

TEST_F(SetTest, ALeaseOfMoreBlocksThanASessionMayHaveIsRefusedWhole) {
  config.lease_count_per_session_max = 3;
  create(1 << 20);
  const SpaceId set = open_set(4096);
  const auto hashes = chain(1, 4);
  put_all(set, hashes, 100);
  const auto refused = match_set(set, hashes, true);
  EXPECT_EQ(refused.lease, LeaseId{});
  EXPECT_EQ(refused.lease_error, Errc::kBusy);
  EXPECT_EQ(store->stats().lease_count, 0u);
  const std::vector<BlockHash> twice = {hashes[0], hashes[1], hashes[0], hashes[2]};  // three blocks
  EXPECT_NE(match_set(set, twice, true).lease, LeaseId{});
  now += config.lease_duration;
  store->expire_leases(now);
  EXPECT_EQ(store->stats().lease_count, 0u);
}

TEST_F(SetTest, PinnedBlocksAreErasedFromSightAndFreedWithTheirLastPin) {
  create(1 << 20);
  const SpaceId set = open_set(4096);
  const auto hashes = chain(1, 3);
  put_all(set, hashes, 1000);
  const auto pinned = store->pin_set(set, std::span(hashes).first(1), {}, now).value();
  EXPECT_EQ(store->retain(set, std::span(hashes).subspan(1, 1)).value(), 1u);
  EXPECT_EQ(store->erase(set, hashes, nullptr, now).value(), 3u);
  EXPECT_EQ(held(set, hashes), "...");
  EXPECT_TRUE(has_bytes(pinned.pinned.blocks[0].bytes, seed_of(set, hashes[0], 1000)));
  EXPECT_EQ(store->stats().allocated_bytes, 1024u);
  store->unpin(pinned.pinned);
  EXPECT_EQ(store->stats().allocated_bytes, 0u);
  EXPECT_EQ(store->stats().dropped_blocks, 3u);
}

TEST_F(SetTest, RetainedBlocksOutliveAllOthers) {
  config.retained_fraction_max = 0.3;
  create(10 * 4096, 4096);
  const SpaceId set = open_set(4096);
  const auto kept = chain(1, 3), others = chain(2, 20);
  put_all(set, kept, 4096);
  EXPECT_EQ(store->retain(set, kept).value(), 3u);
  EXPECT_EQ(store->retain(set, kept).value(), 3u);  // idempotent
  put_all(set, others, 4096);
  EXPECT_EQ(held(set, kept), "mmm");
  EXPECT_EQ(store->retain(set, std::span(others).first(1)).error(), Errc::kBusy);
  EXPECT_EQ(store->unretain(set, kept).value(), 3u);
}

TEST_F(SetTest, BlocksLongerThanTheirRoomsAreNotPinned) {
  create(1 << 20);
  const SpaceId set = open_set(4096);
  const auto hashes = chain(1, 3);
  put_all(set, hashes, 1000);
  const std::vector<std::uint32_t> rooms = {1000, 999, 4096};
  const auto pinned = store->pin_set(set, hashes, {.rooms = rooms}, now).value();
  EXPECT_EQ(pinned.pinned.blocks.size(), 2u);
  ASSERT_EQ(pinned.too_long.size(), 1u);
  EXPECT_EQ(pinned.too_long[0].index, 1u);
  EXPECT_EQ(pinned.too_long[0].length, 1000u);
  store->unpin(pinned.pinned);
  const auto first = store->pin_set(set, hashes, {.bytes_max = 1001}, now).value();
  EXPECT_EQ(first.looked_count, 2u);  // the second block reaches the sum
  store->unpin(first.pinned);
}

TEST_F(SetTest, BlocksGoToDiskWithTheirLengthsAndComeBackAfterARestart) {
  config.disk.capacity_bytes = 1 << 20;
  config.disk.segment_bytes = 64 << 10;
  create(64 << 10, 4096);
  const SpaceId set = open_set(70'000 / 2);
  const auto hashes = chain(1, 6);
  const std::vector<std::uint32_t> lengths = {1, 100, 4097, 20'000, 30'000, 35'000};
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    put_set(set, std::span(hashes).subspan(i, 1), std::span(lengths).subspan(i, 1));
    spill(/*everything=*/true);
  }
  EXPECT_EQ(held(set, hashes), "dddddd");
  disk.crash(disk.block_count());
  create(64 << 10, 4096);
  restart();
  const SpaceId again = open_set(70'000 / 2);
  const auto match = match_set(again, hashes);
  EXPECT_EQ(match.lengths, lengths);
  const auto pinned = store->pin_set(again, hashes, {.disk = true}, now).value();
  ASSERT_EQ(pinned.pinned.on_disk.size(), 6u);
  for (const auto& block : pinned.pinned.on_disk) {
    const auto read = read_verified(disk, block.key, block.seed, block.block_bytes);
    ASSERT_TRUE(read);
    EXPECT_EQ(read->bytes.size(), lengths[block.index]);
    EXPECT_TRUE(has_bytes(read->bytes, block.seed));
  }
  store->unpin(pinned.pinned);
  // A name on disk is a name that is held: nothing else is stored under it.
  EXPECT_FALSE(put_set(again, std::span(hashes).first(1), std::span(lengths).last(1))[0].has_value());
  EXPECT_EQ(match_set(again, hashes).lengths, lengths);
}

TEST_F(SetTest, ErasedBlocksOnDiskStayErasedAfterARestart) {
  config.disk.capacity_bytes = 1 << 20;
  create(64 << 10, 4096);
  const SpaceId set = open_set(4096);
  const auto hashes = chain(1, 4);
  put_all(set, hashes, 3000);
  spill(/*everything=*/true);
  std::vector<DiskDrop> kept;
  EXPECT_EQ(store->erase(set, std::span(hashes).subspan(1, 2), &kept, now).value(), 2u);
  EXPECT_EQ(held(set, hashes), "d..d");
  disk.crash(disk.block_count());  // before the erasures reach the disk
  create(64 << 10, 4096);
  restart(kept);
  EXPECT_EQ(held(open_set(4096), hashes), "d..d");
}

/// The node serves before its disk is loaded, and knows nothing of the names there.
TEST_F(SetTest, AnOldRecordOfAnotherLengthIsNoCopyOfWhatWasPutMeanwhile) {
  config.disk.capacity_bytes = 1 << 20;
  create(64 << 10, 4096);
  const auto hashes = chain(1, 2);
  put_all(open_set(4096), hashes, 3000);
  spill(/*everything=*/true);
  disk.crash(disk.block_count());
  create(64 << 10, 4096);
  put_all(open_set(4096), std::span(hashes).first(1), 200);
  restart();
  const std::vector<std::uint32_t> lengths = {200, 3000};
  EXPECT_EQ(match_set(open_set(4096), hashes).lengths, lengths);
  spill(/*everything=*/true);
  disk.crash(disk.block_count());
  create(64 << 10, 4096);
  restart();
  EXPECT_EQ(held(open_set(4096), hashes), "dd");
  EXPECT_EQ(match_set(open_set(4096), hashes).lengths, lengths);
}

TEST_F(SetTest, AListInPartsIsOneOfferOnePromiseAndOneGet) {
  create(1 << 20, 64 << 10);
  const SpaceId set = open_set(4096), other = open_set(4096, "other");
  const auto hashes = chain(1, 9);
  const std::vector<std::uint32_t> lengths = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  put_all(set, std::span(hashes).subspan(4, 1), 5);

  const auto first = std::span(hashes).first(5), rest = std::span(hashes).last(4);
  SetPuts::OfferOptions options{.session = kAlice, .lengths = std::span(lengths).first(5), .is_part = true};
  auto plan = store->offer_set(set, first, options, now).value();
  EXPECT_EQ(plan.wanted, (std::vector<std::uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(plan.stored_count, 1u);
  EXPECT_TRUE(plan.incoming.empty());
  ASSERT_EQ(store->check(), "");
  options = {.session = kBob, .lengths = std::span(lengths).last(4), .put = plan.put, .first = 5};
  EXPECT_EQ(store->offer_set(set, rest, options, now).error(), Errc::kBadRequest) << "another session's";
  options.session = kAlice;
  EXPECT_EQ(store->offer_set(other, rest, options, now).error(), Errc::kBadRequest) << "another set's";
  const PutId put = plan.put;
  plan = store->offer_set(set, rest, options, now).value();
  EXPECT_EQ(plan.put, put);
  EXPECT_EQ(plan.wanted, (std::vector<std::uint32_t>{5, 6, 7, 8}));
  ASSERT_EQ(plan.incoming.size(), 8u);
  EXPECT_EQ(store->offer_set(set, rest, options, now).error(), Errc::kBadRequest) << "that list has ended";
  for (const auto& block : plan.incoming) {
    EXPECT_EQ(block.bytes.size(), lengths[block.index]);
    EXPECT_EQ(store->commit(put, fill(block), now), Status::kStored);
  }
  store->end_put(put);

  const auto half = store->match_set(set, first, {.session = kAlice, .lease = true}, now).value();
  const auto whole = store->match_set(set, rest, {.session = kAlice, .lease = true, .rest = half.lease}, now).value();
  EXPECT_EQ(store->stats().lease_count, 9u);
  EXPECT_EQ(store->stats().leases_granted, 1u);
  ASSERT_EQ(store->check(), "");
  // Of a list of which the last part finds nothing, the promise is that of the parts before.
  const auto none = chain(7, 2);
  const auto same = store->match_set(set, none, {.session = kAlice, .lease = true, .rest = whole.lease}, now).value();
  EXPECT_EQ(same.lease, whole.lease);

  const auto pinned =
      store->pin_set(set, hashes, {.session = kAlice, .lease = whole.lease, .count_max = 6}, now).value();
  EXPECT_EQ(pinned.looked_count, 6u);
  EXPECT_EQ(pinned.pinned.blocks.size(), 6u);
  EXPECT_EQ(store->stats().lease_count, 9u) << "there is more to look at";
  const auto last =
      store->pin_set(set, std::span(hashes).last(3), {.session = kAlice, .lease = whole.lease, .count_max = 6}, now)
          .value();
  EXPECT_EQ(last.looked_count, 3u);
  EXPECT_EQ(store->stats().lease_count, 0u);
  store->unpin(pinned.pinned);
  store->unpin(last.pinned);
  EXPECT_EQ(store->check(), "");
}

TEST_F(SetTest, WhatNoEvictionMakesRoomForIsTooLargeAndALackOfMemoryIsThat) {
  config.namespace_count_max = 5000;
  create(1 << 20, 64 << 10);
  const SpaceId set = open_set(4096);
  const auto hashes = chain(1, 300);
  const std::vector<std::uint32_t> lengths(300, 4096);
  auto plan = store->offer_set(set, hashes, {.session = kAlice, .lengths = lengths}, now).value();
  EXPECT_EQ(plan.incoming.size(), 256u);
  EXPECT_EQ(plan.refused_count, 44u);
  EXPECT_EQ(plan.refused_why, Errc::kOutOfMemory) << "until some of it is committed, and evicted";
  store->end_put(plan.put);
  store->expire_leases(now);
  // As many slot sizes as there may be; this one is not among them.
  for (std::size_t i = 0; i + 1 <= PrefixIndex::kCohortMax; ++i) (void)open(100'000 + 64 * i, "c" + std::to_string(i));
  const std::uint32_t length = 64;
  plan = store->offer_set(set, std::span(hashes).first(1), {.session = kAlice, .lengths = {&length, 1}}, now).value();
  EXPECT_EQ(plan.refused_count, 1u);
  EXPECT_EQ(plan.refused_why, Errc::kTooLarge);
  store->end_put(plan.put);
  EXPECT_EQ(put_all(set, std::span(hashes).first(1), 4096), 1u) << "a size that is in use";
}

/// A record that no set can have made is damage, and its block is not found.
TEST_F(SetTest, ARecordWithAnImpossibleLengthIsNotLoaded) {
  config.disk.capacity_bytes = 1 << 20;
  create(64 << 10, 4096);
  const NamespaceRecord record = set_record("s", 4096);
  const auto hashes = chain(1, 4);
  store->begin_load(now, 2);
  store->load_namespace(record);
  const auto of = [&](std::size_t i, std::uint32_t length, std::uint32_t position, const BlockHash& parent) {
    return DiskRecord{.key = DiskKey{(std::uint64_t{1} << 40) + 16 * (9 - i)},
                      .space = record.id(),
                      .hash = hashes[i],
                      .parent = parent,
                      .position = position,
                      .block_bytes = length};
  };
  const std::vector<DiskRecord> records = {of(0, 4097, 4097, {}), of(1, 100, 99, {}), of(2, 100, 100, hashes[3]),
                                           of(3, 100, 100, {})};
  store->load_records(records);
  store->end_load(true);
  EXPECT_EQ(held(open_set(4096), hashes), "...d");
}

// -- all of it at once

class SetModelTest : public SetTest {
 protected:
  struct Name {
    std::set<std::uint32_t> ever;          ///< Lengths stored since it was dropped last.
    std::optional<std::uint32_t> current;  ///< The one it has if it is held; not known after a restart.
  };
  struct Move {
    SetPinning::Pinned set;
    SpaceId space;
    std::vector<BlockHash> hashes;
  };
  struct OpenPut {
    PutId id;
    std::size_t which;
    std::vector<BlockHash> hashes;
    std::vector<std::uint32_t> lengths;
    std::list<IncomingBlock> incoming;
    std::vector<std::uint32_t> groups;
  };

  std::mt19937_64 random;
  std::vector<SpaceId> sets;
  SpaceId of_chain{};
  std::vector<std::map<BlockHash, Name>> names{2};
  std::list<Move> moves;
  std::list<OpenPut> puts;
  std::vector<LeaseId> leases;
  std::uint64_t evicted_count = 0, moved_count = 0;  ///< In lives that are over: blocks, and slabs.
  static constexpr std::size_t kBounds[] = {300, 9000};

  std::uint64_t below(std::uint64_t bound) { return random() % bound; }
  void reopen() {
    sets = {open_set(kBounds[0], "a"), open_set(kBounds[1], "b")};
    of_chain = open(1024);
  }
  std::vector<BlockHash> some_names() {
    std::vector<BlockHash> hashes;
    for (std::size_t i = 0, count = 1 + below(8); i < count; ++i) hashes.push_back(hash_of(below(60)));
    return hashes;
  }
  /// How some names are cut into groups; often not at all.
  std::vector<std::uint32_t> some_groups(std::span<const BlockHash> hashes) {
    std::vector<std::uint32_t> groups;
    if (below(2) == 0) return groups;
    for (std::size_t left = hashes.size(); left > 0; left -= groups.back())
      groups.push_back(static_cast<std::uint32_t>(1 + below(std::min<std::size_t>(left, 4))));
    return check_groups(hashes, groups).empty() ? groups : std::vector<std::uint32_t>();
  }
  /// Each group, if it had all of it.
  bool fits_in_arena(std::size_t which, std::span<const std::uint32_t> groups,
                     std::span<const std::uint32_t> lengths) const {
    const std::size_t capacity = config.arena.capacity_bytes;
    bool fits = true;
    for_each_group(groups, lengths.size(), [&](std::size_t first, std::size_t count) {
      std::size_t bytes = 0;
      for (const auto length : lengths.subspan(first, count)) bytes += set_slot_bytes(length, kBounds[which], capacity);
      fits = fits && (groups.empty() || bytes <= capacity);
    });
    return fits;
  }
  /// What each name is by itself, of groups of which all names are held; else nowhere.
  std::vector<Held> held_in_groups(SpaceId set, std::span<const BlockHash> hashes,
                                   std::span<const std::uint32_t> groups) {
    auto held = store->match_set(set, hashes, {.session = kAlice}, now).value().held;
    for_each_group(groups, hashes.size(), [&](std::size_t first, std::size_t count) {
      const auto group = std::span(held).subspan(first, count);
      if (std::ranges::count(group, Held::kNowhere) > 0) std::ranges::fill(group, Held::kNowhere);
    });
    return held;
  }
  void saw(std::size_t which, const BlockHash& hash, std::uint32_t length) {
    Name& name = names[which][hash];
    ASSERT_TRUE(name.ever.contains(length)) << "a length that nobody stored, or that was dropped";
    if (!name.current) name.current = length;
    ASSERT_EQ(*name.current, length) << "a name has changed";
  }
  void end_move() {
    const Move& move = moves.front();
    for (const auto& block : move.set.pinned.blocks)
      ASSERT_TRUE(has_bytes(block.bytes, seed_of(move.space, move.hashes[block.index], block.bytes.size())));
    for (const auto& block : move.set.pinned.on_disk) {
      auto read = read_verified(disk, block.key, block.seed, block.block_bytes);
      DiskKey key = block.key;
      if (!read) key = store->read_failed(block.id, block.key).moved_to;
      if (!read && key != DiskKey{}) read = read_verified(disk, key, block.seed, block.block_bytes);
      if (read && block.promote && store->is_on_disk(block.id)) {
        const auto& hash = move.hashes[block.index];
        const SetPuts::OfferOptions options{
            .session = kAlice, .lengths = {&block.block_bytes, 1}, .may_lose = may_lose, .promote = true};
        const auto plan = store->offer_set(move.space, {&hash, 1}, options, now).value();
        if (plan.incoming.size() == 1) {
          std::ranges::copy(read->bytes, plan.incoming[0].bytes.begin());
          const Status status = store->commit(plan.put, read->checksums, now);
          ASSERT_TRUE(status == Status::kStored || status == Status::kAlreadyStored);
        }
        if (plan.put != PutId{}) store->end_put(plan.put);
      }
    }
    store->unpin(move.set.pinned);
    moves.pop_front();
  }
  void commit_one(OpenPut& put) {
    const IncomingBlock block = put.incoming.front();
    put.incoming.pop_front();
    const BlockHash& hash = put.hashes[block.index];
    const auto length = static_cast<std::uint32_t>(block.bytes.size());
    ASSERT_EQ(length, put.lengths[block.index]);
    const Status status = store->commit(put.id, fill(block), now);
    ASSERT_NE(status, Status::kRefused);
    if (status == Status::kStored) {
      names[put.which][hash].ever.insert(length);
      names[put.which][hash].current = length;
    } else if (status == Status::kAlreadyStored) {
      saw(put.which, hash, length);
    }
  }
  void commit_group(OpenPut& put) {
    std::vector<std::uint64_t> sums;
    std::vector<IncomingBlock> blocks;
    do {
      ASSERT_FALSE(put.incoming.empty()) << "a part of a group was incoming";
      blocks.push_back(put.incoming.front());
      put.incoming.pop_front();
      const auto own = fill(blocks.back());
      sums.insert(sums.end(), own.begin(), own.end());
    } while (!blocks.back().completes_group);
    const auto statuses = store->commit_group(put.id, sums, now);
    ASSERT_EQ(statuses.size(), blocks.size());
    const auto has = [&](Status status) { return std::ranges::find(statuses, status) != statuses.end(); };
    ASSERT_FALSE(has(Status::kStored) && (has(Status::kConflict) || has(Status::kRefused)));
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const BlockHash& hash = put.hashes[blocks[i].index];
      const auto length = static_cast<std::uint32_t>(blocks[i].bytes.size());
      if (statuses[i] == Status::kStored) {
        names[put.which][hash].ever.insert(length);
        names[put.which][hash].current = length;
      }
      if (statuses[i] == Status::kAlreadyStored) saw(put.which, hash, length);
    }
    if (!has(Status::kStored)) return;
    // All of the group, with what was here: from the first moment on.
    std::size_t first = 0;
    for (const std::uint32_t count : put.groups) {
      if (blocks.back().index < first + count) {
        for (const Held each : held_in_groups(sets[put.which], std::span(put.hashes).subspan(first, count), {}))
          ASSERT_NE(each, Held::kNowhere);
        return;
      }
      first += count;
    }
  }
  /// Of each group that was looked at all blocks are pinned, or none; none only for a reason.
  void check_groups_pinned(const SetPinning::Pinned& set, std::span<const Held> alone,
                           const SetPinning::Options& options) {
    std::vector<bool> is_pinned(alone.size()), is_too_long(alone.size());
    for (const auto& block : set.pinned.blocks) is_pinned[block.index] = true;
    for (const auto& block : set.pinned.on_disk) is_pinned[block.index] = true;
    for (const auto& [index, length] : set.too_long) is_too_long[index] = true;
    std::size_t group_count = 0;
    bool is_cut = false;
    for_each_group(options.group_counts, alone.size(), [&](std::size_t first, std::size_t count) {
      if (first >= set.looked_count) return;
      ++group_count;
      is_cut = is_cut || first + count > set.looked_count;
      bool is_due = true, is_any_pinned = false, are_all_pinned = true;
      for (std::size_t i = first; i < first + count; ++i) {
        is_due =
            is_due && !is_too_long[i] && (alone[i] == Held::kInMemory || (options.disk && alone[i] == Held::kOnDisk));
        is_any_pinned = is_any_pinned || is_pinned[i];
        are_all_pinned = are_all_pinned && is_pinned[i];
      }
      ASSERT_EQ(is_any_pinned, is_due);
      ASSERT_EQ(are_all_pinned, is_due);
    });
    ASSERT_FALSE(is_cut) << "a window ends in the middle of a group";
    ASSERT_EQ(set.looked_group_count, options.group_counts.empty() ? 0 : group_count);
  }
  void step() {
    now += Duration(below(1'000'000));
    const std::size_t which = below(2);
    const SpaceId set = sets[which];
    const std::vector<BlockHash> hashes = some_names();
    switch (below(14)) {
      case 0:
      case 1: {
        const auto groups = some_groups(hashes);
        const auto alone = held_in_groups(set, hashes, groups);
        const auto match =
            store->match_set(set, hashes, {.session = kAlice, .lease = below(3) == 0, .group_counts = groups}, now)
                .value();
        ASSERT_EQ(match.held, alone);
        for (std::size_t i = 0; i < hashes.size(); ++i) {
          ASSERT_EQ(match.held[i] == Held::kNowhere, match.lengths[i] == 0);
          if (match.lengths[i] > 0) saw(which, hashes[i], match.lengths[i]);
        }
        if (match.lease != LeaseId{}) leases.push_back(match.lease);
        return;
      }
      case 2:
      case 3: {
        std::vector<std::uint32_t> rooms;
        for (std::size_t i = 0; i < hashes.size(); ++i)
          rooms.push_back(static_cast<std::uint32_t>(below(4) == 0 ? below(kBounds[which]) : kBounds[which]));
        const auto groups = some_groups(hashes);
        const auto alone = held_in_groups(set, hashes, groups);
        const SetPinning::Options options{.session = kAlice,
                                          .disk = below(2) == 0,
                                          .rooms = rooms,
                                          .bytes_max = 1 + below(20'000),
                                          .count_max = 1 + below(10),
                                          .group_counts = groups};
        auto pinned = store->pin_set(set, hashes, options, now).value();
        check_groups_pinned(pinned, alone, options);
        for (const auto& block : pinned.pinned.blocks) {
          saw(which, hashes[block.index], static_cast<std::uint32_t>(block.bytes.size()));
          ASSERT_LE(block.bytes.size(), rooms[block.index]);
        }
        for (const auto& block : pinned.pinned.on_disk) saw(which, hashes[block.index], block.block_bytes);
        for (const auto& [index, length] : pinned.too_long) {
          saw(which, hashes[index], length);
          ASSERT_GT(length, rooms[index]);
        }
        moves.push_back({std::move(pinned), set, hashes});
        if (moves.size() > 4) end_move();
        return;
      }
      case 4:
        if (!moves.empty()) end_move();
        return;
      case 5: {
        if (leases.empty()) return;
        static_cast<void>(store->release(kAlice, leases.back()));
        leases.pop_back();
        return;
      }
      case 6: {
        if (below(2) == 0) {
          static_cast<void>(store->retain(set, hashes));
        } else {
          ASSERT_TRUE(store->unretain(set, hashes));
        }
        return;
      }
      case 7: {
        std::vector<DiskDrop> kept;
        if (below(20) == 0) {
          kept.emplace_back();
          ASSERT_TRUE(store->drop(set, {}, &kept[0]));
          while (store->is_dropping()) store->drop_more(now);
          names[which].clear();
        } else {
          ASSERT_TRUE(store->erase(set, std::span(hashes).first(1), &kept, now));
          names[which].erase(hashes[0]);
        }
        ASSERT_FALSE(disk.add_drops(kept));
        return;
      }
      case 8: put(of_chain, chain(below(6), 1 + below(12))); return;
      case 9: match(of_chain, chain(below(6), 12)); return spill(below(10) == 0);
      case 10:
        if (below(30) > 0) return;
        while (!moves.empty()) end_move();
        count_life();
        store.reset();  // a kill: what is in memory is lost
        puts.clear();
        leases.clear();
        disk.crash(disk.block_count());
        for (auto& each : names)
          for (auto& [hash, name] : each) name.current.reset();
        create(config.arena.capacity_bytes, config.arena.granule_bytes);
        if (config.disk.capacity_bytes > 0) restart(disk.drops());
        return reopen();
      default: {
        if (below(3) > 0 || puts.size() > 3) {
          if (puts.empty()) return;
          OpenPut& put = puts.front();
          if (!put.incoming.empty() && below(10) > 0) return put.groups.empty() ? commit_one(put) : commit_group(put);
          store->end_put(put.id);
          return puts.pop_front();
        }
        std::vector<std::uint32_t> lengths;
        for (std::size_t i = 0; i < hashes.size(); ++i) {
          const std::uint64_t bound = below(3) == 0 ? kBounds[which] : 1 + below(kBounds[which]);
          lengths.push_back(static_cast<std::uint32_t>(bound));
        }
        const auto groups = some_groups(hashes);
        const SetPuts::OfferOptions options{
            .session = kAlice, .lengths = lengths, .may_lose = may_lose, .group_counts = groups};
        const auto offered = store->offer_set(set, hashes, options, now);
        ASSERT_EQ(offered.error(), fits_in_arena(which, groups, lengths) ? error_code() : Errc::kTooLarge);
        if (!offered || offered->put == PutId{}) return;
        const OfferPlan& plan = *offered;
        puts.push_back({plan.put, which, hashes, lengths, {plan.incoming.begin(), plan.incoming.end()}, groups});
        return;
      }
    }
  }
  void run(int steps) {
    const std::uint64_t seed = test_seed();
    random.seed(seed);
    config.lease_duration = 1ms * (1 + below(5));
    config.lease_count_per_session_max = 40;
    create((16 + below(60)) * 1024, 4096);
    if (config.disk.capacity_bytes > 0) restart();
    reopen();
    for (int i = 0; i < steps && !HasFatalFailure(); ++i) {
      step();
      ASSERT_EQ(store->check(), "") << "step " << i;
    }
    while (!moves.empty()) end_move();
    for (const OpenPut& put : puts) store->end_put(put.id);
    store->end_session(kAlice);
    count_life();
    EXPECT_GT(evicted_count, 0u);
    EXPECT_GT(moved_count, 0u);
  }
  void count_life() {
    evicted_count += store->stats().evicted_blocks;
    moved_count += store->stats().slab_moves;
    if (!may_lose) {
      EXPECT_EQ(store->stats().lost_unspilled_blocks, 0u);
    }
  }
};

TEST_F(SetModelTest, InMemoryANameHoldsWhatWasStoredFirst) { run(15'000); }

TEST_F(SetModelTest, WithADiskAndRestartsToo) {
  config.disk.capacity_bytes = 60'000;
  config.disk.segment_bytes = 8000;
  config.spill.reserve = 0.2;
  run(15'000);
}

TEST_F(SetModelTest, NoBlockLeavesMemoryUnwrittenWherePutsWaitForTheDisk) {
  config.disk.capacity_bytes = 200'000;
  config.disk.segment_bytes = 8000;
  config.spill.reserve = 0.05;
  may_lose = false;
  run(15'000);
}

}  // namespace
}  // namespace kv
