#include "store/node/access/tenant_figures.h"

#include <algorithm>

namespace kv {
namespace {

struct UsageName {
  const char* name;
  std::uint64_t TenantUsage::*value;
  bool is_counter;
  const char* help;
};
constexpr UsageName kUsageNames[] = {
    {"tenant_memory_bytes", &TenantUsage::memory_bytes, false, "What the tenant's blocks in memory count for"},
    {"tenant_disk_bytes", &TenantUsage::disk_bytes, false, "Bytes of the tenant's blocks that are on disk alone"},
    {"tenant_leases", &TenantUsage::lease_count, false, "The tenant's live leases"},
    {"tenant_retained_bytes", &TenantUsage::retained_bytes, false,
     "Bytes that the tenant keeps by the request retain and by named contexts"},
    {"tenant_namespaces", &TenantUsage::namespace_count, false, "The tenant's namespaces"},
    {"tenant_evicted_blocks", &TenantUsage::evicted_blocks, true, "The tenant's blocks evicted from memory"},
    {"tenant_refused_memory_blocks", &TenantUsage::memory_refusals, true,
     "Blocks refused at memory-bytes-max, with all of the tenant's own pinned"},
    {"tenant_refused_leases", &TenantUsage::lease_refusals, true, "Leases refused at leases-max"},
    {"tenant_refused_retains", &TenantUsage::retain_refusals, true, "Retains refused at retained-bytes-max"},
    {"tenant_refused_namespaces", &TenantUsage::namespace_refusals, true, "Namespaces refused at namespaces-max"},
};
struct LimitName {
  const char* name;
  std::uint64_t TenantLimits::*value;
  const char* help;
};
constexpr LimitName kLimitNames[] = {
    {"tenant_memory_guaranteed_bytes", &TenantLimits::memory_bytes, "memory-bytes"},
    {"tenant_memory_max_bytes", &TenantLimits::memory_bytes_max, "memory-bytes-max"},
    {"tenant_disk_guaranteed_bytes", &TenantLimits::disk_bytes, "disk-bytes"},
    {"tenant_disk_max_bytes", &TenantLimits::disk_bytes_max, "disk-bytes-max"},
    {"tenant_leases_max", &TenantLimits::lease_count_max, "leases-max"},
    {"tenant_retained_max_bytes", &TenantLimits::retained_bytes_max, "retained-bytes-max"},
    {"tenant_namespaces_max", &TenantLimits::namespace_count_max, "namespaces-max"},
};

NodeMetrics::OfTenant figures_of(const TenantStats& tenant) {
  NodeMetrics::OfTenant of{.name = tenant.limits.name, .values = {}};
  for (const UsageName& each : kUsageNames)
    of.values.push_back({each.name, static_cast<double>(tenant.usage.*each.value), each.is_counter, each.help});
  for (const LimitName& each : kLimitNames) {
    const std::uint64_t limit = tenant.limits.*each.value;
    if (tenant.has_limits && limit != TenantLimits::kNoLimit)
      of.values.push_back({each.name, static_cast<double>(limit), false, each.help});
  }
  return of;
}

void add_rates(NodeMetrics::OfTenant& of, const TenantRates::Stats& rates) {
  const auto add = [&](const char* name, const auto& value, bool is_counter, const char* help) {
    of.values.push_back({name, value, is_counter, help});
  };
  const auto refused = [&](TenantRates::Limit limit) {
    return static_cast<double>(rates.refusals[static_cast<std::size_t>(limit)]);
  };
  add("tenant_sessions", rates.session_count, false, "The tenant's sessions");
  add("tenant_requests", rates.requests, true, "The tenant's requests that were let through");
  add("tenant_moved_bytes", rates.bytes, true, "Bytes of blocks moved for the tenant");
  add("tenant_refused_requests", refused(TenantRates::Limit::kRequests), true,
      "Requests refused at requests-per-second");
  add("tenant_refused_transfers", refused(TenantRates::Limit::kBytes), true,
      "Gets and puts refused at bytes-per-second");
  add("tenant_refused_sessions", refused(TenantRates::Limit::kSessions), true, "Sessions refused at sessions-max");
  if (rates.policy.session_count_max != TenantLimits::kNoLimit)
    add("tenant_sessions_max", rates.policy.session_count_max, false, "sessions-max");
  if (rates.policy.requests_per_second > 0)
    add("tenant_requests_per_second_max", rates.policy.requests_per_second, false, "requests-per-second");
  if (rates.policy.bytes_per_second > 0)
    add("tenant_bytes_per_second_max", rates.policy.bytes_per_second, false, "bytes-per-second");
}

}  // namespace

std::vector<NodeMetrics::OfTenant> tenant_figures(const std::vector<TenantStats>& held,
                                                  const std::vector<TenantRates::Stats>& rates) {
  std::vector<NodeMetrics::OfTenant> figures;
  for (const TenantStats& tenant : held) {
    figures.push_back(figures_of(tenant));
    const auto of =
        std::ranges::find_if(rates, [&](const auto& each) { return each.policy.holds.name == tenant.limits.name; });
    if (of != rates.end()) add_rates(figures.back(), *of);
  }
  return figures;
}

std::vector<NodeMetrics::OfTenant> bounded_tenant_figures(const std::vector<TenantStats>& held,
                                                          const std::vector<TenantRates::Stats>& rates) {
  std::vector<TenantStats> named;
  TenantStats other;
  other.limits.name = "(other)";
  for (const TenantStats& tenant : held) {
    if (tenant.has_limits) {
      named.push_back(tenant);
      continue;
    }
    for (const UsageName& each : kUsageNames) other.usage.*each.value += tenant.usage.*each.value;
  }
  named.push_back(other);
  return tenant_figures(named, rates);
}

std::vector<NodeMetrics::OfTenant> context_figures(const std::vector<ContextTotals>& totals) {
  std::vector<NodeMetrics::OfTenant> figures;
  const auto add = [&](const ContextTotals& of) {
    figures.push_back(
        {.name = of.owner,
         .values = {{"contexts", of.count, false, "Named contexts"},
                    {"context_wanted_blocks", of.wanted_blocks, false, "Blocks that named contexts are to keep"},
                    {"context_kept_blocks", of.kept_blocks, false,
                     "Blocks that named contexts keep in memory, shared ones for each context"},
                    {"context_kept_bytes", of.kept_bytes, false, "The same in bytes"},
                    {"context_lost_blocks", of.lost_blocks, true, "Blocks that named contexts kept, and a drop took"},
                    {"context_yielded_blocks", of.yielded_blocks, true,
                     "Blocks that named contexts kept, and gave up for others of the tenant's of higher priority"},
                    {"context_created", of.created, true, "Named contexts created, or put in another's place"},
                    {"context_expired", of.expired, true, "Named contexts whose time was over"},
                    {"context_deleted", of.deleted, true, "Named contexts deleted"},
                    {"context_refused", of.refused, true, "Named contexts refused at the bounds on them"},
                    {"context_written_tokens", of.written_tokens, true,
                     "Tokens of blocks that began to be kept by a named context"},
                    {"context_read_tokens", of.read_tokens, true,
                     "Tokens of blocks kept by named contexts that gets have found"},
                    {"context_stored_token_seconds", of.stored_token_seconds, true,
                     "Tokens kept by named contexts, times the seconds that they were"}}});
  };
  const bool has_nobody = std::ranges::any_of(totals, [](const ContextTotals& of) { return of.owner.empty(); });
  if (!has_nobody) add({});
  for (const ContextTotals& of : totals) add(of);
  return figures;
}

}  // namespace kv
