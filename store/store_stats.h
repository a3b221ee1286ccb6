// store/store_stats.h: the figures of a Store.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "index/miss_kind.h"

namespace kv {

/// Counters since start and gauges now. Counters only grow.
struct StoreStats {
  std::uint64_t capacity_bytes = 0, allocated_bytes = 0, slab_bytes = 0;  ///< slab_bytes: granules of classes.
  std::uint64_t block_count = 0, incoming_count = 0, pinned_count = 0, lease_count = 0, namespace_count = 0;
  std::uint64_t set_block_count = 0, set_bytes = 0;  ///< The sets' blocks, and the sum of their lengths.
  std::uint64_t leased_bytes = 0;  ///< Blocks kept by leases, each counted once; at most leased_fraction_max.
  std::uint64_t index_bytes = 0;   ///< Heap, including free entries for later blocks.
  std::uint64_t index_used_bytes = 0, index_bytes_max = 0;
  std::uint64_t forgotten_namespaces = 0;
  std::uint64_t match_hit_blocks = 0, match_disk_blocks = 0, match_miss_blocks = 0;
  std::uint64_t get_hit_blocks = 0, get_disk_blocks = 0, get_miss_blocks = 0;
  std::uint64_t stored_blocks = 0, already_stored_blocks = 0, refused_blocks = 0, put_conflict_blocks = 0;
  std::uint64_t not_admitted_blocks = 0;  ///< Not counted in refused_blocks.
  std::uint64_t unlearned_uses = 0;       ///< Uses in the policy's sample that it did not learn; see Store::learn().
  /// Incomplete chain matches, by why the first missed block was absent; [0]: found no block, [1]: found some.
  std::array<std::array<std::uint64_t, kMissKindCount>, 2> match_misses{};
  std::uint64_t evicted_blocks = 0, evicted_bytes = 0, dropped_blocks = 0, slab_moves = 0;
  std::uint64_t leases_granted = 0, leases_expired = 0, leases_refused = 0;
  std::uint64_t work_steps = 0;
  std::uint64_t work_steps_call_max = 0;  ///< The largest number of steps of one call since the start. A gauge.
  /// [i]: evicted 2^i..2^(i+1) ms after their last use ([0]: under 2 ms; the last entry is open).
  std::array<std::uint64_t, 32> eviction_age_log2_ms{};
  struct SizeClass {
    std::uint64_t block_bytes, slot_count, used_count, slab_count;
  };
  std::vector<SizeClass> classes;
  std::uint64_t disk_block_count = 0;  ///< Includes blocks that are also in memory.
  std::uint64_t disk_only_bytes = 0;   ///< Bytes of blocks that lie only on disk; the disk capacity bounds these.
  std::uint64_t disk_log_bytes = 0;    ///< All written bytes whose segment is not given back, dead blocks included.
  std::uint64_t spilled_blocks = 0, disk_evicted_blocks = 0, rewritten_blocks = 0;
  std::uint64_t spill_skipped_blocks = 0;   ///< Evicted unwritten: never used again, or unlikely to be.
  std::uint64_t lost_unspilled_blocks = 0;  ///< Evicted unwritten because the disk was too slow or off.
  std::uint64_t lost_blocks = 0;            ///< Became unreadable on disk.
};

}  // namespace kv
