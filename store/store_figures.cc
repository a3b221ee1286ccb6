// store/store_figures.cc: a Store's figures.

#include <utility>

#include "store/store_impl.h"

namespace kv {

std::optional<Store::Curve> Store::curve() const {
  if (!impl_->curve) return std::nullopt;
  Curve curve{.report = impl_->curve->report(), .block_bytes = 0};
  for (const HitCurve::Point& point : curve.report.points)
    if (point.is_now && !point.has_disk && point.block_count > 0)
      curve.block_bytes = impl_->pool.arena().capacity_bytes() / point.block_count;
  return curve;
}

SampledNames::Samples Store::samples() const {
  return {impl_->policy->sample(), impl_->curve ? std::optional(impl_->curve->sample()) : std::nullopt};
}

const YieldTable* Store::yield_table() const { return impl_->policy->table(); }

std::uint64_t Store::age_clock() const { return impl_->policy->clock(); }

void Store::set_pooled(YieldTable::Pooled pooled) { impl_->policy->set_pooled(std::move(pooled)); }

void Store::set_before(YieldCounts counts) {
  if (counts.unit >= 1) impl_->policy->set_before(counts.unit, std::move(counts.classes));
}

StoreStats Store::stats() const {
  const BlockPool& pool = impl_->pool;
  const Evictor::Stats& evictions = impl_->evictor.stats();
  StoreStats stats = impl_->counters;
  stats.capacity_bytes = pool.arena().capacity_bytes();
  stats.allocated_bytes = pool.arena().allocated_bytes();
  stats.slab_bytes = pool.arena().slab_bytes();
  stats.block_count = pool.index().block_count();
  const PrefixIndex::SetTotals sets = pool.index().set_totals();
  stats.set_block_count = sets.block_count;
  stats.set_bytes = sets.bytes;
  stats.staged_count = pool.staged_count();
  stats.pinned_count = pool.pinned_count();
  stats.lease_count = impl_->leases.lease_count();
  stats.leased_bytes = pool.leased_bytes();
  stats.namespace_count = impl_->spaces.count();
  stats.index_bytes = pool.index().memory_bytes();
  stats.index_used_bytes = impl_->index_used_bytes();
  stats.index_bytes_max = impl_->config.index_bytes_max;
  stats.dropped_blocks += evictions.dropped_blocks;
  stats.unlearned_uses = impl_->policy->unlearned_uses();
  stats.evicted_blocks = evictions.evicted_blocks;
  stats.evicted_bytes = evictions.evicted_bytes;
  stats.slab_moves = evictions.slab_moves;
  stats.eviction_age_log2_ms = evictions.age_log2_ms;
  if (impl_->tier) {
    const DiskTier::Stats disk = impl_->tier->stats();
    stats.index_bytes += disk.index_bytes;
    stats.disk_block_count = disk.block_count;
    stats.disk_only_bytes = disk.only_bytes;
    stats.disk_log_bytes = disk.log_bytes;
    stats.spilled_blocks = disk.spilled_blocks;
    stats.disk_evicted_blocks = disk.evicted_blocks;
    stats.rewritten_blocks = disk.rewritten_blocks;
    stats.spill_skipped_blocks = impl_->spiller->skipped_count();
    stats.lost_blocks += impl_->spiller->lost_count();
    stats.lost_unspilled_blocks = evictions.unspilled_blocks - stats.spill_skipped_blocks;
  }
  for (const Arena::SizeClass& of : pool.arena().classes())
    stats.classes.push_back({of.block_bytes, of.slot_count, of.used_count, of.slab_count});
  return stats;
}

}  // namespace kv
