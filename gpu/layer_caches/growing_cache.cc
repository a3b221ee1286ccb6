#include "gpu/layer_caches/growing_cache.h"

#include <algorithm>

#include "base/assert.h"

namespace kv {

Result<KvView> GrowingCache::update(const KvTensor& added) {
  reserve(added.shape(), token_count_ + added.token_count());
  KV_ASSERT(tokens_ && &*tokens_ != &added && token_count_ + added.token_count() <= tokens_->token_count());
  copy_tokens(*tokens_, token_count_, added, 0, added.token_count());
  token_count_ += added.token_count();
  return view();
}

void GrowingCache::select(std::span<const std::int64_t> sequences) {
  if (tokens_) tokens_ = select_sequences(*tokens_, sequences);
}

/// The old tensor lives until the tokens are copied: at most three times the tokens in memory.
void GrowingCache::reserve(const TokenShape& shape, std::int64_t token_count) {
  if (tokens_ && tokens_->token_count() >= token_count) return;
  KvTensor grown(shape, tokens_ ? std::max(token_count, 2 * tokens_->token_count()) : token_count);
  if (tokens_) copy_tokens(grown, 0, *tokens_, 0, token_count_);
  tokens_ = std::move(grown);
}

}  // namespace kv
