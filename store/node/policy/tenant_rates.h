// store/node/policy/tenant_rates.h: a tenant's limits on requests, bytes and sessions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/rate_bucket.h"
#include "store/tables/tenant_table.h"

namespace kv {

/// The policy for one tenant. Rates of 0: unlimited.
struct TenantPolicy {
  TenantLimits holds;  ///< Limits enforced by the Store, with the tenant's name.
  double requests_per_second = 0, bytes_per_second = 0;
  std::uint64_t session_count_max = TenantLimits::kNoLimit;

  friend bool operator==(const TenantPolicy&, const TenantPolicy&) = default;
};

/// The rates and sessions of one tenant on this node.
///   1. In any time t a tenant begins at most rate * (t + 1 s) requests.
///   2. A request that moves blocks begins only once all earlier bytes are paid for: one may run up a debt, and the
///      next waits for it. So its size need not be known in advance, and in the long run the rate holds exactly.
/// Thread safety: any. Cost: a lock shared by this tenant's sessions only.
class TenantRates {
 public:
  enum class Limit : std::uint8_t { kRequests, kBytes, kSessions };
  static constexpr std::size_t kLimitCount = 3;
  struct Stats {
    TenantPolicy policy;
    std::uint64_t session_count = 0;
    std::uint64_t requests = 0, bytes = 0;  ///< Admitted requests, moved bytes.
    std::uint64_t refusals[kLimitCount] = {};
  };

  explicit TenantRates(std::string name) { stats_.policy.holds.name = std::move(name); }
  void set(const TenantPolicy& policy);  ///< Saved-up allowance stays, as far as the new rate allows.

  // Each returns the reason for a refusal, with the limit and how long to wait; empty: proceed.
  std::string take_request(TimePoint now);
  std::string may_move(TimePoint now);
  std::string enter();  ///< Begins a session; then leave() must follow.

  void enter_anyway();  ///< For a running session that changes its tenant.
  void leave();
  void moved(std::uint64_t bytes);  ///< Call before or while they move.
  Stats stats() const;

 private:
  std::string refuse(Limit limit, const std::string& field, double rate, std::optional<double> wait_seconds);

  mutable std::mutex mutex_;
  Stats stats_;
  RateBucket requests_, bytes_;
};

/// All tenants of a policy. Thread safety: any.
class TenantBook {
 public:
  void set(const std::vector<TenantPolicy>& policies);
  std::shared_ptr<TenantRates> find(const std::string& name) const;  ///< nullptr: unlimited.
  std::vector<TenantRates::Stats> stats() const;                     ///< By name.

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<TenantRates>> tenants_;
};

}  // namespace kv
