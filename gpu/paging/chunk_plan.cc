#include "gpu/paging/chunk_plan.h"

#include <algorithm>

#include "base/assert.h"

namespace kv {
namespace {

std::int32_t add_chunk(ChunkPlan& plan, const PlannedBlock& block) {
  plan.pages.push_back(block.page);
  plan.token_counts.push_back(block.token_count);
  return static_cast<std::int32_t>(plan.pages.size() - 1);
}

}  // namespace

Result<ChunkPlan> plan_chunks(const SharedPrefixTree& tree, std::size_t sharing_threshold) {
  ChunkPlan plan;
  std::vector<std::vector<std::int32_t>> chunks_of(tree.sequences.size());
  // Outer runs come first, so each sequence gets its chunks in token order. Inner runs never have more sequences than
  // outer ones, so the threshold drops a sequence's last runs only, and its row has no hole.
  for (const SharedRun& run : tree.runs) {
    if (run.sequence_end - run.sequence_begin <= sharing_threshold) continue;
    KV_ASSERT(chunks_of[run.sequence_begin].size() == run.block_begin);
    for (std::size_t i = run.block_begin; i < run.block_end; ++i) {
      const std::int32_t chunk = add_chunk(plan, tree.sequences[run.sequence_begin].blocks[i]);
      plan.begins.push_back(static_cast<std::int32_t>(run.sequence_begin));
      plan.ends.push_back(static_cast<std::int32_t>(run.sequence_end));
      plan.offsets.push_back(plan.partial_row_count);
      plan.partial_row_count += plan.ends.back() - plan.begins.back();
      for (std::size_t s = run.sequence_begin; s < run.sequence_end; ++s) chunks_of[s].push_back(chunk);
    }
  }
  for (std::size_t s = 0; s < tree.sequences.size(); ++s) {
    if (tree.sequences[s].query_count != 1) return Errc::kUnsupported;
    const auto blocks = tree.sequences[s].blocks;
    std::int32_t token_count = 0;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      token_count += blocks[i].token_count;
      if (i >= chunks_of[s].size()) chunks_of[s].push_back(add_chunk(plan, blocks[i]));
    }
    plan.sequence_tokens.push_back(token_count);
    plan.chunk_count_max = std::max(plan.chunk_count_max, blocks.size());
  }
  // The kernel takes a rectangle: rows of equal width, padded with an invalid chunk number.
  for (auto& chunks : chunks_of) {
    chunks.resize(plan.chunk_count_max, -1);
    plan.sequence_chunks.insert(plan.sequence_chunks.end(), chunks.begin(), chunks.end());
  }
  return plan;
}

}  // namespace kv
