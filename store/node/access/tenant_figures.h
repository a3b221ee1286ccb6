// store/node/access/tenant_figures.h: what each tenant holds, may hold and was refused, for metrics and tools.
#pragma once

#include <vector>

#include "store/node/access/tenant_rates.h"
#include "store/node/metrics.h"
#include "store/store.h"

namespace kv {

/// By name. A limit that a tenant does not have is left out.
std::vector<NodeMetrics::OfTenant> tenant_figures(const std::vector<TenantStats>& held,
                                                  const std::vector<TenantRates::Stats>& rates);
/// With those that the policy does not name as one, "(other)": so there are as many labels as a policy has sections,
/// whatever clients call themselves.
std::vector<NodeMetrics::OfTenant> bounded_tenant_figures(const std::vector<TenantStats>& held,
                                                          const std::vector<TenantRates::Stats>& rates);

/// What named contexts come to, by owner; at least of nobody's (""), so that the values are there from the start.
std::vector<NodeMetrics::OfTenant> context_figures(const std::vector<ContextTotals>& totals);

}  // namespace kv
