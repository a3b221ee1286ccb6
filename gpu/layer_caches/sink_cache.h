// gpu/layer_caches/sink_cache.h: a cache of bounded size that keeps attention sinks and recent tokens (StreamingLLM).
#pragma once

#include <optional>

#include "gpu/layer_caches/layer_cache.h"
#include "gpu/layer_caches/sink_window.h"

namespace kv {

/// What SinkWindow says, carried out: keys lie as they were stored, and are turned when an update puts a view together.
/// The keys of an update are rotated already, for the positions that next_position() named.
class SinkCache final : public LayerCache {
 public:
  /// How keys are rotated; `rotation.delta` and `deltas` are not used. Its frequencies must live as long as the cache.
  SinkCache(const TokenShape& shape, std::int64_t sink_count, std::int64_t window_tokens, const Rotation& rotation);

  /// Where the first of `added_count` tokens must be computed if they are the next ones.
  std::int64_t next_position(std::int64_t added_count) const;

  /// View: what is cached, at positions 0, 1, 2, ..., and the added tokens behind it.
  Result<KvView> update(const KvTensor& added) override;
  std::int64_t token_count() const override { return window_.token_count(); }
  /// Errors: kUnsupported once the window has dropped tokens, except to the present length.
  Result<void> crop(std::int64_t token_count) override;
  void select(std::span<const std::int64_t> sequences) override;

  const SinkWindow& window() const { return window_; }

 private:
  SinkWindow window_;
  Rotation rotation_;
  KvTensor stored_;
  std::optional<KvTensor> view_;
};

}  // namespace kv
