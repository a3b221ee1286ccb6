#include "store/node/policy/tenant_rates.h"

#include <spdlog/fmt/fmt.h>

#include <chrono>
#include <cmath>
#include <utility>

#include "base/assert.h"

namespace kv {
namespace {

/// As a whole number: 12500.
std::string rate_text(double rate) { return std::to_string(static_cast<std::uint64_t>(rate)); }

}  // namespace

void TenantRates::set(const TenantPolicy& policy) {
  const std::lock_guard lock(mutex_);
  stats_.policy = policy;
}

std::string TenantRates::take_request(TimePoint now) {
  const std::lock_guard lock(mutex_);
  const double rate = stats_.policy.requests_per_second;
  if (rate > 0) {
    requests_.fill(rate, now);
    if (requests_.left < 1) return refuse(Limit::kRequests, "requests-per-second", rate, (1 - requests_.left) / rate);
    requests_.left -= 1;
  }
  ++stats_.requests;
  return "";
}

std::string TenantRates::may_move(TimePoint now) {
  const std::lock_guard lock(mutex_);
  const double rate = stats_.policy.bytes_per_second;
  if (rate <= 0) return "";
  bytes_.fill(rate, now);
  return bytes_.left > 0 ? "" : refuse(Limit::kBytes, "bytes-per-second", rate, (1 - bytes_.left) / rate);
}

void TenantRates::moved(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  stats_.bytes += bytes;
  if (stats_.policy.bytes_per_second > 0) bytes_.left -= static_cast<double>(bytes);
}

std::string TenantRates::enter() {
  const std::lock_guard lock(mutex_);
  if (stats_.session_count >= stats_.policy.session_count_max)
    return refuse(Limit::kSessions, "sessions-max", static_cast<double>(stats_.policy.session_count_max), std::nullopt);
  ++stats_.session_count;
  return "";
}

void TenantRates::enter_anyway() {
  const std::lock_guard lock(mutex_);
  ++stats_.session_count;
}

void TenantRates::leave() {
  const std::lock_guard lock(mutex_);
  KV_ASSERT(stats_.session_count > 0);
  --stats_.session_count;
}

TenantRates::Stats TenantRates::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

std::string TenantRates::refuse(Limit limit, const std::string& field, double rate,
                                std::optional<double> wait_seconds) {
  ++stats_.refusals[static_cast<std::size_t>(limit)];
  std::string why = "tenant '" + stats_.policy.holds.name + "' is at its " + field + ", " + rate_text(rate);
  if (wait_seconds) why += fmt::format("; again in {} ms", static_cast<std::uint64_t>(std::ceil(*wait_seconds * 1000)));
  return why;
}

void TenantBook::set(const std::vector<TenantPolicy>& policies) {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::shared_ptr<TenantRates>> tenants;
  for (const TenantPolicy& policy : policies) {
    const auto known = tenants_.find(policy.holds.name);
    auto& tenant = tenants[policy.holds.name];
    tenant = known == tenants_.end() ? std::make_shared<TenantRates>(policy.holds.name) : known->second;
    tenant->set(policy);
  }
  tenants_ = std::move(tenants);
}

std::shared_ptr<TenantRates> TenantBook::find(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = tenants_.find(name);
  return found == tenants_.end() ? nullptr : found->second;
}

std::vector<TenantRates::Stats> TenantBook::stats() const {
  const std::lock_guard lock(mutex_);
  std::vector<TenantRates::Stats> stats;
  for (const auto& [name, tenant] : tenants_) stats.push_back(tenant->stats());
  return stats;
}

}  // namespace kv
