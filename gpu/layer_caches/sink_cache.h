// gpu/layer_caches/sink_cache.h: a cache of bounded size that keeps attention sinks and recent tokens (StreamingLLM).
//
//   window 8, sinks 2, a prompt of 5 and then single tokens:
//     tokens kept     0 1 2 3 4 5 6 7    at positions 0..7: full, without a drop
//     and after one   0 1 3 4 5 6 7 8    at positions 0..7: token 2 left, 3..7 moved by -1, 8 was computed at 7
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "gpu/layer_caches/layer_cache.h"

namespace kv {

/// The kept tokens, their positions, and the turns of their keys, which were rotated before they were stored. The first
/// sink_count tokens stay for ever, with the last ones, window_tokens in all; as tokens behind the sinks leave, all
/// later ones move down, so that positions are always 0, 1, 2, ..., within the range of the model's training.
///   1. Stored keys never change or move: each is turned once, from the position of its computation, by the sum of all
///      moves since. (Repeated turns would add a rounding each.)
///   2. Drops and moves begin when the window is full: after cached + added exceeds window_tokens.
class SinkWindow {
 public:
  /// Requires 0 <= sink_count < window_tokens.
  SinkWindow(std::int64_t sink_count, std::int64_t window_tokens);

  struct Row {
    std::int64_t token;                      ///< Index in the sequence.
    std::int64_t place;                      ///< Storage place, below window_tokens.
    std::int64_t stored_position, position;  ///< The key was computed at the first, is used at the second,
    std::int64_t delta() const { return position - stored_position; }  ///< and so turned by this.
    friend bool operator==(const Row&, const Row&) = default;
  };

  /// An update, in this order: cached tokens move, new ones are computed behind them, the kept ones are stored.
  struct Step {
    std::int64_t first_position;       ///< Of the added tokens during their computation.
    std::vector<Row> read;             ///< Cached tokens that they read, side by side.
    std::vector<std::int64_t> added;   ///< Indices of the stored added tokens,
    std::vector<std::int64_t> places;  ///< and their places.
  };

  /// Adds tokens. If they and the sinks fit the window, cached ones make room first. If not (a long prompt), they are
  /// computed behind all cached tokens, with their whole context, and then all move. Requires added_count > 0.
  Step add(std::int64_t added_count);

  /// Removes the last tokens. False, without a change, if the window has dropped any: a key that moved down cannot move
  /// back beside a dropped one. Requires 0 <= token_count <= this->token_count().
  [[nodiscard]] bool crop(std::int64_t token_count);

  std::vector<Row> rows() const;                             ///< In order of their positions 0, 1, 2, ...
  std::int64_t token_count() const { return token_count_; }  ///< All ever added, less cropped ones.
  std::int64_t cached_count() const { return token_count_ - dropped_count_; }

 private:
  std::int64_t place_of(std::int64_t token) const;

  std::int64_t sink_count_, window_tokens_;
  std::int64_t token_count_ = 0;
  std::int64_t dropped_count_ = 0;             ///< Tokens [sink_count_, sink_count_ + dropped_count_) are gone.
  std::vector<std::int64_t> stored_position_;  ///< By place.
};

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
  void select(std::span<const std::int64_t> sequences) override;
  void drop_view() override { view_.reset(); }
  std::int64_t memory_bytes() const override { return stored_.memory_bytes() + (view_ ? view_->memory_bytes() : 0); }

 private:
  /// Errors: kUnsupported once the window has dropped tokens, except to the present length.
  Result<void> keep_first(std::int64_t token_count) override;

  SinkWindow window_;
  Rotation rotation_;
  KvTensor stored_;
  std::optional<KvTensor> view_;
};

}  // namespace kv
