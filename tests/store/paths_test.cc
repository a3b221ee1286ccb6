// What a Store tells of what it holds to whoever hands it on, and what it makes of the age that comes with it.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/store/store_fixture.h"

namespace kv {
namespace {

constexpr std::size_t kBlockBytes = 4096;

class PathsTest : public StoreFixture {
 protected:
  std::vector<LookDesk::PathEnd> list(TimePoint since = TimePoint::min()) {
    std::vector<LookDesk::PathEnd> ends;
    for (LookDesk::PathCursor cursor; !cursor.is_done;) store->list_paths(cursor, since, ends);
    return ends;
  }
  /// Last used so long ago, elsewhere.
  void put_idle(SpaceId space, std::span<const BlockHash> hashes, Duration idle) {
    auto plan = store->offer(space, hashes, {.session = kAlice, .idle = idle}, now).value();
    for (const auto& block : plan.incoming) {
      EXPECT_EQ(store->commit(plan.put, fill(block), now), CommitStatus::kStored);
    }
    if (plan.put != PutId{}) store->end_put(plan.put);
  }
};

TEST_F(PathsTest, EachEndIsListedWithItsNamesAndWhenItWasUsed) {
  create(8 << 20);
  const SpaceId space = open(kBlockBytes);
  auto one = chain(1, 2000), other = chain(1, 1500);  // of more ids than one call looks at
  other.push_back(hash_of(7));
  put(space, one);
  const TimePoint first = now;
  now += 10s;
  put(space, other);
  auto ends = list();
  ASSERT_EQ(ends.size(), 2u);
  std::ranges::sort(ends, {}, &LookDesk::PathEnd::used);
  EXPECT_EQ(store->path_of(ends[0]).value(), one);
  EXPECT_EQ(store->path_of(ends[1]).value(), other);
  EXPECT_LT(ends[0].used - first, 1ms);
  EXPECT_LT(ends[1].used - now, 1ms);
  EXPECT_EQ(list(first + 1s).size(), 1u);
  EXPECT_TRUE(list(now + 1s).empty());
}

TEST_F(PathsTest, APinnedPathHasItsBytesAndIsNotUsedByThat) {
  create(4 << 20);
  const SpaceId space = open(kBlockBytes);
  const auto old = chain(1, 100), young = chain(2, 100);
  put(space, old);
  now += 10s;
  put(space, young);
  const auto ends = list();
  ASSERT_EQ(ends.size(), 2u);
  const auto& end = ends[0].used < ends[1].used ? ends[0] : ends[1];
  const auto pinned = store->pin_path(end).value();
  ASSERT_EQ(pinned.blocks.size(), old.size());
  for (std::size_t i = 0; i < old.size(); ++i) {
    EXPECT_TRUE(has_bytes(pinned.blocks[i].bytes, checksum_seed(store->find_namespace(space)->id(), old[i])));
  }
  put(space, chain(3, 2000));  // more than there is room for: what is pinned stays
  EXPECT_EQ(match(space, young), 0u);
  store->unpin(pinned);
  EXPECT_EQ(list()[0].used < now, true);
  const auto again = list(end.used + 1ns);
  EXPECT_TRUE(std::ranges::none_of(again, [&](const auto& each) { return each.hash == end.hash; }));
}

TEST_F(PathsTest, AnEndThatHasGoneIsNotFoundEvenIfItsNumberIsAnothers) {
  create(4 << 20);
  const SpaceId space = open(kBlockBytes);
  put(space, chain(1, 10));
  const auto end = list().at(0);
  ASSERT_TRUE(store->drop(space, chain(1, 1)));
  EXPECT_EQ(store->path_of(end).error(), Errc::kNotFound);
  while (store->is_dropping()) store->drop_more(now);
  put(space, chain(2, 10));
  EXPECT_EQ(store->path_of(end).error(), Errc::kNotFound);
  EXPECT_EQ(store->pin_path(end).error(), Errc::kNotFound);
}

TEST_F(PathsTest, ASetHasNoPaths) {
  create(4 << 20);
  const auto record =
      NamespaceRecord::from_fields({{"model", "m"}, {"kind", "set"}, {"block_bytes_max", "4096"}}).value();
  const SpaceId set = store->open(record).value();
  const auto names = chain(1, 3);
  const std::vector<std::uint32_t> lengths(3, 100);
  auto plan = store->offer_set(set, names, {.session = kAlice, .lengths = lengths}, now).value();
  for (const auto& block : plan.incoming) store->commit(plan.put, fill(block), now);
  store->end_put(plan.put);
  EXPECT_TRUE(list().empty());
}

TEST_F(PathsTest, WhatComesWithAnAgeIsEvictedInItsTurn) {
  create(1 << 20, 64 * 1024);  // 256 blocks
  const SpaceId space = open(kBlockBytes);
  now += 100s;
  const auto own = chain(1, 100), older = chain(2, 100);
  put(space, own);
  now += 10s;
  put_idle(space, older, 50s);
  put_idle(space, own, 90s);  // offered again, as old as that: it was used later here
  put(space, chain(3, 100));
  EXPECT_EQ(match(space, own), own.size());
  EXPECT_LT(match(space, older), older.size()) << "it came last, and was used first";
}

TEST_F(PathsTest, AnAgeThatCannotBeIsBounded) {
  create(1 << 20, 64 * 1024);
  const SpaceId space = open(kBlockBytes);
  put_idle(space, chain(1, 10), Duration::max());
  put_idle(space, chain(2, 10), -5s);
  EXPECT_EQ(match(space, chain(1, 10)), 10u);
  EXPECT_EQ(match(space, chain(2, 10)), 10u);
}

}  // namespace
}  // namespace kv
