#include "store/store.h"

namespace kv {

Result<std::unique_ptr<Store>> Store::create(const StoreConfig& config) {
  if (config.lease_duration <= Duration::zero()) return Errc::kBadRequest;
  if (config.spill.reserve < 0 || config.spill.reserve > 1) return Errc::kBadRequest;
  if (!(config.leased_fraction_max >= 0 && config.leased_fraction_max <= 1)) return Errc::kBadRequest;
  // Last, since it takes long: it touches every page of the arena.
  auto arena = Arena::create(config.arena);
  if (!arena) return arena.error();
  return std::unique_ptr<Store>(new Store(config, std::move(*arena)));
}

void Store::expire_leases(TimePoint now) {
  Shelf::Call call(shelf_);
  reads_.expire_leases(now, call.steps);
  puts_.tidy(now, call.steps);
}

void Store::end_session(SessionId session) {
  Shelf::Call call(shelf_);
  spaces_.end_session(session);
  puts_.end_session(session);
  reads_.end_session(session);
  puts_.tidy(BlockPool::time_of(shelf_.pool.last_tick()), call.steps);
}

StoreStats Store::stats() const {
  const BlockPool& pool = shelf_.pool;
  const Evictor::Stats& evictions = shelf_.evictor.stats();
  StoreStats stats = shelf_.counters;
  stats.capacity_bytes = pool.arena().capacity_bytes();
  stats.allocated_bytes = pool.arena().allocated_bytes();
  stats.slab_bytes = pool.arena().slab_bytes();
  stats.block_count = pool.index().block_count();
  const PrefixIndex::SetTotals sets = pool.index().set_totals();
  stats.set_block_count = sets.block_count;
  stats.set_bytes = sets.bytes;
  stats.incoming_count = pool.incoming_count();
  stats.pinned_count = pool.pinned_count();
  stats.lease_count = reads_.lease_count();
  stats.leased_bytes = pool.leased_bytes();
  stats.namespace_count = spaces_.count();
  stats.index_bytes = pool.index().memory_bytes();
  stats.index_used_bytes = puts_.index_used_bytes();
  stats.index_bytes_max = shelf_.index_bytes_max();
  stats.dropped_blocks += evictions.dropped_blocks;
  stats.unlearned_uses = shelf_.policy->unlearned_uses();
  stats.evicted_blocks = evictions.evicted_blocks;
  stats.evicted_bytes = evictions.evicted_bytes;
  stats.slab_moves = evictions.slab_moves;
  stats.eviction_age_log2_ms = evictions.age_log2_ms;
  if (shelf_.tier) {
    const DiskTier::Stats disk = shelf_.tier->stats();
    stats.index_bytes += disk.index_bytes;
    stats.disk_block_count = disk.block_count;
    stats.disk_only_bytes = disk.only_bytes;
    stats.disk_log_bytes = disk.log_bytes;
    stats.spilled_blocks = disk.spilled_blocks;
    stats.disk_evicted_blocks = disk.evicted_blocks;
    stats.rewritten_blocks = disk.rewritten_blocks;
    stats.spill_skipped_blocks = disk_.skipped_count();
    stats.lost_blocks += disk_.lost_count();
    stats.lost_unspilled_blocks = evictions.unspilled_blocks - stats.spill_skipped_blocks;
  }
  for (const Arena::SizeClass& of : pool.arena().classes())
    stats.classes.push_back({of.block_bytes, of.slot_count, of.used_count, of.slab_count});
  return stats;
}

}  // namespace kv
