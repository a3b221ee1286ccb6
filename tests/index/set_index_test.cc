// Sets in a PrefixIndex against a naive model of them, beside a chain that nothing may disturb: lookups, order of use
// within cohorts and over all, pins, covers, removal at once and in steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>

#include "index/prefix_index.h"

namespace kv {
namespace {

BlockHash name(std::uint64_t number) { return sha256(std::as_bytes(std::span(&number, 1))); }

class SetIndexTest : public testing::Test {
 protected:
  struct Block {
    BlockId id;
    std::uint32_t cohort, length;
    std::uint64_t used;
    int pins = 0;
  };
  using Set = std::map<BlockHash, Block>;

  SetIndexTest() {
    const char* env = std::getenv("KV_SEED");
    seed = env != nullptr ? std::strtoull(env, nullptr, 10) : std::random_device{}();
    std::printf("KV_SEED=%llu\n", static_cast<unsigned long long>(seed));
    random.seed(seed);
    for (std::size_t i = 0; i < 2; ++i) trees.push_back(index.add_tree(0, TreeKind::kSet));
    sets.resize(2);
    chain = index.add_tree(1);
    BlockId above = kNoBlock;
    for (std::uint32_t i = 0; i < 20; ++i) {
      chain_hashes.push_back(name(1'000'000 + i));
      above = index.insert(chain, above, {.hash = chain_hashes[i], .slot = SlotId{i}, .position = i}, tick());
    }
    index.pin(above);
  }
  std::uint64_t below(std::uint64_t bound) { return random() % bound; }
  Tick tick() { return Tick{++ticks}; }

  void insert(std::size_t which) {
    const BlockHash hash = name(below(40));
    if (sets[which].contains(hash)) return;
    Block block{.id = {},
                .cohort = static_cast<std::uint32_t>(below(4)),
                .length = static_cast<std::uint32_t>(1 + below(100'000)),
                .used = 0};
    block.used = static_cast<std::uint64_t>(tick());
    block.id = index.insert(trees[which], kNoBlock,
                            {.hash = hash, .slot = SlotId{ticks}, .position = block.length, .cohort = block.cohort},
                            Tick{block.used});
    sets[which].emplace(hash, block);
  }
  /// Of a cohort, or of all: the model's least recently used block without pins. The chain's end is pinned.
  BlockId oldest(std::optional<std::uint32_t> cohort) {
    const Block* best = nullptr;
    for (const Set& set : sets)
      for (const auto& [hash, block] : set)
        if (block.pins == 0 && (!cohort || block.cohort == *cohort) && (best == nullptr || block.used < best->used))
          best = &block;
    return best == nullptr ? kNoBlock : best->id;
  }
  void check() {
    ASSERT_EQ(index.check(), "");
    std::size_t count = 0;
    std::uint64_t bytes = 0;
    for (std::size_t which = 0; which < sets.size(); ++which) {
      std::vector<BlockHash> hashes;
      for (std::size_t i = 0; i < 40; ++i) hashes.push_back(name(below(40)));
      std::vector<BlockId> found(hashes.size());
      index.find_each(trees[which], hashes, found);
      for (std::size_t i = 0; i < hashes.size(); ++i) {
        const auto it = sets[which].find(hashes[i]);
        ASSERT_EQ(found[i], it == sets[which].end() ? kNoBlock : it->second.id);
      }
      std::uint64_t of_set = 0;
      for (const auto& [hash, block] : sets[which]) {
        ASSERT_EQ(index.hash(block.id), hash);
        ASSERT_EQ(index.position(block.id), block.length);
        ASSERT_TRUE(index.is_leaf_end(block.id));
        ASSERT_EQ(index.parent(block.id), kNoBlock);
        of_set += block.length;
      }
      ASSERT_EQ(index.total_bytes(trees[which]), of_set);
      count += sets[which].size();
      bytes += of_set;
    }
    ASSERT_EQ(index.set_totals().block_count, count);
    ASSERT_EQ(index.set_totals().bytes, bytes);
    ASSERT_EQ(index.match(chain, chain_hashes).block_count, chain_hashes.size());
    for (std::uint32_t cohort = 0; cohort < 4; ++cohort) ASSERT_EQ(index.oldest_leaf_end(cohort), oldest(cohort));
    ASSERT_EQ(index.oldest_leaf_end(), oldest(std::nullopt));
  }
  void step() {
    const std::size_t which = below(sets.size());
    Set& set = sets[which];
    if (set.empty() || below(3) == 0) return insert(which);
    auto it = set.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(below(set.size())));
    Block& block = it->second;
    switch (below(8)) {
      case 0:
      case 1: block.used = static_cast<std::uint64_t>(tick()); return index.touch(block.id, Tick{block.used});
      case 2: ++block.pins; return index.pin(block.id);
      case 3:
        if (block.pins == 0) return;
        --block.pins;
        return index.unpin(block.id);
      case 4:  // eviction
        if (const BlockId id = index.oldest_leaf_end(); id != kNoBlock) {
          ASSERT_EQ(id, oldest(std::nullopt));
          for (Set& each : sets) std::erase_if(each, [id](const auto& entry) { return entry.second.id == id; });
          index.remove_leaf_end(id);
        }
        return;
      case 5:  // a drop of one
        index.detach(block.id, 7);
        if (block.pins > 0) pinned_and_gone[block.id] = block.pins;
        set.erase(it);
        break;
      case 6:
        if (below(10) > 0) return;
        for (const auto& [hash, each] : set)
          if (each.pins > 0) pinned_and_gone[each.id] = each.pins;
        index.detach_all(trees[which], 7);
        set.clear();
        break;
      default:
        if (pinned_and_gone.empty()) return;
        const auto gone = pinned_and_gone.begin();
        index.unpin(gone->first);
        if (--gone->second > 0) return;
        if (!index.is_linked(gone->first)) index.forget(gone->first);
        pinned_and_gone.erase(gone);
        return;
    }
    Steps steps(below(2) == 0 ? 1'000'000 : below(200));  // all of it, or a part: the rest is out of sight
    index.reap(steps, [](BlockId, std::uint32_t label) { ASSERT_EQ(label, 7u); });
    while (index.has_detached()) {
      Steps more(1'000);
      index.reap(more, [](BlockId, std::uint32_t label) { ASSERT_EQ(label, 7u); });
    }
  }

  std::uint64_t seed = 0, ticks = 0;
  std::mt19937_64 random;
  PrefixIndex index{7};
  std::vector<TreeId> trees;
  std::vector<Set> sets;
  TreeId chain{};
  std::vector<BlockHash> chain_hashes;
  std::map<BlockId, int> pinned_and_gone;
};

TEST_F(SetIndexTest, BehavesLikeMapsWithAnOrderOfUse) {
  for (int i = 0; i < 20'000 && !HasFatalFailure(); ++i) {
    step();
    if (i % 7 == 0) check();
  }
  for (auto& [id, pins] : pinned_and_gone) {
    for (; pins > 0; --pins) index.unpin(id);
    if (!index.is_linked(id)) index.forget(id);
  }
  check();
}

TEST_F(SetIndexTest, ABlockWithoutPinsInABigSetIsFoundAndRemovedInStepsThatDoNotGrow) {
  for (std::uint64_t i = 0; i < 100'000; ++i)
    index.insert(trees[0], kNoBlock, {.hash = name(i), .slot = SlotId{i}, .position = 1, .cohort = 2}, tick());
  for (std::uint64_t i = 0; i < 1000; ++i) {
    Steps steps(1'000'000);
    ASSERT_EQ(index.hash(index.oldest_leaf_end(2, &steps)), name(i));
    ASSERT_LE(steps.used(), 2 * Steps::kLeaf);
    index.remove_leaf_end(index.oldest_leaf_end(2));
  }
  EXPECT_EQ(index.check(), "");
}

TEST_F(SetIndexTest, TheOldestOfAllIsFoundInStepsThatDoNotGrowWithTheCohorts) {
  constexpr std::uint64_t kCohorts = 3000;
  for (std::uint64_t i = 0; i < 2 * kCohorts; ++i) {
    const auto cohort = static_cast<std::uint32_t>(2 + i % kCohorts);
    index.insert(trees[0], kNoBlock, {.hash = name(i), .slot = SlotId{i}, .position = 1, .cohort = cohort}, tick());
  }
  for (std::uint64_t i = 0; i < 2 * kCohorts; ++i) {
    Steps steps(1'000'000);
    const BlockId oldest = index.oldest_leaf_end(&steps);
    ASSERT_EQ(index.hash(oldest), name(i));
    ASSERT_LE(steps.used(), 4 * Steps::kLeaf);  // the cohort before this one has another oldest leaf now, or none
    index.remove_leaf_end(oldest);
    if (i % 500 == 0) {
      ASSERT_EQ(index.check(), "");
    }
  }
  // Each use is paid for once, and in steps: a call that has few stops and goes on with the next.
  for (std::uint64_t i = 0; i < kCohorts; ++i) {
    const auto cohort = static_cast<std::uint32_t>(2 + i);
    index.insert(trees[0], kNoBlock, {.hash = name(i), .slot = SlotId{i}, .position = 1, .cohort = cohort}, tick());
  }
  std::vector<BlockId> used(kCohorts);
  std::vector<BlockHash> hashes;
  for (std::uint64_t i = 0; i < kCohorts; ++i) hashes.push_back(name(i));
  index.find_each(trees[0], hashes, used);
  for (const BlockId block : used) index.touch(block, tick());
  BlockId oldest = kNoBlock;
  std::size_t calls = 0;
  for (; oldest == kNoBlock && calls < 10'000; ++calls) {
    Steps steps(64 * Steps::kLeaf);
    oldest = index.oldest_leaf_end(&steps);
    ASSERT_LE(steps.used(), 64 * Steps::kLeaf);
  }
  EXPECT_EQ(oldest, used[0]);
  EXPECT_GT(calls, 10u);
  EXPECT_EQ(index.check(), "");
}

/// 230 bytes, as of a prompt of one block; and what a chain takes is what it took before there were sets.
TEST_F(SetIndexTest, ABlockOfASetTakesAtMost240Bytes) {
  const std::size_t before = index.used_bytes();
  for (std::uint64_t i = 0; i < 100'000; ++i)
    index.insert(trees[0], kNoBlock, {.hash = name(i), .slot = SlotId{i}, .position = 1, .cohort = 2}, tick());
  EXPECT_LE((index.used_bytes() - before) / 100'000, 240u);
}

/// Every slot length is a cohort. 1000 of them with a table of 20,000 positions each would take 80 MB.
TEST_F(SetIndexTest, MemoryDoesNotGrowWithBlocksTimesCohorts) {
  for (std::uint32_t i = 0; i < 20'000; ++i) {
    index.insert(trees[0], kNoBlock, {.hash = name(i), .slot = SlotId{i}, .position = 1, .cohort = i % 1000}, tick());
  }
  EXPECT_LT(index.memory_bytes(), 32u << 20);
  EXPECT_EQ(index.check(), "");
}

}  // namespace
}  // namespace kv
