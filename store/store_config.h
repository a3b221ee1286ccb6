// store/store_config.h: the settings of a Store.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "store/contexts/context_table.h"
#include "store/curve/hit_curve.h"
#include "store/disk/disk_tier.h"
#include "store/memory/arena.h"
#include "store/policy/eviction_policy.h"
#include "store/spill/spiller.h"

namespace kv {

struct StoreConfig {
  ArenaConfig arena;
  Duration lease_duration = std::chrono::seconds(10);
  std::size_t lease_count_max = 65536;  ///< Of the node.
  std::size_t lease_count_per_session_max = 1024;
  std::size_t namespace_count_max = 1024;  ///< Counts namespaces with blocks and remembered idle ones.
  double retained_fraction_max = 0.5;      ///< Share of the arena that retain() and contexts may keep.
  ContextLimits contexts;
  double leased_fraction_max = 0.5;      ///< Share of the arena that leases may keep; shared blocks count once.
  std::size_t chain_blocks_max = 65536;  ///< Per request.
  /// Bound on StoreStats::index_used_bytes; beyond it, blocks are evicted as if the arena were full. Blocks on disk get
  /// at most half. 0: 256 MiB plus a 16th of the arena.
  std::size_t index_bytes_max = 0;
  std::uint64_t hash_seed = 0;  ///< As in PrefixIndex.
  bool has_tenants = false;     ///< Namespaces belong to the `tenant` of their record, and set_tenants() may be called.
  /// The minimum charge of a block to its tenant. A 32nd of this charge must cover a block's entry in the index.
  std::uint64_t tenant_charge_min = 8192;
  PolicyKind policy = PolicyKind::kLru;
  /// kYield acts as LRU while requests name parts of chains whose rest is on other nodes, and counts are not combined.
  bool lru_unless_combined = false;
  HitCurveConfig curve;
  std::size_t departed_count_max = 262144;  ///< Remembered blocks that left; 8 bytes each (departed_table.h).
  std::size_t event_count_max = 0;          ///< Changes in the log, 80 bytes each (event_log.h). 0: off.
  DiskTierConfig disk;                      ///< Without capacity: no disk tier.
  SpillerConfig spill;
};

}  // namespace kv
