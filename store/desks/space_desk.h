// store/desks/space_desk.h: the namespaces and their tenants, and the lookup that begins every call with hashes.
#pragma once

#include <span>
#include <string>

#include "base/result.h"
#include "index/block_hash.h"
#include "index/namespace_record.h"
#include "store/desks/shelf.h"
#include "store/memory/size_class.h"
#include "store/tables/lease_table.h"
#include "store/tables/root_sample.h"
#include "store/tables/space_table.h"

namespace kv {

/// Learns of the namespaces' trees that come and go, and may have blocks that the tiers do not have yet.
class TreeListener {
 public:
  virtual void was_opened(const SpaceTable::Space& space) = 0;
  virtual bool expects_blocks(TreeId tree) const = 0;
  virtual void was_closed(const SpaceTable::Space& space) = 0;

 protected:
  ~TreeListener() = default;
};

/// The part of a request's chain that memory and disk have.
struct FoundChain {
  SpaceTable::Space* space;
  PrefixIndex::Prefix prefix;
  PrefixIndex::Prefix disk = {};  ///< On disk, from the first block on; empty when memory has the whole chain.

  std::size_t disk_block_count() const { return std::max(disk.block_count, prefix.block_count) - prefix.block_count; }
  std::size_t block_count() const { return prefix.block_count + disk_block_count(); }
};

/// The blocks of a request's names in a set. In the index such a block hangs directly below the root.
struct FoundSet {
  SpaceTable::Space* space;
  std::vector<BlockId> memory, disk;  ///< Per hash; `disk` only for those not in memory.
};

/// Opens namespaces, forgets idle ones when others need the room, and finds blocks in them.
///   1. A namespace has one tree, of the same number in both tiers.
///   2. It is forgotten only while idle: without puts, without blocks in either tier, and none that the listener
///      expects. Leases, retention and moves are covered: a pinned block keeps its tree from being empty.
///   3. Each namespace knows the slot sizes that it uses, and the arena has classes for exactly these.
///   4. Its tenant has it for as long as it is open.
class SpaceDesk {
 public:
  using Space = SpaceTable::Space;

  explicit SpaceDesk(Shelf& shelf) : shelf_(shelf) {}

  /// Opens or finds the namespace, for `session` (0: none) until end_session(). At namespace_count_max an idle
  /// namespace makes room: one without puts and without blocks in memory or on disk; those without sessions go first,
  /// in order of last use. A later request by the number of a forgotten namespace gets kNoNamespace, and may open it
  /// again. Errors: kBusy if all are busy; kTooLarge if not even one block fits the arena; kOverQuota if its tenant's
  /// namespaces are at the maximum and all busy.
  Result<SpaceId> open(const NamespaceRecord& record, SessionId session);
  /// nullptr if the namespace is unknown, or was forgotten.
  std::shared_ptr<const NamespaceRecord> record_of(SpaceId space) const;
  /// Forgets a namespace without blocks and puts, even if a session has it open. False: it is not idle, or unknown.
  bool forget(SpaceId space);
  std::size_t count() const { return table_.count(); }
  void end_session(SessionId session) { table_.end_session(session); }
  struct View {
    SpaceId id;
    NamespaceId name;
    std::shared_ptr<const NamespaceRecord> record;
    std::uint64_t block_count, total_bytes;  ///< In memory; a set's count with their lengths.
    std::uint64_t disk_block_count;          ///< Includes blocks that are also in memory.
    SpaceTraffic traffic = {};
    RootSample::Counts roots = {};
  };
  static constexpr std::size_t kViewsPerCall = 256;
  /// At most kViewsPerCall namespaces in order of name, behind `after`, or (nullptr) from the first one on.
  std::vector<View> list(const NamespaceId* after) const;
  /// Replaces the limits of all tenants. Requires: StoreConfig::has_tenants.
  void set_tenants(const std::vector<TenantLimits>& limits);
  std::vector<TenantStats> tenants() const;  ///< By name. Empty without has_tenants.

  // -- for other desks
  void tell(TreeListener& listener) { listener_ = &listener; }  ///< Before the first namespace.
  /// By number, name, record, or tree (which requires: a namespace's). nullptr: unknown.
  template <class Key>
  Space* find(const Key& key) const {
    return table_.find(key);
  }
  bool is_set(SpaceId id) const {
    const Space* const space = table_.find(id);
    return space != nullptr && space->record->is_set();
  }
  void use(const Space& space) const { table_.use(space); }
  void may_be_idle(Space& space) { table_.may_be_idle(space); }  ///< Its last put, or expected block, has gone.
  template <class Visit>
  void for_each(const Visit& visit) const {
    table_.for_each(visit);
  }
  template <class Visit>
  void visit_next(const NamespaceId* after, std::size_t count_max, const Visit& visit) const {
    table_.visit_next(after, count_max, visit);
  }
  /// Opens a namespace that is not open. Errors: as above.
  Result<Space*> open(std::shared_ptr<const NamespaceRecord> record);
  /// Find what the tiers have of a chain, or of a set's names. Errors: kNoNamespace, kTooLarge (chain_blocks_max),
  /// kUnsupported (the other kind).
  Result<FoundChain> find_chain(SpaceId id, std::span<const BlockHash> hashes) const;
  Result<FoundSet> find_in_set(SpaceId id, std::span<const BlockHash> hashes) const;
  Result<Space*> set_for(SpaceId id, std::size_t hash_count) const;  ///< As find_in_set(), before the lookup.

  /// The slot size for a set's block of that length.
  std::size_t slot_bytes(const Space& set, std::size_t length) const {
    // The capacity at the start: a length has one slot size, for any later capacity.
    return set_slot_bytes(length, set.record->block_bytes(), shelf_.config.arena.capacity_bytes);
  }
  /// Makes or finds the arena's class for such slots, and counts it as the namespace's. False: too many classes.
  bool use_class(Space& space, std::size_t slot_bytes);
  std::uint32_t cohort_of(const Space& space, std::size_t slot_bytes) const {  ///< Of its blocks in such slots.
    return shelf_.tenants ? shelf_.tenants->cohort(space.owner, slot_bytes) : shelf_.pool.arena().add_class(slot_bytes);
  }
  void note_root(Space& space, const BlockHash& first, RootSample::Act act, TimePoint now) const {
    space.roots.note(BlockSample{.seed = shelf_.config.hash_seed}.print(first), act, now);
  }
  std::string check();  ///< For tests (tests/checks/), as of all desks. Empty, or the broken invariant.

 private:
  bool is_idle(const Space& space) const;
  bool may_use_class(std::size_t slot_bytes) const;
  void take_emptied();
  bool forget_one();
  bool forget_one_of(TenantId tenant);
  void forget(Space& space);

  Shelf& shelf_;
  TreeListener* listener_ = nullptr;
  SpaceTable table_;
  std::unordered_map<std::size_t, std::size_t> spaces_of_size_;
};

}  // namespace kv
