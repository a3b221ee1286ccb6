#include "store/desks/capacity_desk.h"

#include <algorithm>

#include "base/assert.h"

namespace kv {

CapacityDesk::Bounds CapacityDesk::bounds() const {
  const Arena& arena = shelf_.pool.arena();
  std::uint64_t largest = 0;
  spaces_.for_each(
      [&](const SpaceTable::Space& space) { largest = std::max<std::uint64_t>(largest, space.record->block_bytes()); });
  return {arena.capacity_bytes(), largest, arena.capacity_bytes_max(), arena.granule_bytes()};
}

Result<void> CapacityDesk::set_capacity(std::size_t bytes) {
  Arena& arena = shelf_.pool.arena();
  if (!arena.can_resize()) return Errc::kUnsupported;
  if (bytes == 0 || bytes > arena.capacity_bytes_max() || bytes % arena.granule_bytes() != 0) return Errc::kBadRequest;
  // A block being put, or offered next, must find an arena in which it fits.
  if (bytes < bounds().min_bytes) return Errc::kTooLarge;
  limits_fell_ |= bytes < arena.capacity_bytes();
  arena.set_capacity(bytes);
  return {};
}

std::vector<CapacityDesk::Relocation> CapacityDesk::relocate(std::size_t bytes_max, bool may_lose, TimePoint now) {
  Shelf::Call call(shelf_);
  puts_.tidy(now, call.steps);  // slots that puts have left there
  BlockPool& pool = shelf_.pool;
  Arena& arena = pool.arena();
  std::vector<Relocation> relocations;
  BlockId without_room = kNoBlock;
  std::size_t bytes = 0;
  while (bytes < bytes_max && call.steps.are_left()) {
    const Arena::Cursor before = closed_at_;
    const auto slot = arena.next_closed(closed_at_, call.steps);
    if (!slot) {
      if (call.steps.are_left()) closed_at_ = {};
      break;
    }
    const BlockId block = arena.owner(*slot);
    if (block == kNoBlock || !can_relocate(block, 0)) continue;
    // Pinned before find_slot(), which would otherwise evict it. An earlier eviction is just as good.
    pool.pin(block);
    if (shelf_.tenants) shelf_.tenants->ask_for(shelf_.tenants->of(pool.index().tree(block)));
    const Evictor::Found found = shelf_.evictor.find_slot(arena.block_bytes(*slot), call.steps, now, may_lose,
                                                          /*may_rest=*/true);
    if (!found.slot) {
      pool.unpin(block);
      // The search evicts: it may have freed the block that found no room before.
      without_room = found.again ? kNoBlock : block;
      if (found.again) closed_at_ = before;
      continue;  // another tenant's block, or another size's, may find one
    }
    relocating_.emplace(*found.slot, block);
    const std::size_t length = pool.length(block);
    relocations.push_back({block, *found.slot, pool.bytes(block), arena.bytes(*found.slot).first(length)});
    bytes += length;
  }
  if (relocations.empty() && without_room != kNoBlock) {
    // Its own chain may fill the memory that stays: then only the chain's end can go.
    const BlockId end = pool.index().leaf_end_below(without_room, call.steps);
    if (pool.index().pin_count(end) == 0 && (may_lose || pool.is_on_disk(end))) shelf_.evictor.evict(end, now);
  }
  return relocations;
}

void CapacityDesk::end_relocation(std::span<const Relocation> relocations) {
  BlockPool& pool = shelf_.pool;
  for (const Relocation& each : relocations) {
    KV_ASSERT(relocating_.erase(each.to) == 1);
    if (can_relocate(each.block, 1)) {
      pool.move(each.block, each.to);
    } else {
      pool.return_slot(each.to);
    }
    pool.unpin(each.block);  // the last pin of one that was dropped meanwhile frees it
  }
}

/// Whether the only pins are those that do not read the block's bytes: leases, and requests to keep it.
bool CapacityDesk::can_relocate(BlockId block, std::size_t own_pins) const {
  const auto leased = shelf_.pool.leased().find(block);
  const std::size_t kept = (leased == shelf_.pool.leased().end() ? 0 : leased->second) +
                           (shelf_.pool.is_retained(block) ? std::size_t{1} : 0);
  return shelf_.pool.index().is_linked(block) && shelf_.pool.index().pin_count(block) == kept + own_pins;
}

void CapacityDesk::set_limits(const StoreConfig& config) {
  StoreConfig& own = shelf_.config;
  limits_fell_ |=
      config.leased_fraction_max < own.leased_fraction_max || config.retained_fraction_max < own.retained_fraction_max;
  own.namespace_count_max = config.namespace_count_max;
  own.index_bytes_max = config.index_bytes_max;
  reads_.set_limits(config);
  disk_.set_limits(config);
}

}  // namespace kv
