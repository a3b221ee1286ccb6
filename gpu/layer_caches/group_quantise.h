// gpu/layer_caches/group_quantise.h: 2, 4 or 8 bits for a number, with a scale and zero point per group (KIVI).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kv {

struct GroupFormat {
  int bits = 4;                 ///< 2, 4 or 8
  std::size_t group_size = 64;  ///< Consecutive numbers with one scale; a multiple of 4.
};

/// A number is zero + code * scale: zero is the group's least number, scale a 2^bits - 1 th of its range, both fp16.
struct QuantisedGroups {
  std::vector<std::uint8_t> codes;           ///< The first number in the lowest bits.
  std::vector<std::uint16_t> scales, zeros;  ///< One of each per group.
};

/// Rounds to the nearest code, ties to even. Groups of equal fp16 numbers come back exactly; other numbers within half
/// a scale, plus the rounding of zero and scale. Clamps to fp16's range. Requires: finite numbers, whole groups.
QuantisedGroups quantise_groups(std::span<const float> numbers, const GroupFormat& format);

/// Requires: as many numbers as were quantised, in the same format.
void dequantise_groups(const QuantisedGroups& groups, const GroupFormat& format, std::span<float> numbers);

}  // namespace kv
