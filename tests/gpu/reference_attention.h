// tests/gpu/reference_attention.h: the definition of attention, in plain host code: slow, in double precision,
// one head at a time (heads are independent). It judges kernels and plans, and shows how to read a plan.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "gpu/paging/cascade_plan.h"
#include "gpu/paging/chunk_plan.h"
#include "gpu/paging/shared_prefix_plan.h"

namespace kv {

/// The result of one query over some of its tokens, mergeable with the result over others. `log_sum` is ln of the sum
/// of e^score (FlashInfer's is base 2: divide by ln 2). Without tokens it is -infinity, and the output is 0.
struct AttentionState {
  std::vector<double> output;  ///< [head_size]
  double log_sum = -std::numeric_limits<double>::infinity();
};

/// The same before the division, as stored by ChunkAttention's first phase.
struct PartialAttention {
  std::vector<double> weighted_sum;  ///< [head_size], weights e^(score - score_max)
  double weight_sum = 0;
  double score_max = -std::numeric_limits<double>::infinity();
};

/// One query [head_size] over keys and values [tokens, head_size], in a single pass.
PartialAttention attend_partially(std::span<const float> query, std::span<const float> keys,
                                  std::span<const float> values, double scale);
AttentionState attend(std::span<const float> query, std::span<const float> keys, std::span<const float> values,
                      double scale);

/// The result over both sets of tokens. Commutative and associative up to rounding; exact if one set is empty.
AttentionState merge(const AttentionState& a, const AttentionState& b);
AttentionState merge(std::span<const PartialAttention> partials, std::size_t head_size);

/// One head's paged cache: keys and values [page][block_size][head_size].
struct PagedHead {
  std::size_t block_size, head_size;
  std::span<const float> keys, values;
  double scale;
};

/// Three ways to the same result: every query of the batch, sequences in the tree's order, queries [count, head_size]
/// in the order of their sequences. A query reads the tokens up to its own: a sequence's last query reads all.
std::vector<AttentionState> attend_by_sequence(const SharedPrefixTree& tree, std::span<const float> queries,
                                               const PagedHead& head);
std::vector<AttentionState> attend_by_cascade(const CascadePlan& plan, std::span<const float> queries,
                                              const PagedHead& head);
std::vector<AttentionState> attend_by_chunks(const ChunkPlan& plan, std::span<const float> queries,
                                             const PagedHead& head);

}  // namespace kv
