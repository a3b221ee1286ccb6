// What an index knows of the uses of blocks, against a model that marks every block of every request; and the queues
// that leaf ends are sorted into by that. KV_SEED repeats a run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "index/prefix_index.h"

namespace kv {
namespace {

std::uint32_t queue_of(Usage usage) {
  const std::uint32_t uses = usage.use_count >= 8 ? 2 : usage.use_count >= 2 ? 1 : 0;
  return 2 * uses + (usage.passed > 1 ? 1 : 0);
}

BlockHash name(const std::vector<int>& path, std::size_t length) {
  BlockHash hash;
  std::uint64_t word = 1;
  for (std::size_t i = 0; i < length; ++i) word = (word + static_cast<std::uint64_t>(path[i]) + 1) * 0x9E3779B97F4A7C15;
  for (std::size_t i = 0; i < hash.bytes.size(); ++i) hash.bytes[i] = static_cast<std::byte>(word >> 8 * (i % 8));
  return hash;
}

class UsageTest : public testing::Test {
 protected:
  using Path = std::vector<int>;
  struct Known {
    std::uint32_t uses = 0;   ///< Of all requests ever that went through the block, gone or not.
    std::uint16_t trait = 0;  ///< Of the latest of these.
    std::size_t passed = 0;   ///< By so many blocks did that go beyond.
    BlockId block = kNoBlock;
    std::uint64_t recency = 0;
    bool is_pinned = false;
  };

  const std::uint64_t seed = std::getenv("KV_SEED") ? std::stoull(std::getenv("KV_SEED")) : std::random_device{}();
  std::mt19937_64 random{seed};
  PrefixIndex index{seed, LeafQueues{6, queue_of}};
  const TreeId tree = index.add_tree(2);
  std::map<Path, Known> known;
  std::uint64_t tick = 0;

  std::size_t below(std::size_t n) { return random() % n; }
  bool is_leaf(const Path& path) const {
    for (auto it = known.upper_bound(path);
         it != known.end() && it->first.size() > path.size() && std::equal(path.begin(), path.end(), it->first.begin());
         ++it)
      if (it->second.block != kNoBlock) return false;
    return true;
  }
  void mark(const Path& path, std::uint16_t trait) {
    for (std::size_t length = 1; length <= path.size(); ++length) {
      Known& block = known[Path(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(length))];
      ++block.uses;
      block.trait = trait;
      block.passed = path.size() - length;
      block.recency = tick;
    }
  }

  /// Finds what is here of a path, counts the use, and adds the rest.
  void request() {
    Path path;
    for (std::size_t left = 1 + below(7); left > 0; --left) path.push_back(static_cast<int>(below(3) * below(2)));
    const auto trait = static_cast<std::uint16_t>(below(1000));
    std::vector<BlockHash> hashes;
    for (std::size_t i = 1; i <= path.size(); ++i) hashes.push_back(name(path, i));
    const auto found = index.match(tree, hashes);
    ++tick;
    const auto left_over = [&](std::size_t count) { return static_cast<std::uint8_t>(path.size() - count); };
    if (found.block_count > 0) index.use(found.last, Tick{tick}, trait, left_over(found.block_count));
    mark(path, trait);
    BlockId above = found.last;
    for (std::size_t i = found.block_count; i < path.size(); ++i) {
      Known& block = known[Path(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(i) + 1)];
      const Usage usage{static_cast<std::uint8_t>(std::min(block.uses, 255u)), left_over(i + 1), block.trait};
      above = index.insert(tree, above, {hashes[i], SlotId{1}, static_cast<std::uint32_t>(i), {}, {}, 0, usage},
                           Tick{tick});
      block.block = above;
    }
  }

  std::map<Path, Known>::iterator any_here() {
    if (known.empty()) return known.end();
    auto it = known.begin();
    std::advance(it, below(known.size()));
    return it->second.block == kNoBlock ? known.end() : it;
  }

  void evict() {
    const auto queue = static_cast<std::uint32_t>(below(7));
    const BlockId block = queue < 6 ? index.oldest_leaf_end(2, queue, nullptr) : index.oldest_leaf_end(2);
    std::uint64_t oldest = ~std::uint64_t{0};
    Known* victim = nullptr;
    for (auto& [path, each] : known) {
      if (each.block == kNoBlock || each.is_pinned || !is_leaf(path)) continue;
      const Usage usage = index.usage(each.block);
      ASSERT_EQ(usage.use_count, std::min(each.uses, 255u)) << "seed " << seed;
      ASSERT_EQ(usage.trait, each.trait) << "seed " << seed;
      ASSERT_EQ(usage.passed, each.passed) << "seed " << seed;
      if (each.block == block) victim = &each;
      if (queue == 6 || queue_of(usage) == queue) oldest = std::min(oldest, each.recency);
    }
    // A leaf end whose latest use changed its queue may wait in the one before until its turn comes there.
    if (queue == 6) {
      ASSERT_EQ(victim == nullptr, oldest == ~std::uint64_t{0}) << "seed " << seed;
    }
    if (victim == nullptr) return;
    ASSERT_GE(victim->recency, oldest) << "seed " << seed;
    if (queue == 6) {
      ASSERT_EQ(victim->recency, oldest) << "seed " << seed;
    } else {
      ASSERT_EQ(queue_of(index.usage(block)), queue) << "seed " << seed;
    }
    ASSERT_EQ(index.cohort(block), 2u);
    if (queue < 6) {
      ASSERT_LT(queue, index.oldest_bounds(2).size());
      ASSERT_LE(index.oldest_bounds(2)[queue], Tick{victim->recency});
    }
    index.remove_leaf_end(block);
    victim->block = kNoBlock;
  }

  void cut_off() {
    const auto top = any_here();
    if (top == known.end()) return;
    index.detach(top->second.block, 1);
    Steps steps(1 << 20);
    index.reap(steps, [&](BlockId gone, std::uint32_t) {
      for (auto& [path, each] : known) {
        if (each.block != gone) continue;
        if (each.is_pinned) index.unpin(gone);
        each.is_pinned = false;
        each.block = kNoBlock;
      }
    });
  }
};

TEST_F(UsageTest, OfLeafEndsIsThatOfAllRequestsThatWentThrough) {
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  for (int i = 0; i < 20'000 && !HasFatalFailure(); ++i) {
    const std::size_t what = below(100);
    if (what < 55) {
      request();
    } else if (what < 90) {
      evict();
    } else if (what < 98) {
      if (const auto it = any_here(); it != known.end()) {
        it->second.is_pinned ? index.unpin(it->second.block) : index.pin(it->second.block);
        it->second.is_pinned = !it->second.is_pinned;
      }
    } else {
      cut_off();
    }
    if (i % 50 == 0) {
      ASSERT_EQ(index.check(), "");
    }
  }
}

TEST_F(UsageTest, ATouchIsNoUse) {
  request();
  const auto [path, block] = *known.rbegin();
  const Usage before = index.usage(block.block);
  index.touch(block.block, Tick{100});
  EXPECT_EQ(index.usage(block.block), before);
  EXPECT_EQ(index.recency(block.block), Tick{100});
}

TEST_F(UsageTest, ABlockThatIsUsedInAnotherWayChangesItsQueue) {
  const BlockHash hash = name({5}, 1);
  const BlockId block = index.insert(tree, kNoBlock, {hash, SlotId{1}, 0, {}, {}, 0, {.use_count = 1}}, Tick{1});
  EXPECT_EQ(index.oldest_leaf_end(2, 0, nullptr), block);
  index.use(block, Tick{2}, 0, 5);
  EXPECT_EQ(index.oldest_leaf_end(2, 0, nullptr), kNoBlock);
  EXPECT_EQ(index.oldest_leaf_end(2, 3, nullptr), block) << "two uses, the latest went on";
  EXPECT_EQ(index.oldest_bounds(2)[0], PrefixIndex::kNoTick);
  EXPECT_EQ(index.oldest_bounds(2)[3], Tick{2});
  EXPECT_TRUE(index.oldest_bounds(7).empty());
  EXPECT_EQ(index.check(), "");
}

}  // namespace
}  // namespace kv
