// store/node/access/tenant_figures.h: each tenant's use, limits and refusals, for metrics and tools.
#pragma once

#include <vector>

#include "store/node/metrics.h"
#include "store/node/policy/tenant_rates.h"
#include "store/store.h"

namespace kv {

/// By name. Absent limits are left out.
std::vector<NodeMetrics::OfTenant> tenant_figures(const std::vector<TenantStats>& held,
                                                  const std::vector<TenantRates::Stats>& rates);
/// Adds up tenants without a section in the policy as "(other)". So the policy bounds the number of labels.
std::vector<NodeMetrics::OfTenant> bounded_tenant_figures(const std::vector<TenantStats>& held,
                                                          const std::vector<TenantRates::Stats>& rates);

/// Totals of named contexts, by owner. Always includes the owner "", so that the values exist from the start.
std::vector<NodeMetrics::OfTenant> context_figures(const std::vector<ContextTotals>& totals);

}  // namespace kv
