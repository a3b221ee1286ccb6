#include "gpu/paging/generation_work.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace kv {
namespace {

// The sums below grow with the cube of the tokens, to 2^93. They are exact, so that differences of them are, too.
__extension__ using Wide = unsigned __int128;

// 1 + ... + n, and 1 + ... + n^2.
Wide sum_of_numbers(Wide n) { return n * (n + 1) / 2; }
Wide sum_of_squares(Wide n) { return n * (n + 1) * (2 * n + 1) / 6; }

/// How many tokens a layer reads: in one step, in a pass, and in all of them up to a length.
struct Reads {
  LayerKind kind;
  Wide limit;

  explicit Reads(const LayerGroup& group) : kind(group.kind), limit(group.token_limit) {
    KV_ASSERT(limit > 0 || kind == LayerKind::kFull);
  }

  Wide step(Wide cached) const {
    if (kind == LayerKind::kWindow) return std::min(cached + 1, limit);
    return kind == LayerKind::kChunk ? cached % limit + 1 : cached + 1;
  }
  Wide pass(Wide tokens) const {
    if (kind == LayerKind::kWindow) return tokens * std::min(tokens, limit);
    if (kind != LayerKind::kChunk) return tokens * tokens;
    const Wide rest = tokens % limit;
    return tokens / limit * limit * limit + rest * rest;
  }
  /// step(0) + ... + step(count - 1)
  Wide steps(Wide count) const {
    if (kind == LayerKind::kWindow) {
      const Wide growing = std::min(count, limit);
      return sum_of_numbers(growing) + (count - growing) * limit;
    }
    if (kind != LayerKind::kChunk) return sum_of_numbers(count);
    return count / limit * sum_of_numbers(limit) + sum_of_numbers(count % limit);
  }
  /// pass(1) + ... + pass(tokens)
  Wide passes(Wide tokens) const {
    if (kind == LayerKind::kWindow) {
      const Wide growing = std::min(tokens, limit);
      return sum_of_squares(growing) + limit * (sum_of_numbers(tokens) - sum_of_numbers(growing));
    }
    if (kind != LayerKind::kChunk) return sum_of_squares(tokens);
    if (tokens < limit) return sum_of_squares(tokens);
    const Wide chunks = tokens / limit, rest = tokens % limit;
    // Of the lengths 0 to tokens, `limit` have each number of whole chunks below `chunks`, and rest + 1 have the last.
    const Wide whole_chunks = limit * sum_of_numbers(chunks - 1) + (rest + 1) * chunks;
    return limit * limit * whole_chunks + chunks * sum_of_squares(limit - 1) + sum_of_squares(rest);
  }
};

/// The sum over the layers with attention of what `reads` says of each.
template <class Read>
double over_layers(const ModelCache& cache, Read read) {
  double sum = 0;
  for (const LayerGroup& group : cache.groups) {
    if (group.kind == LayerKind::kState) continue;
    const auto layers = static_cast<double>(group.layers.size() + group.sharing_layer_count);
    sum += layers * static_cast<double>(read(Reads(group)));
  }
  return sum;
}

}  // namespace

Result<void> check_generation(const Generation& generation) {
  const auto& [batch, prompt, added] = generation;
  if (batch == 0 || prompt == 0 || batch > kTokenCountMax || prompt > kTokenCountMax || added > kTokenCountMax)
    return Errc::kBadRequest;
  if (prompt + added > kTokenCountMax / batch) return Errc::kBadRequest;
  return {};
}

Result<std::uint64_t> peak_cache_bytes(const ModelCache& cache, CacheFormat format, const Generation& generation) {
  const auto valid = check_generation(generation);
  if (!valid) return valid.error();
  const auto bytes = cache_bytes(cache, format, generation.prompt_tokens + generation.new_tokens);
  if (!bytes) return bytes.error();
  // States do not grow with tokens, so the bound on tokens says nothing of them.
  if (*bytes > UINT64_MAX / generation.batch) return Errc::kBadRequest;
  return *bytes * generation.batch;
}

GenerationWork::GenerationWork(ModelCache cache, double parameter_count)
    : cache_(std::move(cache)), token_flops_(2 * parameter_count) {
  const ModelShape& shape = cache_.shape;
  const std::uint64_t value_size = shape.value_head_size > 0 ? shape.value_head_size : shape.head_size;
  const auto heads = static_cast<double>(shape.query_head_count);
  pass_row_ = 2 * heads * static_cast<double>(shape.head_size + value_size);
  step_row_ =
      shape.latent_size == 0 ? pass_row_ : 2 * heads * static_cast<double>(2 * shape.latent_size + shape.rope_size);
  for (const LayerGroup& group : cache_.groups) {
    // One multiplication and addition to update an element, one to read it. Rules that correct the state cost more.
    token_flops_ += 4 * static_cast<double>(group.layers.size() * group.recurrence_size);
  }
}

double GenerationWork::step(std::uint64_t cached_tokens) const {
  return token_flops_ + step_row_ * over_layers(cache_, [&](const Reads& reads) { return reads.step(cached_tokens); });
}

double GenerationWork::pass(std::uint64_t tokens) const {
  const double pairs = over_layers(cache_, [&](const Reads& reads) { return reads.pass(tokens); });
  return static_cast<double>(tokens) * token_flops_ + pass_row_ * pairs;
}

double GenerationWork::masked_pass(std::uint64_t tokens) const {
  const double pairs = over_layers(cache_, [&](const Reads& reads) { return reads.steps(tokens); });
  return static_cast<double>(tokens) * token_flops_ + pass_row_ * pairs;
}

double GenerationWork::prompt(const Generation& generation) const {
  return static_cast<double>(generation.batch) * pass(generation.prompt_tokens);
}

Work GenerationWork::last_step(const Generation& generation) const {
  KV_ASSERT(generation.new_tokens > 0);
  const std::uint64_t tokens = generation.prompt_tokens + generation.new_tokens;
  const auto batch = static_cast<double>(generation.batch);
  return {.with_cache = batch * step(tokens - 1), .without_cache = batch * pass(tokens)};
}

Work GenerationWork::steps(const Generation& generation) const {
  const std::uint64_t first = generation.prompt_tokens, last = first + generation.new_tokens;
  const auto batch = static_cast<double>(generation.batch), count = static_cast<double>(generation.new_tokens);
  const double read = over_layers(cache_, [&](const Reads& reads) { return reads.steps(last) - reads.steps(first); });
  const double pairs =
      over_layers(cache_, [&](const Reads& reads) { return reads.passes(last) - reads.passes(first); });
  const auto recomputed_tokens = static_cast<double>(sum_of_numbers(last) - sum_of_numbers(first));
  return {.with_cache = batch * (count * token_flops_ + step_row_ * read),
          .without_cache = batch * (recomputed_tokens * token_flops_ + pass_row_ * pairs)};
}

Work GenerationWork::step_logits(const Generation& generation) const {
  const double token = 2 * static_cast<double>(cache_.shape.hidden_size) *
                       static_cast<double>(cache_.shape.vocabulary_size) * static_cast<double>(generation.batch);
  return {.with_cache = token,
          .without_cache = token * static_cast<double>(generation.prompt_tokens + generation.new_tokens)};
}

Work GenerationWork::all_logits(const Generation& generation) const {
  const double token = step_logits(generation).with_cache;
  const std::uint64_t first = generation.prompt_tokens, last = first + generation.new_tokens;
  const auto recomputed_tokens = static_cast<double>(sum_of_numbers(last) - sum_of_numbers(first));
  return {.with_cache = token * static_cast<double>(last),
          .without_cache = token * (static_cast<double>(first) + recomputed_tokens)};
}

}  // namespace kv
