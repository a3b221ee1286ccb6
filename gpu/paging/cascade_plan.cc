#include "gpu/paging/cascade_plan.h"

#include <algorithm>

#include "base/assert.h"

namespace kv {
namespace {

class CascadeBuilder {
 public:
  explicit CascadeBuilder(const SharedPrefixTree& tree) : tree_(tree) {
    for (const PlannedSequence& sequence : tree.sequences) {
      query_begin_.push_back(query_begin_.back() + sequence.query_count);
    }
  }

  /// One level of runs, with empty entries for the sequences in between. A level must cover every query of the batch:
  /// the kernel takes the queries as one array cut by query_indptr, without gaps.
  CascadeLevel level_of_runs(std::size_t level) const {
    CascadeLevel result;
    std::size_t covered = 0;
    for (const SharedRun& run : tree_.runs) {
      if (run.level != level) continue;
      if (run.sequence_begin > covered) add_entry(result, run.sequence_begin, {});
      add_entry(result, run.sequence_end, blocks_of(run.sequence_begin, run.block_begin, run.block_end));
      covered = run.sequence_end;
    }
    if (covered < tree_.sequences.size()) add_entry(result, tree_.sequences.size(), {});
    return result;
  }

  /// The last level: each sequence's blocks from begins[i] on.
  CascadeLevel level_of_tails(const std::vector<std::size_t>& begins) const {
    CascadeLevel result;
    for (std::size_t i = 0; i < tree_.sequences.size(); ++i) {
      add_entry(result, i + 1, blocks_of(i, begins[i], tree_.sequences[i].blocks.size()));
    }
    return result;
  }

 private:
  std::span<const PlannedBlock> blocks_of(std::size_t sequence, std::size_t begin, std::size_t end) const {
    KV_ASSERT(begin <= end && end <= tree_.sequences[sequence].blocks.size());
    return tree_.sequences[sequence].blocks.subspan(begin, end - begin);
  }

  void add_entry(CascadeLevel& level, std::size_t sequence_end, std::span<const PlannedBlock> blocks) const {
    for (const PlannedBlock& block : blocks) level.page_indices.push_back(static_cast<std::int32_t>(block.page));
    level.query_indptr.push_back(query_begin_[sequence_end]);
    level.page_indptr.push_back(static_cast<std::int32_t>(level.page_indices.size()));
    level.last_page_tokens.push_back(blocks.empty() ? 0 : blocks.back().token_count);
  }

  const SharedPrefixTree& tree_;
  std::vector<std::int32_t> query_begin_{0};  ///< First query of each sequence, and the total.
};

}  // namespace

/// Runs beyond the last level return to their sequences: each tail then begins at the first such run. Only a tail's
/// last page may be partial, so a run that ends in a partial page cannot join it, and the plan is refused.
Result<CascadePlan> plan_cascade(const SharedPrefixTree& tree, std::size_t level_count_max) {
  KV_ASSERT(level_count_max >= 1);
  std::size_t run_level_count = 0;
  std::vector<std::size_t> tail_begin = tree.tail_begin;
  for (const SharedRun& run : tree.runs) {
    if (run.level + 1 < level_count_max) {
      run_level_count = std::max(run_level_count, run.level + 1);
      continue;
    }
    const PlannedBlock& last = tree.sequences[run.sequence_begin].blocks[run.block_end - 1];
    if (static_cast<std::size_t>(last.token_count) < tree.block_size) return Errc::kUnsupported;
    for (std::size_t i = run.sequence_begin; i < run.sequence_end; ++i) {
      tail_begin[i] = std::min(tail_begin[i], run.block_begin);
    }
  }
  const CascadeBuilder builder(tree);
  CascadePlan plan;
  for (std::size_t level = 0; level < run_level_count; ++level) plan.levels.push_back(builder.level_of_runs(level));
  plan.levels.push_back(builder.level_of_tails(tail_begin));
  return plan;
}

}  // namespace kv
