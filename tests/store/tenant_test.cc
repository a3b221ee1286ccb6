// Tenants in a Store: what one is guaranteed, lent and refused. The first random test knows every block that should be
// here; the second one has chains, two sizes, leases and a disk, and knows what must not go.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <random>

#include "memory_disk.h"
#include "store_fixture.h"

namespace kv {
namespace {

using Status = CommitStatus;

constexpr std::size_t kBytes = 4096, kSlots = 24;

TenantLimits limits_of(const std::string& name, std::uint64_t blocks, std::uint64_t blocks_max = 1000) {
  TenantLimits limits{.name = name};
  limits.memory_bytes = blocks * kBytes;
  limits.memory_bytes_max = blocks_max * kBytes;
  return limits;
}

class TenantTest : public StoreFixture {
 protected:
  MemoryDisk disk;

  TenantTest() {
    config.has_tenants = true;
    config.tenant_charge_min = 1;
    config.retained_fraction_max = 1;
  }
  void create_blocks(std::size_t count) { create(count * kBytes, kBytes); }

  static NamespaceRecord record_of(const std::string& tenant, const std::string& model, std::size_t bytes = kBytes,
                                   bool is_set = false) {
    std::map<std::string, std::string> fields{{"model", model}, {"tenant", tenant}};
    if (is_set) {
      fields.insert({{"kind", "set"}, {"block_bytes_max", std::to_string(bytes)}});
    } else {
      fields.insert({{"block_size", "4"}, {"block_bytes", std::to_string(bytes)}});
    }
    return NamespaceRecord::from_fields(fields).value();
  }
  SpaceId open_for(const std::string& tenant, const std::string& model = "m", std::size_t bytes = kBytes) {
    return store->open(record_of(tenant, model, bytes)).value();
  }
  TenantStats stats_of(const std::string& tenant) {
    for (const TenantStats& each : store->tenants())
      if (each.limits.name == tenant) return each;
    return {};
  }
  std::uint64_t blocks_of(const std::string& tenant) { return stats_of(tenant).usage.memory_bytes / kBytes; }
  Errc offer_error(SpaceId space, std::span<const BlockHash> hashes) {
    const auto plan = store->offer(space, hashes, {.session = kAlice}, now).value();
    if (plan.put != PutId{}) store->end_put(plan.put);
    return plan.refused_count > 0 ? plan.refused_why : Errc{};
  }
};

TEST_F(TenantTest, OneWithinItsGuaranteeLosesNothingToOthers) {
  create_blocks(kSlots);
  store->set_tenants({limits_of("a", 8)});
  const SpaceId a = open_for("a"), b = open_for("b");
  EXPECT_EQ(put(a, chain(1, 8)).stored, 8u);
  for (std::uint64_t i = 10; i < 30; ++i) EXPECT_EQ(put(b, chain(i, 4)).stored, 4u);
  EXPECT_EQ(match(a, chain(1, 8)), 8u);
  EXPECT_EQ(blocks_of("a"), 8u);
  EXPECT_EQ(blocks_of("b"), kSlots - 8);
  EXPECT_EQ(stats_of("a").usage.evicted_blocks, 0u);
}

TEST_F(TenantTest, APolicyMayNameNewTenantsWhileAllNumbersAreTaken) {
  constexpr std::size_t kNumbers = PrefixIndex::kCohortMax + 1;
  create_blocks(kSlots);
  std::vector<TenantLimits> all;
  for (std::size_t i = 0; i < kNumbers; ++i) all.push_back(limits_of("t" + std::to_string(i), 0, 1));
  store->set_tenants(all);
  EXPECT_EQ(store->tenants().size(), kNumbers);
  store->set_tenants({limits_of("new", 8)});  // takes the number of one that has none of its own any more
  EXPECT_EQ(stats_of("new").limits.memory_bytes, 8 * kBytes);
  EXPECT_EQ(store->tenants().size(), 1u);
  all.push_back(limits_of("last", 3));
  store->set_tenants(all);  // one more than there are numbers
  EXPECT_EQ(store->tenants().size(), kNumbers);
  all.erase(all.begin());
  store->set_tenants(all);
  EXPECT_EQ(stats_of("last").limits.memory_bytes, 3 * kBytes) << "once there is one for it";
  EXPECT_EQ(store->check(), "");
}

TEST_F(TenantTest, WhatIsNotUsedIsLentAndComesBack) {
  create_blocks(kSlots);
  store->set_tenants({limits_of("a", 20), limits_of("b", 4)});
  const SpaceId a = open_for("a"), b = open_for("b");
  EXPECT_EQ(put(b, chain(1, kSlots)).stored, kSlots);  // all of it
  EXPECT_EQ(blocks_of("b"), kSlots);
  EXPECT_EQ(put(a, chain(2, 20)).stored, 20u);
  EXPECT_EQ(blocks_of("b"), 4u);
  EXPECT_EQ(match(b, chain(1, kSlots)), 4u);  // its ends went
  EXPECT_EQ(put(a, chain(3, 4)).stored, 4u);  // of its own
  EXPECT_EQ(blocks_of("a"), 20u);
  EXPECT_EQ(blocks_of("b"), 4u);
}

TEST_F(TenantTest, WhatIsLentGoesByUseWhoeverHasIt) {
  create_blocks(8);
  const SpaceId a = open_for("a"), b = open_for("b");
  put(a, chain(1, 4));
  put(b, chain(2, 4));
  EXPECT_EQ(match(a, chain(1, 4)), 4u);
  EXPECT_EQ(put(a, chain(3, 2)).stored, 2u);
  EXPECT_EQ(blocks_of("a"), 6u);
  EXPECT_EQ(match(b, chain(2, 4)), 2u);
}

TEST_F(TenantTest, OneAtItsMaximumEvictsItsOwn) {
  create_blocks(kSlots);
  store->set_tenants({limits_of("a", 2, 6)});
  const SpaceId a = open_for("a"), other_model = open_for("a", "other", 3 * kBytes), b = open_for("b");
  EXPECT_EQ(put(b, chain(1, 8)).stored, 8u);
  EXPECT_EQ(put(a, chain(2, 6)).stored, 6u);
  EXPECT_EQ(put(a, chain(3, 3)).stored, 3u);  // though ten slots are free
  EXPECT_EQ(blocks_of("a"), 6u);
  EXPECT_EQ(match(a, chain(2, 6)), 3u);
  EXPECT_EQ(put(other_model, chain(4, 1)).stored, 1u);  // three of another size have to go
  EXPECT_EQ(blocks_of("a"), 6u);
  EXPECT_EQ(match(b, chain(1, 8)), 8u);
}

TEST_F(TenantTest, APutBeyondTheMaximumIsToldWhich) {
  create_blocks(kSlots);
  store->set_tenants({limits_of("a", 0, 4)});
  const SpaceId a = open_for("a");
  put(a, chain(1, 4));
  EXPECT_EQ(store->retain(a, chain(1, 4)), 4u);
  EXPECT_EQ(offer_error(a, chain(2, 3)), Errc::kOverQuota);
  EXPECT_EQ(stats_of("a").usage.memory_refusals, 3u);
  EXPECT_EQ(offer_error(open_for("b"), chain(2, 3)), Errc{});
  EXPECT_EQ(store->unretain(a, chain(1, 4)), 4u);
  EXPECT_EQ(put(a, chain(2, 3)).stored, 3u);
}

TEST_F(TenantTest, LeasesPinsAndNamespacesHaveLimits) {
  create_blocks(kSlots);
  TenantLimits limits = limits_of("a", 0);
  limits.lease_count_max = 2;
  limits.retained_bytes_max = 3 * kBytes;
  limits.namespace_count_max = 1;
  store->set_tenants({limits});
  const SpaceId a = open_for("a");
  put(a, chain(1, 4));
  const LeaseId first = lease(a, chain(1, 4));
  EXPECT_NE(first, LeaseId{});
  EXPECT_NE(lease(a, chain(1, 2)), LeaseId{});
  const auto third = store->match(a, chain(1, 1), {.session = kAlice, .lease = true}, now).value();
  EXPECT_EQ(third.lease, LeaseId{});
  EXPECT_EQ(third.lease_error, Errc::kOverQuota);
  EXPECT_EQ(third.memory_block_count, 1u);
  ASSERT_TRUE(store->release(kAlice, first));
  EXPECT_NE(lease(a, chain(1, 1)), LeaseId{});

  EXPECT_EQ(store->retain(a, chain(1, 4)).error(), Errc::kOverQuota);
  EXPECT_EQ(store->retain(a, chain(1, 3)), 3u);
  EXPECT_EQ(store->retain(a, chain(1, 2)), 2u);  // these are already

  EXPECT_EQ(store->open(record_of("a", "second")).error(), Errc::kOverQuota);
  EXPECT_TRUE(store->open(record_of("b", "second")));
  const TenantUsage usage = stats_of("a").usage;
  EXPECT_EQ(usage.lease_refusals, 1u);
  EXPECT_EQ(usage.retain_refusals, 1u);
  EXPECT_EQ(usage.namespace_refusals, 1u);
}

TEST_F(TenantTest, AnIdleNamespaceOfItsOwnMakesRoom) {
  create_blocks(kSlots);
  TenantLimits limits = limits_of("a", 0);
  limits.namespace_count_max = 2;
  store->set_tenants({limits});
  const SpaceId full = open_for("a", "full"), idle = open_for("a", "idle");
  put(full, chain(1, 2));
  const SpaceId third = open_for("a", "third");
  EXPECT_EQ(store->find_namespace(idle), nullptr);
  EXPECT_NE(store->find_namespace(full), nullptr);
  put(third, chain(1, 2));
  EXPECT_EQ(store->open(record_of("a", "fourth")).error(), Errc::kOverQuota);
}

TEST_F(TenantTest, NewLimitsHoldFromTheNextPutOn) {
  create_blocks(kSlots);
  const SpaceId a = open_for("a"), b = open_for("b");
  put(a, chain(1, 12));
  store->set_tenants({limits_of("a", 10)});  // of blocks that are here already
  for (std::uint64_t i = 10; i < 20; ++i) put(b, chain(i, 4));
  EXPECT_EQ(blocks_of("a"), 10u);
  store->set_tenants({limits_of("a", 0, 6), limits_of("b", 18)});
  put(a, chain(2, 1));
  EXPECT_EQ(blocks_of("a"), 6u);
  store->set_tenants({});
  for (std::uint64_t i = 20; i < 30; ++i) put(b, chain(i, 4));
  EXPECT_EQ(blocks_of("a"), 0u);
  EXPECT_FALSE(stats_of("a").has_limits);
}

TEST_F(TenantTest, TinyBlocksCountForWhatTheyTakeOfTheIndex) {
  config.tenant_charge_min = 8192;
  create_blocks(kSlots);
  store->set_tenants({limits_of("a", 0, 8)});
  const SpaceId a = open_for("a", "m", 128);
  put(a, chain(1, 100));
  EXPECT_EQ(match(a, chain(1, 100)), 0u + 8 * kBytes / 8192);
}

TEST_F(TenantTest, WhatIsGuaranteedOnDiskStays) {
  config.disk.capacity_bytes = 12 * kBytes;
  config.disk.segment_bytes = 1000 * kBytes;
  config.spill.reserve = 0.5;
  create_blocks(8);
  TenantLimits of_a = limits_of("a", 0), of_c = limits_of("c", 0);
  of_a.disk_bytes = 5 * kBytes;
  of_c.disk_bytes_max = 3 * kBytes;
  store->set_tenants({of_a, of_c});
  const auto spill = [&] {
    for (SpillWork work; !(work = store->spill_work(8 * kBytes, now, /*everything=*/true)).empty();)
      store->finish_spill(work, carry_out(work, disk));
  };
  const SpaceId a = open_for("a"), b = open_for("b"), c = open_for("c");
  put(a, chain(1, 4));
  spill();
  put(c, chain(2, 6));
  spill();
  EXPECT_EQ(stats_of("c").usage.disk_bytes, 3 * kBytes);
  for (std::uint64_t i = 10; i < 20; ++i) {
    put(b, chain(i, 4));
    spill();
  }
  EXPECT_EQ(stats_of("a").usage.disk_bytes, 4 * kBytes);
  EXPECT_EQ(stats_of("b").usage.disk_bytes + stats_of("c").usage.disk_bytes, 8 * kBytes);
  EXPECT_EQ(store->match(a, chain(1, 4), {}, now)->disk_block_count, 4u);
}

// -- the first random test: sets of blocks of one size, which stand alone, so that a list of them is a model

class TenantModelTest : public TenantTest {
 protected:
  struct Block {
    std::size_t tenant;
    std::uint64_t used;
    bool is_retained = false;
  };
  static constexpr const char* kNames[] = {"a", "b", "c", ""};
  static constexpr std::size_t kTenants = 4, kNamesEach = 40;
  std::mt19937_64 random;
  std::map<std::uint64_t, Block> blocks;  // by name; names of tenants do not overlap
  std::uint64_t use_count = 0;
  std::vector<TenantLimits> limits;  // of each
  std::vector<SpaceId> spaces;

  std::uint64_t below(std::uint64_t bound) { return random() % bound; }
  std::uint64_t held(std::size_t tenant) {
    return static_cast<std::uint64_t>(
               std::ranges::count_if(blocks, [&](const auto& each) { return each.second.tenant == tenant; })) *
           kBytes;
  }
  template <class MayGo>
  bool evict(MayGo may_go) {
    auto oldest = blocks.end();
    for (auto it = blocks.begin(); it != blocks.end(); ++it) {
      if (it->second.is_retained || !may_go(it->second.tenant)) continue;
      if (oldest == blocks.end() || it->second.used < oldest->second.used) oldest = it;
    }
    if (oldest == blocks.end()) return false;
    blocks.erase(oldest);
    return true;
  }
  Errc take_slot(std::size_t tenant) {
    const auto is_own = [&](std::size_t other) { return other == tenant; };
    while (held(tenant) + kBytes > limits[tenant].memory_bytes_max)
      if (!evict(is_own)) return Errc::kOverQuota;
    if (blocks.size() < kSlots) return {};
    if (evict([&](std::size_t other) { return held(other) >= limits[other].memory_bytes + kBytes; })) return {};
    return evict(is_own) ? Errc{} : Errc::kOutOfMemory;
  }
  void draw_limits() {
    std::vector<TenantLimits> given;
    std::uint64_t left = kSlots;
    for (std::size_t i = 0; i < kTenants; ++i) {
      limits[i] = {.name = kNames[i]};
      if (below(4) == 0) continue;
      const std::uint64_t guaranteed = below(left + 1) / (1 + below(2));
      left -= guaranteed;
      limits[i] = limits_of(kNames[i], guaranteed, below(3) == 0 ? 1000 : guaranteed + below(8));
      if (below(3) == 0) limits[i].retained_bytes_max = below(10) * kBytes;
      given.push_back(limits[i]);
    }
    store->set_tenants(given);
  }
  void step() {
    const std::size_t tenant = below(kTenants);
    const std::uint64_t name = tenant * 1000 + below(kNamesEach);
    const std::vector<BlockHash> hash = {hash_of(name)};
    const auto known = blocks.find(name);
    now += 1us;
    switch (below(12)) {
      default: {
        const std::vector<std::uint32_t> lengths = {kBytes};
        const auto plan = store->offer_set(spaces[tenant], hash, {.session = kAlice, .lengths = lengths}, now).value();
        if (known != blocks.end()) {
          known->second.used = ++use_count;
          ASSERT_EQ(plan.put, PutId{});
          break;
        }
        const Errc why = take_slot(tenant);
        ASSERT_EQ(plan.incoming.size(), why == Errc{} ? 1u : 0u) << kNames[tenant];
        if (why == Errc{}) {
          ASSERT_EQ(store->commit(plan.put, fill(plan.incoming[0]), now), Status::kStored);
          blocks[name] = {tenant, ++use_count};
        } else {
          ASSERT_EQ(plan.refused_why, why);
        }
        store->end_put(plan.put);
        break;
      }
      case 0:
      case 1:
        ASSERT_EQ(store->match_set(spaces[tenant], hash, {}, now)->held[0] == ReadDesk::Held::kInMemory,
                  known != blocks.end());
        if (known != blocks.end()) known->second.used = ++use_count;
        break;
      case 2: {
        std::uint64_t pinned = 0;
        for (const auto& [other, block] : blocks) pinned += block.tenant == tenant && block.is_retained ? kBytes : 0;
        const bool is_fresh = known != blocks.end() && !known->second.is_retained;
        const bool is_over = is_fresh && pinned + kBytes > limits[tenant].retained_bytes_max;
        ASSERT_EQ(store->retain(spaces[tenant], hash).error() == Errc::kOverQuota, is_over);
        if (is_fresh && !is_over) known->second.is_retained = true;
        break;
      }
      case 3:
        ASSERT_EQ(store->unretain(spaces[tenant], hash), known != blocks.end() && known->second.is_retained ? 1u : 0u);
        if (known != blocks.end()) known->second.is_retained = false;
        break;
      case 4: {
        std::vector<DiskDrop> kept;
        ASSERT_TRUE(store->erase(spaces[tenant], hash, &kept, now));
        if (known != blocks.end()) blocks.erase(known);
        break;
      }
      case 5:
        if (below(8) == 0) draw_limits();
        break;
    }
    for (std::size_t i = 0; i < kTenants; ++i)
      ASSERT_EQ(stats_of(kNames[i]).usage.memory_bytes, held(i)) << "of '" << kNames[i] << "'";
  }
};

TEST_F(TenantModelTest, EveryBlockIsWhereTheModelHasIt) {
  random.seed(test_seed());
  for (int round = 0; round < 20; ++round) {
    create_blocks(kSlots);
    blocks.clear();
    spaces.clear();
    limits.assign(kTenants, {});
    for (const char* name : kNames) spaces.push_back(store->open(record_of(name, "set", kBytes, true)).value());
    draw_limits();
    for (int i = 0; i < 500; ++i) {
      ASSERT_NO_FATAL_FAILURE(step()) << "step " << i;
      if (i % 50 == 0) {
        ASSERT_EQ(store->check(), "");
      }
    }
    for (std::size_t tenant = 0; tenant < kTenants; ++tenant) {
      for (std::uint64_t name = tenant * 1000; name < tenant * 1000 + kNamesEach; ++name) {
        const std::vector<BlockHash> hash = {hash_of(name)};
        ASSERT_EQ(store->match_set(spaces[tenant], hash, {}, now)->held[0] == ReadDesk::Held::kInMemory,
                  blocks.contains(name));
      }
    }
  }
}

// -- the second one: whatever happens, a guarantee and a maximum hold

class TenantRandomTest : public TenantTest {
 protected:
  std::mt19937_64 random;
  std::uint64_t below(std::uint64_t bound) { return random() % bound; }

  void run(PolicyKind policy, bool has_disk) {
    constexpr const char* kNames[] = {"a", "b", "c", ""};
    config.policy = policy;
    config.lease_duration = 1ms;
    config.disk.capacity_bytes = has_disk ? 40 * kBytes : 0;
    config.disk.segment_bytes = 16 * kBytes;
    disk = {};
    create_blocks(48);
    std::vector<TenantLimits> limits(4);
    std::vector<std::array<SpaceId, 2>> spaces;
    for (const char* name : kNames) spaces.push_back({open_for(name, "one"), open_for(name, "three", 3 * kBytes)});
    std::vector<PinnedPrefix> moves;
    for (int i = 0; i < 3000; ++i) {
      now += Duration(1000 * (1 + below(300)));
      const std::size_t who = below(4);
      const SpaceId space = spaces[who][below(3) == 0];
      const auto hashes = chain(below(12), 1 + below(6));
      if (below(3) == 0) store->learn();
      const auto before = store->tenants();
      const auto of = [&](const std::vector<TenantStats>& all, std::size_t tenant) {
        for (const TenantStats& each : all)
          if (each.limits.name == kNames[tenant]) return each;
        return TenantStats();
      };
      switch (below(14)) {
        default: put(space, hashes); break;
        case 0: lease(space, hashes); break;
        case 1: static_cast<void>(store->retain(space, hashes)); break;
        case 2: static_cast<void>(store->unretain(space, hashes)); break;
        case 3:
          static_cast<void>(store->drop(space, hashes));
          while (store->is_dropping()) store->drop_more(now);
          break;
        case 4: moves.push_back(store->pin_prefix(space, hashes, {.session = kAlice}, now).value()); break;
        case 5:
          for (const auto& move : moves) store->unpin(move);
          moves.clear();
          break;
        case 6: match(space, hashes); break;
        case 7: {
          if (below(10) != 0) break;
          std::uint64_t left = 48;
          for (std::size_t tenant = 0; tenant < 4; ++tenant) {
            const std::uint64_t guaranteed = below(left + 1) / 2;
            left -= guaranteed;
            limits[tenant] = limits_of(kNames[tenant], guaranteed, below(2) == 0 ? 1000 : guaranteed + 6 + below(8));
            limits[tenant].disk_bytes = guaranteed / 2 * kBytes;
            if (below(2) == 0) limits[tenant].disk_bytes_max = limits[tenant].disk_bytes + 8 * kBytes;
          }
          store->set_tenants(limits);
          continue;
        }
        case 8:
          if (!has_disk) break;
          if (const SpillWork work = store->spill_work(8 * kBytes, now); !work.empty())
            store->finish_spill(work, carry_out(work, disk));
          break;
      }
      const auto after = store->tenants();
      for (std::size_t tenant = 0; tenant < 4; ++tenant) {
        const TenantUsage was = of(before, tenant).usage, is = of(after, tenant).usage;
        // Whatever of it went for others was over its guarantee.
        if (tenant != who && is.evicted_blocks > was.evicted_blocks) {
          ASSERT_GE(is.memory_bytes, limits[tenant].memory_bytes) << "step " << i << " '" << kNames[tenant] << "'";
        }
        if (is.memory_bytes > was.memory_bytes) {
          ASSERT_LE(is.memory_bytes, limits[tenant].memory_bytes_max) << "step " << i;
        }
        if (is.disk_bytes > was.disk_bytes && limits[tenant].disk_bytes_max != TenantLimits::kNoLimit) {
          ASSERT_LE(is.disk_bytes, limits[tenant].disk_bytes_max) << "step " << i;
        }
      }
      if (i % 25 == 0) {
        ASSERT_EQ(store->check(), "") << "step " << i;
      }
    }
    for (const auto& move : moves) store->unpin(move);
    store->end_session(kAlice);
    for (int i = 0; i < 100; ++i) store->expire_leases(now += 1ms);
  }
};

TEST_F(TenantRandomTest, GuaranteesAndMaximaHoldUnderAnySequence) {
  random.seed(test_seed());
  run(PolicyKind::kLru, /*has_disk=*/false);
}
TEST_F(TenantRandomTest, GuaranteesAndMaximaHoldUnderALearningPolicy) {
  random.seed(test_seed());
  run(PolicyKind::kYield, /*has_disk=*/false);
}
TEST_F(TenantRandomTest, GuaranteesAndMaximaHoldWithADisk) {
  random.seed(test_seed());
  run(PolicyKind::kLru, /*has_disk=*/true);
}

}  // namespace
}  // namespace kv
