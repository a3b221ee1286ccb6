// Which blocks go, and how memory moves between block sizes.
#include "store/memory/evictor.h"

#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_map>

#include "arena_sizes.h"
#include "store_fixture.h"
#include "trace.h"

namespace kv {
namespace {

/// Leaf ends first, least recently used first, by brute force: every block knows its last use.
class BruteForce {
 public:
  explicit BruteForce(std::size_t capacity) : capacity_(capacity) {}

  /// The leading blocks of the chain that are here; then stores the rest. A block is known by a number that names its
  /// whole prefix.
  std::size_t request(std::span<const std::uint64_t> chain) {
    std::size_t hits = 0;
    while (hits < chain.size() && blocks_.contains(chain[hits])) ++hits;
    ++now_;
    for (std::size_t i = 0; i < hits; ++i) use(chain[i]);
    for (std::size_t i = hits; i < chain.size(); ++i) {
      if (blocks_.size() == capacity_) {
        const auto victim = std::find_if(leaf_ends_.begin(), leaf_ends_.end(), [&](const auto& leaf_end) {
          return std::find(chain.begin(), chain.begin() + i, leaf_end.second) == chain.begin() + i;
        });
        if (victim == leaf_ends_.end()) break;
        evict(victim->second);
      }
      ++now_;
      blocks_[chain[i]] = {now_, i == 0 ? 0 : chain[i - 1], 0};
      leaf_ends_.emplace(now_, chain[i]);
      if (i > 0) {
        Block& parent = blocks_.at(chain[i - 1]);
        if (parent.child_count++ == 0) leaf_ends_.erase({parent.used, chain[i - 1]});
      }
      for (std::size_t j = 0; j <= i; ++j) use(chain[j]);
    }
    return hits;
  }

 private:
  struct Block {
    std::uint64_t used, parent, child_count;
  };
  void use(std::uint64_t id) {
    Block& block = blocks_.at(id);
    if (block.child_count == 0) {
      leaf_ends_.erase({block.used, id});
      leaf_ends_.emplace(now_, id);
    }
    block.used = now_;
  }
  void evict(std::uint64_t id) {
    const Block block = blocks_.at(id);
    leaf_ends_.erase({block.used, id});
    blocks_.erase(id);
    if (block.parent == 0) return;
    Block& parent = blocks_.at(block.parent);
    if (--parent.child_count == 0) leaf_ends_.emplace(parent.used, block.parent);
  }

  std::size_t capacity_;
  std::uint64_t now_ = 0;
  std::unordered_map<std::uint64_t, Block> blocks_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> leaf_ends_;
};

/// Matches and stores chains of 64-byte blocks as a cache would see them.
class CacheRun : public StoreFixture {
 public:
  void TestBody() override {}
  explicit CacheRun(std::size_t capacity_blocks) {
    create(capacity_blocks * 64);
    space_ = open(64);
  }
  std::size_t request(std::span<const std::uint64_t> ids) {
    hashes_.clear();
    for (const std::uint64_t id : ids) hashes_.push_back(hash_of(id));
    const std::size_t hits = match(space_, hashes_);
    const auto plan = store->offer(space_, hashes_, {}, now).value();
    EXPECT_EQ(plan.stored_count, hits);
    std::size_t incoming = plan.incoming.size();
    for (bool again = plan.again; again;) {  // a long chain takes its slots in several calls, each of bounded work
      const auto more = store->offer_more(plan.put, now).value();
      incoming += more.incoming.size();
      again = more.again;
    }
    const std::uint64_t sum[] = {0};
    for (std::size_t i = 0; i < incoming; ++i) store->commit(plan.put, sum, now);
    if (plan.put != PutId{}) store->end_put(plan.put);
    return hits;
  }
  std::string check() const { return store->check(); }
  StoreStats stats() const { return store->stats(); }

 private:
  SpaceId space_{};
  std::vector<BlockHash> hashes_;
};

TEST(LruExactnessTest, HitsEqualThoseOfABruteForceSimulationOfLeafEndsFirst) {
  const std::uint64_t seed = test_seed();
  for (const std::size_t capacity : {50, 300, 1000}) {
    std::mt19937_64 random(seed);
    CacheRun cache(capacity);
    BruteForce brute_force(capacity);
    // Conversations that grow by a few blocks a turn, behind shared system prompts; which one speaks next is about
    // Zipf-distributed.
    struct Conversation {
      std::vector<std::uint64_t> ids;
    };
    std::vector<Conversation> conversations;
    std::uint64_t hits = 0, references = 0;
    for (int turn = 0; turn < 4000; ++turn) {
      const auto rank =
          static_cast<std::size_t>(std::exp(std::uniform_real_distribution(0.0, std::log(500.0))(random))) - 1;
      while (conversations.size() <= rank) conversations.push_back({});
      auto& ids = conversations[rank].ids;
      if (ids.empty() || ids.size() > 30) {
        ids.clear();
        const std::uint64_t prompt = random() % 5;
        for (std::uint64_t i = 0; i <= prompt * 2; ++i) ids.push_back(mix(prompt * 100 + i) | 1);
      }
      for (std::uint64_t i = 1 + random() % 4; i > 0; --i) ids.push_back(random() | 1);
      const std::size_t expected = brute_force.request(ids);
      ASSERT_EQ(cache.request(ids), expected) << "turn " << turn;
      hits += expected;
      references += ids.size();
    }
    EXPECT_EQ(cache.check(), "");
    EXPECT_GT(hits, references / 20);
    EXPECT_LT(hits, references);
  }
}

TEST(LruExactnessTest, HitRatesOnTheConversationTraceAreThoseOfLruLeafEndsFirst) {
  const auto trace = conversation_trace();
  if (!trace) GTEST_SKIP() << kNoTrace;
  const auto& requests = *trace;
  std::size_t reference_count = 0;
  for (const auto& ids : requests) reference_count += ids.size();
  ASSERT_EQ(requests.size(), 12031u);
  ASSERT_EQ(reference_count, 288500u);
  const std::pair<std::size_t, double> rows[] = {{1000, 0.0445}, {10000, 0.2116}, {30000, 0.3257}};
  for (const auto& [capacity, expected] : rows) {
    CacheRun cache(capacity);
    std::size_t hits = 0;
    for (const auto& ids : requests) hits += cache.request(ids);
    const double rate = static_cast<double>(hits) / static_cast<double>(reference_count);
    std::printf("%zu blocks: hit rate %.4f (%.4f expected)\n", capacity, rate, expected);
    EXPECT_NEAR(rate, expected, 0.002);
    EXPECT_EQ(cache.check(), "");
    EXPECT_EQ(cache.stats().allocated_bytes, cache.stats().capacity_bytes);
  }
}

// -- several block sizes

class MixedSizesTest : public StoreFixture {
 protected:
  void fill_arena(SpaceId space, std::size_t block_bytes, std::size_t chain_length) {
    const std::size_t chains = config.arena.capacity_bytes / block_bytes / chain_length + 2;
    for (std::size_t i = 0; i < chains; ++i) put_empty(space, ++name_, chain_length);
  }
  /// As put(), but leaves the bytes as they are: arenas here are large and untouched. Returns how many were refused.
  std::size_t put_empty(SpaceId space, std::uint64_t name, std::size_t count) {
    now += Duration(1000);
    const auto hashes = chain(name, count);
    auto plan = store->offer(space, hashes, {}, now).value();
    const PutId id = plan.put;
    for (;;) {
      for (const auto& block : plan.incoming)
        store->commit(id, std::vector<std::uint64_t>(stripe_count(block.bytes.size())), now);
      if (!plan.again) break;
      plan = store->offer_more(id, now).value();
    }
    if (id != PutId{}) store->end_put(id);
    return plan.refused_count;
  }
  std::uint64_t name_ = 1000;
};

TEST_F(MixedSizesTest, ABlockThatStaysPinnedKeepsThoseAboveItThoughTheyWereUnpinned) {
  create(8 * kMiB, 64 * 1024);
  const SpaceId small = open(64 * 1024, "small"), large = open(kMiB, "large");
  put(small, chain(1, 1));
  put(small, chain(2, 60));  // what follows lies elsewhere
  put(small, chain(1, 3));
  ASSERT_EQ(store->retain(small, chain(1, 3)).value(), 3u);
  ASSERT_EQ(store->unretain(small, chain(1, 1)).value(), 1u);
  put(small, chain(3, 60));
  for (std::uint64_t name = 10; name < 40; ++name) put_empty(large, name, 4);
  EXPECT_EQ(match(small, chain(1, 3)), 3u);
}

TEST_F(MixedSizesTest, EverySizeIsStoredInAnArenaFullOfAnyOther) {
  create(160 * kMiB);
  for (const std::size_t full : kMixedSizes) {
    for (const std::size_t wanted : kMixedSizes) {
      const SpaceId filler = open(full, "filler" + std::to_string(full)),
                    space = open(wanted, "wanted" + std::to_string(wanted));
      fill_arena(filler, full, 7);
      const std::uint64_t name = ++name_;
      EXPECT_EQ(put_empty(space, name, 2), full == wanted || 2 * wanted <= config.arena.capacity_bytes ? 0u : 1u)
          << full << ' ' << wanted;
      EXPECT_EQ(match(space, chain(name, 2)), 2u) << full << ' ' << wanted;
      EXPECT_EQ(store->check(), "");
    }
  }
}

TEST_F(MixedSizesTest, ClearingASlabTakesTheOneUsedLongestAgo) {
  create(4 * 64 * kKiB, 64 * kKiB);
  const SpaceId small = open(4 * kKiB, "small"), large = open(64 * kKiB, "large");
  for (std::uint64_t name = 0; name < 8; ++name) put(small, chain(name, 8));  // two chains a slab
  match(small, chain(0, 8));
  match(small, chain(3, 8));
  match(small, chain(7, 8));  // the slab of 4 and 5 is the only one without a recent use
  EXPECT_EQ(put(large, chain(100, 1)).stored, 1u);
  for (std::uint64_t name = 0; name < 8; ++name)
    EXPECT_EQ(match(small, chain(name, 8)), name == 4 || name == 5 ? 0u : 8u) << name;
  EXPECT_EQ(store->stats().slab_moves, 1u);
  EXPECT_EQ(store->stats().evicted_blocks, 16u);
}

TEST_F(MixedSizesTest, ClearingASlabEvictsWhatLiesBelowItsBlocksToo) {
  create(4 * 64 * kKiB, 64 * kKiB);
  const SpaceId small = open(4 * kKiB, "small"), large = open(64 * kKiB, "large");
  put(small, chain(0, 24));  // one slab and a half
  put(small, chain(1, 40));
  EXPECT_EQ(put(large, chain(100, 1)).stored, 1u);
  EXPECT_EQ(match(small, chain(0, 24)), 0u);
  EXPECT_EQ(match(small, chain(1, 40)), 40u);
  EXPECT_EQ(store->stats().evicted_blocks, 24u);
}

TEST_F(MixedSizesTest, SlabsAboveALeasedBlockAreLeft) {
  create(4 * 64 * kKiB, 64 * kKiB);
  const SpaceId small = open(4 * kKiB, "small"), large = open(64 * kKiB, "large");
  put(small, chain(0, 32));
  put(small, chain(1, 32));
  const LeaseId held = lease(small, chain(0, 32));
  match(small, chain(1, 32));  // used later
  EXPECT_EQ(put(large, chain(100, 2)).stored, 2u);
  EXPECT_EQ(match(small, chain(0, 32)), 32u);
  EXPECT_EQ(match(small, chain(1, 32)), 0u);
  EXPECT_EQ(put(large, chain(101, 3)).refused, 1u);  // the other two slabs are under lease
  EXPECT_TRUE(store->release(kAlice, held));
  EXPECT_EQ(put(large, chain(101, 4)).refused, 0u);
  EXPECT_EQ(match(small, chain(0, 32)), 0u);
}

TEST_F(MixedSizesTest, SlabsWithIncomingRetainedOrMovingBlocksAreLeft) {
  create(4 * 64 * kKiB, 64 * kKiB);
  const SpaceId small = open(4 * kKiB, "small"), large = open(64 * kKiB, "large");
  put(small, chain(0, 16));
  put(small, chain(1, 16));
  ASSERT_TRUE(store->retain(small, chain(0, 1)));
  const auto pinned = store->pin_prefix(small, chain(1, 1), {.session = kAlice}, now).value();
  const auto incoming = store->offer(small, chain(2, 1), {}, now).value();
  EXPECT_EQ(put(large, chain(100, 2)).stored, 1u);
  EXPECT_EQ(match(small, chain(0, 16)), 16u);
  EXPECT_EQ(match(small, chain(1, 16)), 16u);
  store->end_put(incoming.put);
  EXPECT_EQ(put(large, chain(101, 2)).stored, 2u);
  EXPECT_EQ(match(small, chain(1, 16)), 16u);
  store->unpin(pinned);
  EXPECT_EQ(put(large, chain(102, 3)).stored, 3u);
  EXPECT_EQ(match(small, chain(0, 16)), 16u);
}

TEST_F(MixedSizesTest, TheSizeItselfGivesWayWhenNoSlabCanBeCleared) {
  create(4 * 64 * kKiB, 64 * kKiB);
  const SpaceId small = open(4 * kKiB, "small"), large = open(64 * kKiB, "large");
  put(small, chain(0, 1));  // the oldest leaf end, above a leased one in two slabs
  for (std::uint64_t name = 1; name < 32; ++name) put(small, chain(name, 1));
  lease(small, chain(1, 1));
  lease(small, chain(31, 1));
  put(large, chain(100, 1));
  put(large, chain(101, 1));
  EXPECT_EQ(put(large, chain(102, 1)).stored, 1u);
  EXPECT_EQ(match(large, chain(100, 1)), 0u);
  EXPECT_EQ(match(large, chain(101, 1)), 1u);
  EXPECT_EQ(match(small, chain(0, 1)), 1u);
  EXPECT_EQ(store->stats().slab_moves, 0u);
}

/// As many granules as an arena of half a terabyte has.
class ManyGranulesTest : public MixedSizesTest {
 protected:
  static constexpr std::size_t kGranules = 1 << 18;
  SpaceId fill_small() {
    config.lease_duration = 1h;
    create(kGranules * 4 * kKiB, 4 * kKiB);
    const SpaceId small = open(4 * kKiB, "small");
    for (std::uint64_t name = 0; name < kGranules / 1024; ++name) put_empty(small, name, 1024);
    return small;
  }
};

TEST_F(ManyGranulesTest, ASecondSizeFindsItsPlaceInBoundedSteps) {
  const SpaceId small = fill_small(), large = open(64 * kKiB, "large");
  for (std::uint64_t name = 100; name < 200; ++name) ASSERT_NE(lease(small, chain(name, 1024)), LeaseId{});
  const std::uint64_t before = store->stats().work_steps;
  for (std::uint64_t name = 1000; name < 1030; ++name) EXPECT_EQ(put_empty(large, name, 40), 0u);
  const StoreStats stats = store->stats();
  EXPECT_GE(stats.slab_moves, 1200u * 16 / 1024);  // a slab's first block takes the rest of its chain along
  EXPECT_LE(stats.work_steps_call_max, Shelf::kStepsMax);
  // One search serves many slabs, and what it finds is what was used longest ago.
  EXPECT_LT(stats.work_steps - before, 4 * kGranules + 2 * stats.evicted_blocks * Steps::kRemoval);
  for (std::uint64_t name = 0; name < 15; ++name) EXPECT_EQ(match(small, chain(name, 1)), 0u) << name;
  for (std::uint64_t name = 30; name < kGranules / 1024; ++name) EXPECT_EQ(match(small, chain(name, 1)), 1u) << name;
  EXPECT_EQ(store->check(), "");
}

TEST_F(ManyGranulesTest, ManySlabsAboveLeasedBlocksAreLeftAndTheOthersFound) {
  const SpaceId small = fill_small(), large = open(64 * kKiB, "large");
  for (std::uint64_t name = 0; name < 200; ++name) ASSERT_NE(lease(small, chain(name, 1024)), LeaseId{});
  for (std::uint64_t name = 0; name < kGranules / 1024; ++name) {
    if (name >= 200) match(small, chain(name, 1024));  // the leased ones are the oldest
  }
  for (std::uint64_t name = 1000; name < 1020; ++name) EXPECT_EQ(put_empty(large, name, 40), 0u) << name;
  EXPECT_LE(store->stats().work_steps_call_max, Shelf::kStepsMax);
  for (std::uint64_t name = 0; name < 200; ++name) EXPECT_EQ(match(small, chain(name, 1024)), 1024u) << name;
}

TEST_F(ManyGranulesTest, AWaitingPutDoesNotSearchTheArenaEachTimeItAsks) {
  const SpaceId small = fill_small(), large = open(64 * kKiB, "large");
  for (std::uint64_t name = 0; name < kGranules / 1024; ++name) ASSERT_NE(lease(small, chain(name, 1024)), LeaseId{});
  const auto hashes = chain(5000, 2);
  auto plan = store->offer(large, hashes, {}, now).value();
  while (plan.again) plan = store->offer_more(plan.put, now).value();
  ASSERT_EQ(plan.refused_count, 2u);
  const std::uint64_t before = store->stats().work_steps;
  for (int i = 0; i < 100; ++i) {
    now += 1ms;
    const LeaseId other = lease(small, chain(7, 3));  // so that something does change
    ASSERT_TRUE(store->release(kAlice, other));
    do plan = store->offer_more(plan.put, now).value();
    while (plan.again);
    ASSERT_EQ(plan.refused_count, 2u);
  }
  EXPECT_LT(store->stats().work_steps - before, 12 * kGranules) << "of 200 searches";
  store->end_put(plan.put);
}

TEST_F(MixedSizesTest, ABlockThatIsPinnedWhileItsSlabIsClearedInSlicesStays) {
  config.lease_duration = 1h;
  create(4 * 2 * kMiB);
  const SpaceId small = open(64, "small"), large = open(2 * kMiB, "large");
  constexpr std::uint64_t kChains = 4 * 2 * kMiB / 64 / 1024;  // 32 in each slab
  for (std::uint64_t name = 0; name < kChains; ++name) put_empty(small, name, 1024);
  const auto hashes = chain(1000, 1);
  auto plan = store->offer(large, hashes, {}, now).value();
  while (plan.again && store->stats().evicted_blocks == 0) plan = store->offer_more(plan.put, now).value();
  ASSERT_TRUE(plan.again) << "the slab is cleared in one call: nothing can come between";
  ASSERT_LT(store->stats().evicted_blocks, 1024u * 20);
  std::uint64_t last = 0;
  for (std::uint64_t name = 0; name < 32; ++name) last = match(small, chain(name, 1)) == 1 ? name : last;
  ASSERT_EQ(last, 31u);
  for (std::uint64_t name = 0; name < 32; ++name) match(small, chain(name + 32, 1024));  // the next slab is not so old
  // A lease that uses nothing: the slab is not younger by it. And the prefix ends in the slab, the pin is below it.
  const LeaseId held = lease(small, chain(31, 1024));
  ASSERT_NE(held, LeaseId{});
  while (plan.again) plan = store->offer_more(plan.put, now).value();
  EXPECT_EQ(plan.refused_count, 0u);
  EXPECT_EQ(match(small, chain(31, 1024)), 1024u);
  EXPECT_EQ(store->check(), "");
  EXPECT_LE(store->stats().work_steps_call_max, Shelf::kStepsMax);
  store->end_put(plan.put);
}

/// Slabs with more free slots in front of their first block than one call looks at.
TEST_F(MixedSizesTest, ASlabOfTinyBlocksThatIsNearlyEmptyIsClearedInTheEnd) {
  create(16 * kMiB, 4 * kMiB);
  constexpr std::size_t kHalfSlab = 4 * kMiB / 64 / 2;
  static_assert(kHalfSlab > Shelf::kStepsMax);
  const SpaceId small = open(64, "small"), large = open(4 * kMiB, "large");
  for (std::uint64_t name = 0; name < 8; ++name) put_empty(small, name, kHalfSlab);
  ASSERT_EQ(store->stats().allocated_bytes, store->stats().capacity_bytes);
  for (std::uint64_t name = 0; name < 8; name += 2) ASSERT_TRUE(store->drop(small, chain(name, 1)));
  while (store->is_dropping()) store->drop_more(now);
  auto plan = store->offer(large, chain(100, 4), {}, now).value();
  std::size_t stored = 0;
  for (int calls = 0; stored < 4; ++calls) {
    ASSERT_LT(calls, 1000) << "it begins anew with each call";
    for (const auto& block : plan.incoming) {
      store->commit(plan.put, std::vector<std::uint64_t>(stripe_count(block.bytes.size())), now);
      ++stored;
    }
    if (stored < 4) plan = store->offer_more(plan.put, now).value();
  }
  store->end_put(plan.put);
  EXPECT_EQ(match(large, chain(100, 4)), 4u);
  EXPECT_EQ(store->check(), "");
}

TEST_F(MixedSizesTest, SizesInEqualUseShareTheMemoryWithoutMovingIt) {
  create(2000 * (4 + 12) * kKiB, 256 * kKiB);
  const SpaceId small = open(4 * kKiB, "small"), large = open(12 * kKiB, "large");
  std::mt19937_64 random(test_seed());
  for (int i = 0; i < 4000; ++i) {
    const std::uint64_t name = random() % 1000;
    put_empty(small, name, 5);
    put_empty(large, name, 5);
  }
  const StoreStats stats = store->stats();
  EXPECT_GT(stats.evicted_blocks, 4000u);
  EXPECT_LT(stats.slab_moves, 5u);
}

TEST_F(MixedSizesTest, MemoryMovesToTheSizeThatIsInUse) {
  create(64 * 64 * kKiB, 64 * kKiB);
  const SpaceId small = open(4 * kKiB, "small"), large = open(32 * kKiB, "large");
  for (std::uint64_t name = 0; name < 100; ++name) put_empty(small, name, 8), put_empty(large, name, 2);
  for (std::uint64_t name = 100; name < 400; ++name) put_empty(large, name, 2);
  EXPECT_GE(store->stats().classes[1].used_count, 120u);  // of 128 there is room for
  for (std::uint64_t name = 400; name < 1400; ++name) put_empty(small, name, 8);
  EXPECT_GE(store->stats().classes[0].used_count, 960u);  // of 1024
}

TEST_F(MixedSizesTest, RandomUseOfMixedSizesKeepsEveryPromise) {
  std::mt19937_64 random(test_seed());
  const std::size_t sizes[] = {64, 192, 4096, 20000, 70000, 300000};
  config.lease_count_max = 20;
  create(2 * kMiB + 1000, 64 * kKiB);
  std::vector<SpaceId> spaces;
  for (const std::size_t size : sizes) spaces.push_back(open(size, std::to_string(size)));
  struct Promise {
    SpaceId space;
    LeaseId lease;
    std::vector<BlockHash> hashes;  // leased
  };
  struct Move {
    SpaceId space;
    PinnedPrefix pinned;
    std::vector<BlockHash> hashes;
  };
  std::vector<Promise> promises;
  std::vector<Move> moves;
  const auto random_chain = [&] {
    std::vector<BlockHash> hashes;
    std::uint64_t path = 1 + random() % 10;
    for (std::size_t length = 1 + random() % 12; length > 0; --length) {
      hashes.push_back(hash_of(path));
      path = path * 4 + (random() % 4 == 0);
    }
    return hashes;
  };
  const auto check_bytes = [&](const Move& move) {
    const NamespaceId id = store->find_namespace(move.space)->id();
    for (std::size_t i = 0; i < move.pinned.blocks.size(); ++i)
      ASSERT_TRUE(has_bytes(move.pinned.blocks[i].bytes, checksum_seed(id, move.hashes[i])));
  };
  std::size_t refused = 0, stored = 0;
  for (int step = 0; step < 30000; ++step) {
    // Phases in which one size is in fashion, so that memory has to move.
    const SpaceId space =
        spaces[random() % 2 == 0 ? static_cast<std::size_t>(step / 1000) % spaces.size() : random() % spaces.size()];
    const auto hashes = random_chain();
    switch (random() % 8) {
      case 0:
      case 1:
      case 2:
      case 3: {
        const Stored done = put(space, hashes);
        stored += done.stored;
        refused += done.refused;
        break;
      }
      case 4: {
        const auto found = store->match(space, hashes, {.session = kAlice, .lease = true}, now).value();
        if (found.lease != LeaseId{})
          promises.push_back({space, found.lease, {hashes.begin(), hashes.begin() + found.memory_block_count}});
        if (promises.size() > 6) {
          const auto it = promises.begin() + random() % promises.size();
          ASSERT_TRUE(store->release(kAlice, it->lease));
          promises.erase(it);
        }
        break;
      }
      case 5:
      case 6: {
        moves.push_back({space, store->pin_prefix(space, hashes, {.session = kAlice}, now).value(), hashes});
        check_bytes(moves.back());
        if (moves.size() > 4) {
          const auto it = moves.begin() + random() % moves.size();
          check_bytes(*it);
          store->unpin(it->pinned);
          moves.erase(it);
        }
        break;
      }
      case 7: {
        if (random() % 20 == 0) {
          ASSERT_TRUE(store->drop(space, std::span(hashes).first(1)));
          std::erase_if(promises, [&](const Promise& promise) {
            if (promise.space != space || promise.hashes[0] != hashes[0]) return false;
            EXPECT_TRUE(store->release(kAlice, promise.lease));
            return true;
          });
        }
        break;
      }
    }
    if (HasFatalFailure()) FAIL() << "at step " << step;
    if (step % 20 == 0) {
      for (const Promise& promise : promises)
        ASSERT_EQ(match(promise.space, promise.hashes), promise.hashes.size()) << "at step " << step;
    }
    if (step % 100 == 0) {
      ASSERT_EQ(store->check(), "") << "at step " << step;
    }
  }
  const StoreStats stats = store->stats();
  std::printf("%zu stored, %zu refused, %llu evicted, %llu slabs moved\n", stored, refused,
              static_cast<unsigned long long>(stats.evicted_blocks), static_cast<unsigned long long>(stats.slab_moves));
  EXPECT_GT(stats.slab_moves, 10u);
  for (const Move& move : moves) store->unpin(move.pinned);
}

}  // namespace
}  // namespace kv
