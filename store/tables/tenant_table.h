// store/tables/tenant_table.h: each tenant's share of memory and disk, and whose blocks may go for whom.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "index/prefix_index.h"

namespace kv {

enum class TenantId : std::uint32_t {};  ///< In a TenantTable; reused when the tenant is gone.

/// A tenant's guarantees (`_bytes`) and bounds (`_max`; kNoLimit: unbounded).
struct TenantLimits {
  static constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};

  std::string name;  ///< The record's `tenant`.
  std::uint64_t memory_bytes = 0, memory_bytes_max = kNoLimit;
  std::uint64_t disk_bytes = 0, disk_bytes_max = kNoLimit;  ///< For blocks that lie only on disk.
  std::uint64_t lease_count_max = kNoLimit;
  std::uint64_t retained_bytes_max = kNoLimit;  ///< By retain(), and contexts.
  std::uint64_t namespace_count_max = kNoLimit;

  friend bool operator==(const TenantLimits&, const TenantLimits&) = default;
};

/// A tenant's holdings, and how often it was refused more.
struct TenantUsage {
  std::uint64_t memory_bytes = 0, disk_bytes = 0, lease_count = 0, retained_bytes = 0, namespace_count = 0;
  std::uint64_t evicted_blocks = 0;  ///< From memory; this and the following are counters.
  std::uint64_t memory_refusals = 0, lease_refusals = 0, retain_refusals = 0, namespace_refusals = 0;
};

struct TenantStats {
  TenantLimits limits;
  TenantUsage usage;
  bool has_limits = false;  ///< Set by a policy. Otherwise without guarantees and bounds.
};

/// Idle memory is lent: a tenant may hold more than its guarantee, up to its maximum. When memory is wanted, blocks of
/// tenants over their guarantees go, in the policy's order over all of these together. Tenants within their guarantee
/// lose blocks only to their own puts.
///
/// Blocks of one size and tenant are a cohort of the index. The cohorts of one size whose tenants can spare a block
/// form a band (PrefixIndex::set_band), numbered as the size class. So the oldest block that may go for any tenant is
/// found like the oldest of one cohort, independent of the number of tenants.
///   1. A tenant's memory_bytes is the sum of its blocks' charges in memory, including incoming and unlinked ones.
///   2. A cohort is in its band iff its tenant, one block of the cohort's size poorer, still has its guarantee.
///   3. The same on disk, where each tenant is one cohort and a tenant over its guarantee is in band 0. A guarantee of
///      disk holds to within one block.
/// A block is charged at least `charge_min` bytes: tiny ones fill the index, not the arena, and a guarantee must hold
/// there too. Thread safety: the Store's lock. Cost: O(1) a block that comes or goes; when a tenant crosses its
/// guarantee, O(log tenants) for each of its sizes and queues.
class TenantTable {
 public:
  /// Both indexes outlive this. `disk`: nullptr without a disk tier.
  TenantTable(PrefixIndex& memory, PrefixIndex* disk, std::uint64_t charge_min)
      : memory_(memory), disk_(disk), charge_min_(charge_min) {}

  // -- limits
  /// Sets the limits of all tenants; the others lose theirs. Holdings over a new maximum go with the tenant's next put.
  /// If numbers run out, a tenant without one is empty, and receives its limits when it enters.
  void set_limits(const std::vector<TenantLimits>& limits);
  std::vector<TenantStats> stats() const;  ///< For each tenant with limits or namespaces, by name.

  // -- namespaces
  /// The tenant of that name, made if it is new. It lives as long as it has namespaces, or limits.
  TenantId enter(std::string_view name);
  void leave(TenantId tenant);  ///< Ends a tenant without namespaces and limits.
  bool may_open(TenantId tenant) const;
  void opened(TenantId tenant, TreeId tree);  ///< The same number in both indexes.
  void closed(TenantId tenant, TreeId tree);
  TenantId of(TreeId tree) const { return of_tree_[static_cast<std::size_t>(tree)]; }
  /// Whether there are numbers for one more tenant and one more cohort. Without, use_size() and enter() fail.
  bool has_room() const;
  /// Begin and end a namespace's use of slots of that size. The tenant's blocks in these are a cohort.
  void use_size(TenantId tenant, std::size_t slot_bytes, std::uint32_t size_class);
  void end_size(TenantId tenant, std::size_t slot_bytes);
  std::uint32_t cohort(TenantId tenant, std::size_t slot_bytes) const;  ///< Requires: has_size().
  bool has_size(TenantId tenant, std::size_t slot_bytes) const { return at(tenant).cohorts.contains(slot_bytes); }
  std::uint32_t size_class(std::uint32_t cohort) const { return cohorts_[cohort].size_class; }
  std::uint32_t disk_cohort(TenantId tenant) const { return static_cast<std::uint32_t>(tenant); }

  // -- holdings
  void came(TenantId tenant, std::size_t slot_bytes);  ///< A slot was taken.
  void went(TenantId tenant, std::size_t slot_bytes);  ///< A slot was freed.
  void came_to_disk(TreeId tree, std::uint64_t bytes);
  void went_from_disk(TreeId tree, std::uint64_t bytes);
  void leased(TreeId tree) { ++at(of(tree)).usage.lease_count; }
  void lease_ended(TreeId tree) { --at(of(tree)).usage.lease_count; }
  void retained(TreeId tree, std::uint64_t bytes) { at(of(tree)).usage.retained_bytes += bytes; }
  void unretained(TreeId tree, std::uint64_t bytes) { at(of(tree)).usage.retained_bytes -= bytes; }
  bool is_over_on_disk(TreeId tree) const { return at(of(tree)).is_in_disk_band; }
  void evicted(TreeId tree) { ++at(of(tree)).usage.evicted_blocks; }

  // -- admission and eviction
  bool is_at_memory_max(TenantId tenant, std::size_t slot_bytes) const;  ///< Whether one more such block is too much.
  bool is_over_disk_max(TenantId tenant) const {
    return at(tenant).usage.disk_bytes > at(tenant).limits.disk_bytes_max;
  }
  bool may_lease(TenantId tenant, std::size_t count);  ///< Counts a refusal; so does may_retain().
  bool may_retain(TenantId tenant, std::uint64_t bytes);
  bool could_retain(TenantId tenant, std::uint64_t bytes) const;  ///< The same without counting.
  void refused_memory(TenantId tenant, std::uint64_t blocks) { at(tenant).usage.memory_refusals += blocks; }
  void refused_namespace(TenantId tenant) { ++at(tenant).usage.namespace_refusals; }
  /// Whether the tenant, with one more such block, would still be within its guarantee.
  bool is_guaranteed(TenantId tenant, std::size_t slot_bytes) const;
  /// Whether the tenant keeps its guarantee without one such block.
  bool can_spare(TenantId tenant, std::size_t slot_bytes) const;
  /// A size's band has its class's number; bands from here on are empty.
  std::uint32_t band_end() const { return band_end_; }
  /// A tenant's cohorts, in order of size.
  template <class Visit>
  void for_each_cohort(TenantId tenant, Visit visit) const {
    for (const auto& [slot_bytes, cohort] : at(tenant).cohorts) visit(cohort, cohorts_[cohort].size_class);
  }
  /// Tenants over their maximum on disk, in order.
  const std::vector<TenantId>& over_disk_max() const { return over_disk_max_; }

  /// Sets the tenant whose put wants memory now.
  void ask_for(TenantId tenant) { asker_ = tenant; }
  TenantId asker() const { return asker_; }

  const TenantUsage& usage(TenantId tenant) const { return at(tenant).usage; }
  std::uint64_t charge(std::size_t slot_bytes) const { return slot_bytes < charge_min_ ? charge_min_ : slot_bytes; }
  std::string check() const;  ///< 2 and 3; for tests. Empty, or the broken invariant.

 private:
  static constexpr TenantId kNoTenant{~std::uint32_t{0}};
  struct Cohort {
    std::size_t slot_bytes = 0;
    std::uint32_t size_class = 0;
    std::size_t uses = 0;  ///< Namespaces that use it. 0: the number is free.
    bool is_in_band = false;
  };
  struct Tenant {
    TenantLimits limits;
    bool has_limits = false, is_used = false, is_in_disk_band = false;
    TenantUsage usage;
    std::map<std::size_t, std::uint32_t> cohorts;
    /// While memory_bytes is in [from, to), the bands do not change.
    std::uint64_t from = 0, to = 0;
  };

  Tenant& at(TenantId tenant) { return tenants_[static_cast<std::size_t>(tenant)]; }
  const Tenant& at(TenantId tenant) const { return tenants_[static_cast<std::size_t>(tenant)]; }
  bool spares(const Tenant& tenant, std::size_t slot_bytes) const {
    return tenant.usage.memory_bytes >= tenant.limits.memory_bytes + charge(slot_bytes);
  }
  void take_limits(Tenant& tenant);  ///< Those of the policy, by its name.
  bool has_free_tenant() const { return !free_tenants_.empty() || tenants_.size() <= PrefixIndex::kCohortMax; }
  void look_again(Tenant& tenant);
  void look_again_at_disk(TenantId id);

  PrefixIndex& memory_;
  PrefixIndex* const disk_;
  const std::uint64_t charge_min_;
  std::vector<Tenant> tenants_;
  std::map<std::string, TenantId, std::less<>> of_name_;
  std::map<std::string, TenantLimits, std::less<>> limits_of_name_;
  std::vector<TenantId> free_tenants_;
  std::vector<Cohort> cohorts_;
  std::vector<std::uint32_t> free_cohorts_;
  std::vector<TenantId> of_tree_;
  std::vector<TenantId> over_disk_max_;
  std::uint32_t band_end_ = 0;
  TenantId asker_{};
};

}  // namespace kv
