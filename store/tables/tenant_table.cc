#include "store/tables/tenant_table.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace kv {

// -- limits

void TenantTable::set_limits(const std::vector<TenantLimits>& limits) {
  limits_of_name_.clear();
  for (const TenantLimits& each : limits) limits_of_name_[each.name] = each;
  for (std::uint32_t i = 0; i < tenants_.size(); ++i) {
    if (!tenants_[i].is_used) continue;
    take_limits(tenants_[i]);
    look_again(tenants_[i]);
    look_again_at_disk(TenantId{i});
    leave(TenantId{i});
  }
  // After the departed ones, whose numbers they may need. A tenant without a number receives one with its first
  // namespace, and is empty until then.
  for (const TenantLimits& each : limits) {
    if (has_free_tenant() || of_name_.contains(each.name)) enter(each.name);
  }
}

void TenantTable::take_limits(Tenant& tenant) {
  const auto found = limits_of_name_.find(tenant.limits.name);
  tenant.has_limits = found != limits_of_name_.end();
  if (tenant.has_limits) {
    tenant.limits = found->second;
  } else {
    tenant.limits = {.name = std::string(tenant.limits.name)};
  }
}

std::vector<TenantStats> TenantTable::stats() const {
  std::vector<TenantStats> stats;
  for (const auto& [name, id] : of_name_) stats.push_back({at(id).limits, at(id).usage, at(id).has_limits});
  return stats;
}

// -- namespaces

TenantId TenantTable::enter(std::string_view name) {
  if (const auto found = of_name_.find(name); found != of_name_.end()) return found->second;
  TenantId id{static_cast<std::uint32_t>(tenants_.size())};
  if (free_tenants_.empty()) {
    KV_ASSERT(tenants_.size() <= PrefixIndex::kCohortMax);
    tenants_.emplace_back();
  } else {
    id = free_tenants_.back();
    free_tenants_.pop_back();
  }
  Tenant& tenant = at(id);
  tenant = {};
  tenant.limits.name = name;
  tenant.is_used = true;
  take_limits(tenant);
  of_name_.emplace(name, id);
  look_again(tenant);
  look_again_at_disk(id);
  return id;
}

void TenantTable::leave(TenantId id) {
  Tenant& tenant = at(id);
  if (tenant.has_limits || tenant.usage.namespace_count > 0) return;
  KV_ASSERT(tenant.cohorts.empty() && tenant.usage.memory_bytes == 0 && tenant.usage.disk_bytes == 0);
  std::erase(over_disk_max_, id);
  if (disk_ != nullptr) disk_->set_band(disk_cohort(id), PrefixIndex::kNoBand);
  of_name_.erase(tenant.limits.name);
  tenant = {};
  free_tenants_.push_back(id);
}

bool TenantTable::may_open(TenantId tenant) const {
  return at(tenant).usage.namespace_count < at(tenant).limits.namespace_count_max;
}

void TenantTable::opened(TenantId tenant, TreeId tree) {
  const auto i = static_cast<std::size_t>(tree);
  if (i >= of_tree_.size()) of_tree_.resize(i + 1, kNoTenant);
  of_tree_[i] = tenant;
  ++at(tenant).usage.namespace_count;
}

void TenantTable::closed(TenantId tenant, TreeId tree) {
  KV_ASSERT(of(tree) == tenant && at(tenant).usage.namespace_count > 0);
  of_tree_[static_cast<std::size_t>(tree)] = kNoTenant;
  --at(tenant).usage.namespace_count;
  leave(tenant);
}

bool TenantTable::has_room() const {
  return (!free_cohorts_.empty() || cohorts_.size() <= PrefixIndex::kCohortMax) && has_free_tenant();
}

void TenantTable::use_size(TenantId id, std::size_t slot_bytes, std::uint32_t size_class) {
  Tenant& tenant = at(id);
  auto found = tenant.cohorts.find(slot_bytes);
  if (found == tenant.cohorts.end()) {
    if (free_cohorts_.empty()) {
      KV_ASSERT(cohorts_.size() <= PrefixIndex::kCohortMax);
      free_cohorts_.push_back(static_cast<std::uint32_t>(cohorts_.size()));
      cohorts_.emplace_back();
    }
    found = tenant.cohorts.emplace(slot_bytes, free_cohorts_.back()).first;
    free_cohorts_.pop_back();
    cohorts_[found->second] = {.slot_bytes = slot_bytes, .size_class = size_class};
    band_end_ = std::max(band_end_, size_class + 1);
    look_again(tenant);
  }
  KV_ASSERT(cohorts_[found->second].size_class == size_class);
  ++cohorts_[found->second].uses;
}

void TenantTable::end_size(TenantId id, std::size_t slot_bytes) {
  Tenant& tenant = at(id);
  const auto found = tenant.cohorts.find(slot_bytes);
  KV_ASSERT(found != tenant.cohorts.end() && cohorts_[found->second].uses > 0);
  if (--cohorts_[found->second].uses > 0) return;
  memory_.set_band(found->second, PrefixIndex::kNoBand);
  cohorts_[found->second] = {};
  free_cohorts_.push_back(found->second);
  tenant.cohorts.erase(found);
  look_again(tenant);
}

std::uint32_t TenantTable::cohort(TenantId tenant, std::size_t slot_bytes) const {
  const auto found = at(tenant).cohorts.find(slot_bytes);
  KV_ASSERT(found != at(tenant).cohorts.end());
  return found->second;
}

// -- holdings

void TenantTable::came(TenantId id, std::size_t slot_bytes) {
  Tenant& tenant = at(id);
  tenant.usage.memory_bytes += charge(slot_bytes);
  if (tenant.usage.memory_bytes >= tenant.to) look_again(tenant);
}

void TenantTable::went(TenantId id, std::size_t slot_bytes) {
  Tenant& tenant = at(id);
  KV_ASSERT(tenant.usage.memory_bytes >= charge(slot_bytes));
  tenant.usage.memory_bytes -= charge(slot_bytes);
  if (tenant.usage.memory_bytes < tenant.from) look_again(tenant);
}

/// Moves cohorts into and out of their bands (2).
void TenantTable::look_again(Tenant& tenant) {
  tenant.from = 0;
  tenant.to = TenantLimits::kNoLimit;
  for (const auto& [slot_bytes, number] : tenant.cohorts) {
    Cohort& cohort = cohorts_[number];
    const bool can_spare = spares(tenant, slot_bytes);
    const std::uint64_t from = tenant.limits.memory_bytes + charge(slot_bytes);
    (can_spare ? tenant.from : tenant.to) = can_spare ? std::max(tenant.from, from) : std::min(tenant.to, from);
    if (std::exchange(cohort.is_in_band, can_spare) != can_spare)
      memory_.set_band(number, can_spare ? cohort.size_class : PrefixIndex::kNoBand);
  }
}

void TenantTable::came_to_disk(TreeId tree, std::uint64_t bytes) {
  at(of(tree)).usage.disk_bytes += bytes;
  look_again_at_disk(of(tree));
}

void TenantTable::went_from_disk(TreeId tree, std::uint64_t bytes) {
  KV_ASSERT(at(of(tree)).usage.disk_bytes >= bytes);
  at(of(tree)).usage.disk_bytes -= bytes;
  look_again_at_disk(of(tree));
}

void TenantTable::look_again_at_disk(TenantId id) {
  if (disk_ == nullptr) return;
  Tenant& tenant = at(id);
  const bool is_over = tenant.usage.disk_bytes > tenant.limits.disk_bytes;
  if (std::exchange(tenant.is_in_disk_band, is_over) != is_over)
    disk_->set_band(disk_cohort(id), is_over ? 0 : PrefixIndex::kNoBand);
  const auto listed = std::ranges::find(over_disk_max_, id);
  const bool is_over_max = is_over_disk_max(id);
  if (is_over_max && listed == over_disk_max_.end()) over_disk_max_.push_back(id);
  if (!is_over_max && listed != over_disk_max_.end()) over_disk_max_.erase(listed);
}

// -- admission and eviction

bool TenantTable::is_at_memory_max(TenantId tenant, std::size_t slot_bytes) const {
  const std::uint64_t bytes = at(tenant).usage.memory_bytes + charge(slot_bytes);
  return bytes > at(tenant).limits.memory_bytes_max;
}

bool TenantTable::may_lease(TenantId id, std::size_t count) {
  Tenant& tenant = at(id);
  const bool may =
      count <= tenant.limits.lease_count_max && tenant.usage.lease_count <= tenant.limits.lease_count_max - count;
  tenant.usage.lease_refusals += !may;
  return may;
}

bool TenantTable::could_retain(TenantId id, std::uint64_t bytes) const {
  const Tenant& tenant = at(id);
  return bytes == 0 || (bytes <= tenant.limits.retained_bytes_max &&
                        tenant.usage.retained_bytes <= tenant.limits.retained_bytes_max - bytes);
}

bool TenantTable::may_retain(TenantId id, std::uint64_t bytes) {
  const bool may = could_retain(id, bytes);
  at(id).usage.retain_refusals += !may;
  return may;
}

bool TenantTable::is_guaranteed(TenantId tenant, std::size_t slot_bytes) const {
  return at(tenant).usage.memory_bytes + charge(slot_bytes) <= at(tenant).limits.memory_bytes;
}

bool TenantTable::can_spare(TenantId tenant, std::size_t slot_bytes) const { return spares(at(tenant), slot_bytes); }

}  // namespace kv
