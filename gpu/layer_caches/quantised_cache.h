// gpu/layer_caches/quantised_cache.h: a cache that keeps old tokens in 2 or 4 bits and recent ones as they came.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "gpu/layer_caches/layer_cache.h"

namespace kv {

// 2, 4 or 8 bits for a number, with a scale and zero point per group (KIVI).
struct GroupFormat {
  int bits = 4;                 ///< 2, 4 or 8
  std::size_t group_size = 64;  ///< Consecutive numbers with one scale; a multiple of 4.
};

/// A number is zero + code * scale: zero is the group's least number, scale a 2^bits - 1 th of its range, both fp16.
struct QuantisedGroups {
  std::vector<std::uint8_t> codes;           ///< The first number in the lowest bits.
  std::vector<std::uint16_t> scales, zeros;  ///< One of each per group.
  std::size_t bytes() const { return codes.size() + sizeof(std::uint16_t) * (scales.size() + zeros.size()); }
};

/// Rounds to the nearest code, ties to even. Groups of equal fp16 numbers come back exactly; other numbers within half
/// a scale, plus the rounding of zero and scale. Clamps to fp16's range. Requires: finite numbers, whole groups.
QuantisedGroups quantise_groups(std::span<const float> numbers, const GroupFormat& format);

/// Requires: as many numbers as were quantised, in the same format.
void dequantise_groups(const QuantisedGroups& groups, const GroupFormat& format, std::span<float> numbers);

/// Keys are quantised per feature over blocks of group_size tokens (some features are always large), values per token
/// over group_size features.
///   1. The last `residual_tokens` tokens are whole; before them fewer than group_size more.
///   2. A block is quantised once, when enough tokens have come after it; rounded values are never rounded again.
///   3. Added tokens are read as they came, even those that are quantised at the end of the same update.
class QuantisedCache final : public LayerCache {
 public:
  struct Config {
    int bits = 4;
    std::int64_t group_size = 64;
    std::int64_t residual_tokens = 128;
  };
  /// Requires: group_size a multiple of 8; a value size that group_size divides, or that is smaller and a multiple of 8
  /// (then a group is one token's values).
  QuantisedCache(const TokenShape& shape, const Config& config);

  Result<KvView> update(const KvTensor& added) override;
  std::int64_t token_count() const override { return quantised_count() + whole_count_; }
  void select(std::span<const std::int64_t> sequences) override;
  void drop_view() override { view_.reset(); }
  std::int64_t memory_bytes() const override;

  std::int64_t quantised_count() const { return static_cast<std::int64_t>(blocks_.size()) * config_.group_size; }

 private:
  /// Errors: kUnsupported for a length that ends within a quantised block.
  Result<void> keep_first(std::int64_t token_count) override;
  struct SequenceBlock {
    QuantisedGroups keys;    ///< [head][feature][token]
    QuantisedGroups values;  ///< [head][token][feature]
  };
  using Block = std::vector<SequenceBlock>;  ///< One per sequence of the batch.

  GroupFormat key_format() const;
  GroupFormat value_format() const;
  Block quantise(const KvTensor& tokens, std::int64_t begin) const;
  void dequantise(const Block& block, KvTensor& tokens, std::int64_t begin) const;

  TokenShape shape_;
  Config config_;
  std::vector<Block> blocks_;
  std::optional<KvTensor> whole_;  ///< The tokens after the blocks: its [0, whole_count_).
  std::int64_t whole_count_ = 0;
  std::optional<KvTensor> view_;
};

}  // namespace kv
