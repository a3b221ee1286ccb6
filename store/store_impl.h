// store/store_impl.h: the parts that a Store is made of, as store.cc, store_put.cc, store_spill.cc and store_check.cc
// share them. Nobody else includes this.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "index/steps.h"
#include "store/block_pool.h"
#include "store/context_ends.h"
#include "store/context_table.h"
#include "store/departed_table.h"
#include "store/disk_tier.h"
#include "store/event_log.h"
#include "store/evictor.h"
#include "store/size_class.h"
#include "store/space_table.h"
#include "store/spill_loader.h"
#include "store/spiller.h"
#include "store/store.h"

namespace kv {

/// A put under way. Its chain from the first block that was not here at the offer:
///     | committed | staged        | refused so far |
///     0           committed_count  slots.size()     hashes.size()
struct Store::Put {
  SessionId session;
  Space* space;              ///< Cannot be forgotten: it counts this put.
  std::size_t stored_count;  ///< Blocks of the offered chain before hashes[0].
  BlockId tail;  ///< The last block of the chain that is here; pinned, so all above stay. kNoBlock: the root.
  std::vector<BlockHash> hashes;
  std::vector<std::uint32_t> positions;
  std::vector<std::uint32_t> token_ids;  ///< Empty, or block_size per hash.
  std::vector<ExtraDigest> extras;       ///< Empty, or one per hash; with token_ids.
  std::vector<std::uint32_t> lengths;    ///< Of a set: of each hash; and its index in the offer.
  std::vector<std::uint32_t> indices;
  std::vector<SlotId> slots;
  std::size_t committed_count = 0;  ///< Slots before this are out of the put's hands: linked, or freed by commit.
  std::size_t told_count = 0;       ///< Slots before this were in some plan.
  /// Of a set whose names came in groups: those that want something. Each has, of the three lists, what lies behind the
  /// end of the group before.
  struct Group {
    std::size_t end;                      ///< In `hashes`.
    std::size_t pinned_end, on_disk_end;  ///< In the lists below.
  };
  std::vector<Group> groups;
  std::vector<BlockId> pinned;     ///< What memory had of the groups at the offer,
  std::vector<BlockHash> on_disk;  ///< and the names of what the disk had.
  std::size_t committed_groups = 0;
  Duration idle{};             ///< As OfferOptions.
  std::uint16_t trait = 0;     ///< Of its blocks' first use (EvictionPolicy::offered).
  std::size_t after_last = 0;  ///< ChainPart.
  /// Of leading hashes: how often they were used before they left, not long ago. As far as was looked;
  std::vector<std::uint8_t> remembered;
  bool is_remembered_whole = false;  ///< and there are no more of them.
  bool is_admitted = false;          ///< OfferOptions.
  bool is_not_admitted = false;      ///< Its rest is worth less than what would have to go.
  bool was_refused = false;          ///< For lack of memory; the caller asks again every so often.
  bool is_over_quota = false;        ///< That was the tenant's own limit.

  bool is_set() const { return space->record->is_set(); }
  /// Leading slots that can be filled: without those of a group that lacks some.
  std::size_t usable_count() const;
  /// Where the three lists of the groups still to be committed begin: the ends of the last one that was.
  Group committed_group() const { return committed_groups == 0 ? Group{} : groups[committed_groups - 1]; }
  bool ends_group(std::size_t i) const;  ///< Whether hashes[i] is the last of its group.
};

/// Memory for the index where nobody says how much: of an arena of so many bytes.
constexpr std::size_t index_bytes_for(std::size_t capacity_bytes) { return (256 << 20) + capacity_bytes / 16; }

struct Store::Impl {
  Impl(const StoreConfig& store_config, std::unique_ptr<Arena> arena)
      : config(store_config),
        events(store_config.event_count_max > 0 ? std::make_unique<EventLog>(store_config.event_count_max) : nullptr),
        tier(store_config.disk.capacity_bytes > 0 ? std::make_unique<DiskTier>(store_config.disk) : nullptr),
        policy(make_policy(store_config.policy, store_config.hash_seed, store_config.lru_unless_pooled)),
        curve(store_config.curve.is_on
                  ? std::make_unique<HitCurve>(store_config.curve, store_config.hash_seed,
                                               store_config.policy != PolicyKind::kLru, tier != nullptr)
                  : nullptr),
        departed(store_config.departed_count_max, store_config.hash_seed),
        pool(std::move(arena), tier.get(), store_config.hash_seed, policy->queues()),
        tenants(store_config.has_tenants
                    ? std::make_unique<TenantTable>(pool.index(), tier ? &tier->own_index() : nullptr,
                                                    store_config.tenant_charge_min)
                    : nullptr),
        leases({store_config.lease_duration, store_config.lease_count_max, store_config.lease_count_per_session_max}),
        contexts(store_config.contexts),
        evictor(pool, *policy, departed, tenants.get()),
        spiller(tier ? std::make_unique<Spiller>(store_config.spill, pool, evictor, *tier) : nullptr),
        loader(tier ? std::make_unique<SpillLoader>(*tier, pool) : nullptr) {
    pool.use_tenants(tenants.get());
    if (tier) tier->use_tenants(tenants.get());
    if (tier) tier->use_departed(departed);
    pool.use_events(events.get());
    if (tier) tier->use_events(events.get());
  }

  StoreConfig config;
  std::unique_ptr<EventLog> events;  ///< nullptr: nobody asks.
  std::unique_ptr<DiskTier> tier;    ///< nullptr: memory only.
  std::unique_ptr<EvictionPolicy> policy;
  std::unique_ptr<HitCurve> curve;  ///< nullptr: turned off.
  DepartedTable departed;
  BlockPool pool;
  std::unique_ptr<TenantTable> tenants;  ///< nullptr: they are not told apart.
  LeaseTable leases;
  ContextTable contexts;
  std::deque<std::vector<Context::Kept>> unkept;  ///< Of contexts that have ended: to be let go, from the last on.
  bool are_contexts_closed = false;               ///< unretain_all().
  std::set<ContextId> to_warm;                    ///< Context::is_warming; some have ended, or need it no more.
  ContextId warmed_last{};
  std::map<PutId, Put> puts;
  std::set<std::pair<SessionId, PutId>> puts_by_session;
  /// Staged by a put that has ended: to be freed. Until then the put counts as under way, so its namespace stays.
  struct Unwanted {
    Space* space;
    std::vector<SlotId> slots;
    std::vector<BlockId> pinned;  ///< Members of its groups that were here.
  };
  std::deque<Unwanted> unwanted;
  std::deque<SessionId> ending_sessions;  ///< Gone, and their leases not all ended yet.
  Evictor evictor;
  std::unique_ptr<Spiller> spiller;     ///< With `tier`.
  std::unique_ptr<SpillLoader> loader;  ///< Until all that a disk held is loaded.
  SpaceTable spaces;
  std::unordered_map<std::size_t, std::size_t> spaces_of_size;  ///< By block_bytes.
  std::set<NamespaceId> unseen_spaces;  ///< A load broke off: what the disk has of these is for the next start.
  std::uint64_t put_count = 0;          ///< Ever: the last PutId.
  std::size_t put_ids_bytes = 0;        ///< Of the token ids of puts under way.
  std::uint64_t move_pin_count = 0;     ///< Pins of pin_prefix that wait for their unpin.
  StoreStats counters;                  ///< The counters only; gauges are asked for.
  Arena::Cursor closed_at;              ///< How far relocate() has come with what is closed.
  std::unordered_map<SlotId, BlockId> relocating;  ///< Where each block goes that is being copied.
  bool has_index_bound = false;                    ///< index_bytes_max was given, and does not follow the capacity.
  bool limits_fell = false;                        ///< A bound was lowered: what is held may be over it.

  /// Errors: kBusy when there is no room for another; kTooLarge.
  Result<Space*> open(std::shared_ptr<const NamespaceRecord> record);
  bool is_idle(const Space& space) const;
  void take_emptied();
  bool forget_one();
  bool forget_one_of(TenantId tenant);
  void forget(Space& space);
  /// The budget of one call for work besides what it was asked for. Entered in the counters when the call ends.
  class Call {
   public:
    explicit Call(Impl& impl) : impl_(impl) {}
    ~Call() {
      impl_.counters.work_steps += steps.used();
      impl_.counters.work_steps_call_max = std::max<std::uint64_t>(impl_.counters.work_steps_call_max, steps.used());
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    Steps steps{kStepsPerCall};

   private:
    Impl& impl_;
  };
  bool is_over_retained(std::size_t more_bytes) const {
    return static_cast<double>(pool.retained_bytes() + more_bytes) >
           config.retained_fraction_max * static_cast<double>(pool.arena().capacity_bytes());
  }
  // -- contexts (store_contexts.cc)
  void keep_more(Context& context, Steps& steps, TimePoint now) { keep_more(context, steps, steps, now); }
  void keep_more(Context& context, Steps& steps, Steps& room_steps, TimePoint now);
  /// A block at a chain's end that a context has given up. It is in memory until the call is over.
  struct Given {
    Context* context;
    std::size_t chain;
    BlockId block;
  };
  bool has_room_to_keep(const Space& space, std::size_t bytes) const {
    return !is_over_retained(bytes) && (!tenants || tenants->could_retain(space.owner, bytes));
  }
  std::vector<Given> take_for(const Context& context, const Space& space, std::size_t bytes, Steps& steps,
                              TimePoint now);
  bool take_end(const Context& context, Context& from, std::size_t chain, std::vector<Given>& given);
  void give_back(std::vector<Given>& given);
  bool make_room(const Context& context, const Space& space, Steps& steps, TimePoint now);
  void was_dropped(Context& context, std::size_t chain, std::size_t kept_count);
  void keep_nothing(Context& context);
  void look_for_drops(Context& context);
  bool look_at(Context& context, Steps& steps, TimePoint now);
  std::unique_ptr<Context> end_context(Context& context, ContextTable::Gone how, TimePoint now);
  void end_contexts(TimePoint now, Steps& steps);
  void let_go(Steps& steps);
  void end_all_keeps();
  void set_warming(Context& context, bool is_warming);
  struct Warmable {
    std::optional<WarmWork> work;
    bool may_come = false;  ///< Not now, but soon.
  };
  Warmable look_for_warm(Context& context, std::uint64_t bytes_max, Steps& steps, TimePoint now);
  ContextView view_of(const Context& context) const;
  ContextView look_in_tiers(const Context& context) const;
  std::string check_contexts() const;
  Result<LeaseId> grant(SessionId session, BlockId block, TimePoint now);
  void end_lease(BlockId block, Steps& steps);
  void expire_leases(TimePoint now, Steps& steps);
  std::size_t index_used_bytes() const;
  enum class Room : std::uint8_t { kIs, kIsNot, kUnfinished };
  Room make_index_room(TimePoint now, Steps& steps);
  void tidy(TimePoint now, Steps& steps);

  /// What every call with a chain begins with: the namespace, and how much of the chain memory and disk have.
  struct Found {
    Space* space;
    PrefixIndex::Prefix prefix;
    PrefixIndex::Prefix disk = {};  ///< On disk, from the first block on; empty when memory has it all.

    std::size_t disk_block_count() const { return std::max(disk.block_count, prefix.block_count) - prefix.block_count; }
  };
  Result<Found> find(SpaceId id, std::span<const BlockHash> hashes) const {
    Space* const space = spaces.find(id);
    if (space == nullptr) return Errc::kNoNamespace;
    spaces.use(*space);
    if (hashes.size() > config.chain_blocks_max) return Errc::kTooLarge;
    if (space->record->is_set()) return Errc::kUnsupported;
    Found found{space, pool.index().match(space->tree, hashes)};
    if (tier && found.prefix.block_count < hashes.size()) found.disk = tier->index().match(space->tree, hashes);
    return found;
  }

  /// A request has named what contexts keep: that puts off their end. `is_read`: and has it delivered.
  void use_contexts(const Found& found, std::span<const BlockHash> hashes, bool is_read, TimePoint now);
  /// As use(), of what a request asks for: that counts.
  /// Returns how many leading blocks the node knows.
  std::size_t ask(const Found& found, std::span<const BlockHash> hashes, ReuseHint hint, const ChainPart& chain,
                  TimePoint now, const SampledNames* sampled = nullptr);
  static std::uint8_t passed_count(std::size_t blocks) {
    return static_cast<std::uint8_t>(std::min<std::size_t>(blocks, 255));
  }
  /// Policy and curve are told of what is asked for, or offered.
  std::uint16_t tell_asked(const EvictionPolicy::Request& request, std::size_t memory_count, TimePoint now,
                           std::size_t* known = nullptr);
  std::uint16_t tell_offered(const EvictionPolicy::Request& request, Usage above, Tick tick);
  void expect_miss(TreeId tree, const BlockHash& missed) const {
    policy->expect_miss(tree, missed);
    departed.prefetch(tree, missed);
  }
  void count_lookup(const Found& found, std::span<const BlockHash> hashes, TimePoint now) const;
  void count_miss(const Found& found, std::span<const BlockHash> hashes, TimePoint now);  ///< Of a match.
  void count_miss(const Space& space, std::size_t found_count, const BlockHash& missed, TimePoint now);
  std::uint64_t root_name(const BlockHash& root) const {
    return short_hash(root) * 0x9E3779B97F4A7C15 ^ config.hash_seed;
  }
  void explain_departure(TreeId tree, const BlockHash& missed, TimePoint now, Miss& miss);
  Result<Miss> explain_in_set(SpaceId id, std::span<const BlockHash> hashes, TimePoint now);
  const Put* put_of(const Found& found, std::span<const BlockHash> hashes) const;
  void look_for_remembered(Put& put, std::size_t i) const;
  Usage first_usage(const Put& put, std::size_t i) const;  ///< Of put.hashes[i], once it is stored.
  double worth(const Put& put, std::size_t i) const;
  void not_admit_rest(Put& put);
  void tell_capacity(std::size_t block_bytes);
  /// Marks all that was found as used at `now`, or so long before.
  void use(const Found& found, TimePoint now, Duration idle = {}) {
    const Tick tick = pool.tick(now, idle);
    pool.use(found.prefix, tick);
    if (found.disk.block_count > 0) tier->touch(found.disk.last, tick);
  }
  // -- sets (store_set.cc, store_set_put.cc)
  struct FoundSet {
    Space* space;
    std::vector<BlockId> memory, disk;  ///< Of each hash; disk only where memory has none.
  };
  bool is_set(SpaceId id) const {
    const Space* const space = spaces.find(id);
    return space != nullptr && space->record->is_set();
  }
  Result<Space*> set_space(SpaceId id, std::size_t hash_count) const;
  /// As find(), of each hash alone.
  Result<FoundSet> find_set(SpaceId id, std::span<const BlockHash> hashes) const;
  using GroupCounts = std::span<const std::uint32_t>;
  static void keep_whole_groups(FoundSet& found, GroupCounts group_counts);
  bool could_hold_groups(const Space& set, const SetOfferOptions& options) const;
  void add_wanted(Put& put, const FoundSet& found, std::span<const BlockHash> hashes, const SetOfferOptions& options,
                  std::span<const std::uint32_t> wanted);
  bool is_here(TreeId set, const BlockHash& hash) const;
  Result<LeaseId> grant_set(const SetMatchOptions& options, std::span<const BlockId> blocks, TimePoint now);
  static std::vector<BlockId> leasable(const FoundSet& found, GroupCounts group_counts);
  Result<Put*> set_put(Space& set, const SetOfferOptions& options);
  SpilledBlock pin_on_disk(const Space& space, BlockId block, const BlockHash& hash, std::uint32_t index);
  Result<std::size_t> touch_set(SpaceId id, std::span<const BlockHash> hashes, TimePoint now);
  Result<std::size_t> retain_set(SpaceId id, std::span<const BlockHash> hashes, std::vector<BlockHash>* fresh);
  Result<std::size_t> unretain_set(SpaceId id, std::span<const BlockHash> hashes);
  CommitStatus commit_set(Put& put, std::size_t i, CommitStatus status, std::span<const std::uint64_t> checksums,
                          TimePoint now);
  CommitStatus status_in_set(const Put& put, std::size_t i, std::span<const std::uint64_t> checksums) const;
  /// The arena's class for slots of so many bytes, counted as the namespace's from here on. False: there are as many
  /// classes as there may be.
  bool use_class(Space& space, std::size_t slot_bytes);
  /// Of a set's block of so many bytes.
  std::size_t slot_bytes(const Space& set, std::size_t length) const {
    // Of the start: a length has one slot size, whatever capacity the arena is given later.
    return set_slot_bytes(length, set.record->block_bytes(), config.arena.capacity_bytes);
  }
  /// Of put.hashes[i].
  std::size_t slot_bytes(const Put& put, std::size_t i) const {
    return put.is_set() ? slot_bytes(*put.space, put.lengths[i]) : put.space->record->block_bytes();
  }
  bool may_use_class(std::size_t slot_bytes) const;
  std::uint32_t group_of(const Space& space, std::size_t slot_bytes) {  ///< Of its blocks in such slots.
    return tenants ? tenants->group(space.owner, slot_bytes) : pool.arena().add_class(slot_bytes);
  }
  Result<std::size_t> drop_all(SpaceId id, DiskDrop* kept);
  DiskDrop disk_drop(const Space& space, const BlockHash& hash) const;

  /// The tops of what a drop of `hashes` takes away, each with all below: the last of `hashes`; without hashes, every
  /// first block of the tree.
  static std::vector<BlockId> tops_of(const PrefixIndex& index, TreeId tree, std::span<const BlockHash> hashes);
  Result<std::vector<BlockId>> path(const PathEnd& end) const;
  const PrefixIndex* index_of(Tier of) const;  ///< nullptr: there is no such tier.
  bool has_copy(Tier of, BlockId block) const;
  PinnedPrefix pin_blocks(std::span<const BlockId> blocks);  ///< Of one chain, first to last, for a move.
  void add_copy(TreeId tree, BlockId block, BlockId parent);
  bool load(const DiskRecord& record);
  void pin_spilled(const Found& found, std::span<const BlockHash> hashes, PinnedPrefix& pinned);
  std::size_t drop_spilled(TreeId tree, std::span<const BlockHash> hashes);

  void stage(Put& put, OfferPlan& plan, bool may_lose, TimePoint now, Steps& steps);
  void tell_staged(Put& put, OfferPlan& plan);
  void end(std::map<PutId, Put>::iterator put);
  bool can_relocate(BlockId block, std::size_t own_pins) const;
  std::string check_leased() const;
  std::string check_tenants() const;
  std::string check_puts(std::size_t* staged_bytes, std::unordered_map<BlockId, std::uint64_t>* pins) const;
};
}  // namespace kv
