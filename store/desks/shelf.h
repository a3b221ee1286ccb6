// store/desks/shelf.h: what all desks of a Store work on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "index/steps.h"
#include "store/memory/block_pool.h"
#include "store/memory/evictor.h"
#include "store/store_config.h"
#include "store/store_stats.h"
#include "store/tables/departed_table.h"

namespace kv {

/// The default index_bytes_max, for an arena of `capacity_bytes`.
constexpr std::size_t index_bytes_for(std::size_t capacity_bytes) { return (256 << 20) + capacity_bytes / 16; }

/// The blocks of both tiers, and the tables that follow them. Open to all desks, in contrast to the desks' own members:
/// each table guards its own invariants.
///   1. The tiers tell the other tables of every block that comes or goes; a desk does not.
///   2. `counters` has counters only; gauges are computed (Store::stats).
///   3. No call takes more than kStepsMax steps.
/// Thread safety: the Store's lock, as for all desks.
struct Shelf {
  static constexpr std::size_t kStepsPerCall = 8192;  ///< Some 100 us.
  /// The last piece of work may exceed the remaining budget by at most the blocks of one split edge, or the edges above
  /// one block whose lease ends. Twice the budget covers both.
  static constexpr std::size_t kStepsMax = 2 * kStepsPerCall;

  Shelf(const StoreConfig& store_config, std::unique_ptr<Arena> arena);

  /// The step budget of one call for work beyond its own blocks. Added to the counters when the call ends.
  class Call {
   public:
    explicit Call(Shelf& shelf) : shelf_(shelf) {}
    ~Call() {
      StoreStats& of_all = shelf_.counters;
      of_all.work_steps += steps.used();
      of_all.work_steps_call_max = std::max<std::uint64_t>(of_all.work_steps_call_max, steps.used());
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    Steps steps{kStepsPerCall};

   private:
    Shelf& shelf_;
  };

  /// For the desks' checks: what they account for, and whether a bound fell, so that holdings may exceed it.
  struct Tally {
    std::unordered_map<BlockId, std::uint64_t> pins;
    std::unordered_map<BlockId, std::uint32_t> leased;
    std::unordered_set<SlotId> incoming;
    std::size_t incoming_bytes = 0;
    bool limits_fell = false;
  };

  static std::uint8_t passed_count(std::size_t blocks) {  ///< Usage::passed.
    return static_cast<std::uint8_t>(std::min<std::size_t>(blocks, 255));
  }
  const PrefixIndex* index_of(BlockTier of) const {  ///< nullptr without such a tier.
    if (of == BlockTier::kMemory) return &pool.index();
    return tier ? &tier->index() : nullptr;
  }
  std::size_t index_bytes_max() const {
    return config.index_bytes_max > 0 ? config.index_bytes_max : index_bytes_for(pool.arena().capacity_bytes());
  }
  bool is_over_retained(std::size_t more_bytes) const {
    return is_over(config.retained_fraction_max, pool.retained_bytes() + more_bytes);
  }
  bool is_over_leased(std::size_t more_bytes) const {
    return is_over(config.leased_fraction_max, pool.leased_bytes() + more_bytes);
  }

  StoreConfig config;
  std::unique_ptr<EventLog> events;  ///< nullptr: off.
  std::unique_ptr<DiskTier> tier;    ///< nullptr: memory only.
  std::unique_ptr<EvictionPolicy> policy;
  DepartedTable departed;
  BlockPool pool;
  std::unique_ptr<TenantTable> tenants;  ///< nullptr: tenants are not told apart.
  Evictor evictor;
  StoreStats counters;

 private:
  bool is_over(double fraction_max, std::size_t bytes) const {
    return static_cast<double>(bytes) > fraction_max * static_cast<double>(pool.arena().capacity_bytes());
  }
};

}  // namespace kv
