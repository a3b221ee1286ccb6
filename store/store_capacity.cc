// store/store_capacity.cc: capacity and other limits at run time.
#include <algorithm>

#include "base/assert.h"
#include "store/store_impl.h"

namespace kv {

Store::CapacityBounds Store::capacity_bounds() const {
  const Arena& arena = impl_->pool.arena();
  std::uint64_t largest = 0;
  impl_->spaces.for_each(
      [&](const Space& space) { largest = std::max<std::uint64_t>(largest, space.record->block_bytes()); });
  return {arena.capacity_bytes(), largest, arena.capacity_bytes_max(), arena.granule_bytes()};
}

Result<void> Store::set_capacity(std::size_t bytes) {
  Arena& arena = impl_->pool.arena();
  if (!arena.can_resize()) return Errc::kUnsupported;
  if (bytes == 0 || bytes > arena.capacity_bytes_max() || bytes % arena.granule_bytes() != 0) return Errc::kBadRequest;
  // A block being put, or offered next, must find an arena in which it fits.
  if (bytes < capacity_bounds().min_bytes) return Errc::kTooLarge;
  impl_->limits_fell |= bytes < arena.capacity_bytes();
  arena.set_capacity(bytes);
  if (!impl_->has_index_bound) impl_->config.index_bytes_max = index_bytes_for(bytes);
  return {};
}

ArenaMemory& Store::pages() { return impl_->pool.arena().pages(); }

/// Whether the only pins are those that do not read the block's bytes: leases, and requests to keep it.
bool Store::Impl::can_relocate(BlockId block, std::size_t own_pins) const {
  const auto leased = pool.leased().find(block);
  const std::size_t kept =
      (leased == pool.leased().end() ? 0 : leased->second) + (pool.is_retained(block) ? std::size_t{1} : 0);
  return pool.index().is_linked(block) && pool.index().pin_count(block) == kept + own_pins;
}

std::vector<Store::Relocation> Store::relocate(std::size_t bytes_max, bool may_lose, TimePoint now) {
  Impl::Call call(*impl_);
  impl_->tidy(now, call.steps);  // slots that puts have left there
  BlockPool& pool = impl_->pool;
  Arena& arena = pool.arena();
  std::vector<Relocation> relocations;
  BlockId without_room = kNoBlock;
  std::size_t bytes = 0;
  while (bytes < bytes_max && call.steps.are_left()) {
    const Arena::Cursor before = impl_->closed_at;
    const auto slot = arena.next_closed(impl_->closed_at, call.steps);
    if (!slot) {
      if (call.steps.are_left()) impl_->closed_at = {};
      break;
    }
    const BlockId block = arena.owner(*slot);
    if (block == kNoBlock || !impl_->can_relocate(block, 0)) continue;
    // Pinned before find_slot(), which would otherwise evict it. An earlier eviction is just as good.
    pool.pin(block);
    if (impl_->tenants) impl_->tenants->ask_for(impl_->tenants->of(pool.index().tree(block)));
    const Evictor::Found found = impl_->evictor.find_slot(arena.block_bytes(*slot), call.steps, now, may_lose,
                                                          /*may_rest=*/true);
    if (!found.slot) {
      pool.unpin(block);
      // The search evicts: it may have freed the block that found no room before.
      without_room = found.again ? kNoBlock : block;
      if (found.again) impl_->closed_at = before;
      continue;  // another tenant's block, or another size's, may find one
    }
    impl_->relocating.emplace(*found.slot, block);
    const std::size_t length = pool.length(block);
    relocations.push_back({block, *found.slot, pool.bytes(block), arena.bytes(*found.slot).first(length)});
    bytes += length;
  }
  if (relocations.empty() && without_room != kNoBlock) {
    // Its own chain may fill the memory that stays: then only the chain's end can go.
    const BlockId end = pool.index().leaf_end_below(without_room, call.steps);
    if (pool.index().pin_count(end) == 0 && (may_lose || pool.is_on_disk(end))) impl_->evictor.evict(end, now);
  }
  return relocations;
}

void Store::end_relocation(std::span<const Relocation> relocations) {
  BlockPool& pool = impl_->pool;
  for (const Relocation& each : relocations) {
    KV_ASSERT(impl_->relocating.erase(each.to) == 1);
    if (impl_->can_relocate(each.block, 1)) {
      pool.move(each.block, each.to);
    } else {
      pool.unstage(each.to);
    }
    pool.unpin(each.block);  // the last pin of one that was dropped meanwhile frees it
  }
}

bool Store::is_shrunk() { return impl_->pool.arena().cut(); }

void Store::set_limits(const StoreConfig& config) {
  StoreConfig& own = impl_->config;
  impl_->limits_fell |=
      config.leased_fraction_max < own.leased_fraction_max || config.retained_fraction_max < own.retained_fraction_max;
  own.namespace_count_max = config.namespace_count_max;
  own.retained_fraction_max = config.retained_fraction_max;
  own.leased_fraction_max = config.leased_fraction_max;
  impl_->has_index_bound = config.index_bytes_max != 0;
  own.index_bytes_max =
      impl_->has_index_bound ? config.index_bytes_max : index_bytes_for(impl_->pool.arena().capacity_bytes());
  impl_->leases.set_limits(config.lease_count_max, config.lease_count_per_session_max);
  if (!impl_->tier) return;
  own.disk.capacity_bytes = config.disk.capacity_bytes;
  own.spill = config.spill;
  impl_->tier->set_limits(config.disk.capacity_bytes, config.disk.promote_reads);
  impl_->spiller->set_limits(config.spill);
}

}  // namespace kv
