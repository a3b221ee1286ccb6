#include "store/evictor.h"

#include <algorithm>
#include <bit>
#include <unordered_set>
#include <vector>

#include "base/assert.h"

namespace kv {

Evictor::Found Evictor::find_slot(std::size_t block_bytes, std::size_t* budget, TimePoint now, bool may_lose) {
  for (;;) {
    if (const auto slot = pool_.stage(block_bytes, Arena::Place::kAligned)) return {.slot = slot};
    const BlockId oldest = pool_.index().oldest_leaf_end();
    const BlockId own = pool_.index().oldest_leaf_end(pool_.arena().add_class(block_bytes));
    if (!may_lose && (own == kNoBlock || !pool_.is_on_disk(own))) return {};
    if (oldest != kNoBlock && *budget == 0) return {.again = true};
    std::size_t evicted = 0;
    if (may_lose && oldest != kNoBlock && (own == kNoBlock || is_much_older(oldest, own)))
      evicted = clear_oldest_window(block_bytes, *budget, now);
    if (evicted == 0) {
      // Free granules that lie across two places for a slab: not before, since what is cleared in several calls for a
      // whole slab would be taken for this as soon as enough of it is free, and then leave room for one slab, not two.
      if (const auto slot = pool_.stage(block_bytes, Arena::Place::kAny)) return {.slot = slot};
      if (own == kNoBlock) return {};
      evict(own, now);
      evicted = 1;
    }
    *budget -= std::min(evicted, *budget);
  }
}

bool Evictor::is_much_older(BlockId block, BlockId than) const {
  const auto age = [&](BlockId of) {
    return static_cast<std::uint64_t>(pool_.last_tick()) - static_cast<std::uint64_t>(pool_.index().recency(of));
  };
  return age(block) / kAgeRatio > age(than);
}

void Evictor::evict(BlockId block, TimePoint now) {
  count_eviction(block, now);
  pool_.remove_leaf_end(block);
}

/// Evicts what lies in the run of granules that was used longest ago, `budget` blocks of it and their subtrees. Returns
/// how many went. A run that is cleared in part will be found again: nothing in it gets younger, except by the use of a
/// block in it.
std::size_t Evictor::clear_oldest_window(std::size_t block_bytes, std::size_t budget, TimePoint now) {
  shield_pinned_prefixes();
  const auto window = pool_.arena().oldest_window(block_bytes);
  pool_.arena().end_shields();
  if (!window) return 0;
  std::size_t evicted = 0;
  for (const SlotId slot : pool_.arena().slots_in(*window)) {
    if (!pool_.arena().is_allocated(slot)) continue;  // went with a block above it
    if (evicted >= budget) return evicted;
    evicted += pool_.unlink(pool_.arena().owner(slot), [&](BlockId block) {
      KV_ASSERT(pool_.index().pin_count(block) == 0);
      count_eviction(block, now);
    });
  }
  ++stats_.slab_moves;
  return evicted;
}

/// Shields the slabs of all blocks above a pinned one. Moves, and retention while none of it was taken back, pin each
/// block of their prefix, so those slabs are held anyway.
void Evictor::shield_pinned_prefixes() {
  std::unordered_set<BlockId> seen;
  pinned_prefixes_([&](BlockId block) {
    if (!pool_.index().is_linked(block)) return;
    for (; block != kNoBlock && seen.insert(block).second; block = pool_.index().parent(block))
      pool_.arena().shield(pool_.index().slot(block));
  });
}

void Evictor::count_eviction(BlockId block, TimePoint now) {
  ++stats_.evicted_blocks;
  stats_.unspilled_blocks += !pool_.is_on_disk(block);
  stats_.evicted_bytes += pool_.block_bytes(block);
  const auto age =
      std::chrono::duration_cast<std::chrono::milliseconds>(now - BlockPool::time_of(pool_.index().recency(block)));
  const auto age_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(age.count(), 1));
  ++stats_.age_log2_ms[std::min<std::size_t>(std::bit_width(age_ms) - 1, stats_.age_log2_ms.size() - 1)];
}

}  // namespace kv
