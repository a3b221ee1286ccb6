// What a Store shows to people who look: namespaces, edges, and samples of blocks; and what TreeSums makes of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "store/tree_sums.h"
#include "tests/store/memory_disk.h"
#include "tests/store/store_fixture.h"

namespace kv {
namespace {

constexpr std::size_t kLookBlockBytes = 256;

class LookTest : public StoreFixture {
 protected:
  using Part = TreeSums::Part;

  std::vector<LookDesk::EdgeView> sample(const LookDesk::TreeScope& scope, std::uint32_t looks, std::uint64_t random) {
    std::vector<LookDesk::EdgeView> edges;
    LookDesk::SampleCursor cursor = store->sample_cursor(scope.tier, looks, random);
    while (!cursor.is_done) {
      std::vector<LookDesk::EdgeView> more;  // parents are counted from the beginning of each list
      store->sample_edges(scope, cursor, more);
      EXPECT_LE(more.size(), 2048u) << "one call looks at a bounded number of edges";
      trees.add(more);
      edges.insert(edges.end(), more.begin(), more.end());
    }
    return edges;
  }
  std::vector<Part> all_of(const LookDesk::TreeScope& scope) {
    trees = {};
    sample(scope, 1 << 20, 0);
    return trees.select(1 << 20);
  }
  /// Of the first block of each edge: how many blocks are at and below the edge.
  static std::map<std::uint64_t, std::uint64_t> counts(const std::vector<Part>& parts) {
    std::map<std::uint64_t, std::uint64_t> result;
    for (const Part& part : parts) {
      if (!part.is_space) result[part.edge.name] += part.block_count;
    }
    return result;
  }

  TreeSums trees;
};

/// What should be there: each block with the one above it.
struct Model {
  std::map<BlockHash, BlockHash> above;
  std::map<BlockHash, std::uint64_t> below;  ///< With itself.

  void put(std::span<const BlockHash> chain) {
    BlockHash last{};
    std::size_t fresh = 0;
    for (const BlockHash& hash : chain) {
      fresh += above.emplace(hash, last).second;
      last = hash;
    }
    for (std::size_t i = 0; i < chain.size(); ++i) below[chain[i]] += std::min(fresh, chain.size() - i);
  }
};

TEST_F(LookTest, ARandomTreeIsShownAsItIsWholeOrFromASample) {
  create(64 << 20);
  const std::uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  const SpaceId space = open(kLookBlockBytes), other = open(kLookBlockBytes, "other");
  Model model;
  std::vector<std::vector<BlockHash>> chains = {{}};
  std::uint64_t name = 0;
  for (int i = 0; i < 300; ++i) {
    auto chain = chains[random() % chains.size()];
    chain.resize(random() % (chain.size() + 1));
    for (std::size_t more = 1 + random() % 40; more > 0; --more) chain.push_back(hash_of(++name));
    put(space, chain);
    model.put(chain);
    if (i % 7 == 0) put(other, chain);
    chains.push_back(std::move(chain));
  }
  const auto parts = all_of({});
  EXPECT_EQ(std::ranges::count_if(parts, &Part::is_space), 2);
  std::uint64_t total = 0;
  for (const Part& part : parts) {
    if (part.is_space) total += part.block_count;
    if (part.is_space && part.edge.space == space) {
      EXPECT_EQ(part.block_count, model.above.size());
    }
    EXPECT_EQ(part.bytes, part.block_count * kLookBlockBytes);
  }
  EXPECT_EQ(total, store->stats().block_count);

  const auto own = counts(all_of({.space = space}));
  for (const auto& [hash, count] : model.below) {
    const auto found = own.find(short_hash(hash));
    if (found != own.end()) {
      EXPECT_EQ(found->second, count) << "seed " << seed;
    }
  }
  EXPECT_GT(own.size(), 100u);

  // As a list: the same edges, if one call can see them.
  std::vector<LookDesk::EdgeView> edges;
  const auto listed = store->list_edges({.space = space}, edges);
  ASSERT_TRUE(listed);
  if (*listed) {
    TreeSums from_list;
    from_list.add(edges);
    EXPECT_EQ(counts(from_list.select(1 << 20)), own) << "seed " << seed;
  } else {
    EXPECT_TRUE(edges.empty());
  }
  // Inside one part, whichever way.
  for (const Part& part : all_of({.space = space})) {
    if (part.is_space || random() % 20 != 0) continue;
    const LookDesk::TreeScope inside{.space = space, .top = part.edge.first, .top_name = part.edge.name};
    edges.clear();
    ASSERT_TRUE(store->list_edges(inside, edges));
    std::uint64_t met = 0;
    for (const auto& edge : edges) met += edge.weight;
    if (!edges.empty()) {
      EXPECT_EQ(met, part.block_count);
    }
    met = 0;
    for (const auto& edge : sample(inside, 1 << 20, 0)) met += edge.weight;
    EXPECT_EQ(met, part.block_count) << "seed " << seed;
  }
}

TEST_F(LookTest, ThePassesOfAllBeginningsOfASampleMeetEachBlockOnce) {  // so the mean of the estimates is the truth
  create(64 << 20);
  const SpaceId space = open(kLookBlockBytes);
  auto root = chain(1, 100);
  for (std::uint64_t i = 0; i < 60; ++i) {
    auto longer = root;
    longer.resize(i);
    for (const BlockHash& hash : chain(1000 + i, 50)) longer.push_back(hash);
    put(space, longer);
  }
  const std::uint64_t truth = store->stats().block_count;
  const std::uint32_t stride = store->sample_cursor(BlockTier::kMemory, 100, 0).stride;
  ASSERT_GT(stride, 10u);
  std::uint64_t met = 0;
  trees = {};
  for (std::uint64_t begin = 0; begin < stride; ++begin) {
    for (const auto& edge : sample({}, 100, begin)) met += edge.weight / stride;
  }
  EXPECT_EQ(met, truth);
  for (const auto& part : trees.select(1 << 20)) EXPECT_EQ(part.block_count % stride, 0u);
  EXPECT_EQ(trees.select(1)[0].block_count, truth * stride);
  EXPECT_EQ(trees.select(1)[0].bytes, truth * stride * kLookBlockBytes);
}

TEST_F(LookTest, MoreEdgesThanOneCallMaySeeAreNotListedInPart) {
  create(64 << 20);
  const SpaceId space = open(kLookBlockBytes);
  for (std::uint64_t i = 0; i < 1000; ++i) put(space, chain(i, 2));
  std::vector<LookDesk::EdgeView> edges(3);
  EXPECT_EQ(store->list_edges({.space = space}, edges).value(), false);
  EXPECT_EQ(edges.size(), 3u);
  EXPECT_EQ(store->list_edges({.space = SpaceId{77}}, edges).error(), Errc::kNoNamespace);
  EXPECT_EQ(store->list_edges({.tier = BlockTier::kDisk, .space = space}, edges).error(), Errc::kNotFound);
  EXPECT_TRUE(store->sample_cursor(BlockTier::kDisk, 10, 0).is_done);
}

TEST_F(LookTest, APartThatHasGoneIsNotFoundEvenIfItsNumberIsAnothers) {
  create(4 << 20);
  const SpaceId space = open(kLookBlockBytes);
  put(space, chain(1, 10));
  const auto parts = all_of({.space = space});
  ASSERT_EQ(parts.size(), 2u);
  const LookDesk::TreeScope inside{.space = space, .top = parts[1].edge.first, .top_name = parts[1].edge.name};
  std::vector<LookDesk::EdgeView> edges;
  EXPECT_TRUE(store->list_edges(inside, edges).value());
  ASSERT_TRUE(store->drop(space, chain(1, 1)));
  EXPECT_EQ(store->list_edges(inside, edges).error(), Errc::kNotFound);
  EXPECT_TRUE(sample({}, 1000, 0).empty()) << "what was dropped is not shown, though it is still being freed";
  while (store->is_dropping()) store->drop_more(now);
  put(space, chain(2, 10));
  edges.clear();
  EXPECT_EQ(store->list_edges(inside, edges).error(), Errc::kNotFound);
  EXPECT_TRUE(sample(inside, 1000, 0).empty());
}

TEST_F(LookTest, WhatIsDeepCountsAsThatOfTheLastEdgeShown) {
  create(64 << 20);
  const SpaceId space = open(kLookBlockBytes);
  const auto spine = chain(1, 200);
  for (std::size_t i = 1; i <= 200; ++i) {  // each block of the spine has a branch of its own
    auto branch = std::vector<BlockHash>(spine.begin(), spine.begin() + static_cast<std::ptrdiff_t>(i));
    branch.push_back(hash_of(5000 + i));
    put(space, branch);
  }
  const auto parts = all_of({});
  ASSERT_FALSE(parts.empty());
  EXPECT_EQ(parts[0].block_count, store->stats().block_count);
  std::map<std::size_t, std::size_t> depth;
  std::size_t deepest = 0;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    depth[i] = depth[parts[i].parent] + 1;
    deepest = std::max(deepest, depth[i]);
  }
  EXPECT_EQ(deepest, LookDesk::kEdgesAboveMax);
}

TEST_F(LookTest, UsesAndAgesAreThoseOfAllBelow) {
  create(4 << 20);
  const SpaceId space = open(kLookBlockBytes);
  auto one = chain(1, 8), other = chain(1, 4);
  for (const BlockHash& hash : chain(2, 3)) other.push_back(hash);
  put(space, one);
  put(space, other);
  now += 10s;
  for (int i = 0; i < 5; ++i) match(space, one);
  const TimePoint late = now;
  now += 50s;
  const auto parts = all_of({});
  ASSERT_EQ(parts.size(), 4u);  // the namespace, what they share, and two branches
  EXPECT_TRUE(parts[0].is_space);
  EXPECT_EQ(parts[1].edge.block_count, 4u);
  EXPECT_EQ(parts[1].edge.child_count, 2u);
  EXPECT_EQ(parts[2].edge.position, 4u);
  EXPECT_EQ(parts[2].parent, 1u);
  EXPECT_EQ(parts[3].parent, 1u);
  EXPECT_EQ(parts[2].uses, 6);  // stored, and matched five times
  EXPECT_EQ(parts[3].uses, 1);
  EXPECT_GE(parts[0].uses, 7);
  for (const std::size_t i : {0u, 1u, 2u}) EXPECT_LE(std::chrono::abs(late - parts[i].edge.used), 1ms) << i;
  EXPECT_GT(late - parts[3].edge.used, 5s);
}

TEST_F(LookTest, OnlyTheLargestPartsAreSelectedAndTheOthersCounted) {
  create(64 << 20);
  const SpaceId space = open(kLookBlockBytes);
  for (std::uint64_t i = 0; i < 100; ++i) put(space, chain(i, i + 1));
  all_of({});
  const auto few = trees.select(11);
  ASSERT_EQ(few.size(), 11u);
  EXPECT_EQ(few[0].block_count, 5050u) << "a part that is not selected is in the sum of the one above";
  EXPECT_EQ(few[0].hidden_count, 90u);
  for (std::size_t i = 1; i < few.size(); ++i) EXPECT_EQ(few[i].block_count, 101 - i) << "largest first";
  EXPECT_TRUE(trees.select(0).empty());
}

TEST_F(LookTest, BlocksOfASetAreShownWithTheirLengths) {
  create(16 << 20);
  const auto record =
      NamespaceRecord::from_fields({{"model", "m"}, {"kind", "set"}, {"block_bytes_max", "4096"}}).value();
  const SpaceId set = store->open(record).value();
  const auto names = chain(1, 3);
  const std::vector<std::uint32_t> lengths = {100, 200, 4096};
  auto plan = store->offer_set(set, names, {.session = kAlice, .lengths = lengths}, now).value();
  for (const auto& block : plan.incoming) store->commit(plan.put, fill(block), now);
  store->end_put(plan.put);
  const auto parts = all_of({});
  ASSERT_EQ(parts.size(), 4u);
  EXPECT_EQ(parts[0].bytes, 4396u);
  EXPECT_EQ(parts[1].bytes, 4096u);
  EXPECT_EQ(parts[3].bytes, 100u);
  EXPECT_EQ(parts[3].edge.position, 0u);
}

TEST_F(LookTest, TheDiskHasATreeOfItsOwnAndEachTierSaysWhatTheOtherHasToo) {
  constexpr std::size_t kBytes = 4096;
  config.disk = {.capacity_bytes = 100 * kBytes, .segment_bytes = 16 * kBytes};
  config.spill.reserve = 0.1;
  create(20 * kBytes, kBytes);
  const SpaceId space = open(kBytes);
  MemoryDisk disk;
  const auto write = [&] {
    for (SpillWork work = store->spill_work(8 * kBytes, now, true); !work.empty();
         work = store->spill_work(8 * kBytes, now, true)) {
      store->finish_spill(work, carry_out(work, disk));
    }
  };
  const auto old = chain(1, 8), kept = chain(2, 4), young = chain(3, 12);
  put(space, old);
  put(space, kept);
  write();
  put(space, kept);  // here again, and on disk still
  put(space, young);
  std::map<std::uint64_t, Part> parts;
  const auto look = [&](BlockTier tier) {
    parts.clear();
    for (const Part& part : all_of({.tier = tier})) {
      if (!part.is_space) parts.emplace(part.edge.name, part);
    }
  };
  look(BlockTier::kDisk);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts.at(short_hash(old[0])).block_count, 8u);
  EXPECT_LT(parts.at(short_hash(old[0])).copied_count, 8u) << "some are nowhere else";
  EXPECT_EQ(parts.at(short_hash(kept[0])).copied_count, 4u);
  look(BlockTier::kMemory);
  EXPECT_EQ(parts.at(short_hash(kept[0])).block_count, 4u);
  EXPECT_EQ(parts.at(short_hash(kept[0])).copied_count, 4u);
  EXPECT_EQ(parts.at(short_hash(young[0])).block_count, 12u);
  EXPECT_EQ(parts.at(short_hash(young[0])).copied_count, 0u);
  EXPECT_EQ(store->list_spaces(nullptr).at(0).disk_block_count, 12u);
}

TEST_F(LookTest, WhatChangesBetweenTwoLooksDoesNoHarm) {
  create(1 << 20, 64 * 1024);
  const std::uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  const SpaceId space = open(kLookBlockBytes);
  for (int round = 0; round < 20; ++round) {
    trees = {};
    LookDesk::SampleCursor cursor = store->sample_cursor(BlockTier::kMemory, 4096, random());
    while (!cursor.is_done) {
      std::vector<LookDesk::EdgeView> edges;
      store->sample_edges({}, cursor, edges);
      trees.add(edges);
      auto chain = kv::chain(random() % 5, 1 + random() % 200);  // splits, joins and evictions
      chain.resize(1 + random() % chain.size());
      for (const BlockHash& hash : kv::chain(random(), random() % 50)) chain.push_back(hash);
      put(space, chain);
      if (random() % 10 == 0) {
        ASSERT_TRUE(store->drop(space, std::span(chain).first(1)));
      }
    }
    const auto parts = trees.select(500);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      ASSERT_TRUE(parts[i].is_space == (parts[i].parent == Part::kNone)) << "seed " << seed;
      if (!parts[i].is_space) {
        ASSERT_LT(parts[i].parent, i);
      }
    }
  }
}

TEST_F(LookTest, NamespacesAreListedInParts) {
  create(4 << 20);
  std::set<SpaceId> opened, listed;
  for (int i = 0; i < 600; ++i) opened.insert(open(kLookBlockBytes, "model-" + std::to_string(i)));
  std::optional<NamespaceId> after;
  std::vector<SpaceDesk::View> views;
  std::size_t calls = 0;
  do {
    views = store->list_spaces(after ? &*after : nullptr);
    EXPECT_LE(views.size(), SpaceDesk::kViewsPerCall);
    for (const auto& view : views) EXPECT_TRUE(listed.insert(view.id).second);
    if (!views.empty()) after = views.back().name;
    ++calls;
  } while (!views.empty());
  EXPECT_EQ(listed, opened);
  EXPECT_EQ(calls, 4u);
}

}  // namespace
}  // namespace kv
