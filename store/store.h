// store/: blocks, slots, leases, eviction. Start here.
//
// Independent of sockets, threads and clock, and of the disk but for its interface: callers pass the time in and move
// the bytes. The daemon around the Store is the room store/node/. Files, in reading order:
//   store.h    a node's contents and decisions, desk by desk (this file); store_config.h: settings; store_stats.h: figures
//   desks/     the desks, in the order of the table below; put/ is a room for what a put needs
//   memory/    block_pool.h: the blocks in memory, their names and slots kept in step; arena.h: the memory for the bytes;
//              evictor.h: which block goes when a slot is wanted; size_class.h: the slot length for a set's block
//   policy/    eviction_policy.h: a block's worth, by its last use or by the hits expected of it (yield_policy.h, made of
//              yield_table.h, reuse_shadow.h, ghost_table.h and age_clock.h); block_sample.h: which blocks policy and
//              curve learn from; combined_counts.h: sums of the counts of a cluster's nodes; yield_counts.h: their wire
//              form
//   curve/     hit_curve.h: the hit rate with less or more memory (use_order.h, heavy_blocks.h, shadow_cache.h)
//   tables/    lease_table.h: promises to clients, and their ends; space_table.h: the namespaces, and which of them may be
//              forgotten; tenant_table.h: each tenant's share, and whose blocks may go for whom; event_log.h: recent
//              changes, for routers; departed_table.h: when and why blocks left; root_sample.h: which first blocks are
//              asked for, and which stored
//   contexts/  context_table.h: prefixes kept by name, with owner and end; context_file.h: contexts over a restart
//   disk/      disk.h: the interface of a disk; disk_tier.h: the blocks on disk, and which of them go; pinned_blocks.h:
//              blocks whose bytes move
//   spill/     spiller.h: the next blocks to write to disk; disk_loader.h: loading the disk's blocks after a restart
//   tree_sums.h  size and use of the trees, from a sample
#pragma once

#include <memory>

#include "store/desks/capacity_desk.h"
#include "store/desks/drop_desk.h"
#include "store/desks/look_desk.h"

namespace kv {

/// A node's blocks and all decisions about them. Reached only through LockedStore (store/node/), for microseconds.
/// Decisions are made at desks. Each is a class with its own members and invariants, and uses only desks before it:
///
///     desk           decides                                uses, besides the Shelf
///     Shelf          (what all desks work on)
///     SpaceDesk      namespaces, tenants, lookup of names   (tells the DiskDesk of trees, through a TreeListener)
///     LearningDesk   what the policy and the curve hear
///     DiskDesk       spilling, loading, draining, scrubbing Space
///     ContextDesk    prefixes kept by name                  Space, Disk
///     ReadDesk       match, lease, get, retention           Space, Learning, Disk, Context
///     PutDesk        offer, commit                          Space, Learning, Disk, Context, Read
///     DropDesk       drops                                  Space, Disk
///     LookDesk       paths, edges, changes, reasons         Space, Read, Put
///     CapacityDesk   capacity and limits at run time        Space, Disk, Read, Put
///
/// What holds across desks:
///   1. A block that match or pin_prefix finds was committed with checksums and has never changed since.
///   2. A slot is reused only when its block is unpinned: no lease, no running move, no put below it.
///   3. Among blocks of one size, eviction takes leaf ends in the policy's order (eviction_policy.h). Between sizes
///      memory moves by slabs, when the ages of the next victims are far apart (evictor.h).
///   4. StoreStats::allocated_bytes = blocks linked + incoming + unlinked but pinned, byte for byte; a set's blocks
///   count
///      with their slots (size_class.h).
///   5. A block of a set has one length for as long as its name is here, in memory or on disk. Chains and sets share
///      memory, disk and one order of use.
///   6. Groups of a set's names (index/name_groups.h) are found whole or not at all, and linked so; their members are
///      marked as used at one moment. A group with an evicted member is a miss. Groups are not recorded: members used
///      together have one age, so eviction takes those of one size one after another, and those of another size when
///      their turn comes. Restarts and the disk do not see groups.
///   7. With tenants: a put never evicts from memory a block of another tenant that is within its guarantee. A tenant
///      has at most its maximum, unless that was lowered since. tenant_table.h has the rules.
/// Every call does a bounded amount of work: everything for the blocks it names, and at most Shelf::kStepsMax steps
/// (index/steps.h) of the work that grows with the Store: looking for memory, evicting, dropping, ending leases. Later
/// calls do the rest; OfferPlan::again and is_dropping() report that there is more. `now` may go back between calls
/// only by as long as the callers wait for the lock. Not thread-safe. The desks' headers describe the calls.
class Store {
 public:
  using Hashes = std::span<const BlockHash>;

  static Result<std::unique_ptr<Store>> create(const StoreConfig& config);

  // -- namespaces and tenants (SpaceDesk)
  Result<SpaceId> open(const NamespaceRecord& record, SessionId session = {}) { return spaces_.open(record, session); }
  std::shared_ptr<const NamespaceRecord> find_namespace(SpaceId space) const { return spaces_.record_of(space); }
  std::size_t namespace_count() const { return spaces_.count(); }
  std::vector<SpaceDesk::View> list_spaces(const NamespaceId* after) const { return spaces_.list(after); }
  bool forget(SpaceId space) { return spaces_.forget(space); }
  void set_tenants(const std::vector<TenantLimits>& limits) { spaces_.set_tenants(limits); }
  std::vector<TenantStats> tenants() const { return spaces_.tenants(); }

  // -- learning (LearningDesk)
  bool learn() { return learning_.learn(); }
  std::optional<LearningDesk::Curve> curve() const { return learning_.curve(); }
  SampledNames::Samples samples() const { return learning_.samples(); }
  const YieldTable* yield_table() const { return learning_.yield_table(); }
  std::uint64_t age_clock() const { return learning_.age_clock(); }
  void set_combined(YieldTable::Combined combined) { learning_.set_combined(std::move(combined)); }
  void set_before(YieldCounts counts) { learning_.set_before(std::move(counts)); }

  // -- the disk tier (DiskDesk)
  void set_disk_places(std::vector<DiskPlace> places, std::span<const DiskPlace> leaving = {}) {
    disk_.set_places(std::move(places), leaving);
  }
  SpillWork drain_work(DiskPlace place, std::uint64_t bytes_max, TimePoint now) {
    return disk_.drain_work(place, bytes_max, now);
  }
  DiskTier::PlaceUse disk_place_use(DiskPlace place) const { return disk_.place_use(place); }
  std::size_t evict_from_disk(std::uint64_t bytes, TimePoint now) { return disk_.evict(bytes, now); }
  std::size_t give_up_disk_place(DiskPlace place, TimePoint now) { return disk_.give_up_place(place, now); }
  void forget_disk_place(DiskPlace place) { disk_.forget_place(place); }
  bool wants_spill() const { return disk_.wants_spill(); }
  SpillWork spill_work(std::uint64_t bytes_max, TimePoint now, bool everything = false) {
    return disk_.spill_work(bytes_max, now, everything);
  }
  std::size_t finish_spill(const SpillWork& work, const SpillOutcome& outcome) {
    return disk_.finish_spill(work, outcome);
  }
  bool is_on_disk(BlockId block) const { return disk_.has(block); }
  DiskDesk::FailedRead read_failed(BlockId block, DiskKey key) { return disk_.read_failed(block, key); }
  std::vector<DiskDesk::ScrubBlock> blocks_to_scrub(DiskTier::Cursor& cursor, std::size_t entries_max) const {
    return disk_.blocks_to_scrub(cursor, entries_max);
  }
  void begin_load(TimePoint now, std::uint32_t epoch, std::span<const DiskDrop> drops = {}) {
    disk_.begin_load(now, epoch, drops);
  }
  void load_namespace(const NamespaceRecord& record) { disk_.load_namespace(record); }
  DiskDesk::Loaded load_records(std::span<const DiskRecord> records) { return disk_.load_records(records); }
  std::uint64_t end_load(bool is_whole) { return disk_.end_load(is_whole); }

  // -- named contexts (ContextDesk)
  Result<ContextDesk::View, Failure> create_context(ContextDesk::Order order, TimePoint now) {
    return contexts_.create(std::move(order), now);
  }
  Result<ContextDesk::View> extend_context(std::string_view owner, std::string_view name, ContextLife life,
                                           TimePoint now, std::optional<std::uint8_t> priority = std::nullopt) {
    return contexts_.extend(owner, name, life, now, priority);
  }
  Result<ContextDesk::View> delete_context(std::string_view owner, std::string_view name, TimePoint now) {
    return contexts_.remove(owner, name, now);
  }
  bool delete_contexts(std::string_view owner, TimePoint now) { return contexts_.remove_all(owner, now); }
  Result<ContextDesk::View> find_context(std::string_view owner, std::string_view name, TimePoint now) {
    return contexts_.find(owner, name, now);
  }
  Result<std::pair<ContextDesk::View, ContextDesk::Content>> tell_context(std::string_view owner, std::string_view name,
                                                                          TimePoint now) {
    return contexts_.tell(owner, name, now);
  }
  std::vector<ContextDesk::View> list_contexts(std::string_view owner, std::string_view after, std::size_t count_max,
                                               TimePoint now) {
    return contexts_.list(owner, after, count_max, now);
  }
  Result<ContextDesk::View> warm_context(std::string_view owner, std::string_view name, bool is_wanted, TimePoint now) {
    return contexts_.warm(owner, name, is_wanted, now);
  }
  std::optional<ContextDesk::WarmWork> next_to_warm(std::uint64_t bytes_max, TimePoint now) {
    return contexts_.next_to_warm(bytes_max, now);
  }
  bool is_warming(ContextId context) const { return contexts_.is_warming(context); }
  std::size_t warming_count() const { return contexts_.warming_count(); }
  bool keep_context(ContextId context, TimePoint now) { return contexts_.keep(context, now); }
  std::vector<ContextDesk::News> tend_contexts(TimePoint now) { return contexts_.tend(now); }
  ContextDesk::Changes context_changes() const { return contexts_.changes(); }
  bool copy_contexts(ContextId& after, std::vector<KeptContext>& kept, TimePoint now) {
    return contexts_.copy(after, kept, now);
  }
  ContextDesk::Restored restore_context(KeptContext kept, TimePoint now) {
    return contexts_.restore(std::move(kept), now);
  }
  std::vector<ContextTotals> context_totals() const { return contexts_.totals(); }

  // -- match, get, retention (ReadDesk)
  Result<ReadDesk::Match> match(SpaceId space, Hashes hashes, const ReadDesk::MatchOptions& options, TimePoint now) {
    return reads_.match(space, hashes, options, now);
  }
  Result<ReadDesk::SetMatch> match_set(SpaceId set, Hashes hashes, const ReadDesk::SetMatchOptions& options,
                                       TimePoint now) {
    return reads_.match_set(set, hashes, options, now);
  }
  Result<void> release(SessionId session, LeaseId lease) { return reads_.release(session, lease); }
  Result<PinnedPrefix> pin_prefix(SpaceId space, Hashes hashes, const ReadDesk::GetOptions& options, TimePoint now) {
    return reads_.pin_prefix(space, hashes, options, now);
  }
  Result<SetPinning::Pinned> pin_set(SpaceId set, Hashes hashes, const SetPinning::Options& options, TimePoint now) {
    return reads_.pin_set(set, hashes, options, now);
  }
  void unpin(const PinnedPrefix& prefix) { reads_.unpin(prefix); }
  Result<std::size_t> touch(SpaceId space, Hashes hashes, TimePoint now) { return reads_.touch(space, hashes, now); }
  Result<std::size_t> retain(SpaceId space, Hashes hashes, std::vector<BlockHash>* fresh = nullptr) {
    return reads_.retain(space, hashes, fresh);
  }
  Result<std::size_t> unretain(SpaceId space, Hashes hashes) { return reads_.unretain(space, hashes); }
  void unretain_all() { reads_.unretain_all(); }

  // -- put (PutDesk)
  Result<OfferPlan> offer(SpaceId space, Hashes hashes, const PutDesk::OfferOptions& options, TimePoint now) {
    return puts_.offer(space, hashes, options, now);
  }
  Result<OfferPlan> offer_set(SpaceId set, Hashes hashes, const SetPuts::OfferOptions& options, TimePoint now) {
    return puts_.offer_set(set, hashes, options, now);
  }
  Result<OfferPlan> offer_more(PutId put, TimePoint now, bool may_lose = true) {
    return puts_.offer_more(put, now, may_lose);
  }
  CommitStatus commit(PutId put, std::span<const std::uint64_t> checksums, TimePoint now) {
    return puts_.commit(put, checksums, now);
  }
  std::vector<CommitStatus> commit_group(PutId put, std::span<const std::uint64_t> checksums, TimePoint now) {
    return puts_.commit_group(put, checksums, now);
  }
  void end_put(PutId put) { puts_.end_put(put); }

  // -- drops (DropDesk)
  Result<std::size_t> drop(SpaceId space, Hashes hashes, DiskDrop* kept = nullptr) {
    return drops_.drop(space, hashes, kept);
  }
  Result<std::size_t> erase(SpaceId set, Hashes hashes, std::vector<DiskDrop>* kept, TimePoint now) {
    return drops_.erase(set, hashes, kept, now);
  }
  bool is_dropping() const { return drops_.is_dropping(); }
  std::size_t drop_more(TimePoint now) { return drops_.drop_more(now); }

  // -- paths, views, changes, reasons of misses (LookDesk)
  void list_paths(LookDesk::PathCursor& cursor, TimePoint since, std::vector<LookDesk::PathEnd>& ends) const {
    looks_.list_paths(cursor, since, ends);
  }
  Result<std::vector<BlockHash>> path_of(const LookDesk::PathEnd& end) const { return looks_.path_of(end); }
  Result<std::size_t> path_uses(const LookDesk::PathEnd& end, std::size_t skipped) const {
    return looks_.path_uses(end, skipped);
  }
  Result<PinnedPrefix> pin_path(const LookDesk::PathEnd& end) { return looks_.pin_path(end); }
  Result<bool> list_edges(const LookDesk::TreeScope& scope, std::vector<LookDesk::EdgeView>& edges) const {
    return looks_.list_edges(scope, edges);
  }
  LookDesk::SampleCursor sample_cursor(BlockTier tier, std::uint32_t looks, std::uint64_t random) const {
    return looks_.sample_cursor(tier, looks, random);
  }
  void sample_edges(const LookDesk::TreeScope& scope, LookDesk::SampleCursor& cursor,
                    std::vector<LookDesk::EdgeView>& edges) const {
    looks_.sample_edges(scope, cursor, edges);
  }
  void read_events(std::uint64_t from, EventPage& page) const { looks_.read_events(from, page); }
  void list_blocks(LookDesk::BlockCursor& cursor, EventPage& page) const { looks_.list_blocks(cursor, page); }
  Result<LookDesk::Miss> explain(SpaceId space, Hashes hashes, TimePoint now) {
    return looks_.explain(space, hashes, now);
  }
  bool look_in_spaces(bool are_sets, Hashes chain, const std::string* owner, std::optional<NamespaceId>& after,
                      std::vector<LookDesk::SpaceLook>& looks) const {
    return looks_.look_in_spaces(are_sets, chain, owner, after, looks);
  }

  // -- capacity and limits at run time (CapacityDesk)
  std::span<std::byte> memory() const { return capacity_.memory(); }
  CapacityDesk::Bounds capacity_bounds() const { return capacity_.bounds(); }
  Result<void> set_capacity(std::size_t bytes) { return capacity_.set_capacity(bytes); }
  ArenaMemory& pages() { return capacity_.pages(); }
  std::vector<CapacityDesk::Relocation> relocate(std::size_t bytes_max, bool may_lose, TimePoint now) {
    return capacity_.relocate(bytes_max, may_lose, now);
  }
  void end_relocation(std::span<const CapacityDesk::Relocation> relocations) { capacity_.end_relocation(relocations); }
  bool is_shrunk() { return capacity_.is_shrunk(); }
  void set_limits(const StoreConfig& config) { capacity_.set_limits(config); }

  // -- across desks
  /// Ends expired leases and goes on freeing released memory, some of it in each call. Call this periodically; match
  /// and offer also do some of it.
  void expire_leases(TimePoint now);
  /// Ends every lease and put of a session, whose moves must be over. Many leases end over later calls.
  void end_session(SessionId session);
  StoreStats stats() const;
  /// Checks every invariant that can be checked; for tests, which define it (tests/checks/), like that of each desk and
  /// table. Returns an empty string or the broken invariant.
  std::string check();

 private:
  Store(const StoreConfig& config, std::unique_ptr<Arena> arena) : shelf_(config, std::move(arena)) {}

  Shelf shelf_;
  SpaceDesk spaces_{shelf_};
  LearningDesk learning_{shelf_};
  DiskDesk disk_{shelf_, spaces_};
  ContextDesk contexts_{shelf_, spaces_, disk_};
  ReadDesk reads_{shelf_, spaces_, learning_, disk_, contexts_};
  PutDesk puts_{shelf_, spaces_, learning_, disk_, contexts_, reads_};
  DropDesk drops_{shelf_, spaces_, disk_};
  LookDesk looks_{shelf_, spaces_, reads_, puts_};
  CapacityDesk capacity_{shelf_, spaces_, disk_, reads_, puts_};
};

}  // namespace kv
