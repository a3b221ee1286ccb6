#include "store/memory/evictor.h"

#include <algorithm>
#include <bit>
#include <span>
#include <tuple>
#include <utility>

#include "base/assert.h"

namespace kv {
namespace {

constexpr Duration kRestPerStep = std::chrono::nanoseconds(200);  ///< Twenty times a step's cost.
/// A slab above a pinned block is not examined for this long, or each of many leases would cost a search.
constexpr Duration kShieldDuration = std::chrono::seconds(1);

}  // namespace

Evictor::Found Evictor::find_slot(std::size_t block_bytes, Steps& steps, TimePoint now, bool may_lose, bool may_rest,
                                  double worth) {
  const std::uint32_t size_class = pool_.arena().add_class(block_bytes);
  if (size_class >= hunts_.size()) hunts_.resize(size_class + 1);
  Hunt& hunt = hunts_[size_class];
  // If the number was another size's before, that size's hunt is useless.
  if (hunt.block_bytes != block_bytes) hunt = {.block_bytes = block_bytes, .is_short = hunt.is_short};
  if (tenants_ != nullptr) hunt.asker = tenants_->asker();
  for (;;) {
    steps.take(Steps::kBlock);
    const bool is_at_max = tenants_ != nullptr && tenants_->is_at_memory_max(hunt.asker, block_bytes);
    if (!is_at_max) {
      if (const auto slot = pool_.take_slot(block_bytes, Arena::Place::kAligned)) return {.slot = slot};
    }
    if (!steps.are_left()) return {.again = true};
    if (pool_.index().has_detached()) {
      reap(steps, now);
      continue;
    }
    const bool is_window_due = !is_at_max && takes_window(hunt, size_class, steps);
    if (!steps.are_left()) return {.again = true};
    // Even if a block on disk can go this time: the blocks that go after it should be on disk by then.
    set_short(size_class);
    Cleared cleared = Cleared::kNone;
    if (is_window_due && (may_lose || hunt.is_short != Short::kBeingWritten)) {
      cleared = clear_oldest_window(hunt, may_lose, steps, now, may_rest);
      if (cleared == Cleared::kUnfinished) return {.again = true};
      if (cleared == Cleared::kSome) continue;
    }
    // Free granules that lie across two places for a slab. Only now: earlier, a run being cleared over several calls
    // would be taken as soon as enough of it is free, at a place that leaves room for one slab instead of two.
    if (!is_at_max && (cleared != Cleared::kUnwritten || !hunt.is_begun)) {
      if (const auto slot = pool_.take_slot(block_bytes, Arena::Place::kAny)) return {.slot = slot};
    }
    const Victim own = next_for(hunt, size_class, steps);
    if (!steps.are_left()) return {.again = true};
    if (own.block == kNoBlock) return {.is_over_quota = is_at_max};
    if (!may_lose && !pool_.is_on_disk(own.block)) return {};
    // A guarantee holds whatever the worth of others' blocks.
    const bool is_owed = tenants_ != nullptr && tenants_->is_guaranteed(hunt.asker, block_bytes);
    if (own.worth > worth && !is_owed) return {.is_worth_less = true};
    evict(own.block, now);
    steps.take(Steps::kRemoval);
  }
}

/// Whether memory should move to the class from another. By age alone, under every policy: worth is learned over all
/// classes together, and does not apply to a slab of many blocks.
bool Evictor::takes_window(Hunt& hunt, std::uint32_t size_class, Steps& steps) {
  PrefixIndex& index = pool_.index();
  if (tenants_ == nullptr) {
    if (pool_.arena().class_count() < 2) return false;
    const BlockId oldest = index.oldest_leaf_end(&steps);
    if (oldest == kNoBlock || index.cohort(oldest) == size_class) return false;
    const BlockId own = index.oldest_leaf_end(size_class, &steps);
    return steps.are_left() && (own == kNoBlock || is_much_older(oldest, own));
  }
  Oldest oldest = oldest_spared(steps);
  hunt.may_take_own = oldest.block == kNoBlock;
  if (hunt.may_take_own) oldest = oldest_of(hunt.asker, steps);
  if (oldest.block == kNoBlock || tenants_->size_class(index.cohort(oldest.block)) == size_class) return false;
  BlockId own = index.oldest_in_band(size_class, &steps);
  if (own == kNoBlock && tenants_->has_size(hunt.asker, hunt.block_bytes))
    own = index.oldest_leaf_end(tenants_->cohort(hunt.asker, hunt.block_bytes), &steps);
  return steps.are_left() && (own == kNoBlock || is_much_older(oldest.block, own));
}

double Evictor::chance(BlockId leaf_end, std::uint64_t blocks) const {
  const PrefixIndex& index = pool_.index();
  const std::uint64_t clock = policy_.clock();
  const std::uint64_t used_at = std::min(policy_.used_at(index.recency(leaf_end)), clock);
  return policy_.chance(queues_.queue_of(index.usage(leaf_end)), clock - used_at, blocks);
}

/// Over all blocks that may go for any tenant.
Evictor::Oldest Evictor::oldest_spared(Steps& steps) {
  PrefixIndex& index = pool_.index();
  Oldest oldest;
  for (std::uint32_t band = 0, end = tenants_->band_end(); band < end; ++band) {
    const BlockId of_band = index.oldest_in_band(band, &steps);
    if (of_band == kNoBlock) continue;
    if (oldest.block == kNoBlock || index.recency(of_band) < index.recency(oldest.block))
      oldest = {of_band, {band, /*is_band=*/true}};
  }
  return oldest;
}

Evictor::Oldest Evictor::oldest_of(TenantId tenant, Steps& steps) {
  PrefixIndex& index = pool_.index();
  Oldest oldest;
  tenants_->for_each_cohort(tenant, [&](std::uint32_t cohort, std::uint32_t) {
    const BlockId of_cohort = index.oldest_leaf_end(cohort, &steps);
    if (of_cohort == kNoBlock) return;
    if (oldest.block == kNoBlock || index.recency(of_cohort) < index.recency(oldest.block))
      oldest = {of_cohort, {cohort}};
  });
  return oldest;
}

BlockId Evictor::next_victim(Steps& steps) {
  if (tenants_ == nullptr) return any_victim(steps);
  const BlockId spared = next_spared(steps);
  if (spared != kNoBlock || !steps.are_left()) return spared;
  const Oldest own = oldest_of(tenants_->asker(), steps);
  return own.block == kNoBlock ? kNoBlock : next_in(own.lane, steps).block;
}

BlockId Evictor::next_spared(Steps& steps) {
  if (tenants_ == nullptr) return any_victim(steps);
  const Oldest oldest = oldest_spared(steps);
  return oldest.block == kNoBlock ? kNoBlock : next_in(oldest.lane, steps).block;
}

BlockId Evictor::any_victim(Steps& steps) {
  const BlockId oldest = pool_.index().oldest_leaf_end(&steps);
  return oldest == kNoBlock ? kNoBlock : next_in({pool_.index().cohort(oldest)}, steps).block;
}

/// The victim for the hunt's asker: see the class.
Evictor::Victim Evictor::next_for(const Hunt& hunt, std::uint32_t size_class, Steps& steps) {
  if (tenants_ == nullptr) return next_in({size_class}, steps);
  const bool is_at_max = tenants_->is_at_memory_max(hunt.asker, hunt.block_bytes);
  Victim victim;
  if (!is_at_max) victim = next_in({size_class, /*is_band=*/true}, steps);
  const auto is_found = [&] { return victim.block != kNoBlock || !steps.are_left(); };
  if (!is_found() && tenants_->has_size(hunt.asker, hunt.block_bytes))
    victim = next_in({tenants_->cohort(hunt.asker, hunt.block_bytes)}, steps);
  if (is_found() || !is_at_max) return victim;
  const Oldest own = oldest_of(hunt.asker, steps);
  return own.block == kNoBlock ? Victim() : next_in(own.lane, steps);
}

Evictor::Victim Evictor::next_in(Lane lane, Steps& steps) {
  PrefixIndex& index = pool_.index();
  const std::uint32_t number = lane.number;
  const auto oldest = [&](std::uint32_t queue) {
    return lane.is_band ? index.oldest_in_band(number, queue, &steps) : index.oldest_leaf_end(number, queue, &steps);
  };
  if (queues_.count == 1) return {oldest(0)};
  auto& of_lanes = lane.is_band ? band_heads_ : heads_;
  if (number >= of_lanes.size()) of_lanes.resize(number + 1);
  std::vector<Head>& heads = of_lanes[number];
  heads.resize(queues_.count);
  const std::uint64_t clock = policy_.clock();
  const std::uint32_t version = policy_.version();
  while (steps.are_left()) {
    const Head* least = nullptr;
    // Bands lack such a list.
    const std::span<const Tick> bounds = lane.is_band ? std::span<const Tick>{} : index.oldest_bounds(number);
    const std::uint32_t end = lane.is_band ? index.band_queue_end(number) : static_cast<std::uint32_t>(bounds.size());
    for (std::uint32_t queue = 0; queue < end; ++queue) {
      const Tick used =
          lane.is_band ? index.oldest_bound_in_band(number, queue).value_or(PrefixIndex::kNoTick) : bounds[queue];
      if (used == PrefixIndex::kNoTick) continue;
      Head& head = heads[queue];
      if (head.used != used || head.version != version || clock >= head.until || !head.is_known) {
        const std::uint64_t used_at = std::min(policy_.used_at(used), clock);
        const std::uint64_t age = clock - used_at, step = policy_.next_step(age);
        const std::uint64_t until = step > ~used_at ? ~std::uint64_t{0} : used_at + step;
        head = {used, version, true, policy_.worth(queue, age), until};
      }
      if (least == nullptr || std::tie(head.worth, head.used) < std::tie(least->worth, least->used)) least = &head;
    }
    if (least == nullptr) return {};
    const auto queue = static_cast<std::uint32_t>(least - heads.data());
    const BlockId block = oldest(queue);
    steps.take(Steps::kLeaf + end / 8);  // for the scan of all queues above
    // Otherwise that block was used or pinned since, and the queue's new first block may be worth more.
    if (block != kNoBlock && index.recency(block) == least->used) return {block, least->worth};
  }
  return {};
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
      departed_.add(pool_.index().tree(block), pool_.index().hash(block), MissKind::kDropped, now);
      return;
    }
    // clear_oldest_window() checked the pins just before it cut the block off, and a new pin would need a match.
    KV_ASSERT(pool_.index().pin_count(block) == 0);
    count_eviction(block, now);
  });
  stats_.dropped_blocks += dropped;
  return dropped;
}

/// Evicts the blocks in the run of granules used longest ago, with all below. Goes through the whole run twice: first
/// to check the pins, so that a run is not half evicted in vain, then to evict. If a block in the run is pinned or used
/// between two calls, the run is left as it is. kNone: there is no such run, or it is free already.
Evictor::Cleared Evictor::clear_oldest_window(Hunt& hunt, bool may_lose, Steps& steps, TimePoint now, bool may_rest) {
  Arena& arena = pool_.arena();
  recheck_window(hunt, steps);
  // Each round tries one window; the loop ends when one is cleared, all are tried, or the steps are used up.
  for (;;) {
    if (const Cleared found = find_window(hunt, may_lose, steps, now, may_rest); found != Cleared::kSome) return found;
    while (hunt.window) {
      const Arena::Cursor before = hunt.at;
      const auto slot = arena.next_slot(*hunt.window, hunt.at, steps);
      if (!slot) {
        if (!steps.are_left()) return Cleared::kUnfinished;
        hunt.window.reset();
        return Cleared::kSome;
      }
      if (is_kept(hunt, *slot, steps)) {
        hunt.window.reset();
        break;
      }
      const BlockId block = arena.owner(*slot);
      if (may_lose && tenants_ == nullptr) {
        begin_window(hunt);
        pool_.detach(block, BlockPool::Removal::kEviction);
        steps.take(Steps::kRemoval);
        reap(steps, now);
        if (pool_.index().has_detached()) return Cleared::kUnfinished;
      } else if (const Cleared evicted = evict_singly(block, hunt, may_lose, steps, now); evicted != Cleared::kSome) {
        if (evicted == Cleared::kNone) {
          hunt.window.reset();
          break;
        }
        hunt.at = before;
        return evicted;
      }
    }
  }
}

/// Chooses a window without pins into hunt.window. kUnwritten: without `may_lose`, the oldest that only waits for
/// writes.
Evictor::Cleared Evictor::find_window(Hunt& hunt, bool may_lose, Steps& steps, TimePoint now, bool may_rest) {
  Arena& arena = pool_.arena();
  if (may_lose) take_back_unwritten(hunt);
  for (;;) {
    if (!hunt.window) {
      Cleared chosen = next_found(hunt, steps);
      if (chosen == Cleared::kNone && !hunt.unwritten.empty()) {
        take_back_unwritten(hunt);
        set_window(hunt, hunt.found.back());
        hunt.found.pop_back();
        return Cleared::kUnwritten;
      }
      if (chosen == Cleared::kNone) chosen = choose_window(hunt, steps, now, may_rest);
      if (chosen != Cleared::kSome) return chosen;
    }
    while (hunt.window && !hunt.is_checked) {
      const auto slot = arena.next_slot(*hunt.window, hunt.at, steps);
      if (!slot) {
        if (!steps.are_left()) return Cleared::kUnfinished;
        if (!hunt.has_block) {
          hunt.window.reset();
          hunt.found.clear();
          hunt.unwritten.clear();
          return Cleared::kNone;  // free, but not at a slab's place: Place::kAny will take it
        }
        hunt.at = arena.begin(*hunt.window);
        hunt.is_checked = true;
        break;
      }
      hunt.has_block = true;
      if (is_kept(hunt, *slot, steps)) {
        hunt.window.reset();
      } else if (!may_lose && !pool_.is_on_disk(arena.owner(*slot))) {
        hunt.unwritten.push_back(*hunt.window);
        hunt.window.reset();
      }
    }
    if (hunt.window) return Cleared::kSome;
  }
}

/// The oldest found window without later uses or pins, into hunt.window.
Evictor::Cleared Evictor::next_found(Hunt& hunt, Steps& steps) {
  for (; !hunt.found.empty(); hunt.found.pop_back()) {
    if (!steps.are_left()) return Cleared::kUnfinished;
    const Arena::Window window = hunt.found.back();
    steps.take(window.granule_count * Steps::kGranule);
    const auto use = pool_.arena().last_use(window, hunt.block_bytes);
    if (!use || *use > window.last_use) continue;
    set_window(hunt, window);
    hunt.found.pop_back();
    return Cleared::kSome;
  }
  return Cleared::kNone;
}

/// As next_found(); searches when all are tried.
Evictor::Cleared Evictor::choose_window(Hunt& hunt, Steps& steps, TimePoint now, bool may_rest) {
  Arena& arena = pool_.arena();
  for (;;) {
    if (const Cleared found = next_found(hunt, steps); found != Cleared::kNone) return found;
    if (!hunt.search) {
      if (hunt.none_at == arena.change_count() || (may_rest && now < hunt.rest_until)) return Cleared::kNone;
      if (now - shielded_since_ > kShieldDuration) end_shields(now);
      hunt.search.emplace();
      hunt.search_steps = 0;
      hunt.change_count = arena.change_count();
      hunt.none_at.reset();
    }
    const std::size_t before = steps.used();
    arena.search(hunt.block_bytes, *hunt.search, steps);
    hunt.search_steps += steps.used() - before;
    if (!hunt.search->is_over) return Cleared::kUnfinished;
    hunt.found = std::move(hunt.search->aligned);
    if (hunt.found.empty() && hunt.search->anywhere) hunt.found.push_back(*hunt.search->anywhere);
    hunt.search.reset();
    std::sort(hunt.found.begin(), hunt.found.end(), [](const Arena::Window& a, const Arena::Window& b) {
      return std::tie(a.last_use, a.first_granule) > std::tie(b.last_use, b.first_granule);
    });
    if (!hunt.found.empty()) continue;
    // Shields may be stale, because of an ended lease for example. Search everything once more before giving up.
    end_shields(now);
    if (!std::exchange(hunt.is_last_look, !hunt.is_last_look)) continue;
    hunt.none_at = hunt.change_count;
    hunt.rest_until = now + hunt.search_steps * kRestPerStep;
    return Cleared::kNone;
  }
}

void Evictor::set_window(Hunt& hunt, const Arena::Window& window) {
  hunt.window = window;
  hunt.has_block = hunt.is_checked = hunt.is_begun = false;
  hunt.at = hunt.written_to = pool_.arena().begin(window);
}

void Evictor::begin_window(Hunt& hunt) {
  if (!std::exchange(hunt.is_begun, true)) ++stats_.slab_moves;
  hunt.is_last_look = false;
}

/// A block in the window may have been pinned or used between two calls.
void Evictor::recheck_window(Hunt& hunt, Steps& steps) {
  if (!hunt.window) return;
  steps.take(hunt.window->granule_count * Steps::kGranule);
  const auto use = pool_.arena().last_use(*hunt.window, hunt.block_bytes);
  if (!use || *use > hunt.window->last_use) hunt.window.reset();
}

/// Puts them before the untried windows: they are older.
void Evictor::take_back_unwritten(Hunt& hunt) {
  hunt.found.insert(hunt.found.end(), hunt.unwritten.rbegin(), hunt.unwritten.rend());
  hunt.unwritten.clear();
}

/// Whether the block may go for the hunt's asker.
bool Evictor::may_go(const Hunt& hunt, BlockId block) const {
  if (tenants_ == nullptr) return true;
  const TenantId whose = tenants_->of(pool_.index().tree(block));
  return tenants_->can_spare(whose, pool_.block_bytes(block)) || (hunt.may_take_own && whose == hunt.asker);
}

bool Evictor::is_kept(const Hunt& hunt, SlotId slot, Steps& steps) {
  Arena& arena = pool_.arena();
  KV_ASSERT(arena.is_held(slot) || arena.owner(slot) != kNoBlock);  // slots of incoming blocks are held
  // Held slots are not shielded: a search sees holds, and such a pin is often the disk tier's and ends soon.
  if (arena.is_held(slot)) return true;
  if (!pool_.index().has_pinned(arena.owner(slot), steps) && may_go(hunt, arena.owner(slot))) return false;
  arena.shield(slot);
  return true;
}

/// Evicts a block and all below it, one by one from the ends. Stops at one that may not go for the asker (kNone) or,
/// without `may_lose`, is not on disk (kUnwritten). All blocks above a leaf end on disk are there too (DiskTier, 1).
Evictor::Cleared Evictor::evict_singly(BlockId top, Hunt& hunt, bool may_lose, Steps& steps, TimePoint now) {
  for (;;) {
    if (!steps.are_left()) return Cleared::kUnfinished;
    const BlockId end = pool_.index().leaf_end_below(top, steps);
    if (!may_lose && !pool_.is_on_disk(end)) return Cleared::kUnwritten;
    if (!may_go(hunt, end)) return Cleared::kNone;
    begin_window(hunt);
    evict(end, now);
    steps.take(Steps::kRemoval);
    if (end == top) return Cleared::kSome;
  }
}

// -- for the disk tier

void Evictor::set_short(std::uint32_t size_class) {
  Hunt& hunt = hunts_[size_class];
  if (!pool_.has_disk() || hunt.is_short != Short::kNo) return;
  hunt.is_short = Short::kYes;
  short_.push_back(size_class);
}

void Evictor::write_victims(std::size_t own_bytes_max, Steps& steps, TimePoint now,
                            const std::function<bool(BlockId)>& write) {
  KV_ASSERT(being_written_.empty() && !pool_.index().has_detached());
  while (!short_.empty()) {
    const std::uint32_t size_class = short_.front();
    Hunt& hunt = hunts_[size_class];
    KV_ASSERT(hunt.is_short == Short::kYes);
    bool is_any_written = false;
    Cleared done = Cleared::kSome;
    if (pool_.arena().has_class(hunt.block_bytes)) {
      done = write_victims(size_class, own_bytes_max, steps, now, [&](BlockId block) {
        if (pool_.is_on_disk(block)) return true;
        const bool has_room = write(block);
        is_any_written |= has_room;
        return has_room;
      });
    }
    if (done != Cleared::kSome && !is_any_written) return;
    short_.pop_front();
    hunt.is_short = is_any_written ? Short::kBeingWritten : Short::kNo;
    if (is_any_written) being_written_.push_back(size_class);
    if (done != Cleared::kSome) return;
  }
}

/// For one class. kSome: all of them; kUnfinished: the steps are used up; kUnwritten: `write` takes no more.
Evictor::Cleared Evictor::write_victims(std::uint32_t size_class, std::size_t own_bytes_max, Steps& steps,
                                        TimePoint now, const std::function<bool(BlockId)>& write) {
  Hunt& hunt = hunts_[size_class];
  PrefixIndex& index = pool_.index();
  // If the asker has gone and its number was reused, the writes are wasted.
  const bool is_window_due = takes_window(hunt, size_class, steps);
  if (!steps.are_left()) return Cleared::kUnfinished;
  if (is_window_due) {
    recheck_window(hunt, steps);
    if (!hunt.window) {
      take_back_unwritten(hunt);
      if (choose_window(hunt, steps, now, /*may_rest=*/true) == Cleared::kUnfinished) return Cleared::kUnfinished;
    }
    if (hunt.window) return write_window(hunt, steps, write);
  }
  for (std::size_t bytes = 0; bytes < own_bytes_max;) {
    const BlockId own = next_for(hunt, size_class, steps).block;
    if (!steps.are_left()) return Cleared::kUnfinished;
    if (own == kNoBlock || pool_.is_on_disk(own)) break;
    if (!write(own)) return Cleared::kUnwritten;
    KV_ASSERT(index.pin_count(own) > 0);  // so the next round finds another
    bytes += pool_.block_bytes(own);
  }
  return Cleared::kSome;
}

Evictor::Cleared Evictor::write_window(Hunt& hunt, Steps& steps, const std::function<bool(BlockId)>& write) {
  const Arena& arena = pool_.arena();
  const PrefixIndex& index = pool_.index();
  const Arena::Window& window = *hunt.window;
  for (;;) {
    const Arena::Cursor before = hunt.written_to;
    const auto slot = arena.next_slot(window, hunt.written_to, steps);
    if (!slot) {
      if (!steps.are_left()) return Cleared::kUnfinished;
      hunt.written_to = arena.begin(window);
      return Cleared::kSome;
    }
    const BlockId block = arena.owner(*slot);
    if (block == kNoBlock || !index.is_linked(block)) continue;  // held: the next check of the window will detect it
    steps.take(Steps::kBlock);
    bool has_room = write(block);
    const BlockId parent = index.parent(block);
    if (has_room && !index.is_leaf_end(block) && (parent == kNoBlock || !arena.is_in(window, index.slot(parent)))) {
      // The leaf end first, since evict_singly() asks for it first: so each round makes progress, whatever lies below.
      has_room = write(index.leaf_end_below(block, steps));
      index.visit_below(block, steps, [&](BlockId below) { return has_room = has_room && write(below); });
    }
    if (has_room) continue;
    hunt.written_to = before;
    return Cleared::kUnwritten;
  }
}

void Evictor::end_writes() {
  for (const std::uint32_t size_class : being_written_) {
    KV_ASSERT(hunts_[size_class].is_short == Short::kBeingWritten);
    hunts_[size_class].is_short = Short::kYes;  // the next call finds whether there is more
    short_.push_back(size_class);
  }
  being_written_.clear();
}

void Evictor::end_shields(TimePoint now) {
  pool_.arena().end_shields();
  shielded_since_ = now;
}

/// Counts a block about to go, and reports it to the policy.
void Evictor::count_eviction(BlockId block, TimePoint now) {
  policy_.left(pool_.index().tree(block), pool_.index().hash(block), pool_.index().usage(block));
  ++stats_.evicted_blocks;
  if (tenants_ != nullptr) tenants_->evicted(pool_.index().tree(block));
  const bool is_gone = !pool_.is_on_disk(block);
  stats_.unspilled_blocks += is_gone;
  stats_.evicted_bytes += pool_.block_bytes(block);
  const Duration idle = now - BlockPool::time_of(pool_.index().recency(block));
  if (is_gone) departed_.add(pool_.index().tree(block), pool_.index().hash(block), MissKind::kEvicted, now, idle);
  const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(idle);
  const auto age_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(age.count(), 1));
  ++stats_.age_log2_ms[std::min<std::size_t>(std::bit_width(age_ms) - 1, stats_.age_log2_ms.size() - 1)];
}

}  // namespace kv
