// store/evictor.h: which block goes when a slot is wanted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "base/clock.h"
#include "store/block_pool.h"

namespace kv {

/// Finds a slot of a size, evicting for it. In this order:
///   1. a free slot of the class, or free granules for a new slab;
///   2. the least recently used leaf end of the class: its slot. But if the class has none, or one of another class is
///      kAgeRatio times as old:
///   3. memory moves between the classes: the run of granules used longest ago is cleared, with all blocks below those
///      that lie in it (which were used no later). A run that holds a staged or pinned block, or one with a pinned
///      block below, is left. If there is no other: 2.
/// With blocks of one size this is exact: a slot is found as long as one block neither is pinned nor has a pinned block
/// below. With several sizes it is refused when pins are scattered so that no long enough run of granules is without
/// them.
/// Why not always the oldest leaf end of all: clearing a run evicts young blocks along with old ones. With two sizes in
/// equal use that cost a fifth of all hits, since hardly a block then went one by one.
/// Thread safety: none, the Store's lock covers it. Cost: 2: O(log leaf ends + classes); 3: O(granules + blocks of
/// leased prefixes + blocks evicted).
class Evictor {
 public:
  /// Calls its argument with the last block of each prefix that is pinned as a whole (a lease's, a put's, one being
  /// spilled).
  using PinnedPrefixes = std::function<void(const std::function<void(BlockId)>&)>;

  static constexpr std::uint64_t kAgeRatio = 2;

  struct Stats {
    std::uint64_t evicted_blocks = 0, evicted_bytes = 0, slab_moves = 0;
    std::uint64_t unspilled_blocks = 0;           ///< Of them: not on disk.
    std::array<std::uint64_t, 32> age_log2_ms{};  ///< As StoreStats::eviction_age_log2_ms.
  };

  struct Found {
    std::optional<SlotId> slot;  ///< Staged in the pool.
    bool again = false;          ///< Not found because `*budget` evictions were used up; there is more to evict.
  };

  Evictor(BlockPool& pool, PinnedPrefixes pinned_prefixes)
      : pool_(pool), pinned_prefixes_(std::move(pinned_prefixes)) {}

  /// `*budget`: how many blocks may be evicted, counted down. One subtree goes whole, so that the last eviction may
  /// exceed it. `wanted`: how many slots of this size the caller is about to ask for, this one included.
  /// `may_lose`: whether a block that is not on disk may go; if not, only 1, and 2 for a block that is.
  Found find_slot(std::size_t block_bytes, std::size_t* budget, TimePoint now, bool may_lose = true);

  void evict(BlockId leaf_end, TimePoint now);  ///< Requires: no pins.
  const Stats& stats() const { return stats_; }

 private:
  std::size_t clear_oldest_window(std::size_t block_bytes, std::size_t budget, TimePoint now);
  bool is_much_older(BlockId block, BlockId than) const;
  void shield_pinned_prefixes();
  void count_eviction(BlockId block, TimePoint now);

  BlockPool& pool_;
  PinnedPrefixes pinned_prefixes_;
  Stats stats_;
};

}  // namespace kv
