// gpu/layer_caches/static_cache.h: caches whose memory has a fixed size and place, as compiled graphs need it.
#pragma once

#include <optional>

#include "gpu/layer_caches/layer_cache.h"

namespace kv {

/// Holds up to `token_count_max` tokens. The view is the filled part of one tensor; a mask must hide the rest.
class StaticCache final : public LayerCache {
 public:
  StaticCache(const TokenShape& shape, std::int64_t token_count_max) : tokens_(shape, token_count_max) {}

  Result<KvView> update(const KvTensor& added) override;
  /// The same to places of the caller's choice; token_count() then ends behind the last place ever written.
  Result<KvView> update_at(const KvTensor& added, std::span<const std::int64_t> places);
  std::int64_t token_count() const override { return token_count_; }
  void select(std::span<const std::int64_t> sequences) override;  ///< As many as the batch has: memory stays in place.
  std::int64_t memory_bytes() const override { return tokens_.memory_bytes(); }

 private:
  Result<void> keep_first(std::int64_t token_count) override {
    token_count_ = token_count;
    return {};
  }

  KvTensor tokens_;
  std::int64_t token_count_ = 0;
};

/// The last `window_tokens` tokens, for layers whose attention reads no more. A StaticCache until it is full; then its
/// tokens roll to the left. Keys stay turned to absolute positions. A long prompt that does not fit returns a view of
/// all that its tokens read: up to window_tokens - 1 kept tokens, then all of its own.
class SlidingCache final : public LayerCache {
 public:
  SlidingCache(const TokenShape& shape, std::int64_t window_tokens) : tokens_(shape, window_tokens) {}

  Result<KvView> update(const KvTensor& added) override;
  std::int64_t token_count() const override { return token_count_; }
  void select(std::span<const std::int64_t> sequences) override;
  void drop_view() override { long_view_.reset(); }
  std::int64_t memory_bytes() const override {
    return tokens_.memory_bytes() + (long_view_ ? long_view_->memory_bytes() : 0);
  }

  KvView view() const { return {&tokens_, 0, kept_count()}; }

 private:
  /// Errors: kUnsupported once tokens have left the window, except to the present length.
  Result<void> keep_first(std::int64_t token_count) override;
  std::int64_t window_tokens() const { return tokens_.token_count(); }
  std::int64_t kept_count() const { return token_count_ < window_tokens() ? token_count_ : window_tokens(); }

  KvTensor tokens_;
  std::optional<KvTensor> long_view_;  ///< Of the last update, if it did not fit.
  std::int64_t token_count_ = 0;
};

}  // namespace kv
