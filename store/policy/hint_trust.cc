#include "store/policy/hint_trust.h"

#include <algorithm>

namespace kv {
namespace {

/// Uses that the tenant's mean predicts for a hint's blocks over the same time; fewer are inconclusive. Blocks of one
/// request are used together, so 64 uses are a few independent observations.
constexpr double kExpectedUses = 64;
/// Relative to the tenant's mean. Between these a hint is uninformative.
constexpr double kSeldom = 0.9, kOften = 1.1;
/// Until there is proof: at least this many requests, with at most this share of one hint.
constexpr double kRequestsMin = 8, kSameMax = 0.9;

}  // namespace

std::uint8_t HintTrust::hear(std::uint64_t tenant, ReuseHint hint) {
  has_heard_ = has_heard_ || hint != ReuseHint::kNone;
  if (tenants_[last_].heard_at == 0 || tenants_[last_].name != tenant) {
    auto it =
        std::ranges::find_if(tenants_, [&](const Tenant& each) { return each.heard_at != 0 && each.name == tenant; });
    if (it == tenants_.end()) {
      it = std::ranges::min_element(tenants_, {}, &Tenant::heard_at);
      *it = {.name = tenant};
    }
    last_ = static_cast<std::uint8_t>(it - tenants_.begin());
  }
  tenants_[last_].heard_at = ++heard_count_;
  ++tenants_[last_].of[index(hint)].requests;
  return last_;
}

void HintTrust::learn() {
  if (!has_heard_) return;
  for (Tenant& tenant : tenants_) learn(tenant);
}

void HintTrust::learn(Tenant& tenant) {
  Counts all;
  double same = 0;
  for (const Counts& counts : tenant.of) {
    all.requests += counts.requests;
    all.uses += counts.uses;
    all.time += counts.time;
    same = std::max(same, counts.requests);
  }
  for (std::uint32_t i = 1; i < kHints; ++i) {
    const double expected = all.time > 0 ? tenant.of[i].time * all.uses / all.time : 0;
    if (expected < kExpectedUses) {
      if (all.requests >= kRequestsMin) tenant.is_believed[i] = same <= kSameMax * all.requests;
      continue;
    }
    const double ratio = tenant.of[i].uses / expected;
    const bool is_seldom = ratio <= kSeldom, is_often = ratio >= kOften;
    switch (static_cast<ReuseHint>(i)) {
      case ReuseHint::kFinal: tenant.is_believed[i] = is_seldom; break;
      case ReuseHint::kLater: tenant.is_believed[i] = is_seldom || is_often; break;
      default: tenant.is_believed[i] = is_often;
    }
  }
}

void HintTrust::forget(double factor) {
  for (Tenant& tenant : tenants_) {
    for (Counts& counts : tenant.of) {
      counts.requests *= factor;
      counts.uses *= factor;
      counts.time *= factor;
    }
  }
}

void HintTrust::forget_counts() {
  for (Tenant& tenant : tenants_) tenant.of = {};
}

}  // namespace kv
