// gpu/device/device_plan.h: a PermutePlan in a kernel's form: by value, with the addresses inside, and with the
// decisions made once for all threads: each component's access width and body.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpu/plans/permute_plan.h"

namespace kv {

/// Version of DevicePlan and the functions of gpu/cuda/module_abi.h: a module of another version is refused.
inline constexpr int kDeviceAbiVersion = 9;

/// How a component is moved (gpu/device/device_body.h has the bodies).
enum class DeviceBody : std::uint8_t {
  kWideCopy,   ///< Vectors of 16 bytes, slots without divisions: nearly every call.
  kCopy,       ///< Vectors of vec_bytes that are contiguous on both sides.
  kTranspose,  ///< Through a tile in shared memory: tokens are neighbours on one side. Casts too.
  kCast,       ///< Cast or dequantise: a thread takes up to sixteen values of a head.
  kRotate,     ///< A thread takes eight pairs; a row's angles are computed once, for all heads and layers.
  kQuantise,   ///< Neighbouring threads take a group that shares a scale, up to sixteen values each.
};

/// Values that a thread of kCast, kRotate or kQuantise holds in registers at once.
inline constexpr int kHeldValues = 16;

/// Threads per group of kQuantise: a power of two, at most a warp. Each holds up to kHeldValues in registers; a group
/// of sixteen values has two threads, so that neighbours still read neighbouring bytes.
constexpr int quantise_lane_shift(std::int64_t values_per_scale) {
  const std::int64_t each = values_per_scale <= kHeldValues ? kHeldValues / 2 : kHeldValues;
  int shift = 0;
  while (shift < 5 && (each << shift) < values_per_scale) ++shift;
  return shift;
}
constexpr int quantise_lanes(std::int64_t values_per_scale) { return 1 << quantise_lane_shift(values_per_scale); }

inline constexpr int kDeviceBasesMax = 1024;  ///< Pointers that travel with a launch: 8 KiB of its parameters.

struct DevicePart {
  Part part;
  DeviceBody body = DeviceBody::kCopy;
  /// kCopy: 16, 8, 4, 2 or 1. Others: 16 if eight values are one access on both sides, 4 if four are, else 1.
  int vec_bytes = 1;
  /// kCast: accesses of a thread, evenly spread over a head's row. kQuantise: groups, the same way.
  int access_count = 1;
  /// Layout of a warp's threads over pieces and rows: 2^span_shift pieces side by side, then the same pieces of
  /// 2^row_shift rows, so that both sides' 32-byte sectors are whole. 0: all pieces of a row first.
  int span_shift = 0;
  int row_shift = 0;
  bool has_wide_to = false;  ///< kTranspose: 16 contiguous bytes on that side are one access.
  bool has_wide_from = false;
};

/// Pieces of a head's row in kQuantise, one per thread of a group.
constexpr std::int64_t quantise_pieces(const DevicePart& device) {
  const std::int64_t groups = device.part.values / device.part.values_per_scale;
  return groups / device.access_count * quantise_lanes(device.part.values_per_scale);
}

/// A launch's data besides its components and their addresses.
struct DevicePlanHead {
  Rows to_rows;
  Rows from_rows;
  std::int64_t row_count = 0;
  std::int64_t layer_count = 0;
  std::int64_t to_block_tokens = 0;
  std::int64_t from_block_tokens = 0;
  std::int64_t to_slot_count = 0;  ///< A slot beyond it is skipped like a negative one: the host would have refused it.
  std::int64_t from_slot_count = 0;
  int to_shift = -1;  ///< log2 of block_tokens, or -1: divide, at the cost of a vector's copy.
  int from_shift = -1;
  int to_rows_shift = 0;  ///< log2 of the tokens of a block that an id names; 0 for other ids; -1: divide.
  int from_rows_shift = 0;
  const std::uint32_t* verdicts = nullptr;  ///< Per source block: if not 0, its rows are skipped. Null: none are.
  int to_width = 0;                         ///< Components per layer in to_bases.
  int from_width = 0;
  int part_count = 0;
  Operation operation = Operation();
};

/// A launch. It travels as the kernel's parameter: without allocation, and a graph that captures it keeps a copy. The
/// driver copies it whole for each launch, so launches of a few layers use a smaller type.
template <int kParts, int kBases>
struct DevicePlanOf : DevicePlanHead {
  static constexpr int kPartsMax = kParts;
  static constexpr int kBasesMax = kBases;
  static constexpr bool kHasVerdicts = false;  ///< Per compiled type, since the test costs registers.

  DevicePart parts[kParts];
  std::byte* bases[kBases];  ///< [layer][component] of `to`, then of `from`.

  constexpr std::byte* to_base(std::int64_t layer, int component) const { return bases[layer * to_width + component]; }
  constexpr std::byte* from_base(std::int64_t layer, int component) const {
    return bases[layer_count * to_width + layer * from_width + component];
  }
};
using DevicePlan = DevicePlanOf<kRoleCount, kDeviceBasesMax>;
using SmallDevicePlan = DevicePlanOf<3, 144>;  ///< K, V and one more, of 36 layers with two components a side.

/// The plan of `body`'s parts alone, for a launch. Requires that they fit.
template <class Small>
Small plan_of_body(const DevicePlan& plan, DeviceBody body) {
  Small small{};
  static_cast<DevicePlanHead&>(small) = plan;
  small.part_count = 0;
  for (int i = 0; i < plan.part_count; ++i) {
    if (plan.parts[i].body == body) small.parts[small.part_count++] = plan.parts[i];
  }
  const std::int64_t base_count = plan.layer_count * (plan.to_width + plan.from_width);
  for (std::int64_t i = 0; i < base_count; ++i) small.bases[i] = plan.bases[i];
  return small;
}
template <class Small>
bool fits(const DevicePlan& plan, DeviceBody body) {
  int part_count = 0;
  for (int i = 0; i < plan.part_count; ++i) part_count += plan.parts[i].body == body ? 1 : 0;
  return part_count <= Small::kPartsMax && plan.layer_count * (plan.to_width + plan.from_width) <= Small::kBasesMax;
}

struct VerifiedDevicePlan : DevicePlan {
  static constexpr bool kHasVerdicts = true;
};

/// A grid's blocks by their shares: first the available shares, in the end the grid's.
struct GridShares {
  std::int64_t rows = 1;
  std::int64_t pairs = 1;   ///< Of component and layer.
  std::int64_t pieces = 1;  ///< Of a row.
};
/// Blocks that are worth their start: 13 on each of 148 processors. More would repeat work that is done once per block.
inline constexpr std::int64_t kBlocksEnough = 2048;

/// At most `block_count_max` blocks, which take the remaining shares in turn. Rows and pairs get blocks first; pieces,
/// and pairs with common work (`has_common_work`), only where processors would idle otherwise.
constexpr GridShares bounded_grid(GridShares shares, bool has_common_work, std::int64_t block_count_max) {
  constexpr std::int64_t kSideMax = 65535;  // of a grid's y and z
  const auto within = [](std::int64_t count, std::int64_t most) { return count > most ? most : count < 1 ? 1 : count; };
  const std::int64_t enough = within(kBlocksEnough, block_count_max);
  if (has_common_work) {
    shares.rows = within(shares.rows, block_count_max);
    shares.pairs = within(within(enough / shares.rows, shares.pairs), kSideMax);
  } else {
    shares.pairs = within(within(shares.pairs, block_count_max), kSideMax);
    shares.rows = within(shares.rows, block_count_max / shares.pairs);
  }
  shares.pieces = within(within(enough / (shares.rows * shares.pairs), shares.pieces), kSideMax);
  return shares;
}

/// The launches that carry out `plan`: one, unless its layers need more than kDeviceBasesMax pointers. `vec_bytes_max`
/// narrows the accesses, for tests: the result must not depend on it.
std::vector<DevicePlan> make_device_plans(const PermutePlan& plan, int vec_bytes_max = 16);
/// The same for rows of a compressed cache (make_keep_plan()).
std::vector<DevicePlan> make_device_keep_plans(const PermutePlan& plan, int vec_bytes_max = 16);

}  // namespace kv
