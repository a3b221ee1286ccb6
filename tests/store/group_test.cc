// Names of a set that come in groups: held, pinned and stored as a whole or not at all (Store, invariant 6).
#include <gtest/gtest.h>

#include <algorithm>

#include "memory_disk.h"
#include "store_fixture.h"

namespace kv {
namespace {

using Held = ReadDesk::Held;
using Status = CommitStatus;
using GroupCounts = std::vector<std::uint32_t>;

class GroupTest : public StoreFixture {
 protected:
  static constexpr std::uint32_t kLength = 4096;

  void create_slots(std::size_t count) {
    create(count * kLength, kLength);
    set =
        store
            ->open(NamespaceRecord::from_fields({{"model", "g"}, {"kind", "set"}, {"block_bytes_max", "4096"}}).value())
            .value();
  }
  OfferPlan offer(std::span<const BlockHash> hashes, const GroupCounts& groups, SessionId session = kAlice) {
    now += Duration(1000);
    const std::vector<std::uint32_t> lengths(hashes.size(), kLength);
    return store->offer_set(set, hashes, {.session = session, .lengths = lengths, .group_counts = groups}, now).value();
  }
  /// Fills the next group of what is incoming, from `at` on, and commits it.
  std::vector<Status> commit_group(const OfferPlan& plan, std::size_t& at) {
    std::vector<std::uint64_t> sums;
    for (bool is_over = false; !is_over; ++at) {
      const auto own = fill(plan.incoming[at]);
      sums.insert(sums.end(), own.begin(), own.end());
      is_over = plan.incoming[at].completes_group;
    }
    now += Duration(1000);
    return store->commit_group(plan.put, sums, now);
  }
  /// All of it; whether each block was stored by this.
  void put_groups(std::span<const BlockHash> hashes, const GroupCounts& groups) {
    const auto plan = offer(hashes, groups);
    for (std::size_t at = 0; at < plan.incoming.size();)
      for (const Status status : commit_group(plan, at)) EXPECT_EQ(status, Status::kStored);
    if (plan.put != PutId{}) store->end_put(plan.put);
  }
  void put_alone(std::span<const BlockHash> hashes) { put_groups(hashes, GroupCounts(hashes.size(), 1)); }
  std::string held(std::span<const BlockHash> hashes,
                   const GroupCounts& groups = {}) {  // "m" memory, "d" disk, "." nowhere
    now += Duration(1000);
    const auto match = store->match_set(set, hashes, {.group_counts = groups}, now).value();
    std::string text;
    for (const Held each : match.held) text += ".md"[static_cast<int>(each)];
    return text;
  }
  void erase(const BlockHash& hash) { ASSERT_EQ(store->erase(set, {&hash, 1}, nullptr, now).value(), 1u); }

  SpaceId set{};
};

TEST_F(GroupTest, AGroupIsHeldOnlyIfAllOfItIs) {
  create_slots(16);
  const auto hashes = chain(1, 7);
  put_groups(hashes, {3, 1, 3});
  EXPECT_EQ(held(hashes, {3, 1, 3}), "mmmmmmm");
  erase(hashes[5]);
  EXPECT_EQ(held(hashes), "mmmmm.m");
  const auto match = store->match_set(set, hashes, {.group_counts = GroupCounts{3, 1, 3}}, now).value();
  EXPECT_EQ(match.held, (std::vector<Held>{Held::kInMemory, Held::kInMemory, Held::kInMemory, Held::kInMemory,
                                           Held::kNowhere, Held::kNowhere, Held::kNowhere}));
  EXPECT_EQ(match.lengths, (GroupCounts{kLength, kLength, kLength, kLength, 0, 0, 0}));
  // A name of two groups is held for the one that is whole.
  const std::vector<BlockHash> shared = {hashes[4], hashes[5], hashes[4], hashes[6]};
  EXPECT_EQ(held(shared, {2, 2}), "..mm");
}

TEST_F(GroupTest, CountsThatDoNotCutTheListAreRefused) {
  create_slots(16);
  const auto hashes = chain(1, 70);
  const std::vector<std::uint32_t> lengths(70, kLength);
  for (const GroupCounts& bad :
       {GroupCounts{69}, GroupCounts{64, 5}, GroupCounts{64, 7}, GroupCounts{70}, GroupCounts{65, 5},
        GroupCounts{0, 64, 6}, GroupCounts{64, 0, 6}, GroupCounts{0xFFFFFFFF, 71}}) {
    EXPECT_EQ(store->match_set(set, hashes, {.group_counts = bad}, now).error(), Errc::kBadRequest);
    EXPECT_EQ(store->pin_set(set, hashes, {.group_counts = bad}, now).error(), Errc::kBadRequest);
    EXPECT_EQ(store->offer_set(set, hashes, {.lengths = lengths, .group_counts = bad}, now).error(), Errc::kBadRequest);
    EXPECT_NE(check_groups(hashes, bad), "");
  }
  EXPECT_EQ(check_groups(hashes, GroupCounts{64, 6}), "");
  EXPECT_EQ(check_groups(hashes, GroupCounts{65, 5}), "group_counts[0]: 65, 1..64 are allowed");
  EXPECT_EQ(check_groups(hashes, GroupCounts{64, 5}), "group_counts: 69 names in all, 70 are given");
  auto twice = hashes;
  twice[69] = twice[65];
  EXPECT_EQ(check_groups(twice, GroupCounts{64, 6}), "group_counts[1]: the group has a name twice");
  twice[69] = twice[0];  // of two groups
  EXPECT_EQ(check_groups(twice, GroupCounts{64, 6}), "");
}

TEST_F(GroupTest, NobodySeesAGroupBeforeItsLastBlockIsCommitted) {
  create_slots(16);
  const auto hashes = chain(1, 5);
  const auto plan = offer(hashes, {3, 2});
  ASSERT_EQ(plan.incoming.size(), 5u);
  EXPECT_EQ(held(hashes), ".....");
  std::size_t at = 0;
  EXPECT_EQ(commit_group(plan, at), std::vector(3, Status::kStored));
  EXPECT_EQ(at, 3u);
  EXPECT_EQ(held(hashes), "mmm..");
  store->end_put(plan.put);
  store->expire_leases(now);
  EXPECT_EQ(held(hashes), "mmm..");
  EXPECT_EQ(store->stats().incoming_count, 0u);
}

TEST_F(GroupTest, WhatIsHereOfAGroupCountsAndStaysUntilThePutIsOver) {
  create_slots(4);
  const auto group = chain(1, 3), others = chain(2, 4);
  put_alone(std::span(group).first(2));
  const auto plan = offer(group, {3});
  ASSERT_EQ(plan.incoming.size(), 1u);
  EXPECT_EQ(plan.stored_count, 2u);
  EXPECT_EQ(store->stats().pinned_count, 2u);
  const auto pressed = offer(others, {1, 1, 1, 1}, kBob);  // one slot is free, and nothing may be evicted
  EXPECT_EQ(pressed.incoming.size(), 1u);
  EXPECT_EQ(pressed.refused_count, 3u);
  std::size_t at = 0;
  EXPECT_EQ(commit_group(plan, at), std::vector(1, Status::kStored));
  EXPECT_EQ(store->stats().pinned_count, 0u);
  store->end_put(plan.put);
  store->end_put(pressed.put);
  EXPECT_EQ(held(group, {3}), "mmm");
}

TEST_F(GroupTest, AGroupOfWhichABlockWasDroppedDuringThePutIsNotStored) {
  create_slots(8);
  const auto group = chain(1, 3);
  put_alone(std::span(group).first(1));
  const auto plan = offer(group, {3});
  ASSERT_TRUE(store->erase(set, std::span(group).first(1), nullptr, now));
  std::size_t at = 0;
  EXPECT_EQ(commit_group(plan, at), std::vector(2, Status::kRefused));
  store->end_put(plan.put);
  EXPECT_EQ(held(group), "...");
  EXPECT_EQ(store->stats().refused_blocks, 2u);
  store->expire_leases(now);
  EXPECT_EQ(store->stats().allocated_bytes, 0u);
}

TEST_F(GroupTest, AConflictInAGroupLeavesNothingNewBehind) {
  create_slots(16);
  const auto hashes = chain(1, 5);
  const auto plan = offer(hashes, {3, 2});
  const auto racing = offer(std::span(hashes).subspan(1, 1), {1}, kBob);
  // Other bytes under the second name: they are there first.
  fill_bytes(racing.incoming[0].bytes, 77);
  std::vector<std::uint64_t> sums(stripe_count(kLength));
  block_checksums(racing.incoming[0].seed, racing.incoming[0].bytes, sums);
  EXPECT_EQ(store->commit_group(racing.put, sums, now), std::vector(1, Status::kStored));
  store->end_put(racing.put);
  std::size_t at = 0;
  EXPECT_EQ(commit_group(plan, at), (std::vector{Status::kRefused, Status::kConflict, Status::kRefused}));
  EXPECT_EQ(held(hashes), ".m...");
  EXPECT_EQ(commit_group(plan, at), std::vector(2, Status::kStored)) << "the next group is another";
  store->end_put(plan.put);
  EXPECT_EQ(held(hashes, {3, 2}), "...mm");
}

TEST_F(GroupTest, ASecondPutOfAGroupFindsItStoredMeanwhile) {
  create_slots(16);
  const auto hashes = chain(1, 3);
  const auto first = offer(hashes, {3}), second = offer(hashes, {3}, kBob);
  std::size_t at = 0;
  EXPECT_EQ(commit_group(first, at), std::vector(3, Status::kStored));
  at = 0;
  EXPECT_EQ(commit_group(second, at), std::vector(3, Status::kAlreadyStored));
  store->end_put(first.put);
  store->end_put(second.put);
  EXPECT_EQ(held(hashes, {3}), "mmm");
}

TEST_F(GroupTest, AGroupThatFindsNoRoomForAllOfItTakesNone) {
  create_slots(4);
  const auto hashes = chain(1, 6);
  const auto kept = chain(2, 1);
  put_alone(kept);
  ASSERT_TRUE(store->retain(set, kept));
  auto plan = offer(hashes, {2, 3, 1});
  EXPECT_EQ(plan.incoming.size(), 2u) << "one slot is left: not enough for three blocks";
  EXPECT_EQ(plan.refused_count, 4u);
  EXPECT_EQ(store->stats().incoming_count, 2u) << "another put may have that slot meanwhile";
  const PutId put = plan.put;
  ASSERT_TRUE(store->unretain(set, kept));
  plan = store->offer_more(put, now).value();
  EXPECT_TRUE(plan.incoming.empty()) << "two";
  EXPECT_EQ(plan.refused_count, 4u);
  store->end_put(put);
  store->expire_leases(now);
  EXPECT_EQ(store->stats().incoming_count, 0u);
  EXPECT_EQ(held(hashes), "......");
}

TEST_F(GroupTest, BlocksOfAGroupThatWereUsedTogetherGoOneAfterTheOther) {
  create_slots(6);
  const auto used = chain(1, 3), other = chain(2, 3);
  put_groups(used, {3});
  put_groups(other, {3});
  EXPECT_EQ(held(used, {3}), "mmm");
  put_alone(chain(3, 3));
  EXPECT_EQ(held(other), "...");
  EXPECT_EQ(held(used, {3}), "mmm");
}

TEST_F(GroupTest, AskingForAGroupThatIsNotWholeLeavesItsBlocksAsOldAsTheyWere) {
  create_slots(6);
  const auto oldest = chain(1, 1), hashes = chain(2, 3), newer = chain(3, 2);
  put_alone(oldest);
  put_groups(std::span(hashes).first(2), {2});
  put_alone(newer);
  // The first name is of a group that is here and of one that never was.
  const std::vector<BlockHash> asked = {hashes[0], hashes[2]};
  EXPECT_EQ(held(asked, {2}), "..");
  const GroupCounts groups = {2};
  const auto pinned = store->pin_set(set, asked, {.session = kAlice, .group_counts = groups}, now).value();
  EXPECT_TRUE(pinned.pinned.blocks.empty());
  EXPECT_EQ(store->stats().get_miss_blocks, 2u);
  store->unpin(pinned.pinned);
  put_alone(chain(4, 2));  // one slot is free
  EXPECT_EQ(held(oldest), ".") << "no older than it was";
  put_alone(chain(5, 2));
  EXPECT_EQ(held(std::span(hashes).first(2)), "..") << "and no newer";
  EXPECT_EQ(held(newer), "mm");
}

TEST_F(GroupTest, AGroupThatIsLargerThanTheArenaIsRefusedAndEvictsNothing) {
  create_slots(4);
  const auto kept = chain(1, 4), hashes = chain(2, 6);
  put_alone(kept);
  const std::vector<std::uint32_t> lengths(6, kLength);
  const GroupCounts fits = {4, 2}, never = {1, 5};
  EXPECT_EQ(store->offer_set(set, hashes, {.lengths = lengths, .group_counts = never}, now).error(), Errc::kTooLarge);
  EXPECT_EQ(held(kept), "mmmm");
  put_groups(std::span(hashes).first(4), {4});
  EXPECT_EQ(held(std::span(hashes).first(4), {4}), "mmmm");
  const auto plan = offer(hashes, fits);
  EXPECT_EQ(plan.refused_count, 0u);
  store->end_put(plan.put);
}

TEST_F(GroupTest, AWindowOfAGetCutsNoGroup) {
  create_slots(16);
  const auto hashes = chain(1, 9);
  const GroupCounts groups = {2, 3, 4};
  put_groups(hashes, groups);
  for (std::size_t count_max = 1; count_max <= 9; ++count_max) {
    const auto window =
        store->pin_set(set, hashes, {.session = kAlice, .count_max = count_max, .group_counts = groups}, now).value();
    const std::size_t whole = count_max < 5 ? 2 : count_max < 9 ? 5 : 9;
    EXPECT_EQ(window.looked_count, whole) << count_max;
    EXPECT_EQ(window.looked_group_count, whole == 2 ? 1u : whole == 5 ? 2u : 3u);
    EXPECT_EQ(window.pinned.blocks.size(), whole);
    store->unpin(window.pinned);
  }
  for (std::uint64_t blocks = 1; blocks <= 9; ++blocks) {
    const SetPinning::Options options{.session = kAlice, .bytes_max = blocks * kLength, .group_counts = groups};
    const auto window = store->pin_set(set, hashes, options, now).value();
    EXPECT_EQ(window.looked_count, blocks <= 2 ? 2u : blocks <= 5 ? 5u : 9u) << blocks;
    store->unpin(window.pinned);
  }
}

TEST_F(GroupTest, AGroupWithABlockThatIsLongerThanItsRoomIsNotPinned) {
  create_slots(16);
  const auto hashes = chain(1, 4);
  put_groups(hashes, {2, 2});
  const std::vector<std::uint32_t> rooms = {kLength, kLength - 1, kLength, kLength};
  const GroupCounts groups = {2, 2};
  const auto pinned = store->pin_set(set, hashes, {.rooms = rooms, .group_counts = groups}, now).value();
  ASSERT_EQ(pinned.pinned.blocks.size(), 2u);
  EXPECT_EQ(pinned.pinned.blocks[0].index, 2u);
  ASSERT_EQ(pinned.too_long.size(), 1u);
  EXPECT_EQ(pinned.too_long[0].index, 1u);
  store->unpin(pinned.pinned);
}

TEST_F(GroupTest, ALeaseIsForGroupsThatMemoryHasAsAWhole) {
  create_slots(16);
  const auto hashes = chain(1, 5);
  put_groups(hashes, {2, 3});
  erase(hashes[3]);
  const GroupCounts groups = {2, 3};
  const auto match = store->match_set(set, hashes, {.session = kAlice, .lease = true, .group_counts = groups}, now);
  EXPECT_NE(match->lease, LeaseId{});
  EXPECT_EQ(store->stats().lease_count, 2u);
  EXPECT_TRUE(store->release(kAlice, match->lease));
}

TEST_F(GroupTest, AListInPartsIsOnePutOfGroups) {
  create_slots(16);
  const auto hashes = chain(1, 7);
  put_alone(std::span(hashes).first(1));
  const std::vector<std::uint32_t> lengths(7, kLength);
  const GroupCounts first = {3}, rest = {2, 2};
  SetPuts::OfferOptions options{
      .session = kAlice, .lengths = std::span(lengths).first(3), .is_part = true, .group_counts = first};
  const PutId put = store->offer_set(set, std::span(hashes).first(3), options, now)->put;
  ASSERT_EQ(store->check(), "");
  options = {.session = kAlice, .lengths = std::span(lengths).last(4), .put = put, .first = 3};
  EXPECT_EQ(store->offer_set(set, std::span(hashes).last(4), options, now).error(), Errc::kBadRequest)
      << "half of a list in groups";
  options.group_counts = rest;
  const auto plan = store->offer_set(set, std::span(hashes).last(4), options, now).value();
  ASSERT_EQ(plan.incoming.size(), 6u);
  std::size_t at = 0;
  EXPECT_EQ(commit_group(plan, at), std::vector(2, Status::kStored));
  EXPECT_EQ(commit_group(plan, at), std::vector(2, Status::kStored));
  EXPECT_EQ(held(hashes, {3, 2, 2}), "mmmmm..");
  store->end_put(put);
}

class GroupDiskTest : public GroupTest {
 protected:
  GroupDiskTest() {
    config.disk.capacity_bytes = 1 << 20;
    config.disk.segment_bytes = 64 << 10;
  }
  void spill(bool everything) {
    for (;;) {
      const SpillWork work = store->spill_work(64 << 10, now, everything);
      if (work.empty()) return;
      store->finish_spill(work, carry_out(work, disk));
      ASSERT_EQ(store->check(), "");
    }
  }
  MemoryDisk disk;
};

TEST_F(GroupDiskTest, AGroupMayLieInMemoryInPartAndOnDiskInPart) {
  create_slots(8);
  const auto hashes = chain(1, 3);
  put_groups(hashes, {3});
  spill(/*everything=*/true);
  ASSERT_EQ(held(hashes), "ddd");
  erase(hashes[1]);
  EXPECT_EQ(held(hashes, {3}), "...");
  put_groups(hashes, {3});  // what the disk has counts
  EXPECT_EQ(held(hashes, {3}), "dmd");
  const GroupCounts groups = {3};
  const auto match = store->match_set(set, hashes, {.session = kAlice, .lease = true, .group_counts = groups}, now);
  EXPECT_EQ(match->lease, LeaseId{}) << "half a promise is none";
  EXPECT_EQ(match->lease_error, Errc{});
  auto pinned = store->pin_set(set, hashes, {.disk = true, .group_counts = groups}, now).value();
  EXPECT_EQ(pinned.pinned.blocks.size(), 1u);
  EXPECT_EQ(pinned.pinned.on_disk.size(), 2u);
  store->unpin(pinned.pinned);
  pinned = store->pin_set(set, hashes, {.disk = false, .group_counts = groups}, now).value();
  EXPECT_TRUE(pinned.pinned.blocks.empty()) << "memory alone has no whole group";
  store->unpin(pinned.pinned);
  EXPECT_EQ(held(hashes, {3}), "dmd") << "and that is no reason to let go of it";
}

TEST_F(GroupDiskTest, TheCommitOfAGroupMarksItsBlocksOnDiskAsUsed) {
  config.disk.capacity_bytes = 6 * kLength;
  config.disk.segment_bytes = 2 * kLength;
  create_slots(8);
  const auto group = chain(1, 2), others = chain(2, 4);
  put_alone(std::span(group).first(1));
  put_alone(others);
  spill(true);
  ASSERT_EQ(held(std::span(group).first(1)) + held(others), "ddddd");
  const auto plan = offer(group, {2});
  EXPECT_EQ(held(others), "dddd");  // used since the offer
  std::size_t at = 0;
  EXPECT_EQ(commit_group(plan, at), std::vector(1, Status::kStored));
  store->end_put(plan.put);
  put_alone(chain(3, 2));
  spill(true);
  EXPECT_EQ(held(group, {2}), "dd");
  EXPECT_EQ(std::ranges::count(held(others), 'd'), 2) << "six blocks in all";
}

}  // namespace
}  // namespace kv
