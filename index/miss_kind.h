// index/miss_kind.h: why a block is not here. The values travel (wire.fbs, MissReason.why): append only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kv {

enum class MissKind : std::uint8_t {
  kUnknown = 0,        ///< The node does not say, or this program does not know its word for it.
  kNotRemembered = 1,  ///< Never stored; or it left so long ago that nobody remembers.
  kEvicted = 2,
  kDropped = 3,
  kNotAdmitted = 4,  ///< A put offered it, and the policy gave more worth to what would have had to go.
  kRefused = 5,      ///< The same, and all memory was pinned.
  kOverQuota = 6,    ///< The same, and its tenant had as much as it may.
  kLost = 7,         ///< The disk could not give it back whole.
  kDiskOff = 8,      ///< It lies on disk, and the disk is off.
  kBeingStored = 9,  ///< A put is bringing it.
};
inline constexpr std::size_t kMissKindCount = 10;

/// Labels of a metric, and words in JSON: never renamed.
inline constexpr std::array<std::string_view, kMissKindCount> kMissKindNames = {
    "unknown", "not_remembered", "evicted", "dropped",  "not_admitted",
    "refused", "over_quota",     "lost",    "disk_off", "being_stored"};
inline constexpr std::string_view miss_kind_name(MissKind kind) {
  const auto i = static_cast<std::size_t>(kind);
  return kMissKindNames[i < kMissKindCount ? i : 0];
}
/// Of a value that a later node may have sent.
inline constexpr MissKind miss_kind_of(std::uint8_t value) {
  return value < kMissKindCount ? static_cast<MissKind>(value) : MissKind::kUnknown;
}

}  // namespace kv
