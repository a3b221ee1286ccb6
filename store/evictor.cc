#include "store/evictor.h"

#include <algorithm>
#include <bit>
#include <queue>
#include <unordered_set>
#include <vector>

#include "base/assert.h"

namespace kv {

Evictor::Found Evictor::find_slot(std::size_t block_bytes, std::size_t wanted, std::size_t* budget, TimePoint now) {
  for (;;) {
    if (const auto slot = pool_.stage(block_bytes)) return {.slot = slot};
    const BlockId oldest = pool_.index().oldest_leaf_end();
    if (oldest == kNoBlock) return {};
    if (*budget == 0) return {.again = true};
    std::size_t evicted = 1;
    if (pool_.block_bytes(oldest) == block_bytes) {
      evict_leaf_end(oldest, now);
    } else {
      evicted = clear_oldest_window(block_bytes, *budget, now);
      if (evicted == 0) evicted = evict_of_class(block_bytes, std::min(wanted, *budget), now);
      if (evicted == 0) return {};
    }
    *budget -= std::min(evicted, *budget);
  }
}

void Evictor::evict_leaf_end(BlockId block, TimePoint now) {
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

/// Shields the slabs of all blocks above a pinned one. Moves and retention pin each block of their prefix, so those
/// slabs are held anyway.
void Evictor::shield_pinned_prefixes() {
  std::unordered_set<BlockId> seen;
  pinned_prefixes_([&](BlockId block) {
    if (!pool_.index().is_linked(block)) return;
    for (; block != kNoBlock && seen.insert(block).second; block = pool_.index().parent(block))
      pool_.arena().shield(pool_.index().slot(block));
  });
}

/// Evicts the `count` least recent leaf ends of the class, or as many as there are.
std::size_t Evictor::evict_of_class(std::size_t block_bytes, std::size_t count, TimePoint now) {
  PrefixIndex& index = pool_.index();
  using Candidate = std::pair<Tick, BlockId>;
  std::vector<Candidate> leaf_ends;
  const auto can_go = [&](BlockId block) { return index.is_leaf_end(block) && index.pin_count(block) == 0; };
  for (const SlotId slot : pool_.arena().slots_of_class(block_bytes)) {
    const BlockId block = pool_.arena().owner(slot);
    if (block != kNoBlock && index.is_linked(block) && can_go(block))
      leaf_ends.emplace_back(index.recency(block), block);
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> oldest(std::greater<>{}, std::move(leaf_ends));
  std::size_t evicted = 0;
  for (; evicted < count && !oldest.empty(); ++evicted) {
    const BlockId block = oldest.top().second;
    oldest.pop();
    const BlockId parent = index.parent(block);
    evict_leaf_end(block, now);
    if (parent != kNoBlock && can_go(parent)) oldest.emplace(index.recency(parent), parent);
  }
  return evicted;
}

void Evictor::count_eviction(BlockId block, TimePoint now) {
  ++stats_.evicted_blocks;
  stats_.evicted_bytes += pool_.block_bytes(block);
  const auto age =
      std::chrono::duration_cast<std::chrono::milliseconds>(now - BlockPool::time_of(pool_.index().recency(block)));
  const auto age_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(age.count(), 1));
  ++stats_.age_log2_ms[std::min<std::size_t>(std::bit_width(age_ms) - 1, stats_.age_log2_ms.size() - 1)];
}

}  // namespace kv
