// store/policy/hint_trust.h: the past reliability of a caller's hints.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "index/reuse_hint.h"

namespace kv {

/// Decides which hints of which tenant to believe: those that have come true. For each tenant and hint it counts how
/// often blocks were used again for the time that they waited, against all blocks of the tenant. A hint of "soon" has
/// to be followed by more uses than the tenant's mean, "never" by fewer. A tenant whose hints are constant or random is
/// treated as silent, and cannot spoil the learning from true hints. Until enough is known, varied hints are believed.
///
/// Only blocks with one use are counted: for a shared beginning, one request's hint means little. Bounded: the kTenants
/// most recent tenants are kept; a predecessor's remains are a small error. Thread safety: as EvictionPolicy.
class HintTrust {
 public:
  static constexpr std::uint32_t kTenants = 64;
  static constexpr std::uint32_t kHints = kReuseHintMax + 1;

  /// Records a hint of the tenant's request. Returns the tenant's place here.
  std::uint8_t hear(std::uint64_t tenant, ReuseHint hint);
  bool has_heard() const { return has_heard_; }  ///< Whether any caller ever gave a hint.
  /// The hint if it is believed, else kNone.
  ReuseHint believed(std::uint8_t place, ReuseHint hint) const {
    return tenants_[place].is_believed[index(hint)] ? hint : ReuseHint::kNone;
  }

  /// A block whose latest request said `hint` was used again; or has waited for so many more blocks.
  void add_use(std::uint8_t place, ReuseHint hint) { ++tenants_[place].of[index(hint)].uses; }
  void add_time(std::uint8_t place, ReuseHint hint, std::uint64_t blocks) {
    tenants_[place].of[index(hint)].time += static_cast<double>(blocks);
  }
  void learn();
  void forget(double factor);  ///< Scales past counts by this factor.
  void forget_counts();        ///< The decisions stay until there is new evidence.

 private:
  static std::size_t index(ReuseHint hint) { return static_cast<std::size_t>(hint); }
  struct Counts {
    double requests = 0, uses = 0, time = 0;
  };
  struct Tenant {
    std::uint64_t name = 0, heard_at = 0;  ///< heard_at 0: a free place.
    std::array<Counts, kHints> of{};
    std::array<bool, kHints> is_believed{};
  };
  static void learn(Tenant& tenant);

  std::uint64_t heard_count_ = 0;
  std::uint8_t last_ = 0;  ///< Place of the most recent tenant.
  bool has_heard_ = false;
  std::array<Tenant, kTenants> tenants_{};
};

}  // namespace kv
