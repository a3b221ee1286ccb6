#include "reference_attention.h"

#include <algorithm>
#include <cmath>

#include "base/assert.h"

namespace kv {
namespace {

/// Keys and values of some tokens, gathered from their pages.
struct Tokens {
  std::vector<float> keys, values;

  void add_page(const PagedHead& head, std::size_t page, std::size_t token_count) {
    const std::size_t begin = page * head.block_size * head.head_size, size = token_count * head.head_size;
    KV_ASSERT(token_count <= head.block_size && begin + size <= std::min(head.keys.size(), head.values.size()));
    const auto page_keys = head.keys.subspan(begin, size), page_values = head.values.subspan(begin, size);
    keys.insert(keys.end(), page_keys.begin(), page_keys.end());
    values.insert(values.end(), page_values.begin(), page_values.end());
  }
  std::size_t count(const PagedHead& head) const { return keys.size() / head.head_size; }

  AttentionState attend(std::span<const float> query, const PagedHead& head, std::size_t visible_count) const {
    const std::size_t size = visible_count * head.head_size;
    return kv::attend(query, std::span(keys).first(size), std::span(values).first(size), head.scale);
  }
};

std::span<const float> row(std::span<const float> rows, std::size_t index, const PagedHead& head) {
  return rows.subspan(index * head.head_size, head.head_size);
}

AttentionState normalised(const PartialAttention& partial) {
  AttentionState state{.output = partial.weighted_sum};
  if (partial.weight_sum == 0) return state;
  for (double& element : state.output) element /= partial.weight_sum;
  state.log_sum = partial.score_max + std::log(partial.weight_sum);
  return state;
}

}  // namespace

/// The sums are kept relative to the greatest score so far, as in kernels: e^score itself would overflow.
PartialAttention attend_partially(std::span<const float> query, std::span<const float> keys,
                                  std::span<const float> values, double scale) {
  KV_ASSERT(!query.empty() && keys.size() == values.size() && keys.size() % query.size() == 0);
  const std::size_t head_size = query.size();
  PartialAttention partial{.weighted_sum = std::vector<double>(head_size)};
  for (std::size_t begin = 0; begin < keys.size(); begin += head_size) {
    double score = 0;
    for (std::size_t f = 0; f < head_size; ++f) score += double{query[f]} * double{keys[begin + f]};
    score *= scale;
    if (score > partial.score_max) {
      // The sums so far are relative to a smaller maximum; at first they are 0, without a maximum.
      const double factor = partial.weight_sum == 0 ? 0 : std::exp(partial.score_max - score);
      for (double& element : partial.weighted_sum) element *= factor;
      partial.weight_sum *= factor;
      partial.score_max = score;
    }
    const double weight = std::exp(score - partial.score_max);
    for (std::size_t f = 0; f < head_size; ++f) partial.weighted_sum[f] += weight * double{values[begin + f]};
    partial.weight_sum += weight;
  }
  return partial;
}

AttentionState attend(std::span<const float> query, std::span<const float> keys, std::span<const float> values,
                      double scale) {
  return normalised(attend_partially(query, keys, values, scale));
}

/// Each output is weighted by its share of the total e^score, relative to the greater of both sums, which avoids
/// overflow. The order of merging matters only for rounding.
AttentionState merge(const AttentionState& a, const AttentionState& b) {
  const double max = std::max(a.log_sum, b.log_sum);
  if (std::isinf(max) && max < 0) return a;  // both over no token: e^(-inf - -inf) is not a number
  const double weight_a = std::exp(a.log_sum - max), weight_b = std::exp(b.log_sum - max);
  AttentionState merged{.output = a.output, .log_sum = max + std::log(weight_a + weight_b)};
  for (std::size_t f = 0; f < merged.output.size(); ++f) {
    merged.output[f] = (weight_a * a.output[f] + weight_b * b.output[f]) / (weight_a + weight_b);
  }
  return merged;
}

AttentionState merge(std::span<const PartialAttention> partials, std::size_t head_size) {
  PartialAttention total{.weighted_sum = std::vector<double>(head_size)};
  for (const PartialAttention& partial : partials) total.score_max = std::max(total.score_max, partial.score_max);
  for (const PartialAttention& partial : partials) {
    if (partial.weight_sum == 0) continue;
    const double factor = std::exp(partial.score_max - total.score_max);
    for (std::size_t f = 0; f < head_size; ++f) total.weighted_sum[f] += factor * partial.weighted_sum[f];
    total.weight_sum += factor * partial.weight_sum;
  }
  return normalised(total);
}

std::vector<AttentionState> attend_by_sequence(const SharedPrefixTree& tree, std::span<const float> queries,
                                               const PagedHead& head) {
  std::vector<AttentionState> states;
  for (const PlannedSequence& sequence : tree.sequences) {
    Tokens tokens;
    for (const PlannedBlock& block : sequence.blocks) {
      tokens.add_page(head, page_index(block.page), static_cast<std::size_t>(block.token_count));
    }
    const auto query_count = static_cast<std::size_t>(sequence.query_count);
    for (std::size_t q = 0; q < query_count; ++q) {
      const std::size_t visible_count = tokens.count(head) - query_count + q + 1;
      states.push_back(tokens.attend(row(queries, states.size(), head), head, visible_count));
    }
  }
  return states;
}

/// Merges each query's state with every level's. Only the last level masks: it holds all queries' pages.
std::vector<AttentionState> attend_by_cascade(const CascadePlan& plan, std::span<const float> queries,
                                              const PagedHead& head) {
  std::vector<AttentionState> states(queries.size() / head.head_size);
  for (AttentionState& state : states) state.output.resize(head.head_size);
  for (const CascadeLevel& level : plan.levels) {
    const bool is_causal = &level == &plan.levels.back();
    for (std::size_t entry = 0; entry + 1 < level.query_indptr.size(); ++entry) {
      Tokens tokens;
      for (auto i = level.page_indptr[entry]; i < level.page_indptr[entry + 1]; ++i) {
        const bool is_last = i + 1 == level.page_indptr[entry + 1];
        tokens.add_page(head, static_cast<std::size_t>(level.page_indices[static_cast<std::size_t>(i)]),
                        is_last ? static_cast<std::size_t>(level.last_page_tokens[entry]) : head.block_size);
      }
      const auto begin = static_cast<std::size_t>(level.query_indptr[entry]);
      const auto end = static_cast<std::size_t>(level.query_indptr[entry + 1]);
      for (std::size_t q = begin; q < end; ++q) {
        const std::size_t hidden_count = is_causal ? end - q - 1 : 0;
        KV_ASSERT(hidden_count <= tokens.count(head));
        states[q] = merge(states[q], tokens.attend(row(queries, q, head), head, tokens.count(head) - hidden_count));
      }
    }
  }
  return states;
}

std::vector<AttentionState> attend_by_chunks(const ChunkPlan& plan, std::span<const float> queries,
                                             const PagedHead& head) {
  const auto attend_chunk = [&](std::size_t chunk, std::size_t sequence) {
    Tokens tokens;
    tokens.add_page(head, page_index(plan.pages[chunk]), static_cast<std::size_t>(plan.token_counts[chunk]));
    return attend_partially(row(queries, sequence, head), tokens.keys, tokens.values, head.scale);
  };
  // Phase 1, chunk first: a device reads the chunk once for all its sequences.
  std::vector<PartialAttention> partials(static_cast<std::size_t>(plan.partial_row_count));
  for (std::size_t chunk = 0; chunk < plan.shared_count(); ++chunk) {
    for (auto s = plan.begins[chunk]; s < plan.ends[chunk]; ++s) {
      partials[static_cast<std::size_t>(plan.offsets[chunk] + s - plan.begins[chunk])] =
          attend_chunk(chunk, static_cast<std::size_t>(s));
    }
  }
  // Phase 2, sequence first: the results of phase 1, and the sequence's own chunks.
  std::vector<AttentionState> states;
  for (std::size_t s = 0; s < plan.sequence_tokens.size(); ++s) {
    std::vector<PartialAttention> parts;
    for (std::size_t i = 0; i < plan.chunk_count_max; ++i) {
      const std::int32_t chunk = plan.sequence_chunks[s * plan.chunk_count_max + i];
      if (chunk < 0) break;
      const auto index = static_cast<std::size_t>(chunk);
      if (index < plan.shared_count()) {
        const std::int32_t partial = plan.offsets[index] + static_cast<std::int32_t>(s) - plan.begins[index];
        parts.push_back(partials[static_cast<std::size_t>(partial)]);
      } else {
        parts.push_back(attend_chunk(index, s));
      }
    }
    states.push_back(merge(parts, head.head_size));
  }
  return states;
}

}  // namespace kv
