// store/hint_trust.h: what a caller's hints have been worth.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "index/reuse_hint.h"

namespace kv {

/// Which hints of which tenant to believe: those that have come true. By tenant and hint it is counted how often blocks
/// were used again for the time that they waited, against all blocks of the tenant. A hint that says "soon" has to be
/// followed by more uses than the tenant's mean, "never" by fewer. A tenant that always says the same, or says anything
/// at random, has told nothing: it is treated as if it were silent, and cannot spoil what is learned of hints that are
/// true. Until enough is known, a tenant is believed that says different things of different requests.
///
/// Only blocks with one use are counted: of a beginning that many share, a request's hint says nothing. Bounded: the
/// kTenants that were heard last are known; what a tenant's place still has in it of the one before is a small error.
/// Thread safety: none, as EvictionPolicy.
class HintTrust {
 public:
  static constexpr std::uint32_t kTenants = 64;
  static constexpr std::uint32_t kHints = kReuseHintMax + 1;

  /// A request of the tenant's says this of its future. Returns the tenant's place here.
  std::uint8_t hear(std::uint64_t tenant, ReuseHint hint);
  bool has_heard() const { return has_heard_; }  ///< Whether anybody ever gave a hint.
  /// The hint if it is to be believed, else none.
  ReuseHint believed(std::uint8_t place, ReuseHint hint) const {
    return tenants_[place].is_believed[index(hint)] ? hint : ReuseHint::kNone;
  }

  /// A block whose latest request said `hint` was used again; or has waited for so many blocks more.
  void add_use(std::uint8_t place, ReuseHint hint) { ++tenants_[place].of[index(hint)].uses; }
  void add_time(std::uint8_t place, ReuseHint hint, std::uint64_t blocks) {
    tenants_[place].of[index(hint)].time += static_cast<double>(blocks);
  }
  void learn();                ///< Puts what was counted in force.
  void forget(double factor);  ///< What was counted counts less from now on, by this factor.
  void forget_counts();        ///< Whom to believe stays until there is new proof.

 private:
  static std::size_t index(ReuseHint hint) { return static_cast<std::size_t>(hint); }
  struct Counts {
    double requests = 0, uses = 0, time = 0;
  };
  struct Tenant {
    std::uint64_t name = 0, heard_at = 0;  ///< heard_at 0: nobody's.
    std::array<Counts, kHints> of{};
    std::array<bool, kHints> is_believed{};
  };
  static void learn(Tenant& tenant);

  std::uint64_t heard_count_ = 0;
  std::uint8_t last_ = 0;  ///< Place of the tenant that was heard last.
  bool has_heard_ = false;
  std::array<Tenant, kTenants> tenants_{};
};

}  // namespace kv
