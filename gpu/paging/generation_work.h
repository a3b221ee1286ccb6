// gpu/paging/generation_work.h: floating point operations of generating tokens, with a KV cache and without.
//
// b sequences of a prompt of s tokens, then n steps, each of which appends a token. With a cache, a step computes one
// token and reads the k cached ones; without, it computes all k + 1 again. For one layer of the textbook's model (h
// wide, as many K and V heads as query heads, an FFN of 4h):
//
//   step with a cache       24 b h^2 + 4 b h (k + 1)
//   pass over s tokens      24 b s h^2 + 4 b s^2 h        = s times a step at k + 1 = s
//   logits                  2 b h V, and 2 b s h V without a cache
//
// 24 h^2 is 2 for each weight of a layer, and 4 h is 2 for each element of a query row in q.k and in the sum of v. With
// these two, the same holds for other heads, widths and gates. As in textbooks a pass computes the whole square of
// scores; a kernel that skips the masked half does half of that part. The prompt's own pass is the same in both ways.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "gpu/paging/cache_size.h"

namespace kv {

struct Generation {
  std::uint64_t batch = 1;
  std::uint64_t prompt_tokens = 0;
  std::uint64_t new_tokens = 0;
};
/// Errors: kBadRequest unless there is a batch and a prompt, and batch * (prompt + new) is at most 2^31 tokens.
Result<void> check_generation(const Generation& generation);

/// Bytes of all sequences' cache at its largest, after the last step: 4 b l h (s + n) for the textbook's model in 16
/// bits. Errors: of check_generation() and cache_bytes().
Result<std::uint64_t> peak_cache_bytes(const ModelCache& cache, CacheFormat format, const Generation& generation);

/// The same work done both ways.
struct Work {
  double with_cache = 0, without_cache = 0;

  double ratio() const { return without_cache / with_cache; }
};

/// Operations of a model, of all layers and of one sequence.
///   - Layers with a window or chunk read that much at most; layers with a state read and update each of its elements.
///   - MLA: a step reads the latent rows as they are, so that its queries and sums have their width; a pass expands
///     them. So a pass over s tokens costs less than s times the last step.
class GenerationWork {
 public:
  /// `parameter_count`: weights in the layers that a token meets, layer_parameter_count() or a model card's number.
  GenerationWork(ModelCache cache, double parameter_count);

  double step(std::uint64_t cached_tokens) const;  ///< Of one token behind so many cached ones.
  double pass(std::uint64_t tokens) const;         ///< Of so many tokens from the first, without a cache.
  /// The same by a kernel that skips what the mask hides: what a prefill costs.
  double masked_pass(std::uint64_t tokens) const;

  // Of a whole batch. Require check_generation().
  double prompt(const Generation& generation) const;     ///< The prompt's pass, the same in both ways.
  Work last_step(const Generation& generation) const;    ///< The longest step. Requires new tokens.
  Work steps(const Generation& generation) const;        ///< All of them: closed forms, for any number.
  Work step_logits(const Generation& generation) const;  ///< Of the last step.
  Work all_logits(const Generation& generation) const;   ///< The prompt's too: of all its tokens in both ways.

 private:
  ModelCache cache_;
  double token_flops_;  ///< Of weights and states, for each token.
  double step_row_;     ///< Operations of one layer for each token that a step reads.
  double pass_row_;     ///< The same in a pass.
};

}  // namespace kv
