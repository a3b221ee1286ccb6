// gpu/device/device_plan.h: a PermutePlan as a kernel takes it: by value, with the addresses inside, and with what can
// be decided once decided: how wide each component's accesses are, and which body moves it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpu/permute_plan.h"

namespace kv {

/// Of DevicePlan and the functions of gpu/cuda/module_abi.h: a module built for another one is refused.
inline constexpr int kDeviceAbiVersion = 7;

/// How a component is moved (gpu/device/device_body.h has the bodies).
enum class DeviceBody : std::uint8_t {
  kWideCopy,         ///< Vectors of 16 bytes, and slots found without a division: what nearly every call is.
  kCopy,             ///< Vectors of vec_bytes that are contiguous on both sides.
  kSimpleTranspose,  ///< Tokens are neighbours on one side, features on the other: through a tile in shared memory.
  kTranspose,        ///< The same where slots need a division.
  kCast,             ///< Cast or dequantise: a thread takes eight values.
  kRotate,           ///< A thread takes a pair.
  kQuantise,         ///< Neighbouring threads take a group that shares a scale, eight values each.
};

/// Threads that take a group of kQuantise: a power of two, at most a warp, that has eight values for each.
constexpr int quantise_lane_shift(std::int64_t values_per_scale) {
  int shift = 0;
  while (shift < 5 && (8 << shift) < values_per_scale) ++shift;
  return shift;
}
constexpr int quantise_lanes(std::int64_t values_per_scale) { return 1 << quantise_lane_shift(values_per_scale); }

inline constexpr int kDeviceBasesMax =
    1024;  ///< Pointers that travel with a launch: 8 KiB of its 32 KiB of parameters.

struct DevicePart {
  Part part;
  DeviceBody body = DeviceBody::kCopy;
  int vec_bytes =
      1;  ///< kCopy: 16, 8, 4, 2 or 1. kCast, kQuantise: 16 if eight values are one access on both sides, else 1.
};

struct DevicePlan {
  Rows to_rows;
  Rows from_rows;
  std::int64_t row_count = 0;
  std::int64_t layer_count = 0;
  std::int64_t to_block_tokens = 0;
  std::int64_t from_block_tokens = 0;
  std::int64_t to_slot_count =
      0;  ///< A slot beyond them is skipped like a negative one: the host would have refused it.
  std::int64_t from_slot_count = 0;
  int to_shift = -1;  ///< log2 of block_tokens, or -1: a division costs as much as the copy of a vector.
  int from_shift = -1;
  const std::uint32_t* verdicts = nullptr;  ///< Of each source block: 0, or its rows are skipped. Null: none is.
  int to_width = 0;                         ///< Components a layer in to_bases.
  int from_width = 0;
  int part_count = 0;
  DevicePart parts[kRoleCount];
  Operation operation;
  std::byte* bases[kDeviceBasesMax];  ///< [layer][component] of `to`, then of `from`.

  static constexpr bool kHasVerdicts = false;  ///< Of the type that a body is compiled for: the test costs registers.

  constexpr std::byte* to_base(std::int64_t layer, int component) const { return bases[layer * to_width + component]; }
  constexpr std::byte* from_base(std::int64_t layer, int component) const {
    return bases[layer_count * to_width + layer * from_width + component];
  }
};

/// A plan whose verdicts count.
struct VerifiedDevicePlan : DevicePlan {
  static constexpr bool kHasVerdicts = true;
};

/// The launches that carry out `plan`: one, unless its layers need more than kDeviceBasesMax pointers.
/// `vec_bytes_max` narrows the accesses, for tests: the result must not depend on it.
std::vector<DevicePlan> make_device_plans(const PermutePlan& plan, int vec_bytes_max = 16);

}  // namespace kv
