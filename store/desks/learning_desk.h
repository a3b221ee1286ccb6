// store/desks/learning_desk.h: what is learned from requests: by the eviction policy, and for the curve of hit rates.
#pragma once

#include <optional>

#include "store/curve/hit_curve.h"
#include "store/desks/shelf.h"
#include "store/policy/block_sample.h"
#include "store/policy/yield_counts.h"

namespace kv {

/// Tells the policy and the curve of requests and offers.
///   1. Both hear of the same requests and offers, in the same order, the policy first.
///   2. Requests do not pay for learning: it waits for learn().
class LearningDesk {
 public:
  explicit LearningDesk(Shelf& shelf);

  /// Runs one 30 us slice of the policy's and the curve's background learning. Requests do not pay for it. Returns
  /// whether there is more. Call it often, in a loop until it returns false, and let others in between two calls. Uses
  /// that it does not learn in time are lost (StoreStats::unlearned_uses).
  bool learn();
  struct Curve {
    HitCurve::Report report;
    std::uint64_t block_bytes = 0;  ///< The average that turns a point's bytes into its block_count.
  };
  /// The hit rate by capacity; empty if the curve is off. Some ten microseconds.
  std::optional<Curve> curve() const;
  /// Which blocks are learned from. Changes with the capacity, so ask again regularly.
  SampledNames::Samples samples() const;
  // Several nodes learn together (combined_counts.h). This node's counts; nullptr: its policy does not count. Copy them
  // in parts, some ten classes under one lock.
  const YieldTable* yield_table() const { return shelf_.policy->table(); }
  std::uint64_t age_clock() const { return shelf_.policy->clock(); }  ///< Blocks offered so far, as the policy counts.
  /// Replaces the other nodes' counts, in ages of yield_table()->unit().
  void set_combined(YieldTable::Combined combined);
  /// The node's own counts from before a restart (read_learned). They supplement its learning until they are forgotten.
  void set_before(YieldCounts counts);

  // -- for other desks
  /// Return the trait of the uses. `known`: as EvictionPolicy::asked.
  std::uint16_t asked(const EvictionPolicy::Request& request, std::size_t memory_count, TimePoint now,
                      std::size_t* known = nullptr);
  std::uint16_t offered(const EvictionPolicy::Request& request, Usage above, Tick tick);
  /// Estimates the number of blocks that find room, if later ones are like the present ones. `block_bytes`: of the
  /// next, while there are none.
  void tell_capacity(std::size_t block_bytes);
  std::string check() const;

 private:
  Shelf& shelf_;
  std::unique_ptr<HitCurve> curve_;  ///< nullptr: off.
};

}  // namespace kv
