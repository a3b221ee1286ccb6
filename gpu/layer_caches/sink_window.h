// gpu/layer_caches/sink_window.h: attention sinks and a rolling window: which tokens a bounded cache keeps, which
// positions they have in it, and how far each stored key must be turned to get there.
//
//   window 8, sinks 2, a prompt of 5 and then single tokens:
//     tokens kept     0 1 2 3 4 5 6 7    at positions 0..7: full, nothing was dropped yet
//     and after one   0 1 3 4 5 6 7 8    at positions 0..7: token 2 left, 3..7 moved by -1, 8 was computed at 7
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kv {

/// A cache of keys that were stored *before* their rotation (StreamingLLM): of `cached_count` tokens the first ones and
/// the last ones stay, so that `added_count` more fit sink_count + recent_count. A kept key's position is its index
/// among those that stay.
struct KeptRanges {
  std::int64_t sinks_end;                 ///< [0, sinks_end) stays,
  std::int64_t recent_begin, recent_end;  ///< and [recent_begin, recent_end).
  friend bool operator==(const KeptRanges&, const KeptRanges&) = default;
};
KeptRanges keep_unrotated(std::int64_t cached_count, std::int64_t added_count, std::int64_t sink_count,
                          std::int64_t recent_count);

/// The same for keys that were rotated when they were stored. The first sink_count tokens stay for ever, and the last
/// ones, window_tokens in all; as tokens leave behind the sinks, all later ones move down, so that positions are always
/// 0, 1, 2, ... and never pass what the model was trained on.
///   1. Stored keys never change and never move: each is turned once, from the position it was computed at, by the sum
///      of all moves since. (Turning the turned again adds a rounding each time.)
///   2. Nothing is dropped, or moved, before the window is full: while cached + added <= window_tokens.
class SinkWindow {
 public:
  /// Requires 0 <= sink_count < window_tokens.
  SinkWindow(std::int64_t sink_count, std::int64_t window_tokens);

  /// One cached token.
  struct Row {
    std::int64_t token;                      ///< Its index in the sequence.
    std::int64_t place;                      ///< Where it is stored: below window_tokens.
    std::int64_t stored_position, position;  ///< The key was computed at the first and belongs at the second,
    std::int64_t delta() const { return position - stored_position; }  ///< so it is turned by this.
    friend bool operator==(const Row&, const Row&) = default;
  };

  /// What an update does, in this order: cached tokens move, new ones are computed behind them at first_position, those
  /// that stay are stored.
  struct Step {
    std::int64_t first_position;       ///< Of the added tokens while they are computed.
    std::vector<Row> read;             ///< Cached tokens that they read, beside each other.
    std::vector<std::int64_t> added;   ///< Which of the added tokens are stored,
    std::vector<std::int64_t> places;  ///< and where.
  };

  /// Adds tokens. If they and the sinks fit the window, cached ones make room first. If not (a long prompt), the added
  /// ones are computed behind all that is cached, so that none misses what it should see, and then all move.
  /// Requires added_count > 0.
  Step add(std::int64_t added_count);

  /// Takes the last tokens back. False, and nothing happens, if the window has dropped any: a key that moved down
  /// cannot go back to where another one is gone. Requires 0 <= token_count <= this->token_count().
  [[nodiscard]] bool crop(std::int64_t token_count);

  std::vector<Row> rows() const;                             ///< In order of their positions, which are 0, 1, 2, ...
  std::int64_t token_count() const { return token_count_; }  ///< All that were ever added.
  std::int64_t cached_count() const { return token_count_ - dropped_count_; }

 private:
  std::int64_t place_of(std::int64_t token) const;

  std::int64_t sink_count_, window_tokens_;
  std::int64_t token_count_ = 0;
  std::int64_t dropped_count_ = 0;             ///< Tokens [sink_count_, sink_count_ + dropped_count_) are gone.
  std::vector<std::int64_t> stored_position_;  ///< By place.
};

}  // namespace kv
