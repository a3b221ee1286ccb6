#include "store/desks/shelf.h"

#include <utility>

namespace kv {
namespace {

std::unique_ptr<DiskTier> make_tier(const StoreConfig& config, std::size_t index_bytes_max) {
  if (config.disk.capacity_bytes == 0) return nullptr;
  DiskTierConfig disk = config.disk;
  if (disk.index_bytes_max == 0) disk.index_bytes_max = index_bytes_max / 2;
  return std::make_unique<DiskTier>(disk);
}

}  // namespace

Shelf::Shelf(const StoreConfig& store_config, std::unique_ptr<Arena> arena)
    : config(store_config),
      events(config.event_count_max > 0 ? std::make_unique<EventLog>(config.event_count_max) : nullptr),
      tier(make_tier(config,
                     config.index_bytes_max > 0 ? config.index_bytes_max : index_bytes_for(arena->capacity_bytes()))),
      policy(make_policy(config.policy, config.hash_seed, config.lru_unless_combined)),
      departed(config.departed_count_max, config.hash_seed),
      pool(std::move(arena), tier.get(), config.hash_seed, policy->queues()),
      tenants(config.has_tenants ? std::make_unique<TenantTable>(pool.index(), tier ? &tier->own_index() : nullptr,
                                                                 config.tenant_charge_min)
                                 : nullptr),
      evictor(pool, *policy, departed, tenants.get()) {
  pool.use_tenants(tenants.get());
  pool.use_events(events.get());
  if (!tier) return;
  tier->use_tenants(tenants.get());
  tier->use_departed(departed);
  tier->use_events(events.get());
}

}  // namespace kv
