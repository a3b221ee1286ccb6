#include "index/prefix_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace kv {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

/// Prefixes are written as strings: each letter names a block, and a block's hash stands for all letters up to its own.
class PrefixIndexTest : public testing::Test {
 protected:
  explicit PrefixIndexTest(std::uint64_t hash_seed = 0) : index(hash_seed) {}

  PrefixIndex index;
  const TreeId tree = index.add_tree();
  std::uint64_t now = 0;

  ~PrefixIndexTest() override { EXPECT_EQ(index.check(), ""); }

  static BlockHash hash(const std::string& prefix) { return sha256(std::as_bytes(std::span(prefix))); }
  static std::vector<BlockHash> hashes(const std::string& prefix) {
    std::vector<BlockHash> list;
    for (std::size_t i = 1; i <= prefix.size(); ++i) list.push_back(hash(prefix.substr(0, i)));
    return list;
  }
  /// Stores what is not there yet of the prefix, all with one tick. Returns its last block.
  BlockId put(const std::string& prefix) {
    const auto chain = hashes(prefix);
    auto [count, last] = index.match(tree, chain);
    ++now;
    for (std::size_t i = count; i < chain.size(); ++i) {
      last = index.insert(tree, last, {chain[i], SlotId{now * 1000 + i}, static_cast<std::uint32_t>(i)}, Tick{now});
      EXPECT_EQ(index.check(), "");
    }
    return last;
  }
  std::size_t match(const std::string& prefix) const { return index.match(tree, hashes(prefix)).block_count; }
  BlockId block(const std::string& prefix) const {
    const auto found = index.match(tree, hashes(prefix));
    return found.block_count == prefix.size() ? found.last : kNoBlock;
  }
  void touch(const std::string& prefix) { index.touch(block(prefix), Tick{++now}); }
  /// Removes the oldest leaf end and returns its hash.
  BlockHash evict() {
    const BlockId oldest = index.oldest_leaf_end();
    const BlockHash gone = index.hash(oldest);
    index.remove_leaf_end(oldest);
    EXPECT_EQ(index.check(), "");
    return gone;
  }
  std::vector<BlockHash> unlink(BlockId block) {
    std::vector<BlockHash> gone;
    index.unlink_subtree(block, [&](BlockId id) { gone.push_back(index.hash(id)); });
    EXPECT_EQ(index.check(), "");
    return gone;
  }
};

TEST_F(PrefixIndexTest, EmptyTreeMatchesNothing) {
  EXPECT_EQ(match("abc"), 0u);
  EXPECT_EQ(match(""), 0u);
  EXPECT_EQ(index.oldest_leaf_end(), kNoBlock);
  EXPECT_EQ(index.match(tree, {}).last, kNoBlock);
}

TEST_F(PrefixIndexTest, LongestPrefixIsFoundAndNoMore) {
  put("abcd");
  EXPECT_EQ(match("abcd"), 4u);
  EXPECT_EQ(match("ab"), 2u);
  EXPECT_EQ(match("abxd"), 2u) << "the same letter behind another prefix is another block";
  EXPECT_EQ(match("abcdef"), 4u);
  EXPECT_EQ(match("xbcd"), 0u);
}

TEST_F(PrefixIndexTest, EqualHashesAreMatchedOneByOne) {
  const BlockId a = index.insert(tree, kNoBlock, {hash("1"), SlotId{1}, 0}, Tick{1});
  const BlockId b = index.insert(tree, a, {hash("2"), SlotId{2}, 1}, Tick{1});
  index.insert(tree, b, {hash("3"), SlotId{3}, 2}, Tick{1});
  // A caller whose chain does not bind its prefix: the last hash agrees, the one before does not.
  EXPECT_EQ(index.match(tree, std::vector{hash("1"), hash("x"), hash("3")}).block_count, 1u);
}

TEST_F(PrefixIndexTest, DivergingPrefixesShareTheirBlocks) {
  const BlockId d = put("abcd");
  const BlockId y = put("abxy");
  EXPECT_EQ(index.block_count(), 6u);
  EXPECT_EQ(match("abcd"), 4u);
  EXPECT_EQ(match("abxy"), 4u);
  EXPECT_EQ(block("abcd"), d) << "a BlockId outlives a split";
  EXPECT_EQ(block("abxy"), y);
  EXPECT_EQ(index.parent(block("abc")), block("ab"));
  EXPECT_EQ(index.parent(block("abx")), block("ab"));
  EXPECT_EQ(index.parent(block("a")), kNoBlock);
}

TEST_F(PrefixIndexTest, BlocksOfAPrefixComeFirstToLastAcrossEdges) {
  put("abcdefgh");
  put("abcxy");
  put("abcdez");
  for (const std::string prefix : {"a", "abc", "abcdefgh", "abcdez", "abcxy", "abcx"}) {
    const auto found = index.match(tree, hashes(prefix));
    std::vector<BlockId> blocks(found.block_count);
    index.blocks_of(found, blocks);
    for (std::size_t i = 0; i < prefix.size(); ++i) EXPECT_EQ(blocks[i], block(prefix.substr(0, i + 1)));
  }
}

TEST_F(PrefixIndexTest, TreesAreApart) {
  put("ab");
  const TreeId other = index.add_tree();
  EXPECT_EQ(index.match(other, hashes("ab")).block_count, 0u);
  index.insert(other, kNoBlock, {hash("a"), SlotId{7}, 0}, Tick{9});
  EXPECT_EQ(index.match(other, hashes("ab")).block_count, 1u);
  EXPECT_EQ(index.block_count(), 3u);
  EXPECT_EQ(index.block_count(tree), 2u);
  EXPECT_EQ(index.block_count(other), 1u);
  EXPECT_EQ(index.tree(block("ab")), tree);
}

TEST_F(PrefixIndexTest, BlockRemembersWhatItWasGiven) {
  const BlockId a = index.insert(tree, kNoBlock, {hash("a"), SlotId{77}, 5}, Tick{3});
  EXPECT_EQ(index.hash(a), hash("a"));
  EXPECT_EQ(index.slot(a), SlotId{77});
  EXPECT_EQ(index.position(a), 5u);
  EXPECT_EQ(index.recency(a), Tick{3});
  EXPECT_EQ(index.pin_count(a), 0u);
  index.set_slot(a, SlotId{78});
  EXPECT_EQ(index.slot(a), SlotId{78});
}

TEST_F(PrefixIndexTest, ChildIsFoundInsideAnEdgeAndAtItsEnd) {
  put("abcd");
  put("abxy");
  EXPECT_EQ(index.find_child(tree, kNoBlock, hash("a")), block("a"));
  EXPECT_EQ(index.find_child(tree, block("a"), hash("ab")), block("ab"));
  EXPECT_EQ(index.find_child(tree, block("ab"), hash("abx")), block("abx"));
  EXPECT_EQ(index.find_child(tree, block("ab"), hash("abz")), kNoBlock);
  EXPECT_EQ(index.find_child(tree, block("abcd"), hash("abcde")), kNoBlock);
}

TEST_F(PrefixIndexTest, OnlyLeafEndsAreLeafEnds) {  // invariant 1
  put("abc");
  put("abx");
  EXPECT_FALSE(index.is_leaf_end(block("a")));
  EXPECT_FALSE(index.is_leaf_end(block("ab")));
  EXPECT_TRUE(index.is_leaf_end(block("abc")));
  EXPECT_TRUE(index.is_leaf_end(block("abx")));
  EXPECT_DEATH(index.remove_leaf_end(block("ab")), "is_leaf_end");
}

TEST_F(PrefixIndexTest, LeafEndsGoLeastRecentFirstAndPrefixesAfterAllBelowThem) {
  put("ab");
  put("ac");
  put("d");
  touch("ab");
  EXPECT_EQ(evict(), hash("ac"));
  EXPECT_EQ(evict(), hash("d"));
  EXPECT_EQ(evict(), hash("ab"));
  EXPECT_EQ(evict(), hash("a"));
  EXPECT_EQ(index.oldest_leaf_end(), kNoBlock);
  EXPECT_EQ(index.block_count(), 0u);
}

TEST_F(PrefixIndexTest, TouchedLastBlockKeepsItsWholePrefixRecent) {  // invariant 3
  put("abc");                                                         // tick 1
  put("xyz");                                                         // tick 2
  touch("abc");
  EXPECT_EQ(evict(), hash("xyz"));
  EXPECT_EQ(evict(), hash("xy"));
  EXPECT_EQ(evict(), hash("x"));
  EXPECT_EQ(evict(), hash("abc"));
  EXPECT_EQ(index.recency(block("ab")), Tick{3}) << "inherited from the block that was below";
}

TEST_F(PrefixIndexTest, TouchWithAnOlderTickChangesNothing) {
  put("a");
  put("b");
  index.touch(block("b"), Tick{0});
  EXPECT_EQ(index.recency(block("b")), Tick{2});
}

TEST_F(PrefixIndexTest, OlderBlockAppendedToARecentLeafIsEvictedInItsOwnTurn) {
  put("a"), put("b");
  touch("a");
  index.insert(tree, block("a"), {hash("ac"), SlotId{1}, 1}, Tick{1});
  EXPECT_EQ(evict(), hash("ac"));
  EXPECT_EQ(evict(), hash("b"));
}

TEST_F(PrefixIndexTest, PinnedLeafEndIsNeverTheOldest) {  // invariant 4
  put("ab");
  put("cd");
  index.pin(block("ab"));
  index.pin(block("ab"));
  EXPECT_EQ(evict(), hash("cd"));
  EXPECT_EQ(evict(), hash("c"));
  EXPECT_EQ(index.oldest_leaf_end(), kNoBlock) << "neither a pinned block nor its prefix";
  index.unpin(block("ab"));
  EXPECT_EQ(index.oldest_leaf_end(), kNoBlock) << "one pin is left";
  index.unpin(block("ab"));
  EXPECT_EQ(evict(), hash("ab"));
  EXPECT_DEATH(index.unpin(block("a")), "pin_count > 0");
}

TEST_F(PrefixIndexTest, PinnedBlockInTheMiddleKeepsItsPrefixOnceItIsTheEnd) {
  put("abc");
  index.pin(block("ab"));
  EXPECT_EQ(evict(), hash("abc"));
  EXPECT_EQ(index.oldest_leaf_end(), kNoBlock);
  EXPECT_DEATH(index.remove_leaf_end(block("ab")), "pin_count");
  index.unpin(block("ab"));
  EXPECT_EQ(evict(), hash("ab"));
}

TEST_F(PrefixIndexTest, BlockIdIsUsedAgainAfterRemoval) {
  const BlockId b = put("ab");
  index.remove_leaf_end(b);
  EXPECT_FALSE(index.is_linked(b));
  EXPECT_EQ(put("c"), b);
  EXPECT_DEATH(index.slot(BlockId{12345}), "is_known");
}

TEST_F(PrefixIndexTest, SplitEdgesJoinAgainOnceTheirBranchesAreGone) {
  for (const char* prefix : {"abcdefgh", "abx", "abcdy", "abcdefz"}) put(prefix);
  const std::size_t split_bytes = index.memory_bytes();
  for (const char* prefix : {"abx", "abcdy", "abcdefz"}) index.remove_leaf_end(block(prefix));
  EXPECT_EQ(match("abcdefgh"), 8u);
  EXPECT_LT(index.memory_bytes(), split_bytes);
}

TEST_F(PrefixIndexTest, SubtreeVanishesAtOnceChildrenBeforeParents) {
  put("abcd");
  put("abxy");
  put("az");
  EXPECT_THAT(unlink(block("abc")), ElementsAre(hash("abcd"), hash("abc")));
  EXPECT_EQ(match("abcd"), 2u);
  EXPECT_EQ(match("abxy"), 4u);
  const auto gone = unlink(block("a"));
  EXPECT_THAT(gone, UnorderedElementsAre(hash("a"), hash("ab"), hash("abx"), hash("abxy"), hash("az")));
  EXPECT_EQ(gone.back(), hash("a"));
  EXPECT_EQ(index.block_count(), 0u);
}

TEST_F(PrefixIndexTest, UnlinkingInsideAnEdgeKeepsItsUpperPart) {
  put("abcd");
  EXPECT_THAT(unlink(block("abc")), ElementsAre(hash("abcd"), hash("abc")));
  EXPECT_EQ(match("abcd"), 2u);
  EXPECT_TRUE(index.is_leaf_end(block("ab")));
  put("abce");
  EXPECT_EQ(match("abce"), 4u);
}

TEST_F(PrefixIndexTest, UnlinkedSubtreeLeavesItsRecencyToTheBlockAbove) {  // invariant 3
  put("ab"), put("c");
  touch("ab");
  unlink(block("ab"));
  EXPECT_EQ(evict(), hash("c"));
}

TEST_F(PrefixIndexTest, PinnedBlockOfAnUnlinkedSubtreeIsKnownUntilItIsForgotten) {
  const BlockId c = put("abc");
  const BlockId b = block("ab");
  index.pin(b);
  unlink(block("a"));
  EXPECT_EQ(index.block_count(), 0u);
  EXPECT_FALSE(index.is_linked(b));
  EXPECT_FALSE(index.is_linked(c));
  EXPECT_EQ(index.pin_count(b), 1u);
  EXPECT_EQ(index.hash(b), hash("ab"));
  EXPECT_EQ(index.tree(b), tree);
  EXPECT_DEATH(index.forget(b), "pin_count");
  const BlockId again = put("ab");
  EXPECT_NE(again, b) << "its BlockId is not free yet";
  EXPECT_FALSE(index.is_leaf_end(b));
  index.unpin(b);
  EXPECT_DEATH(index.forget(again), "kUnlinkedNode");
  index.forget(b);
  EXPECT_EQ(match("ab"), 2u);
}

TEST_F(PrefixIndexTest, RemovedBlockMayBeUnpinnedWhileItIsHandedOut) {
  const BlockId b = put("ab");
  index.pin(b);
  index.unlink_subtree(block("a"), [&](BlockId id) {
    if (id == b) index.unpin(b);
  });
  EXPECT_DEATH(index.forget(b), "is_known");
}

TEST_F(PrefixIndexTest, DeepTreeThatBranchesAtEachBlockIsUnlinkedWithoutRecursion) {
  constexpr int kDepth = 65536;
  std::vector<BlockHash> chain(kDepth);
  for (int i = 0; i < kDepth; ++i) chain[i] = hash(std::to_string(i));
  BlockId last = kNoBlock;
  for (std::uint32_t i = 0; i < kDepth; ++i) {
    const BlockId parent = last;
    last = index.insert(tree, parent, {chain[i], SlotId{i}, i}, Tick{1});
    index.insert(tree, parent, {hash("side" + std::to_string(i)), SlotId{i}, i}, Tick{1});
  }
  EXPECT_EQ(index.match(tree, chain).block_count, chain.size());
  std::vector<BlockId> blocks(chain.size());
  index.blocks_of(index.match(tree, chain), blocks);
  std::size_t count = 0;
  index.unlink_subtree(blocks[1], [&](BlockId) { ++count; });
  EXPECT_EQ(count, 2u * kDepth - 3);
  EXPECT_EQ(index.check(), "");
}

TEST_F(PrefixIndexTest, EveryBlockIsVisitedAfterItsParent) {
  put("abcd"), put("abx"), put("q");
  std::vector<BlockId> seen;
  index.for_each(tree, [&](BlockId id) {
    const BlockId parent = index.parent(id);
    EXPECT_TRUE(parent == kNoBlock || std::find(seen.begin(), seen.end(), parent) != seen.end());
    seen.push_back(id);
  });
  EXPECT_EQ(seen.size(), 6u);
}

TEST_F(PrefixIndexTest, WhatLiesBelowABlockIsVisitedWithinTheStepsAndEndsAtItsLeafEnds) {
  for (const auto* prefix : {"abcdef", "abcx", "abcdyz", "abq", "k"}) put(prefix);
  for (char c = 'A'; c <= 'Z'; ++c) put(std::string("abcd") + c);
  const auto below = [&](const std::string& top, std::size_t steps_max, std::size_t count_max) {
    std::vector<BlockId> seen = {block(top)};
    Steps steps(steps_max);
    index.visit_below(block(top), steps, [&](BlockId id) {
      EXPECT_NE(std::ranges::find(seen, index.parent(id)), seen.end()) << "after the block above";
      EXPECT_EQ(std::ranges::find(seen, id), seen.end()) << "once";
      index.pin(id);
      seen.push_back(id);
      return seen.size() <= count_max;
    });
    for (std::size_t i = 1; i < seen.size(); ++i) index.unpin(seen[i]);
    return seen.size() - 1;
  };
  EXPECT_EQ(below("abc", 10'000, 1000), 1u + 2 + 1 + 2 + 26);
  EXPECT_EQ(below("abcd", 10'000, 1000), 2u + 2 + 26);
  EXPECT_EQ(below("abcde", 10'000, 1000), 1u);
  EXPECT_EQ(below("abcdef", 10'000, 1000), 0u);
  EXPECT_EQ(below("ab", 10'000, 5), 5u);
  EXPECT_EQ(below("ab", 2 * Steps::kBlock, 1000), 2u);
  EXPECT_LE(below("ab", 8 * Steps::kBlock, 1000), 8u);
  Steps steps(1000);
  EXPECT_EQ(index.leaf_end_below(block("k"), steps), block("k"));
  EXPECT_EQ(index.leaf_end_below(block("abcde"), steps), block("abcdef"));
  const BlockId end = index.leaf_end_below(block("a"), steps);
  EXPECT_TRUE(index.is_leaf_end(end));
  EXPECT_EQ(index.leaf_end_below(block("a"), steps), end);
}

TEST_F(PrefixIndexTest, EdgesAreVisitedEachAfterTheOneAboveItWithinTheSteps) {
  for (const auto* prefix : {"abcdef", "abcx", "abcdyz", "k"}) put(prefix);
  const PrefixIndex::Edge edge = index.edge(block("ab"));
  EXPECT_EQ(edge.first, block("a"));
  EXPECT_EQ(edge.last, block("abc"));
  EXPECT_EQ(edge.block_count, 3u);
  EXPECT_EQ(edge.depth, 0u);
  EXPECT_EQ(edge.child_count, 2u);
  EXPECT_EQ(index.edge(block("abcdyz")).depth, 4u);
  const auto visit = [&](BlockId top, std::size_t steps_max) {
    std::vector<BlockId> lasts;
    Steps steps(steps_max);
    const bool is_whole = index.visit_edges(tree, top, steps, [&](const PrefixIndex::Edge& each) {
      if (each.first != top && index.parent(each.first) != kNoBlock) {
        EXPECT_NE(std::ranges::find(lasts, index.parent(each.first)), lasts.end()) << "after the edge above";
      }
      lasts.push_back(each.last);
      return true;
    });
    return std::pair(is_whole, lasts.size());
  };
  EXPECT_EQ(visit(kNoBlock, 1000), std::pair(true, std::size_t{6}));  // abc, d, ef, yz, x, k
  EXPECT_EQ(visit(block("abcd"), 1000), std::pair(true, std::size_t{3}));
  EXPECT_EQ(visit(block("k"), 1000), std::pair(true, std::size_t{1}));
  EXPECT_FALSE(visit(kNoBlock, 2 * Steps::kBlock).first);
  EXPECT_LE(visit(kNoBlock, 2 * Steps::kBlock).second, 2u);
}

class SeededPrefixIndexTest : public PrefixIndexTest {
 protected:
  SeededPrefixIndexTest() : PrefixIndexTest(0xDEADBEEF) {}
};

TEST_F(SeededPrefixIndexTest, HashSeedChangesNoAnswer) {
  put("abcd"), put("abxy"), put("q");
  EXPECT_EQ(match("abxyz"), 4u);
  EXPECT_EQ(match("q"), 1u);
}

class PartialBlockTest : public PrefixIndexTest {
 protected:
  BlockId put_tokens(BlockId parent, const std::string& name, std::uint32_t position, std::vector<std::uint32_t> ids,
                     const ExtraDigest& extra = {}) {
    return index.insert(tree, parent, {hash(name), SlotId{0}, position, ids, extra}, Tick{++now});
  }
  PrefixIndex::PartialBlock partial(BlockId parent, std::vector<std::uint32_t> ids,
                                    const ExtraDigest& extra = {}) const {
    return index.match_partial(tree, parent, ids, extra);
  }
};

TEST_F(PartialBlockTest, EqualTokensWithAnotherExtraAreNoCandidates) {
  const auto image = [](std::string_view name) { return extra_digest(std::as_bytes(std::span(name))); };
  const ExtraDigest cat = image("cat"), dog = image("dog");
  const BlockId of_cat = put_tokens(kNoBlock, "a", 0, {7, 7, 7, 1}, cat);
  EXPECT_EQ(partial(kNoBlock, {7, 7, 7, 2}, dog).token_count, 0u) << "the only one";
  EXPECT_EQ(partial(kNoBlock, {7, 7, 7, 1}).token_count, 0u) << "placeholders without an image";
  EXPECT_EQ(partial(kNoBlock, {7, 7, 7, 2}, cat).token_count, 3u);
  const BlockId of_dog = put_tokens(kNoBlock, "b", 0, {7, 7, 8, 1}, dog);
  const BlockId of_none = put_tokens(kNoBlock, "c", 0, {7, 8, 8, 1});
  EXPECT_EQ(partial(kNoBlock, {7, 7, 7, 1}, dog).block, of_dog);
  EXPECT_EQ(partial(kNoBlock, {7, 7, 7, 1}, dog).token_count, 2u);
  EXPECT_EQ(partial(kNoBlock, {7, 7, 7, 1}, cat).block, of_cat);
  EXPECT_EQ(partial(kNoBlock, {7, 7, 7, 1}).block, of_none);
  const BlockId next = put_tokens(of_cat, "d", 1, {1, 2, 3, 4}, dog);  // inside an edge
  EXPECT_EQ(partial(of_cat, {1, 2, 3, 4}, cat).token_count, 0u);
  EXPECT_EQ(partial(of_cat, {1, 2, 3, 5}, dog).block, next);
}

TEST_F(PartialBlockTest, SiblingWithTheMostLeadingTokensInCommonIsFound) {
  const BlockId root = put_tokens(kNoBlock, "root", 0, {9, 9, 9, 9});
  const BlockId a = put_tokens(root, "a", 1, {1, 2, 3, 4});
  const BlockId b = put_tokens(root, "b", 1, {1, 2, 5, 6});
  put_tokens(root, "c", 1, {7, 7, 7, 7});
  const auto expect = [&](std::vector<std::uint32_t> ids, std::size_t count, BlockId block) {
    const auto found = partial(root, ids);
    EXPECT_EQ(found.token_count, count);
    if (count != 2) {  // two of them share two
      EXPECT_EQ(found.block, block);
    }
  };
  expect({1, 2, 3, 9}, 3, a);
  expect({1, 2, 5, 6}, 4, b);
  expect({1, 2, 5}, 3, b);
  expect({1, 2, 4, 4}, 2, a);
  expect({2, 2, 3, 4}, 0, kNoBlock);
  expect({}, 0, kNoBlock);
  EXPECT_EQ(partial(kNoBlock, {9, 9, 1, 1}).block, root);
  EXPECT_EQ(partial(a, {1, 2, 3, 4}).token_count, 0u);
}

TEST_F(PartialBlockTest, NextBlockInsideAnEdgeIsACandidate) {
  const BlockId a = put_tokens(kNoBlock, "a", 0, {1, 1});
  const BlockId b = put_tokens(a, "b", 1, {2, 2});
  EXPECT_EQ(partial(a, {2, 3}).block, b);
  EXPECT_EQ(partial(a, {2, 3}).token_count, 1u);
  EXPECT_EQ(partial(a, {3, 3}).token_count, 0u);
}

TEST_F(PartialBlockTest, BlockThatDoesNotDirectlyFollowIsNoCandidate) {
  const BlockId a = put_tokens(kNoBlock, "a", 0, {1, 1});
  put_tokens(a, "c", 2, {2, 2});  // block 1 lies on another node
  EXPECT_EQ(partial(a, {2, 2}).token_count, 0u);
  put_tokens(a, "d", 3, {2, 2});  // now at the end of an edge
  EXPECT_EQ(partial(a, {2, 2}).token_count, 0u);
  const BlockId b = put_tokens(a, "b", 1, {2, 2});
  EXPECT_EQ(partial(a, {2, 2}).block, b);
  put_tokens(kNoBlock, "e", 4, {5, 5});
  EXPECT_EQ(partial(kNoBlock, {5, 5}).token_count, 0u);
}

TEST_F(PartialBlockTest, BlocksWithoutTokensAndRemovedBlocksAreNoCandidates) {
  put("a");
  const BlockId x = put_tokens(kNoBlock, "x", 0, {1, 2});
  put_tokens(kNoBlock, "y", 0, {1, 2});
  EXPECT_EQ(partial(kNoBlock, {1, 2}).token_count, 2u);
  index.remove_leaf_end(x);
  EXPECT_EQ(partial(kNoBlock, {1, 2}).token_count, 2u) << "the other one of the same tokens";
  unlink(index.find_child(tree, kNoBlock, hash("y")));
  EXPECT_EQ(partial(kNoBlock, {1, 2}).token_count, 0u);
}

}  // namespace
}  // namespace kv
