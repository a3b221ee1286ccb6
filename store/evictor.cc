#include "store/evictor.h"

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

#include "base/assert.h"

namespace kv {
namespace {

constexpr Duration kRestPerStep = std::chrono::nanoseconds(200);  ///< Twenty times what a step takes.
/// For so long a slab above a pinned block is not looked at again. Without shields, each of many leases would cost a
/// search.
constexpr Duration kShieldDuration = std::chrono::seconds(1);

}  // namespace

Evictor::Found Evictor::find_slot(std::size_t block_bytes, Steps& steps, TimePoint now, bool may_lose, bool may_rest) {
  const std::uint32_t size_class = pool_.arena().add_class(block_bytes);
  if (size_class >= hunts_.size()) hunts_.resize(size_class + 1);
  Hunt& hunt = hunts_[size_class];
  // The number may have been another size's: what that one was hunting for is of no use.
  if (std::exchange(hunt.block_bytes, block_bytes) != block_bytes) hunt = {.block_bytes = block_bytes};
  for (;;) {
    steps.take(Steps::kBlock);
    if (const auto slot = pool_.stage(block_bytes, Arena::Place::kAligned)) return {.slot = slot};
    if (!steps.are_left()) return {.again = true};
    if (pool_.index().has_detached()) {
      reap(steps, now);
      continue;
    }
    const BlockId oldest = pool_.index().oldest_leaf_end(&steps);
    const BlockId own = pool_.index().oldest_leaf_end(size_class, &steps);
    if (!steps.are_left()) return {.again = true};
    // Then only a block that is on disk may go, and no run is cleared: that could lose others.
    if (!may_lose && (own == kNoBlock || !pool_.is_on_disk(own))) return {};
    if (may_lose && oldest != kNoBlock && (own == kNoBlock || is_much_older(oldest, own))) {
      const Cleared cleared = clear_oldest_window(block_bytes, hunt, steps, now, may_rest);
      if (cleared == Cleared::kUnfinished) return {.again = true};
      if (cleared == Cleared::kSome) continue;
    }
    // Free granules that lie across two places for a slab. Not earlier: a run that is cleared in several calls would be
    // taken as soon as enough of it is free, at a place where it leaves room for one slab instead of two.
    if (const auto slot = pool_.stage(block_bytes, Arena::Place::kAny)) return {.slot = slot};
    if (own == kNoBlock) return {};
    evict(own, now);
    steps.take(Steps::kRemoval);
  }
}

bool Evictor::is_much_older(BlockId block, BlockId than) const {
  // In ticks, which are nanoseconds (BlockPool::tick). Only the ratio matters.
  const auto age = [&](BlockId of) {
    return static_cast<std::uint64_t>(pool_.last_tick()) - static_cast<std::uint64_t>(pool_.index().recency(of));
  };
  return age(block) / kAgeRatio > age(than);
}

void Evictor::evict(BlockId block, TimePoint now) {
  KV_ASSERT(pool_.index().pin_count(block) == 0);
  count_eviction(block, now);
  pool_.remove_leaf_end(block);
}

std::size_t Evictor::reap(Steps& steps, TimePoint now) {
  std::size_t dropped = 0;
  pool_.reap(steps, [&](BlockId block, BlockPool::Removal why) {
    if (why == BlockPool::Removal::kDrop) {
      ++dropped;
      return;
    }
    // clear_oldest_window() has looked for pins just before it cut the block off, and pins need a match to find it.
    KV_ASSERT(pool_.index().pin_count(block) == 0);
    count_eviction(block, now);
  });
  stats_.dropped_blocks += dropped;
  return dropped;
}

/// Evicts what lies in the run of granules that was used longest ago, with all below. Goes through the whole run twice:
/// first to look for pins, so that no half run is evicted in vain, then to evict. Between two calls something in the
/// run may be pinned or used: then it is left as it is. kNone: there is no such run, or it is free already.
Evictor::Cleared Evictor::clear_oldest_window(std::size_t block_bytes, Hunt& hunt, Steps& steps, TimePoint now,
                                              bool may_rest) {
  Arena& arena = pool_.arena();
  if (hunt.window) {
    steps.take(hunt.window->granule_count * Steps::kGranule);
    const auto use = arena.last_use(*hunt.window, block_bytes);
    if (!use || *use > hunt.window->last_use) hunt.window.reset();
  }
  // Each round tries one window; it ends when one is cleared, none is left to try, or the steps are used up.
  for (;;) {
    if (!hunt.window) {
      if (const Cleared chosen = choose_window(block_bytes, hunt, steps, now, may_rest); chosen != Cleared::kSome)
        return chosen;
    }
    while (hunt.window) {
      const auto slot = arena.next_slot(*hunt.window, hunt.at, steps);
      if (!slot) {
        if (!steps.are_left()) return Cleared::kUnfinished;
        if (!hunt.has_block) {
          hunt.window.reset();
          hunt.found.clear();
          return Cleared::kNone;  // free, only not at a place where a slab should begin: Place::kAny will take it
        }
        hunt.at = arena.begin(*hunt.window);
        if (!std::exchange(hunt.is_checked, true)) continue;
        hunt.window.reset();
        return Cleared::kSome;
      }
      hunt.has_block = true;
      const BlockId block = arena.owner(*slot);
      if (arena.is_held(*slot) || block == kNoBlock || pool_.index().has_pinned(block, steps)) {
        arena.shield(*slot);
        hunt.window.reset();
        break;
      }
      if (!hunt.is_checked) continue;
      if (!std::exchange(hunt.is_begun, true)) ++stats_.slab_moves;
      hunt.is_last_look = false;
      pool_.detach(block, BlockPool::Removal::kEviction);
      steps.take(Steps::kRemoval);
      reap(steps, now);
      if (pool_.index().has_detached()) return Cleared::kUnfinished;
    }
  }
}

/// Takes the oldest window found that was neither used nor pinned since; searches for more when none is left.
Evictor::Cleared Evictor::choose_window(std::size_t block_bytes, Hunt& hunt, Steps& steps, TimePoint now,
                                        bool may_rest) {
  Arena& arena = pool_.arena();
  for (;;) {
    for (; !hunt.found.empty(); hunt.found.pop_back()) {
      if (!steps.are_left()) return Cleared::kUnfinished;
      const Arena::Window window = hunt.found.back();
      steps.take(window.granule_count * Steps::kGranule);
      const auto use = arena.last_use(window, block_bytes);
      if (!use || *use > window.last_use) continue;
      hunt.window = window;
      hunt.has_block = hunt.is_checked = hunt.is_begun = false;
      hunt.at = arena.begin(window);
      hunt.found.pop_back();
      return Cleared::kSome;
    }
    if (!hunt.search) {
      if (hunt.none_at == arena.change_count() || (may_rest && now < hunt.rest_until)) return Cleared::kNone;
      if (now - shielded_since_ > kShieldDuration) end_shields(now);
      hunt.search.emplace();
      hunt.search_steps = 0;
      hunt.change_count = arena.change_count();
      hunt.none_at.reset();
    }
    const std::size_t before = steps.used();
    arena.search(block_bytes, *hunt.search, steps);
    hunt.search_steps += steps.used() - before;
    if (!hunt.search->is_over) return Cleared::kUnfinished;
    hunt.found = std::move(hunt.search->aligned);
    if (hunt.found.empty() && hunt.search->anywhere) hunt.found.push_back(*hunt.search->anywhere);
    hunt.search.reset();
    std::sort(hunt.found.begin(), hunt.found.end(), [](const Arena::Window& a, const Arena::Window& b) {
      return std::tie(a.last_use, a.first_granule) > std::tie(b.last_use, b.first_granule);
    });
    if (!hunt.found.empty()) continue;
    // Shields may be stale: a lease has ended, say. Look at everything once more before saying that there is nothing.
    end_shields(now);
    if (!std::exchange(hunt.is_last_look, !hunt.is_last_look)) continue;
    hunt.none_at = hunt.change_count;
    hunt.rest_until = now + hunt.search_steps * kRestPerStep;
    return Cleared::kNone;
  }
}

void Evictor::end_shields(TimePoint now) {
  pool_.arena().end_shields();
  shielded_since_ = now;
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
