// What a Store tells of what came and went: the log beside a model of it, and a list of blocks that is kept by the log
// alone beside what a Store holds, through puts, evictions, spills, reads, drops, restarts and gaps.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <tuple>

#include "memory_disk.h"
#include "store/tables/event_log.h"
#include "store_fixture.h"

namespace kv {
namespace {

constexpr std::size_t kBytes = 4096;

std::shared_ptr<const NamespaceRecord> shared_record(const std::string& model) {
  return std::make_shared<const NamespaceRecord>(make_record(model, kBytes));
}

bool see_all(const NamespaceRecord&) { return true; }
bool has_gap(const EventPage& page, std::uint64_t from) { return page.is_unknown || from < page.oldest(see_all); }

TEST(EventLogTest, TellsAllChangesInTheirOrderOrThatThereIsAGap) {
  std::mt19937_64 random(test_seed());
  for (const std::size_t size : {1, 2, 7, 100}) {
    EventLog log(size);
    struct Told {
      bool is_stored;
      BlockTier tier;
      std::string model;
      BlockHash hash, parent;
      std::uint32_t position;
    };
    std::vector<std::optional<Told>> all;  // by number; nothing: lost
    std::map<std::uint32_t, std::string> open;
    std::uint64_t lost_before = 0, models = 0;
    for (int step = 0; step < 20'000; ++step) {
      const std::uint32_t tree = static_cast<std::uint32_t>(random() % 4);
      const auto what = random() % 100;
      if (what < 5 || !open.contains(tree)) {
        if (open.contains(tree)) {
          log.close(TreeId{tree});
          open.erase(tree);
        } else {
          open[tree] = "m" + std::to_string(++models);
          log.open(TreeId{tree}, shared_record(open[tree]));
        }
      } else if (what < 6) {
        log.lose(TreeId{tree});
        all.emplace_back();
        lost_before = all.size();
      } else if (what < 60) {
        const auto hash = hash_of(random()), parent = hash_of(random());
        const bool is_stored = random() % 2 == 0, has_parent = random() % 2 == 0;
        const auto tier = random() % 2 == 0 ? BlockTier::kMemory : BlockTier::kDisk;
        const auto position = static_cast<std::uint32_t>(random());
        if (is_stored) {
          log.stored(tier, TreeId{tree}, hash, has_parent ? &parent : nullptr, position);
        } else {
          log.removed(tier, TreeId{tree}, hash);
        }
        all.push_back(Told{is_stored, tier, open[tree], hash, is_stored && has_parent ? parent : BlockHash{},
                           is_stored ? position : 0});
      } else {
        const std::uint64_t from = random() % (all.size() + 3);
        const std::size_t count = random() % (2 * size);
        EventPage page;
        log.read(from, count, page);
        const std::uint64_t oldest = std::max<std::uint64_t>(lost_before, all.size() - std::min(all.size(), size));
        ASSERT_EQ(has_gap(page, from), from < oldest || from > all.size())
            << from << " of " << oldest << " to " << all.size();
        ASSERT_EQ(page.oldest(see_all), oldest);
        if (has_gap(page, from)) continue;
        ASSERT_EQ(page.events.size(), std::min<std::uint64_t>(count, all.size() - from));
        ASSERT_EQ(page.next, from + page.events.size());
        for (std::size_t i = 0; i < page.events.size(); ++i) {
          const EventPage::Event& event = page.events[i];
          ASSERT_TRUE(all[from + i]);
          const Told& told = *all[from + i];
          ASSERT_EQ(page.spaces[event.space]->field("model"), told.model);
          ASSERT_EQ(std::tie(event.is_stored, event.tier, event.hash, event.parent, event.position),
                    std::tie(told.is_stored, told.tier, told.hash, told.parent, told.position));
        }
      }
      ASSERT_LE(log.record_count(), open.size() + size);
    }
  }
}

TEST(EventLogTest, RecordsOfForgottenNamespacesAreKeptUpToABound) {
  EventLog log(100'000);
  for (std::size_t i = 0; i < EventLog::kClosedMax; ++i) {
    log.open(TreeId{1}, shared_record("m" + std::to_string(i)));
    log.stored(BlockTier::kMemory, TreeId{1}, hash_of(i), nullptr, 0);
    log.close(TreeId{1});
  }
  EXPECT_EQ(log.record_count(), EventLog::kClosedMax);
  log.open(TreeId{1}, shared_record("one more"));
  log.stored(BlockTier::kMemory, TreeId{1}, hash_of(0), nullptr, 0);
  const std::uint64_t next = log.next();
  log.close(TreeId{1});
  EXPECT_EQ(log.record_count(), 0u);
  EventPage page;
  log.read(next, 1, page);
  EXPECT_TRUE(has_gap(page, next)) << "who had read everything has missed what was lost, too";
  const std::uint64_t then = page.next;
  log.read(then, 1, page);
  EXPECT_FALSE(has_gap(page, then));
}

std::shared_ptr<const NamespaceRecord> record_of_tenant(const std::string& tenant, const std::string& model = "m") {
  return std::make_shared<const NamespaceRecord>(make_record(model, kBytes).with({{"tenant", tenant}}).value());
}

TEST(EventLogTest, WhatOneTenantDoesEmptiesNobodyElsesList) {
  EventLog log(1000);
  log.open(TreeId{1}, record_of_tenant("red"));
  for (std::size_t i = 0; i < 400; ++i) log.stored(BlockTier::kMemory, TreeId{1}, hash_of(i), nullptr, 0);
  const auto red = [](const NamespaceRecord& record) { return record.owner() == "red"; };
  const auto blue = [](const NamespaceRecord& record) { return record.owner() == "blue"; };
  const auto lacks = [&](const auto& may_see) {
    EventPage page;
    log.read(0, 10'000, page);
    return 0 < page.oldest(may_see);
  };
  for (std::uint32_t tree = 2; tree < 10; ++tree) {
    log.open(TreeId{tree}, record_of_tenant("blue", "m" + std::to_string(tree)));
    for (std::size_t i = 0; i < 2048; ++i) log.stored(BlockTier::kMemory, TreeId{tree}, hash_of(i), nullptr, 0);
    log.lose(TreeId{tree});
  }
  // Records by the thousand, of namespaces that come and go.
  for (std::size_t i = 0; i < 2 * EventLog::kClosedMax; ++i) {
    log.open(TreeId{20}, record_of_tenant("blue", "n" + std::to_string(i)));
    log.stored(BlockTier::kMemory, TreeId{20}, hash_of(i), nullptr, 0);
    log.close(TreeId{20});
  }
  EventPage kept;
  log.read(0, 2000, kept);
  EXPECT_LE(kept.events.size(), 1000u);
  EXPECT_TRUE(lacks(blue));
  EXPECT_FALSE(lacks(red));
  EventPage page;
  log.read(0, 10'000, page);
  EXPECT_EQ(std::ranges::count_if(page.events, [&](const auto& each) { return red(*page.spaces[each.space]); }), 400);
  // Beyond its share a tenant forgets for itself.
  for (std::size_t i = 0; i < 2000; ++i) log.stored(BlockTier::kMemory, TreeId{1}, hash_of(i), nullptr, 0);
  EXPECT_TRUE(lacks(red));
}

TEST(EventLogTest, WithMoreOwnersThanTracksAGapOfSomeIsOneOfAll) {
  EventLog log(100);
  for (std::uint32_t i = 0; i < EventLog::kTracksMax + 10; ++i)
    log.open(TreeId{i}, record_of_tenant("t" + std::to_string(i)));
  const std::uint32_t last = EventLog::kTracksMax + 9;
  for (std::size_t i = 0; i < 300; ++i) log.stored(BlockTier::kMemory, TreeId{last}, hash_of(i), nullptr, 0);
  EventPage page;
  log.read(0, 1000, page);
  const auto one_of_them = [&](const NamespaceRecord& record) {
    return record.owner() == "t" + std::to_string(EventLog::kTracksMax + 3);
  };
  EXPECT_GT(page.oldest(one_of_them), 0u) << "what it had may be among what was forgotten";
}

/// A Store, and what somebody knows of it by its log.
class EventTest : public StoreFixture {
 protected:
  using Name = std::tuple<BlockTier, NamespaceId, BlockHash>;
  std::map<Name, BlockHash> known;  // with what is before it
  std::uint64_t next = 0;
  std::size_t gaps = 0, told = 0;
  MemoryDisk disk;

  void create_with_log(std::size_t blocks, std::size_t events, std::size_t disk_blocks = 0) {
    config.event_count_max = events;
    config.hash_seed = 5;
    config.disk.capacity_bytes = disk_blocks * kBytes;
    config.disk.segment_bytes = 64 * kBytes;
    create(blocks * kBytes, 16 * kBytes);
  }
  void apply(const EventPage& page) {
    for (const EventPage::Event& event : page.events) {
      const Name name{event.tier, page.spaces[event.space]->id(), event.hash};
      if (event.is_stored) {
        known[name] = event.parent;
      } else {
        known.erase(name);
      }
      ++told;
    }
  }
  /// As a program does. `between`: what happens while it looks at everything.
  template <class Between>
  void follow(Between&& between) {
    for (int tries = 0;; ++tries) {
      ASSERT_LT(tries, 1000) << "it never comes to an end";
      EventPage page;
      store->read_events(next, page);
      if (!has_gap(page, next)) {
        apply(page);
        if (page.next == next) return;
        next = page.next;
        continue;
      }
      ++gaps;
      known.clear();
      bool is_first = true;
      for (LookDesk::BlockCursor cursor; !cursor.is_done; is_first = false) {
        EventPage blocks;
        store->list_blocks(cursor, blocks);
        if (is_first) next = blocks.next;
        apply(blocks);
        between();
      }
    }
  }
  void follow() {
    follow([] {});
  }
  std::size_t count(BlockTier tier) const {
    return static_cast<std::size_t>(
        std::ranges::count_if(known, [&](const auto& each) { return std::get<0>(each.first) == tier; }));
  }
  /// Leading blocks that are known to be there.
  std::size_t leading(const NamespaceId& space, std::span<const BlockHash> hashes, bool with_disk) const {
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      if (known.contains({BlockTier::kMemory, space, hashes[i]})) continue;
      if (!with_disk || !known.contains({BlockTier::kDisk, space, hashes[i]})) return i;
    }
    return hashes.size();
  }
  void finish_drops() {
    for (int calls = 0; store->is_dropping(); ++calls) {
      ASSERT_LT(calls, 10'000);
      store->drop_more(now);
    }
  }
  /// Does what there is to do for the disk.
  void spill(int calls = 1000) {
    for (int i = 0; i < calls; ++i) {
      const SpillWork work = store->spill_work(16 * kBytes, now);
      if (work.empty()) return;
      store->finish_spill(work, carry_out(work, disk));
    }
  }
  void restart() {
    disk.crash(disk.block_count());
    create(config.arena.capacity_bytes, 16 * kBytes);
    std::vector<DiskRecord> records;
    EXPECT_FALSE(
        disk.load([&](const NamespaceId&,
                      const std::string& record) { store->load_namespace(NamespaceRecord::parse(record).value()); },
                  [&](const DiskRecord& record) { return records.push_back(record), true; }));
    store->begin_load(now, disk.epoch());
    auto loaded = store->load_records(records);
    while (loaded.again) loaded = store->load_records({});
    store->end_load(/*is_whole=*/true);
    next = ~std::uint64_t{0};  // of an earlier life
  }
};

TEST_F(EventTest, AStoreWithoutALogTellsNothingAndListsAll) {
  create(64 * kBytes, 16 * kBytes);
  const auto hashes = chain(1, 20);
  put(open(kBytes), hashes);
  EventPage page;
  for (LookDesk::BlockCursor cursor; !cursor.is_done;) store->list_blocks(cursor, page);
  ASSERT_EQ(page.events.size(), 20u);
  for (const EventPage::Event& event : page.events) {
    EXPECT_EQ(event.hash, hashes[event.position]);
    EXPECT_EQ(event.parent, event.position == 0 ? BlockHash{} : hashes[event.position - 1]);
  }
}

TEST_F(EventTest, APutAnEvictionAndADropAreTold) {
  create_with_log(32, 1000);
  const SpaceId space = open(kBytes);
  const NamespaceId name = store->find_namespace(space)->id();
  const auto old = chain(1, 20), young = chain(2, 20);
  put(space, old);
  follow();
  EXPECT_EQ(leading(name, old, false), 20u);
  EXPECT_EQ((known[{BlockTier::kMemory, name, old[7]}]), old[6]);
  put(space, young);
  follow();
  EXPECT_EQ(leading(name, young, false), 20u);
  EXPECT_EQ(leading(name, old, false), 12u) << "from its end";
  ASSERT_TRUE(store->drop(space, std::span(young).first(5)));
  follow();
  EXPECT_EQ(leading(name, young, false), 4u);
  EXPECT_EQ(known.size(), 16u);
  EXPECT_EQ(gaps, 0u);
}

TEST_F(EventTest, WhatMovesToDiskAndBackIsToldTierByTier) {
  config.spill.reserve = 0.25;
  create_with_log(32, 1000, 100);
  const SpaceId space = open(kBytes);
  const NamespaceId name = store->find_namespace(space)->id();
  may_lose = false;
  const auto hashes = chain(1, 30);
  put(space, hashes);
  spill();
  put(space, chain(2, 10));
  follow();
  EXPECT_EQ(gaps, 0u);
  EXPECT_EQ(count(BlockTier::kMemory), store->stats().block_count);
  EXPECT_EQ(count(BlockTier::kDisk), store->stats().disk_block_count);
  EXPECT_GT(count(BlockTier::kDisk), 0u);
  EXPECT_LT(leading(name, hashes, false), 30u);
  EXPECT_EQ(leading(name, hashes, true), 30u);
  const std::size_t on_disk = count(BlockTier::kDisk);
  restart();
  follow();
  EXPECT_EQ(gaps, 1u) << "numbers of another life are a gap";
  EXPECT_EQ(count(BlockTier::kMemory), 0u);
  EXPECT_EQ(count(BlockTier::kDisk), on_disk);
}

TEST_F(EventTest, WhatIsDroppedAndStoredAgainBeforeItIsTakenApartIsHere) {
  create_with_log(4096, 100'000);
  const SpaceId space = open(kBytes);
  const NamespaceId name = store->find_namespace(space)->id();
  const auto hashes = chain(1, 400);
  // Two puts of the same chain: the second one stores what was dropped while the first one's blocks still lie there.
  const auto first = store->offer(space, hashes, {.session = kAlice}, now).value();
  const auto second = store->offer(space, hashes, {.session = kBob}, now).value();
  ASSERT_EQ(second.incoming.size(), hashes.size());
  for (const auto& block : first.incoming) store->commit(first.put, fill(block), now);
  store->end_put(first.put);
  ASSERT_TRUE(store->drop(space, std::span(hashes).first(1)));
  ASSERT_TRUE(store->is_dropping()) << "or this test shows nothing";
  for (const auto& block : second.incoming) store->commit(second.put, fill(block), now);
  store->end_put(second.put);
  finish_drops();
  follow();
  EXPECT_EQ(gaps, 0u);
  EXPECT_EQ(leading(name, hashes, false), hashes.size());
  EXPECT_EQ(match(space, hashes), hashes.size());
  EXPECT_EQ(known.size(), store->stats().block_count);
}

TEST_F(EventTest, WhatIsStoredBelowADroppedBlockIsNotTold) {
  create_with_log(4096, 100'000);
  const SpaceId space = open(kBytes);
  auto hashes = chain(1, 10);
  for (const BlockHash& hash : chain(2, 400)) hashes.push_back(hash);
  put(space, hashes);
  hashes.resize(10);
  for (const BlockHash& hash : chain(3, 5)) hashes.push_back(hash);
  const auto plan = store->offer(space, hashes, {.session = kBob}, now).value();
  ASSERT_EQ(plan.incoming.size(), 5u);
  ASSERT_TRUE(store->drop(space, std::span(hashes).first(1)));
  ASSERT_TRUE(store->is_dropping()) << "or this test shows nothing";
  for (const auto& block : plan.incoming) store->commit(plan.put, fill(block), now);
  store->end_put(plan.put);
  finish_drops();
  follow();
  EXPECT_EQ(gaps, 0u);
  EXPECT_TRUE(known.empty());
}

TEST_F(EventTest, ADropOfMoreThanCanBeToldIsAGap) {
  create_with_log(4096, 100'000);
  const SpaceId space = open(kBytes), other = open(kBytes, "other");
  const auto hashes = chain(1, 2000);
  put(space, hashes);
  put(other, chain(1, 10));
  follow();
  ASSERT_TRUE(store->drop(space, std::span(hashes).first(1)));
  finish_drops();
  follow();
  EXPECT_EQ(gaps, 1u);
  EXPECT_EQ(known.size(), 10u);
  put(space, chain(2, 2000));
  follow();
  ASSERT_TRUE(store->drop(space, {}));
  finish_drops();
  follow();
  EXPECT_EQ(gaps, 2u);
  EXPECT_EQ(known.size(), 10u);
  ASSERT_TRUE(store->drop(other, {}));
  follow();
  EXPECT_EQ(gaps, 2u) << "of ten blocks each is told";
  EXPECT_TRUE(known.empty());
}

/// A list kept by the log is what the Store holds, whatever was done with it.
class EventRandomTest : public EventTest, public testing::WithParamInterface<int> {
 protected:
  std::mt19937_64 random;
  struct Universe {
    SpaceId space;
    NamespaceRecord record;
    std::vector<std::vector<BlockHash>> chains;
  };
  std::vector<Universe> spaces;
  std::optional<Universe> set;
  struct Open {
    PutId put;
    std::vector<IncomingBlock> incoming;
    std::size_t done = 0;
  };
  std::vector<Open> puts;
  std::vector<PinnedPrefix> pinned;

  std::uint64_t below(std::uint64_t bound) { return random() % bound; }

  void make_universe() {
    for (std::uint64_t i = 0; i < 3; ++i) {
      // Blocks of two sizes, so that memory moves between them.
      const NamespaceRecord record = make_record("m" + std::to_string(i), i == 2 ? 2 * kBytes : kBytes);
      Universe universe{store->open(record).value(), record, {}};
      for (std::uint64_t family = 0; family < 3; ++family) {
        const auto common = chain(10 + family, 250);
        for (std::uint64_t branch = 0; branch < 3; ++branch) {
          auto hashes = common;
          hashes.resize(50 + 80 * branch);
          for (const BlockHash& hash : chain(100 * (family + 1) + branch, 150)) hashes.push_back(hash);
          universe.chains.push_back(std::move(hashes));
        }
      }
      spaces.push_back(std::move(universe));
    }
    const NamespaceRecord record =
        NamespaceRecord::from_fields({{"model", "s"}, {"kind", "set"}, {"block_bytes_max", "8192"}}).value();
    set = Universe{store->open(record).value(), record, {chain(7, 200)}};
  }
  Universe& some() { return spaces[below(spaces.size())]; }
  static std::vector<BlockHash> first(const std::vector<BlockHash>& hashes, std::size_t count) {
    return {hashes.begin(), hashes.begin() + static_cast<std::ptrdiff_t>(count)};
  }
  /// A forgotten one is opened anew.
  void open_again(Universe& universe) { universe.space = store->open(universe.record).value(); }

  void commit_some(Open& open, std::size_t most) {
    for (; most > 0 && open.done < open.incoming.size(); --most)
      store->commit(open.put, fill(open.incoming[open.done++]), now);
  }
  void end(std::size_t i) {
    store->end_put(puts[i].put);
    puts.erase(puts.begin() + static_cast<std::ptrdiff_t>(i));
  }
  void step() {
    now += std::chrono::milliseconds(1 + below(20));
    Universe& universe = some();
    open_again(universe);
    const auto& hashes = universe.chains[below(universe.chains.size())];
    const auto part = first(hashes, 1 + below(hashes.size()));
    switch (below(14)) {
      case 0:
      case 1:
      case 2:
      case 3: {  // a put, which may stay under way
        const auto plan = store->offer(universe.space, part, {.session = kAlice, .may_lose = below(2) == 0}, now);
        ASSERT_TRUE(plan);
        if (plan->put == PutId{}) break;
        puts.push_back({plan->put, plan->incoming});
        commit_some(puts.back(), below(3) == 0 ? below(100) : 10'000);
        if (below(3) > 0) end(puts.size() - 1);
        break;
      }
      case 4:
        if (puts.empty()) break;
        commit_some(puts.back(), below(100));
        end(puts.size() - 1);
        break;
      case 5:
      case 6:  // a read, which may stay under way; what lay on disk comes back
        if (auto prefix = store->pin_prefix(universe.space, part, {.session = kBob, .disk = true}, now)) {
          if (!prefix->on_disk.empty() && prefix->on_disk.front().promote) promote(universe, part, *prefix);
          pinned.push_back(std::move(*prefix));
        }
        [[fallthrough]];
      case 7:
        if (pinned.size() > below(4)) {
          store->unpin(pinned.front());
          pinned.erase(pinned.begin());
        }
        break;
      case 8:
        if (below(3) == 0) {
          ASSERT_TRUE(store->drop(universe.space, below(20) == 0 ? std::vector<BlockHash>() : part));
        }
        break;
      case 9: put_some_of_set(); break;
      case 10:
        if (below(4) == 0) {
          std::vector<DiskDrop> kept;
          ASSERT_TRUE(store->erase(set->space, some_of_set(), &kept, now));
        }
        break;
      case 11: spill(static_cast<int>(1 + below(8))); break;
      case 12: store->expire_leases(now); break;
      case 13: store->drop_more(now); break;
      default: break;
    }
  }
  void promote(const Universe& universe, const std::vector<BlockHash>& part, const PinnedPrefix& prefix) {
    const std::size_t in_memory = prefix.blocks.size();
    const auto plan =
        store->offer(universe.space, first(part, in_memory + prefix.on_disk.size()), {.session = kBob}, now).value();
    for (const auto& block : plan.incoming) {
      if (store->commit(plan.put, fill(block), now) == CommitStatus::kRefused) break;
    }
    if (plan.put != PutId{}) store->end_put(plan.put);
  }
  std::vector<BlockHash> some_of_set() {
    std::set<std::size_t> which;
    while (which.size() < 5) which.insert(below(set->chains[0].size()));
    std::vector<BlockHash> hashes;
    for (const std::size_t i : which) hashes.push_back(set->chains[0][i]);
    return hashes;
  }
  void put_some_of_set() {
    open_again(*set);
    const auto hashes = some_of_set();
    const std::vector<std::uint32_t> lengths(hashes.size(), 4096);
    const auto plan = store->offer_set(set->space, hashes, {.session = kAlice, .lengths = lengths}, now).value();
    for (const auto& block : plan.incoming) store->commit(plan.put, fill(block), now);
    if (plan.put != PutId{}) store->end_put(plan.put);
  }
  void compare() {
    for (const Universe& universe : spaces) {
      const NamespaceId name = universe.record.id();
      for (const auto& hashes : universe.chains) {
        const auto found = store->explain(universe.space, hashes, now);
        const std::size_t in_memory = found ? found->memory_block_count : 0,
                          here = found ? in_memory + found->disk_block_count : 0;
        ASSERT_EQ(leading(name, hashes, false), in_memory);
        ASSERT_EQ(leading(name, hashes, true), here);
      }
    }
    // Blocks that leave memory by this are the disk's alone from then on, which can make the disk evict others.
    finish_drops();
    follow();
    if (HasFatalFailure()) return;
    const StoreStats stats = store->stats();
    ASSERT_EQ(count(BlockTier::kMemory), stats.block_count) << "there is something that the Store does not hold";
    ASSERT_EQ(count(BlockTier::kDisk), stats.disk_block_count);
    // What is before a block is known with it, in the same tier.
    for (const auto& [name, parent] : known) {
      if (parent == BlockHash{}) continue;
      ASSERT_TRUE(known.contains({std::get<0>(name), std::get<1>(name), parent}));
    }
  }
};

TEST_P(EventRandomTest, AListKeptByTheLogIsWhatTheStoreHolds) {
  const std::uint64_t seed = test_seed();
  random.seed(seed);
  // With a log that is too short there are gaps, and everything is looked at while it changes.
  const bool is_short = GetParam() % 2 == 1, has_disk = GetParam() >= 2;
  config.spill.reserve = 0.1;
  create_with_log(1500, is_short ? 400 : 1'000'000, has_disk ? 1500 : 0);
  make_universe();
  for (int round = 0; round < 150; ++round) {
    for (std::uint64_t i = below(30); i > 0; --i) {
      step();
      if (HasFatalFailure()) return;
    }
    if (below(8) == 0) next = ~std::uint64_t{0};  // somebody new
    int changes = 20;
    follow([&] {
      if (below(2) == 0 && --changes > 0) step();
    });
    if (HasFatalFailure()) return;
    compare();
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(told, 10'000u);
  if (is_short) {
    EXPECT_GT(gaps, 20u);
  }
  EXPECT_GT(store->stats().evicted_blocks + store->stats().dropped_blocks, 1000u);
  for (const auto& each : pinned) store->unpin(each);
  while (!puts.empty()) end(0);
}

INSTANTIATE_TEST_SUITE_P(Logs, EventRandomTest, testing::Values(0, 1, 2, 3));

}  // namespace
}  // namespace kv
