// gpu/operation.h: the operation that a call applies to the rows it moves. Plain data that a kernel takes by value.
#pragma once

#include <cstdint>

#include "gpu/layout.h"

namespace kv {

/// Rule for the scale, which values are divided by, from a group's largest magnitude, amax.
enum class ScaleRule : std::uint8_t {
  kTokenHead,          ///< max(amax / element_max, 1e-6): int8 or e4m3 per token and head
  kTile,               ///< max(amax / element_max, FLT_MIN): the tiles of ds_mla
  kIndexer,            ///< max(amax, 1e-4) / element_max
  kIndexerPowerOfTwo,  ///< the same, rounded up to a power of two (ue8m0)
  kNvfp4,              ///< e4m3(amax / (6 * global)); the stored scale is multiplied by `global` when used
};

enum class RopeStyle : std::uint8_t { kNeox, kGptj };  ///< Pairs (i, i + R/2), or pairs (2i, 2i + 1).

/// Turns keys from the positions of their computation to others: by the *difference*, once, from the stored original.
struct Rotation {
  RopeStyle style = RopeStyle::kNeox;
  std::int64_t rotary_size = 0;          ///< R: only the first R features turn. Even, at most kRotarySizeMax.
  const double* frequencies = nullptr;   ///< [R/2] radians per position, the model's own inv_freq.
  const std::int64_t* deltas = nullptr;  ///< [rows] new minus old position; null: `delta` for every row.
  std::int64_t delta = 0;
};
inline constexpr std::int64_t kRotarySizeMax = 1024;
inline constexpr std::int64_t kHeadFeaturesMax = 4096;  ///< Of a component that is computed on, not just copied.

/// Whether the host's copies bypass its caches. kAuto: in calls of 4 MiB and more. Devices ignore it.
enum class HostStores : std::uint8_t { kAuto, kCached, kStreaming };

using RoleMask = std::uint32_t;
constexpr RoleMask role_bit(Role role) { return RoleMask{1} << static_cast<unsigned>(role); }
inline constexpr RoleMask kAllRoles = (RoleMask{1} << kRoleCount) - 1;

struct Operation {
  enum class Kind : std::uint8_t {
    kCopy,        ///< Bytes; elements must be the same.
    kCast,        ///< to = round(from * from_scale / to_scale), saturating.
    kQuantise,    ///< Components with scales in `to` get dynamic ones; the rest is cast.
    kDequantise,  ///< Components with scales in `from` are multiplied by them; the rest is cast.
    kRotate,      ///< Keys (K and rope) are turned, all is cast. Keys with scales get new ones, by scale_rule.
  };
  Kind kind = Kind::kCopy;
  RoleMask roles = kAllRoles;    ///< Components of `to` to write: role_bit(Role::kKey) leaves V alone.
  float from_scale[kRoleCount];  ///< Static scales: the value is the stored number times the scale.
  float to_scale[kRoleCount];
  ScaleRule scale_rule = ScaleRule::kTokenHead;
  float global_scale = 1.0F;  ///< kNvfp4's g, on the dequantising side.
  Rotation rotation;
  HostStores host_stores = HostStores::kAuto;

  constexpr explicit Operation(Kind what = Kind::kCopy, RoleMask which = kAllRoles)
      : kind(what), roles(which), from_scale{}, to_scale{} {
    for (int i = 0; i < kRoleCount; ++i) from_scale[i] = to_scale[i] = 1.0F;
  }
};

}  // namespace kv
