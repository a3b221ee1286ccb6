// gpu/paging/chunk_plan.h: a shared-prefix tree in the form of ChunkAttention: first every shared chunk against the
// queries of all its sequences, then every sequence against its own chunks, and the merge of both.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "gpu/paging/shared_prefix_plan.h"

namespace kv {

/// A chunk is one page. Chunks [0, shared_count()) are shared: chunk c is in the sequences [begins[c], ends[c]) of the
/// DFS order, and the partial result of sequence s lies in row offsets[c] + s - begins[c]. Each other chunk belongs to
/// one sequence. One query per sequence: this is a plan for decoding.
struct ChunkPlan {
  std::vector<PageId> pages;
  std::vector<std::int32_t> token_counts;  ///< Of each chunk.
  std::vector<std::int32_t> begins, ends, offsets;
  std::int32_t partial_row_count = 0;
  std::size_t chunk_count_max = 0;            ///< Chunks of the longest sequence: the width of the next array.
  std::vector<std::int32_t> sequence_chunks;  ///< [sequence][chunk_count_max], in token order, padded with -1.
  std::vector<std::int32_t> sequence_tokens;

  std::size_t shared_count() const { return begins.size(); }
};

/// Shared chunks are in more than `sharing_threshold` sequences. Errors: kUnsupported for several queries in one.
Result<ChunkPlan> plan_chunks(const SharedPrefixTree& tree, std::size_t sharing_threshold = 1);

}  // namespace kv
