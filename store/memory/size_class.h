// store/memory/size_class.h: the slot length for a set's block.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>

namespace kv {

/// Blocks of a set have any length up to the set's bound. A slab for each length would fragment the arena, so lengths
/// are rounded up to one of 32 steps between two powers of two: a slot is at most a 33rd (3 %) longer than its block,
/// and half of that on average. Lengths under 2 KiB get multiples of 64 bytes, as chains' do. A class needs slabs of
/// its own, of up to 34 blocks each. So that the slabs of one doubling fit a quarter of the arena (on average 12 blocks
/// each), there are fewer steps where the arena lacks room for 1,536 blocks of the length: 16 for half as many, and so
/// on down to one, a power of two. An arena of 64 GiB has all 32 steps up to 32 MiB. A slot is never longer than the
/// bound, so blocks of exactly that length fill it. Further waste in slabs is left to Arena. The slot is accounted, not
/// the length. Requires 0 < length <= length_max.
constexpr std::size_t set_slot_bytes(std::size_t length, std::size_t length_max, std::size_t arena_bytes) {
  constexpr std::size_t kStepMin = 64, kStepsMax = 32, kBlocksPerStep = 48;
  const std::size_t below = std::bit_floor(std::max<std::size_t>(length - 1, 1));  // a power of two
  const std::size_t steps = std::clamp<std::size_t>(std::bit_floor(arena_bytes / below / kBlocksPerStep), 1, kStepsMax);
  const std::size_t step = std::max(kStepMin, below / steps);
  return std::min((length + step - 1) / step * step, length_max);
}
static_assert(set_slot_bytes(1, 1 << 30, 1 << 30) == 64 && set_slot_bytes(65536, 1 << 30, 1 << 30) == 65536);
static_assert(set_slot_bytes(65537, 1 << 30, 1 << 30) == 65536 + 2048);
static_assert(set_slot_bytes(65537, 66000, 1 << 30) == 66000);
static_assert(set_slot_bytes(65537, 1 << 30, 1 << 20) == 131072);

}  // namespace kv
