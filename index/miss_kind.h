// index/miss_kind.h: why a block is absent. The values are on the wire (wire.fbs, MissReason.why): append only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kv {

enum class MissKind : std::uint8_t {
  kUnknown = 0,        ///< The node gives no reason, or one that this program does not know.
  kNotRemembered = 1,  ///< Never stored, or departed too long ago to be remembered.
  kEvicted = 2,
  kDropped = 3,
  kNotAdmitted = 4,  ///< A put offered it, and the policy gave the victims more worth.
  kRefused = 5,      ///< A put offered it, and all memory was pinned.
  kOverQuota = 6,    ///< A put offered it, and its tenant had its maximum.
  kLost = 7,         ///< The disk could not return it whole.
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
/// Accepts values of later versions.
inline constexpr MissKind miss_kind_of(std::uint8_t value) {
  return value < kMissKindCount ? static_cast<MissKind>(value) : MissKind::kUnknown;
}

}  // namespace kv
