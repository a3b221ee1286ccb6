// Plans for the documents' examples, and for random batches: the tree against brute force, and attention over each plan
// against attention sequence by sequence. KV_SEED repeats a run.
#include "gpu/paging/shared_prefix_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "gpu/paging/cascade_plan.h"
#include "gpu/paging/chunk_plan.h"
#include "page_names.h"
#include "reference_attention.h"

namespace kv {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

PlannedBlock shared(std::uint64_t name, int page, int token_count) {
  return {.name = name_of(name), .page = PageId{page}, .token_count = token_count};
}
PlannedBlock own(int page, int token_count) { return {.name = {}, .page = PageId{page}, .token_count = token_count}; }

/// R: 4 tokens in pages 1 and 2. A: 3 tokens in pages 3 and 4, for r0 and r1. B: 2 tokens in page 5, for r2 and r3.
class CascadeExampleTest : public testing::Test {
 protected:
  const PlannedBlock r1 = shared(1, 1, 2), r2 = shared(2, 2, 2), a1 = shared(3, 3, 2), a2 = shared(4, 4, 1),
                     b = shared(5, 5, 2);
  std::vector<PlannedBlock> s0 = {r1, r2, a1, a2, own(6, 1)}, s1 = {r1, r2, a1, a2, own(7, 2), own(8, 1)},
                            s2 = {r1, r2, b, own(9, 2)}, s3 = {r1, r2, b, own(10, 1)};
};

TEST_F(CascadeExampleTest, EachLevelIsOnePageTable) {
  const std::vector<PlannedSequence> batch = {{s0}, {s1}, {s2}, {s3}};
  const auto tree = plan_shared_prefixes(batch, {.block_size = 2});
  ASSERT_TRUE(tree);
  EXPECT_THAT(tree->order, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(tree->runs, ElementsAre(SharedRun{0, 0, 4, 0, 2}, SharedRun{1, 0, 2, 2, 4}, SharedRun{1, 2, 4, 2, 3}));
  const auto plan = plan_cascade(*tree);
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->levels.size(), 3u);
  EXPECT_THAT(plan->levels[0].query_indptr, ElementsAre(0, 4));
  EXPECT_THAT(plan->levels[0].page_indptr, ElementsAre(0, 2));
  EXPECT_THAT(plan->levels[0].page_indices, ElementsAre(1, 2));
  EXPECT_THAT(plan->levels[0].last_page_tokens, ElementsAre(2));
  EXPECT_THAT(plan->levels[1].query_indptr, ElementsAre(0, 2, 4));
  EXPECT_THAT(plan->levels[1].page_indptr, ElementsAre(0, 2, 3));
  EXPECT_THAT(plan->levels[1].page_indices, ElementsAre(3, 4, 5));
  EXPECT_THAT(plan->levels[1].last_page_tokens, ElementsAre(1, 2));
  EXPECT_THAT(plan->levels[2].query_indptr, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(plan->levels[2].page_indptr, ElementsAre(0, 1, 3, 4, 5));
  EXPECT_THAT(plan->levels[2].page_indices, ElementsAre(6, 7, 8, 9, 10));
  EXPECT_THAT(plan->levels[2].last_page_tokens, ElementsAre(1, 1, 2, 1));
}

TEST_F(CascadeExampleTest, SeveralQueriesOfASequenceCountOnEveryLevel) {
  s0.back().token_count = 2;
  s2.push_back(own(11, 1));
  const std::vector<PlannedSequence> batch = {{s0, 2}, {s1, 1}, {s2, 3}, {s3, 1}};
  const auto tree = plan_shared_prefixes(batch, {.block_size = 2});
  const auto plan = plan_cascade(*tree);
  EXPECT_THAT(plan->levels[0].query_indptr, ElementsAre(0, 7));
  EXPECT_THAT(plan->levels[1].query_indptr, ElementsAre(0, 3, 7));
  EXPECT_THAT(plan->levels[2].query_indptr, ElementsAre(0, 2, 3, 6, 7));
}

TEST_F(CascadeExampleTest, TheBatchIsSortedSoThatSharersAreNeighbours) {
  const std::vector<PlannedSequence> batch = {{s2}, {s0}, {s3}, {s1}};
  const auto tree = plan_shared_prefixes(batch, {.block_size = 2});
  EXPECT_THAT(tree->order, ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(tree->runs, ElementsAre(SharedRun{0, 0, 4, 0, 2}, SharedRun{1, 0, 2, 2, 3}, SharedRun{1, 2, 4, 2, 4}));
}

TEST_F(CascadeExampleTest, ASequenceThatSharesNothingOnALevelHasNoPagesThere) {
  std::vector<PlannedBlock> alone = {own(12, 2), own(13, 1)}, half = {r1, r2, own(14, 1)};
  const std::vector<PlannedSequence> batch = {{alone}, {s0}, {half}, {s1}, {alone}};
  const auto tree = plan_shared_prefixes(batch, {.block_size = 2});
  EXPECT_THAT(tree->order, ElementsAre(0, 1, 3, 2, 4));
  const auto plan = plan_cascade(*tree);
  EXPECT_THAT(plan->levels[0].query_indptr, ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(plan->levels[0].page_indptr, ElementsAre(0, 0, 2, 2));
  EXPECT_THAT(plan->levels[0].last_page_tokens, ElementsAre(0, 2, 0));
  EXPECT_THAT(plan->levels[1].query_indptr, ElementsAre(0, 1, 3, 5));
  EXPECT_THAT(plan->levels[1].page_indices, ElementsAre(3, 4));
}

TEST_F(CascadeExampleTest, WhatIsSharedBelowTheLastLevelIsReadByEachForItself) {
  s0[3].token_count = s1[3].token_count = 2;
  const std::vector<PlannedSequence> batch = {{s0}, {s1}, {s2}, {s3}};
  const auto tree = plan_shared_prefixes(batch, {.block_size = 2});
  const auto two = plan_cascade(*tree, 2), one = plan_cascade(*tree, 1);
  ASSERT_EQ(two->levels.size(), 2u);
  EXPECT_THAT(two->levels[0].page_indices, ElementsAre(1, 2));
  EXPECT_THAT(two->levels[1].page_indices, ElementsAre(3, 4, 6, 3, 4, 7, 8, 5, 9, 5, 10));
  ASSERT_EQ(one->levels.size(), 1u);
  EXPECT_THAT(one->levels[0].page_indptr, ElementsAre(0, 5, 11, 15, 19));
}

TEST_F(CascadeExampleTest, APartialPageInTheMiddleNeedsItsLevel) {
  const std::vector<PlannedSequence> batch = {{s0}, {s1}};
  const auto tree = plan_shared_prefixes(batch, {.block_size = 2});
  EXPECT_EQ(plan_cascade(*tree, 1).error(), Errc::kUnsupported);
  const std::vector<PlannedSequence> single = {{s0}};  // a level of its own even if nobody shares it
  const auto single_tree = plan_shared_prefixes(single, {.block_size = 2});
  EXPECT_THAT(single_tree->runs, ElementsAre(SharedRun{0, 0, 1, 0, 4}));
}

/// c = 4. S0: R, A, 2 tokens; S1: R, A, 1 token; S2: R, 3 tokens.
TEST(ChunkPlanTest, SharedChunksComeFirst) {
  const PlannedBlock r = shared(1, 1, 4), a = shared(2, 2, 4);
  const std::vector<PlannedBlock> s0 = {r, a, own(3, 2)}, s1 = {r, a, own(4, 1)}, s2 = {r, own(5, 3)};
  const std::vector<PlannedSequence> batch = {{s0}, {s1}, {s2}};
  const auto tree = plan_shared_prefixes(batch, {.block_size = 4});
  const auto plan = plan_chunks(*tree);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->shared_count(), 2u);
  EXPECT_EQ(plan->pages, pages({1, 2, 3, 4, 5}));
  EXPECT_THAT(plan->token_counts, ElementsAre(4, 4, 2, 1, 3));
  EXPECT_THAT(plan->begins, ElementsAre(0, 0));
  EXPECT_THAT(plan->ends, ElementsAre(3, 2));
  EXPECT_THAT(plan->offsets, ElementsAre(0, 3));
  EXPECT_EQ(plan->partial_row_count, 5);
  EXPECT_EQ(plan->chunk_count_max, 3u);
  EXPECT_THAT(plan->sequence_chunks, ElementsAre(0, 1, 2, 0, 1, 3, 0, 4, -1));
  EXPECT_THAT(plan->sequence_tokens, ElementsAre(10, 9, 7));

  const auto strict = plan_chunks(*tree, /*sharing_threshold=*/2);  // A is in two only
  EXPECT_EQ(strict->shared_count(), 1u);
  EXPECT_THAT(strict->sequence_chunks, ElementsAre(0, 1, 2, 0, 3, 4, 0, 5, -1));
  EXPECT_EQ(strict->pages, pages({1, 2, 3, 2, 4, 5}));
}

TEST(ChunkPlanTest, ItIsForDecodingOnly) {
  const std::vector<PlannedBlock> blocks = {own(1, 4)};
  const std::vector<PlannedSequence> batch = {{blocks, 2}};
  EXPECT_EQ(plan_chunks(*plan_shared_prefixes(batch, {.block_size = 4})).error(), Errc::kUnsupported);
}

TEST(SharedPrefixPlanTest, BlocksThatHoldQueriesAreNotShared) {
  const std::vector<PlannedBlock> blocks = {shared(1, 1, 2), shared(2, 2, 2), shared(3, 3, 2)};
  const std::vector<PlannedSequence> twins = {{blocks, 1}, {blocks, 3}};
  const auto tree = plan_shared_prefixes(twins, {.block_size = 2});
  EXPECT_THAT(tree->runs, ElementsAre(SharedRun{0, 0, 2, 0, 1}));
  EXPECT_THAT(tree->tail_begin, ElementsAre(1, 1));
}

TEST(SharedPrefixPlanTest, FewerThanTheMinimumShareNothing) {
  const std::vector<PlannedBlock> a = {shared(1, 1, 2), own(2, 1)}, b = {shared(1, 1, 2), own(3, 1)};
  const std::vector<PlannedSequence> batch = {{a}, {b}};
  EXPECT_THAT(plan_shared_prefixes(batch, {.block_size = 2, .sequence_count_min = 3})->runs, IsEmpty());
  EXPECT_EQ(plan_shared_prefixes(batch, {.block_size = 2, .sequence_count_min = 2})->runs.size(), 1u);
}

TEST(SharedPrefixPlanTest, AnEmptyBatchHasAnEmptyPlan) {
  const auto tree = plan_shared_prefixes({}, {.block_size = 2});
  ASSERT_TRUE(tree);
  EXPECT_THAT(plan_cascade(*tree)->levels[0].query_indptr, ElementsAre(0));
  EXPECT_EQ(plan_chunks(*tree)->chunk_count_max, 0u);
}

TEST(SharedPrefixPlanTest, ABatchThatCannotBeIsRefused) {
  const auto refuses = [](std::vector<PlannedBlock> a, std::int32_t query_count, std::vector<PlannedBlock> b = {}) {
    std::vector<PlannedSequence> batch = {{a, query_count}};
    if (!b.empty()) batch.push_back({b, 1});
    const auto tree = plan_shared_prefixes(batch, {.block_size = 4});
    return !tree && tree.error() == Errc::kBadRequest;
  };
  EXPECT_TRUE(refuses({}, 1));
  EXPECT_TRUE(refuses({own(1, 4)}, 0));
  EXPECT_TRUE(refuses({own(1, 4)}, 5));
  EXPECT_TRUE(refuses({own(0, 4)}, 1));  // the null page
  EXPECT_TRUE(refuses({own(-1, 4)}, 1));
  EXPECT_TRUE(refuses({own(1, 5)}, 1));
  EXPECT_TRUE(refuses({own(1, 0)}, 1));
  EXPECT_TRUE(refuses({own(1, 3), own(2, 4)}, 5));  // a query sits before the partial page's end
  EXPECT_FALSE(refuses({own(1, 3), own(2, 4)}, 4));
  EXPECT_TRUE(refuses({shared(1, 1, 4), own(2, 1)}, 1, {shared(1, 1, 3), own(3, 1)}));
}

TEST(SharedPrefixPlanTest, FullBlocksOfAPageTableHaveNames) {
  const auto blocks = planned_blocks(pages({5, 6, 7}), names_of({1, 2}), 9, 4);
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_EQ(blocks[1].name, name_of(2));
  EXPECT_EQ(blocks[2].name, std::nullopt);
  EXPECT_EQ(blocks[2].token_count, 1);
  EXPECT_EQ(planned_blocks(pages({5, 6}), names_of({1}), 8, 4)[1].name, std::nullopt);
}

// -- random batches

class RandomBatch {
 public:
  static constexpr std::size_t kBlock = 3, kHeadSize = 4;

  RandomBatch(std::mt19937_64& random, bool has_partial_pages, bool is_decode) : random_(random) {
    const std::size_t count = 1 + below(12);
    for (std::size_t s = 0; s < count; ++s) {
      std::vector<PlannedBlock> sequence;
      bool is_same = false;
      if (s > 0 && below(5) > 0) {  // begins as another one does, or is the same
        sequence = blocks_[below(s)];
        is_same = below(4) == 0;
        if (!is_same) sequence.resize(below(sequence.size() + 1));
        for (PlannedBlock& block : sequence) {
          if (below(6) == 0) block.page = twin(block.page);
        }
        // Goes on behind another one's last block: its partial page is then in the middle.
        const bool is_full = sequence.empty() || sequence.back().token_count == std::int32_t(kBlock);
        if (!is_same && !is_full && !has_partial_pages) sequence.pop_back();
      }
      for (std::size_t i = is_same ? 0 : 1 + below(5); i > 0; --i) {
        const std::size_t tokens = has_partial_pages && below(4) == 0 ? 1 + below(kBlock) : kBlock;
        sequence.push_back({.name = {}, .page = new_page(), .token_count = static_cast<std::int32_t>(tokens)});
        if (below(8) > 0) sequence.back().name = name_of(++name_count_);
      }
      if (!is_same) {
        sequence.push_back({.name = {}, .page = new_page(), .token_count = 1 + std::int32_t(below(kBlock))});
        if (below(2) == 0) sequence.back().name = name_of(++name_count_);
      }
      blocks_.push_back(sequence);
      query_counts_.push_back(is_decode ? 1 : 1 + std::int32_t(below(sequence.back().token_count)));
    }
  }

  std::vector<PlannedSequence> batch() const {
    std::vector<PlannedSequence> batch;
    for (std::size_t s = 0; s < blocks_.size(); ++s) batch.push_back({blocks_[s], query_counts_[s]});
    return batch;
  }
  std::vector<float> queries() {
    return numbers(kHeadSize * std::accumulate(query_counts_.begin(), query_counts_.end(), std::size_t{0}));
  }
  PagedHead head() const { return {kBlock, kHeadSize, keys_, values_, 0.6}; }

 private:
  std::size_t below(std::size_t n) { return random_() % n; }
  std::vector<float> numbers(std::size_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> numbers(count);
    for (float& number : numbers) number = normal(random_);
    return numbers;
  }
  PageId new_page() {
    for (auto* cache : {&keys_, &values_}) {
      if (page_count_ == 1) cache->resize(kBlock * kHeadSize);  // the null page
      const auto page = numbers(kBlock * kHeadSize);
      cache->insert(cache->end(), page.begin(), page.end());
    }
    return page_at(page_count_++);
  }
  PageId twin(PageId page) {  // another page with the same bytes
    const PageId copy = new_page();
    for (auto* cache : {&keys_, &values_}) {
      std::copy_n(cache->begin() + page_index(page) * kBlock * kHeadSize, kBlock * kHeadSize,
                  cache->begin() + page_index(copy) * kBlock * kHeadSize);
    }
    return copy;
  }

  std::mt19937_64& random_;
  std::size_t page_count_ = 1;
  std::uint64_t name_count_ = 0;
  std::vector<std::vector<PlannedBlock>> blocks_;
  std::vector<std::int32_t> query_counts_;
  std::vector<float> keys_, values_;
};

/// Leading blocks of two sequences that are the same and may be shared.
std::size_t common_count(const PlannedSequence& a, const PlannedSequence& b) {
  std::size_t count = 0;
  while (count + 1 < a.blocks.size() && count + 1 < b.blocks.size()) {  // queries lie in the last block here
    if (!a.blocks[count].name || a.blocks[count].name != b.blocks[count].name) break;
    ++count;
  }
  return count;
}

void check_tree(const SharedPrefixTree& tree, const std::vector<PlannedSequence>& batch, std::size_t count_min) {
  const std::size_t n = batch.size();
  ASSERT_EQ(std::set<std::size_t>(tree.order.begin(), tree.order.end()).size(), n);
  for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(tree.sequences[i].blocks.data(), batch[tree.order[i]].blocks.data());

  // Sequences that share much are closer than those that share less.
  const auto common = [&](std::size_t i, std::size_t j) { return common_count(tree.sequences[i], tree.sequences[j]); };
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = i + 2; k < n; ++k) {
      for (std::size_t j = i + 1; j < k; ++j) {
        // Below the minimum, groups are split up and need not stay together.
        if (count_min == 2) {
          ASSERT_LE(common(i, k), std::min(common(i, j), common(j, k)));
        }
      }
    }
  }
  // Every block is in the run of exactly those that share it; a sequence's runs follow each other, then its tail.
  for (std::size_t i = 0; i < n; ++i) {
    std::size_t covered = 0, level = 0;
    for (const SharedRun& run : tree.runs) {
      if (i < run.sequence_begin || i >= run.sequence_end) continue;
      ASSERT_EQ(run.block_begin, covered);
      ASSERT_EQ(run.level, level++);
      ASSERT_LT(run.block_begin, run.block_end);
      for (std::size_t depth = run.block_begin; depth < run.block_end; ++depth) {
        std::size_t sharer_count = 0;
        for (std::size_t j = 0; j < n; ++j) sharer_count += j == i || common(i, j) > depth;
        if (sharer_count < count_min) sharer_count = 1;
        ASSERT_EQ(run.sequence_end - run.sequence_begin, sharer_count);
        const bool is_partial = std::size_t(tree.sequences[i].blocks[depth].token_count) < tree.block_size;
        ASSERT_TRUE(!is_partial || depth + 1 == run.block_end);
      }
      covered = run.block_end;
    }
    ASSERT_EQ(tree.tail_begin[i], covered);
    ASSERT_LT(covered, tree.sequences[i].blocks.size());
    for (std::size_t depth = covered; depth + 1 < tree.sequences[i].blocks.size(); ++depth) {
      std::size_t sharer_count = 1;
      for (std::size_t j = 0; j < n; ++j) sharer_count += j != i && common(i, j) > depth;
      ASSERT_LT(sharer_count, count_min);
      ASSERT_EQ(std::size_t(tree.sequences[i].blocks[depth].token_count), tree.block_size);
    }
  }
}

void expect_equal(const std::vector<AttentionState>& states, const std::vector<AttentionState>& expected) {
  ASSERT_EQ(states.size(), expected.size());
  for (std::size_t q = 0; q < states.size(); ++q) {
    ASSERT_NEAR(states[q].log_sum, expected[q].log_sum, 1e-9);
    for (std::size_t f = 0; f < states[q].output.size(); ++f) {
      ASSERT_NEAR(states[q].output[f], expected[q].output[f], 1e-9);
    }
  }
}

TEST(SharedPrefixPlanRandomTest, EveryPlanGivesTheResultOfPlainAttention) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::size_t run_count = 0, deep_count = 0;
  for (int round = 0; round < 600; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const bool has_partial_pages = round % 3 == 0, is_decode = round % 2 == 0;
    RandomBatch random_batch(random, has_partial_pages, is_decode);
    const auto batch = random_batch.batch();
    const std::size_t count_min = 2 + (round % 5 == 0 ? random() % 3 : 0);
    const auto tree = plan_shared_prefixes(batch, {.block_size = RandomBatch::kBlock, .sequence_count_min = count_min});
    ASSERT_TRUE(tree);
    ASSERT_NO_FATAL_FAILURE(check_tree(*tree, batch, count_min));
    run_count += tree->runs.size();

    const auto queries = random_batch.queries();
    const PagedHead head = random_batch.head();
    const auto expected = attend_by_sequence(*tree, queries, head);
    const auto cascade = plan_cascade(*tree);
    deep_count += cascade->levels.size() > 2;
    ASSERT_NO_FATAL_FAILURE(expect_equal(attend_by_cascade(*cascade, queries, head), expected));
    for (std::size_t level_count_max = 1; level_count_max < 4; ++level_count_max) {
      const auto capped = plan_cascade(*tree, level_count_max);
      if (!capped) {
        ASSERT_TRUE(has_partial_pages);
        continue;
      }
      ASSERT_LE(capped->levels.size(), level_count_max);
      ASSERT_NO_FATAL_FAILURE(expect_equal(attend_by_cascade(*capped, queries, head), expected));
    }
    for (std::size_t threshold = 0; threshold < 4; ++threshold) {
      const auto chunks = plan_chunks(*tree, threshold);
      ASSERT_EQ(chunks.has_value(), std::all_of(batch.begin(), batch.end(), [](const PlannedSequence& sequence) {
                  return sequence.query_count == 1;
                }));
      if (chunks) {
        ASSERT_NO_FATAL_FAILURE(expect_equal(attend_by_chunks(*chunks, queries, head), expected));
      }
    }
  }
  EXPECT_GT(run_count, 600u);  // or the test does not test much
  EXPECT_GT(deep_count, 100u);
}

}  // namespace
}  // namespace kv
