// Why something is not here: the memory of departed blocks and the sample of roots beside models of them, and each
// reason as a Store gives it.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "memory_disk.h"
#include "store/tables/departed_table.h"
#include "store/tables/root_sample.h"
#include "store_fixture.h"

namespace kv {
namespace {

constexpr std::size_t kBytes = 4096;

NamespaceId name_of(std::uint64_t number) {
  NamespaceId name;
  std::memcpy(name.bytes.data(), &number, sizeof number);
  return name;
}

TEST(DepartedTableTest, WhatIsKnownOfABlockIsItsLastDepartureAndForgettingIsAdmitted) {
  std::mt19937_64 random(test_seed());
  for (const std::size_t entries : {std::size_t{8}, std::size_t{64}, std::size_t{4096}}) {
    DepartedTable table(entries, random());
    table.set_tree(TreeId{0}, name_of(1));
    table.set_tree(TreeId{1}, name_of(2));
    struct Left {
      MissKind why;
      TimePoint when;
      Duration idle;
    };
    std::map<std::pair<int, std::uint64_t>, Left> model;
    TimePoint now{1000s};
    std::size_t known = 0, forgotten = 0;
    for (int step = 0; step < 20'000; ++step) {
      now += std::chrono::milliseconds(random() % 3000);
      const int tree = static_cast<int>(random() % 2);
      const std::uint64_t block = random() % (2 * entries);
      const TreeId in{static_cast<std::uint32_t>(tree)};
      if (random() % 3 == 0) {
        const auto why = static_cast<MissKind>(2 + random() % 6);
        const Duration idle = std::chrono::milliseconds(random() % (1ull << (random() % 33)));
        table.add(in, hash_of(block), why, now, idle);
        model[{tree, block}] = {why, now, idle};
        continue;
      }
      const auto answer = table.find(in, hash_of(block), now);
      const auto at = model.find({tree, block});
      if (!answer.departed) {
        ++forgotten;
        // Had it left in that time, it would be known: whole seconds, so one may be missing at each end.
        if (at != model.end()) {
          ASSERT_GE(now - at->second.when + 1s, answer.remembers) << step;
        }
        continue;
      }
      ++known;
      ASSERT_NE(at, model.end()) << "a block that never left";
      ASSERT_EQ(answer.departed->why, at->second.why);
      ASSERT_NEAR(std::chrono::duration<double>(answer.departed->ago).count(),
                  std::chrono::duration<double>(now - at->second.when).count(), 1.001);
      const double idle = std::chrono::duration<double>(at->second.idle).count();
      ASSERT_NEAR(std::chrono::duration<double>(answer.departed->idle).count(), idle, idle / 8 + 0.002);
    }
    EXPECT_GT(known, 500u);
    EXPECT_GT(forgotten, 500u);
  }
}

TEST(DepartedTableTest, NothingIsForgottenBeforeALineIsFull) {
  DepartedTable table(8, 1);  // one line
  table.set_tree(TreeId{0}, name_of(1));
  TimePoint now{5s};
  for (std::uint64_t i = 0; i < 8; ++i) table.add(TreeId{0}, hash_of(i), MissKind::kEvicted, now += 10s, 3s);
  for (std::uint64_t i = 0; i < 8; ++i) EXPECT_TRUE(table.find(TreeId{0}, hash_of(i), now).departed) << i;
  EXPECT_FALSE(table.find(TreeId{0}, hash_of(8), now).departed);
  table.add(TreeId{0}, hash_of(0), MissKind::kDropped, now);  // one that is known takes no other's place
  for (std::uint64_t i = 0; i < 8; ++i) EXPECT_TRUE(table.find(TreeId{0}, hash_of(i), now).departed) << i;
  table.add(TreeId{0}, hash_of(8), MissKind::kEvicted, now);
  EXPECT_FALSE(table.find(TreeId{0}, hash_of(1), now).departed) << "the oldest goes";
  EXPECT_TRUE(table.find(TreeId{0}, hash_of(0), now).departed);
}

TEST(DepartedTableTest, ABlockOfAnotherNamespaceIsAnotherBlock) {
  DepartedTable table(4096, 7);
  table.set_tree(TreeId{0}, name_of(1));
  table.set_tree(TreeId{1}, name_of(2));
  for (std::uint64_t i = 0; i < 100; ++i) table.add(TreeId{0}, hash_of(i), MissKind::kEvicted, TimePoint(1s));
  for (std::uint64_t i = 0; i < 100; ++i) EXPECT_FALSE(table.find(TreeId{1}, hash_of(i), TimePoint(1s)).departed);
  // A tree's number comes again for another namespace: what left of the first one is not the second one's.
  table.set_tree(TreeId{0}, name_of(3));
  for (std::uint64_t i = 0; i < 100; ++i) EXPECT_FALSE(table.find(TreeId{0}, hash_of(i), TimePoint(1s)).departed);
}

TEST(DepartedTableTest, OneOfNoEntriesRemembersNothing) {
  DepartedTable table(0, 7);
  table.set_tree(TreeId{0}, name_of(1));
  table.add(TreeId{0}, hash_of(1), MissKind::kEvicted, TimePoint(1s));
  EXPECT_FALSE(table.find(TreeId{0}, hash_of(1), TimePoint(1s)).departed);
}

TEST(RootSampleTest, ItHasTheSmallestNamesWithWhatWasDoneToThem) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 50; ++round) {
    RootSample sample;
    std::map<std::uint32_t, std::pair<bool, bool>> model;  // asked, stored; all prints
    std::set<std::uint32_t> names;
    while (names.size() < 5 + random() % 300) names.insert(static_cast<std::uint32_t>(random()));
    const std::vector<std::uint32_t> list(names.begin(), names.end());
    for (int step = 0; step < 2000; ++step) {
      const std::uint32_t name = list[random() % list.size()];
      const bool asks = random() % 4 != 0;
      sample.note(name, asks ? RootSample::Act::kAsked : RootSample::Act::kStored, TimePoint(1s));
      // One that was pushed out is forgotten: what was done to it before does not count when it comes back. So the
      // model forgets it as well.
      auto& [asked, stored] = model[name];
      (asks ? asked : stored) = true;
      if (model.size() > RootSample::kRootsMax) model.erase(std::prev(model.end()));
    }
    std::size_t stored_only = 0, asked_only = 0;
    for (const auto& [name, did] : model) {
      stored_only += !did.first;
      asked_only += !did.second;
    }
    const auto counts = sample.counts();
    ASSERT_EQ(counts.roots, model.size());
    ASSERT_EQ(counts.stored_only, stored_only);
    ASSERT_EQ(counts.asked_only, asked_only);
  }
}

TEST(RootSampleTest, WhatNobodyNamesAnyMoreMakesRoom) {
  RootSample sample;
  TimePoint now{1s};
  for (std::uint32_t i = 0; i < RootSample::kRootsMax; ++i) sample.note(i, RootSample::Act::kStored, now);
  sample.note(1000, RootSample::Act::kAsked, now);  // larger than all
  EXPECT_EQ(sample.counts().asked_only, 0u);
  now += RootSample::kWindow;
  sample.note(1000, RootSample::Act::kAsked, now);
  EXPECT_EQ(sample.counts().roots, 1u);
  EXPECT_EQ(sample.counts().asked_only, 1u);
}

class MissTest : public StoreFixture {
 protected:
  void create_blocks(std::size_t count) { create(count * kBytes, kBytes); }
  LookDesk::Miss explain(SpaceId space, std::span<const BlockHash> hashes) {
    return store->explain(space, hashes, now).value();
  }
  std::uint64_t counted(MissKind why, bool has_found) {
    return store->stats().match_misses[has_found ? 1 : 0][static_cast<std::size_t>(why)];
  }
};

TEST_F(MissTest, WhatIsHereNeedsNoReason) {
  create_blocks(8);
  const SpaceId space = open(kBytes);
  put(space, chain(1, 3));
  EXPECT_EQ(explain(space, chain(1, 3)).why, MissKind::kUnknown);
  EXPECT_EQ(explain(space, chain(1, 3)).memory_block_count, 3u);
}

TEST_F(MissTest, WhatWasNeverStoredIsNotRemembered) {
  create_blocks(8);
  const SpaceId space = open(kBytes);
  put(space, chain(1, 3));
  now += 1h;
  const LookDesk::Miss miss = explain(space, chain(2, 3));
  EXPECT_EQ(miss.why, MissKind::kNotRemembered);
  EXPECT_EQ(miss.traffic.stored_blocks, 3u);
  match(space, chain(2, 3));
  match(space, chain(1, 4));
  EXPECT_EQ(counted(MissKind::kNotRemembered, false), 1u);
  EXPECT_EQ(counted(MissKind::kNotRemembered, true), 1u);
}

TEST_F(MissTest, AnEvictedBlockIsToldWithItsTimes) {
  create_blocks(4);
  const SpaceId space = open(kBytes);
  put(space, chain(1, 4));
  now += 100s;
  put(space, chain(2, 2));  // the last two of the first go
  now += 40s;
  const LookDesk::Miss miss = explain(space, chain(1, 4));
  EXPECT_EQ(miss.memory_block_count, 2u);
  EXPECT_EQ(miss.why, MissKind::kEvicted);
  EXPECT_NEAR(std::chrono::duration<double>(miss.left).count(), 40, 1.1);
  EXPECT_NEAR(std::chrono::duration<double>(miss.idle).count(), 100, 13);
  match(space, chain(1, 4));
  EXPECT_EQ(counted(MissKind::kEvicted, true), 1u);
  put(space, chain(1, 4));  // and back
  EXPECT_EQ(explain(space, chain(1, 4)).why, MissKind::kUnknown);
}

TEST_F(MissTest, ADroppedBlockIsToldSo) {
  create_blocks(8);
  const SpaceId space = open(kBytes);
  put(space, chain(1, 4));
  ASSERT_EQ(store->drop(space, std::span<const BlockHash>(chain(1, 4)).first(2)).value(), 3u);
  EXPECT_EQ(explain(space, chain(1, 4)).memory_block_count, 1u);
  EXPECT_EQ(explain(space, chain(1, 4)).why, MissKind::kDropped);
}

TEST_F(MissTest, ABlockRefusedForWantOfMemoryIsToldSo) {
  create_blocks(4);
  const SpaceId space = open(kBytes);
  put(space, chain(1, 4));
  ASSERT_EQ(store->retain(space, chain(1, 2)).value(), 2u);
  EXPECT_EQ(put(space, chain(2, 4)).refused, 2u);
  const LookDesk::Miss miss = explain(space, chain(2, 4));
  EXPECT_EQ(miss.memory_block_count, 2u);
  EXPECT_EQ(miss.why, MissKind::kRefused);
}

TEST_F(MissTest, ABlockOverItsTenantsQuotaIsToldSo) {
  config.has_tenants = true;
  config.tenant_charge_min = 1;
  config.retained_fraction_max = 1;
  create_blocks(8);
  TenantLimits limits{.name = "a"};
  limits.memory_bytes_max = 2 * kBytes;
  store->set_tenants({limits});
  const auto record = NamespaceRecord::from_fields(
      {{"model", "m"}, {"tenant", "a"}, {"block_size", "4"}, {"block_bytes", std::to_string(kBytes)}});
  const SpaceId space = store->open(record.value()).value();
  put(space, chain(1, 2));
  ASSERT_EQ(store->retain(space, chain(1, 2)).value(), 2u);
  EXPECT_EQ(put(space, chain(2, 1)).refused, 1u);
  EXPECT_EQ(explain(space, chain(2, 1)).why, MissKind::kOverQuota);
}

TEST_F(MissTest, ABlockThatAPutIsBringingIsToldSo) {
  create_blocks(8);
  const SpaceId space = open(kBytes);
  const auto hashes = chain(1, 3);
  auto plan = store->offer(space, hashes, {.session = kAlice}, now).value();
  EXPECT_EQ(explain(space, hashes).why, MissKind::kBeingStored);
  EXPECT_EQ(explain(space, chain(2, 3)).why, MissKind::kNotRemembered);
  ASSERT_EQ(store->commit(plan.put, fill(plan.incoming[0]), now), CommitStatus::kStored);
  EXPECT_EQ(explain(space, hashes).memory_block_count, 1u);
  EXPECT_EQ(explain(space, hashes).why, MissKind::kBeingStored);
  store->end_put(plan.put);
  EXPECT_EQ(explain(space, hashes).why, MissKind::kNotRemembered);
}

TEST_F(MissTest, AskingWhyIsNoUse) {
  create_blocks(4);
  const SpaceId space = open(kBytes);
  put(space, chain(1, 2));
  put(space, chain(2, 2));
  const StoreStats before = store->stats();
  for (int i = 0; i < 10; ++i) explain(space, chain(1, 3));
  EXPECT_EQ(store->stats().match_misses, before.match_misses);
  EXPECT_EQ(store->stats().match_hit_blocks, before.match_hit_blocks);
  put(space, chain(3, 2));  // what was asked about goes, as the one stored first
  EXPECT_EQ(match(space, chain(1, 2)), 0u);
  EXPECT_EQ(match(space, chain(2, 2)), 2u);
}

TEST_F(MissTest, WhatLeavesMemoryForTheDiskHasNotLeft) {
  MemoryDisk disk;
  config.disk.capacity_bytes = 4 * kBytes;
  config.disk.segment_bytes = 2 * kBytes;
  config.spill.reserve = 0.5;
  create_blocks(4);
  const SpaceId space = open(kBytes);
  const auto spill = [&] {
    for (SpillWork work = store->spill_work(8 * kBytes, now); !work.empty(); work = store->spill_work(8 * kBytes, now))
      store->finish_spill(work, carry_out(work, disk));
  };
  for (std::uint64_t i = 1; i <= 3; ++i) {
    now += 10s;
    put(space, chain(i, 2));
    spill();
  }
  const LookDesk::Miss here = explain(space, chain(1, 2));
  EXPECT_EQ(here.memory_block_count + here.disk_block_count, 2u);
  for (std::uint64_t i = 4; i <= 12; ++i) {
    now += 10s;
    put(space, chain(i, 2));
    spill();
  }
  now += 10s;
  EXPECT_EQ(explain(space, chain(1, 2)).why, MissKind::kEvicted) << "from disk, and so from everywhere";
}

TEST_F(MissTest, LookupsAndStoresAreCountedByNamespace) {
  create_blocks(16);
  const SpaceId written = open(kBytes, "written"), read = open(kBytes, "read");
  for (std::uint64_t i = 0; i < 4; ++i) put(written, chain(i, 2));
  for (std::uint64_t i = 0; i < 4; ++i) match(read, chain(i, 2));
  match(written, chain(0, 2));
  for (const SpaceDesk::View& stats : store->list_spaces(nullptr)) {
    const bool is_read = stats.id == read;
    EXPECT_EQ(stats.traffic.stored_blocks, is_read ? 0u : 8u);
    EXPECT_EQ(stats.traffic.lookups, is_read ? 4u : 1u);
    EXPECT_EQ(stats.traffic.empty_lookups, is_read ? 4u : 0u);
    EXPECT_EQ(stats.roots.roots, 4u);
    EXPECT_EQ(stats.roots.asked_only, is_read ? 4u : 0u);
    EXPECT_EQ(stats.roots.stored_only, is_read ? 0u : 3u);
  }
}

TEST_F(MissTest, AnotherNamespaceWithTheChainIsFoundByThoseOfItsTenantOnly) {
  create_blocks(16);
  const auto record_of = [](const std::string& tenant, const std::string& dtype) {
    return NamespaceRecord::from_fields({{"model", "m"},
                                         {"tenant", tenant},
                                         {"dtype", dtype},
                                         {"hash", "vllm"},
                                         {"block_size", "4"},
                                         {"block_bytes", std::to_string(kBytes)}})
        .value();
  };
  const SpaceId mine = store->open(record_of("a", "bfloat16")).value(),
                twin = store->open(record_of("a", "float16")).value(),
                foreign = store->open(record_of("b", "bfloat16")).value();
  put(twin, chain(1, 3));
  put(foreign, chain(1, 3));
  const auto look = [&](const std::string* tenant, std::size_t count) {
    std::vector<LookDesk::SpaceLook> looks;
    std::optional<NamespaceId> after;
    const auto hashes = chain(1, count);
    EXPECT_FALSE(store->look_in_spaces(false, hashes, tenant, after, looks));
    std::size_t have = 0;
    for (const LookDesk::SpaceLook& each : looks) {
      have += each.has_chain;
      EXPECT_TRUE(tenant == nullptr || each.record->field("tenant") == *tenant);
    }
    return std::pair(looks.size(), have);
  };
  const std::string a = "a", nobody = "";
  EXPECT_EQ(look(&a, 2), std::pair(std::size_t{2}, std::size_t{1}));
  EXPECT_EQ(look(&a, 4), std::pair(std::size_t{2}, std::size_t{0})) << "not all of it";
  EXPECT_EQ(look(nullptr, 2), std::pair(std::size_t{3}, std::size_t{2}));
  EXPECT_EQ(look(&nobody, 2).first, 0u);
  EXPECT_EQ(explain(mine, chain(1, 3)).why, MissKind::kNotRemembered);
}

TEST_F(MissTest, AllNamespacesAreLookedAtInParts) {
  config.namespace_count_max = 2000;
  create_blocks(16);
  for (int i = 0; i < 700; ++i) open(kBytes, "m" + std::to_string(i));
  std::vector<LookDesk::SpaceLook> looks;
  std::optional<NamespaceId> after;
  int parts = 1;
  while (store->look_in_spaces(false, {}, nullptr, after, looks)) ++parts;
  EXPECT_EQ(parts, 11);
  EXPECT_EQ(looks.size(), 700u);
}

}  // namespace
}  // namespace kv
