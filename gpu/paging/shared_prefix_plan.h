// gpu/paging/shared_prefix_plan.h: finds sequences of a batch that begin alike, to read their common part once.
//
// Attention over a long prompt reads its keys and values once for each sequence of the batch. Sequences with a common
// beginning can read it together: the partial results of the common part and of the rest are merged exactly.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "gpu/paging/page.h"

namespace kv {

/// One page of a sequence. Blocks before the last may be partial too: a cached module that ends within a block.
struct PlannedBlock {
  std::optional<BlockName> name;  ///< Others can share it by: equal name, equal prefix. nullopt: not shared.
  PageId page{};
  std::int32_t token_count = 0;
};

/// A sequence; its last `query_count` tokens are queries. Their blocks are never shared, so that the causal mask
/// matters in the last part of a sequence only.
struct PlannedSequence {
  std::span<const PlannedBlock> blocks;
  std::int32_t query_count = 1;
};

/// The blocks of a page table, with the given names for the leading full blocks.
std::vector<PlannedBlock> planned_blocks(std::span<const PageId> page_table, std::span<const BlockName> names,
                                         std::size_t token_count, std::size_t block_size);

/// Blocks [block_begin, block_end), common to these sequences. Only the last block can be partial.
struct SharedRun {
  std::size_t level;  ///< Runs before it in these sequences.
  std::size_t sequence_begin, sequence_end;
  std::size_t block_begin, block_end;
  friend bool operator==(const SharedRun&, const SharedRun&) = default;
};

/// The shared blocks of a batch.
///   1. `order` is a permutation of the batch, a depth-first walk: sequences that share anything are neighbours, and
///      those that share more are closer. All other indices of sequences count in this order.
///   2. The runs of a sequence follow each other from block 0, on levels 0, 1, 2, ...; then comes its tail, which is
///      never empty.
///   3. In `runs` a run comes before those below it, and neighbours come in the order of their sequences.
///   4. A run has several sequences, or ends in a partial page, which no level can have in the middle.
/// Borrows the blocks of the batch.
struct SharedPrefixTree {
  std::vector<std::size_t> order;          ///< order[i]: the batch index of the i-th sequence.
  std::vector<PlannedSequence> sequences;  ///< In this order.
  std::vector<SharedRun> runs;
  std::vector<std::size_t> tail_begin;  ///< First block of each sequence behind its runs.
  std::size_t block_size = 0;
};

struct SharingConfig {
  std::size_t block_size;
  std::size_t sequence_count_min = 2;  ///< A run of fewer sequences is not worth a level.
};

/// Among equal names the first sequence's page is read, whatever pages the others have: equal name, equal bytes. Cost:
/// O(blocks of the batch). Errors: kBadRequest for a sequence without queries or with more than tokens, a null page, a
/// token count out of range, a partial page followed by more within the queries, or one name with two token counts.
Result<SharedPrefixTree> plan_shared_prefixes(std::span<const PlannedSequence> batch, const SharingConfig& config);

}  // namespace kv
