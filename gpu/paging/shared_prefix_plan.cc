#include "gpu/paging/shared_prefix_plan.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "base/assert.h"

namespace kv {
namespace {

/// Sequences [begin, end) that are equal up to block `depth`; if several, in that block too.
struct Branch {
  std::size_t begin, end, depth, level;
};

class Planner {
 public:
  Planner(std::span<const PlannedSequence> batch, const SharingConfig& config) : batch_(batch), config_(config) {}

  Result<SharedPrefixTree> plan() {
    for (const PlannedSequence& sequence : batch_) {
      if (!is_valid(sequence)) return Errc::kBadRequest;
      sharable_counts_.push_back(sharable_count(sequence));
    }
    tree_.order.resize(batch_.size());
    std::iota(tree_.order.begin(), tree_.order.end(), 0);
    tree_.tail_begin.resize(batch_.size());
    tree_.block_size = config_.block_size;

    // A stack instead of recursion: a hostile batch may be as deep as it is long.
    push_branches(0, batch_.size(), 0, 0);
    while (!stack_.empty()) {
      const Branch branch = stack_.back();
      stack_.pop_back();
      if (branch.end - branch.begin == 1) {
        add_single(branch);
      } else if (!add_run(branch)) {
        return Errc::kBadRequest;
      }
    }
    for (const std::size_t index : tree_.order) tree_.sequences.push_back(batch_[index]);
    return std::move(tree_);
  }

 private:
  bool is_partial(const PlannedBlock& block) const {
    return static_cast<std::size_t>(block.token_count) < config_.block_size;
  }

  /// Checks the plans' assumptions. A partial page among the queries is refused: on the last, causal level, queries and
  /// keys are matched by counting tokens from the end, and a hole in between would shift the mask.
  bool is_valid(const PlannedSequence& sequence) const {
    std::int64_t token_count = 0;
    for (const PlannedBlock& block : sequence.blocks) {
      if (block.page <= kNullPage || block.token_count <= 0) return false;
      if (static_cast<std::size_t>(block.token_count) > config_.block_size) return false;
      token_count += block.token_count;
    }
    if (sequence.query_count <= 0 || sequence.query_count > token_count) return false;
    std::int64_t query_begin = token_count - sequence.query_count, end = 0;
    for (std::size_t i = 0; i + 1 < sequence.blocks.size(); ++i) {
      end += sequence.blocks[i].token_count;
      if (end > query_begin && is_partial(sequence.blocks[i])) return false;
    }
    return true;
  }

  /// Leading named blocks without queries. Blocks behind an unnamed one cannot be shared, even if named.
  static std::size_t sharable_count(const PlannedSequence& sequence) {
    std::int64_t left = -sequence.query_count;
    for (const PlannedBlock& block : sequence.blocks) left += block.token_count;
    std::size_t count = 0;
    for (const PlannedBlock& block : sequence.blocks) {
      left -= block.token_count;
      if (left < 0 || !block.name) break;
      ++count;
    }
    return count;
  }

  const PlannedBlock& block(std::size_t sequence, std::size_t depth) const {
    KV_ASSERT(depth < batch_[tree_.order[sequence]].blocks.size());
    return batch_[tree_.order[sequence]].blocks[depth];
  }
  bool is_sharable(std::size_t sequence, std::size_t depth) const {
    return depth < sharable_counts_[tree_.order[sequence]];
  }

  /// Sorts sequences that are equal up to `depth` by the block there, in order of first appearance, and pushes one
  /// branch for each block shared by enough of them, and one for each other sequence, the first on top.
  void push_branches(std::size_t begin, std::size_t end, std::size_t depth, std::size_t level) {
    std::unordered_map<BlockName, std::size_t> bucket_of;
    std::vector<std::vector<std::size_t>> buckets;
    for (std::size_t i = begin; i < end; ++i) {
      std::size_t bucket = buckets.size();
      if (is_sharable(i, depth)) bucket = bucket_of.try_emplace(*block(i, depth).name, bucket).first->second;
      if (bucket == buckets.size()) buckets.emplace_back();
      buckets[bucket].push_back(tree_.order[i]);
    }
    for (auto bucket = buckets.rbegin(); bucket != buckets.rend(); ++bucket) {
      const std::size_t first = end - bucket->size();
      std::copy(bucket->begin(), bucket->end(), tree_.order.begin() + static_cast<std::ptrdiff_t>(first));
      if (bucket->size() >= std::max<std::size_t>(2, config_.sequence_count_min)) {
        stack_.push_back({first, end, depth, level});
      } else {
        for (std::size_t i = end; i-- > first;) stack_.push_back({i, i + 1, depth, level});
      }
      end = first;
    }
  }

  /// Goes down until a sequence leaves or a page is partial. False: the sequences disagree on a block's length.
  bool add_run(const Branch& branch) {
    std::size_t depth = branch.depth;
    bool is_shared = true;
    while (is_shared) {
      const PlannedBlock& first = block(branch.begin, depth);
      for (std::size_t i = branch.begin; i < branch.end; ++i) {
        if (block(i, depth).token_count != first.token_count) return false;
      }
      ++depth;
      is_shared = !is_partial(first) && is_sharable(branch.begin, depth);
      for (std::size_t i = branch.begin + 1; is_shared && i < branch.end; ++i) {
        is_shared = is_sharable(i, depth) && block(i, depth).name == block(branch.begin, depth).name;
      }
    }
    tree_.runs.push_back({branch.level, branch.begin, branch.end, branch.depth, depth});
    push_branches(branch.begin, branch.end, depth, branch.level + 1);
    return true;
  }

  /// The rest of one sequence: its tail, and before that a run up to every partial page.
  void add_single(const Branch& branch) {
    std::size_t begin = branch.depth, level = branch.level;
    const std::size_t block_count = batch_[tree_.order[branch.begin]].blocks.size();
    for (std::size_t i = begin; i + 1 < block_count; ++i) {
      if (!is_partial(block(branch.begin, i))) continue;
      tree_.runs.push_back({level++, branch.begin, branch.end, begin, i + 1});
      begin = i + 1;
    }
    KV_ASSERT(begin < block_count);  // 2: the block with the last query is in no run
    tree_.tail_begin[branch.begin] = begin;
  }

  std::span<const PlannedSequence> batch_;
  SharingConfig config_;
  std::vector<std::size_t> sharable_counts_;  ///< By index in the batch.
  std::vector<Branch> stack_;
  SharedPrefixTree tree_;
};

}  // namespace

std::vector<PlannedBlock> planned_blocks(std::span<const PageId> page_table, std::span<const BlockName> names,
                                         std::size_t token_count, std::size_t block_size) {
  KV_ASSERT(page_table.size() == (token_count + block_size - 1) / block_size);
  std::vector<PlannedBlock> blocks;
  for (std::size_t i = 0; i < page_table.size(); ++i) {
    const std::size_t count = std::min(block_size, token_count - i * block_size);
    PlannedBlock block{.name = {}, .page = page_table[i], .token_count = static_cast<std::int32_t>(count)};
    if (count == block_size && i < names.size()) block.name = names[i];
    blocks.push_back(block);
  }
  return blocks;
}

Result<SharedPrefixTree> plan_shared_prefixes(std::span<const PlannedSequence> batch, const SharingConfig& config) {
  KV_ASSERT(config.block_size > 0);
  return Planner(batch, config).plan();
}

}  // namespace kv
