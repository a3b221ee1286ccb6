// gpu/layer_caches/growing_cache.h: keeps every token, in memory that grows.
#pragma once

#include <optional>

#include "gpu/layer_caches/layer_cache.h"

namespace kv {

/// View: all tokens. Memory doubles when full, so that adding tokens one by one copies each twice at most.
class GrowingCache final : public LayerCache {
 public:
  Result<KvView> update(const KvTensor& added) override;
  std::int64_t token_count() const override { return token_count_; }
  void select(std::span<const std::int64_t> sequences) override;
  std::int64_t memory_bytes() const override { return tokens_ ? tokens_->memory_bytes() : 0; }

  KvView view() const { return {tokens_ ? &*tokens_ : nullptr, 0, token_count_}; }

 private:
  Result<void> keep_first(std::int64_t token_count) override {
    token_count_ = token_count;
    return {};
  }
  void reserve(const TokenShape& shape, std::int64_t token_count);

  std::optional<KvTensor> tokens_;
  std::int64_t token_count_ = 0;
};

}  // namespace kv
