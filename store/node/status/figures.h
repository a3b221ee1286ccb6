// store/node/status/figures.h: figures that are made from a Store's counters, each with one definition.
#pragma once

#include <optional>

#include "base/lookup_counts.h"
#include "store/store.h"

namespace kv {

inline LookupCounts lookup_counts(const StoreStats& stats) {
  const auto number = [](std::uint64_t value) { return static_cast<double>(value); };
  return {.match = {number(stats.match_hit_blocks), number(stats.match_disk_blocks), number(stats.match_miss_blocks)},
          .get = {number(stats.get_hit_blocks), number(stats.get_disk_blocks), number(stats.get_miss_blocks)}};
}

/// The median age of evicted blocks since their last use, an upper bound within a factor of two. nullopt: none was
/// evicted.
inline std::optional<double> eviction_age_p50_seconds(const StoreStats& stats) {
  std::uint64_t total = 0, seen = 0;
  for (const std::uint64_t count : stats.eviction_age_log2_ms) total += count;
  for (std::size_t i = 0; i < stats.eviction_age_log2_ms.size() && total > 0; ++i) {
    seen += stats.eviction_age_log2_ms[i];
    if (seen * 2 >= total) return static_cast<double>(std::uint64_t{2} << i) / 1000;
  }
  return std::nullopt;
}

}  // namespace kv
