// gpu/layer_caches/sink_cache.h: a cache of bounded size that keeps attention sinks and recent tokens (StreamingLLM).
#pragma once

#include <optional>

#include "gpu/layer_caches/layer_cache.h"
#include "gpu/layer_caches/sink_window.h"

namespace kv {

/// Carries out SinkWindow: keys stay as stored, and are turned when an update builds its view. The added keys are
/// already rotated for the positions from next_position().
class SinkCache final : public LayerCache {
 public:
  /// `rotation`: how keys are rotated, without `delta` and `deltas`. Its frequencies must outlive the cache.
  SinkCache(const TokenShape& shape, std::int64_t sink_count, std::int64_t window_tokens, const Rotation& rotation);

  /// Position of the first of `added_count` tokens if they are added next.
  std::int64_t next_position(std::int64_t added_count) const;

  /// View: the cached tokens, at positions 0, 1, 2, ..., and the added ones behind them.
  Result<KvView> update(const KvTensor& added) override;
  std::int64_t token_count() const override { return window_.token_count(); }
  /// Errors: kUnsupported once the window has dropped tokens, except to the present length.
  Result<void> crop(std::int64_t token_count) override;
  void select(std::span<const std::int64_t> sequences) override;

 private:
  SinkWindow window_;
  Rotation rotation_;
  KvTensor stored_;
  std::optional<KvTensor> view_;
};

}  // namespace kv
