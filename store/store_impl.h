// store/store_impl.h: the parts of a Store. Only store.cc and the other store_*.cc include it.
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
  Space* space;              ///< Stays alive: it counts this put.
  std::size_t stored_count;  ///< Blocks of the offered chain before hashes[0].
  BlockId tail;  ///< The last block of the chain that is here; pinned, which keeps all above. kNoBlock: the root.
  std::vector<BlockHash> hashes;
  std::vector<std::uint32_t> positions;
  std::vector<std::uint32_t> token_ids;  ///< Empty, or block_size per hash.
  std::vector<ExtraDigest> extras;       ///< Empty, or one per hash; with token_ids.
  std::vector<std::uint32_t> lengths;    ///< Sets only, per hash: its length and its index in the offer.
  std::vector<std::uint32_t> indices;
  std::vector<SlotId> slots;
  std::size_t committed_count = 0;  ///< Slots before this left the put: linked, or freed by commit.
  std::size_t told_count = 0;       ///< Slots before this were in some plan.
  /// For a set with groups: those with wanted blocks. A group's part of each list begins at the last one's end.
  struct Group {
    std::size_t end;                      ///< In `hashes`.
    std::size_t pinned_end, on_disk_end;  ///< In `pinned` and `on_disk`.
  };
  std::vector<Group> groups;
  std::vector<BlockId> pinned;     ///< The groups' members in memory at the offer.
  std::vector<BlockHash> on_disk;  ///< Names of their members on disk at the offer.
  std::size_t committed_groups = 0;
  Duration idle{};
  std::uint16_t trait = 0;  ///< The trait of its blocks' first use (EvictionPolicy::offered).
  std::size_t after_last = 0;
  /// Earlier uses of leading hashes that left recently, up to the first unknown one, as far as looked up.
  std::vector<std::uint8_t> remembered;
  bool is_remembered_whole = false;  ///< `remembered` has reached its end.
  bool is_admitted = false;
  bool is_not_admitted = false;  ///< The rest of the chain is worth less than the blocks that would have to go.
  bool was_refused = false;      ///< For lack of memory; the caller asks again periodically.
  bool is_over_quota = false;    ///< The refusal was the tenant's own limit.

  bool is_set() const { return space->record->is_set(); }
  /// Leading slots that can be filled: without those of an incomplete group.
  std::size_t usable_count() const;
  /// Where the three lists' uncommitted part begins: the ends of the last committed group.
  Group committed_group() const { return committed_groups == 0 ? Group{} : groups[committed_groups - 1]; }
  bool ends_group(std::size_t i) const;  ///< Whether hashes[i] is the last of its group.
};

/// The default index_bytes_max, for an arena of `capacity_bytes`.
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
  std::unique_ptr<EventLog> events;  ///< nullptr: off.
  std::unique_ptr<DiskTier> tier;    ///< nullptr: memory only.
  std::unique_ptr<EvictionPolicy> policy;
  std::unique_ptr<HitCurve> curve;  ///< nullptr: off.
  DepartedTable departed;
  BlockPool pool;
  std::unique_ptr<TenantTable> tenants;  ///< nullptr: tenants are not told apart.
  LeaseTable leases;
  ContextTable contexts;
  std::deque<std::vector<Context::Kept>> unkept;  ///< Blocks of ended contexts, to be released from the last on.
  bool are_contexts_closed = false;
  std::set<ContextId> to_warm;  ///< Contexts that are warming; some have ended, or are complete.
  ContextId warmed_last{};
  std::map<PutId, Put> puts;
  std::set<std::pair<SessionId, PutId>> puts_by_session;
  /// Slots of an ended put, to be freed. Until then the put counts as under way, so its namespace stays.
  struct Unwanted {
    Space* space;
    std::vector<SlotId> slots;
    std::vector<BlockId> pinned;
  };
  std::deque<Unwanted> unwanted;
  std::deque<SessionId> ending_sessions;  ///< Ended, with leases left to end.
  Evictor evictor;
  std::unique_ptr<Spiller> spiller;
  std::unique_ptr<SpillLoader> loader;  ///< Until the disk is loaded.
  SpaceTable spaces;
  std::unordered_map<std::size_t, std::size_t> spaces_of_size;
  std::set<NamespaceId> unseen_spaces;             ///< A load broke off: the next start loads the rest of these.
  std::uint64_t put_count = 0;                     ///< Since the start: the last PutId.
  std::size_t put_ids_bytes = 0;                   ///< For the token ids of puts under way.
  std::uint64_t move_pin_count = 0;                ///< Pins of pin_prefix without their unpin so far.
  StoreStats counters;                             ///< Only the counters; gauges are computed.
  Arena::Cursor closed_at;                         ///< The progress of relocate() through the closed slots.
  std::unordered_map<SlotId, BlockId> relocating;  ///< The destination of each block being copied.
  bool has_index_bound = false;                    ///< index_bytes_max was given, and does not follow the capacity.
  bool limits_fell = false;                        ///< A bound was lowered: holdings may exceed it.

  /// Errors: kBusy, kTooLarge, kOverQuota.
  Result<Space*> open(std::shared_ptr<const NamespaceRecord> record);
  bool is_idle(const Space& space) const;
  void take_emptied();
  bool forget_one();
  bool forget_one_of(TenantId tenant);
  void forget(Space& space);
  /// The step budget of one call for work beyond its own blocks. Added to the counters when the call ends.
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
  /// A chain's end block that a context has given up. It stays in memory until the end of the call.
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
  /// The context of that name, looked at for drops and with its figures up to now; null: there is none, or it has
  /// ended.
  Context* live_context(std::string_view owner, std::string_view name, TimePoint now);
  bool look_at(Context& context, Steps& steps, TimePoint now);
  std::unique_ptr<Context> end_context(Context& context, ContextTable::Gone how, TimePoint now);
  void end_contexts(TimePoint now, Steps& steps);
  void let_go(Steps& steps);
  void end_all_keeps();
  void set_warming(Context& context, bool is_warming);
  struct Warmable {
    std::optional<WarmWork> work;
    bool may_come = false;  ///< Later, but soon.
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

  /// The beginning of every call with a chain: the namespace, and how much of the chain memory and disk have.
  struct Found {
    Space* space;
    PrefixIndex::Prefix prefix;
    PrefixIndex::Prefix disk = {};  ///< On disk, from the first block on; empty when memory has the whole chain.

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

  /// Postpones the ends of contexts whose kept blocks a request names. `is_read`: it received the blocks.
  void use_contexts(const Found& found, std::span<const BlockHash> hashes, bool is_read, TimePoint now);
  /// As use(), and counts the request. Returns how many leading blocks the node knows.
  std::size_t ask(const Found& found, std::span<const BlockHash> hashes, ReuseHint hint, const ChainPart& chain,
                  TimePoint now, const SampledNames* sampled = nullptr);
  static std::uint8_t passed_count(std::size_t blocks) {
    return static_cast<std::uint8_t>(std::min<std::size_t>(blocks, 255));
  }
  /// Report a request, or an offer, to the policy and the curve.
  std::uint16_t tell_asked(const EvictionPolicy::Request& request, std::size_t memory_count, TimePoint now,
                           std::size_t* known = nullptr);
  std::uint16_t tell_offered(const EvictionPolicy::Request& request, Usage above, Tick tick);
  void expect_miss(TreeId tree, const BlockHash& missed) const {
    policy->expect_miss(tree, missed);
    departed.prefetch(tree, missed);
  }
  void count_lookup(const Found& found, std::span<const BlockHash> hashes, TimePoint now) const;
  void count_miss(const Found& found, std::span<const BlockHash> hashes, TimePoint now);
  void count_miss(const Space& space, std::size_t found_count, const BlockHash& missed, TimePoint now);
  std::uint32_t print(const BlockHash& hash) const { return BlockSample{.seed = config.hash_seed}.print(hash); }
  void explain_departure(TreeId tree, const BlockHash& missed, TimePoint now, Miss& miss);
  Result<Miss> explain_in_set(SpaceId id, std::span<const BlockHash> hashes, TimePoint now);
  const Put* put_of(const Found& found, std::span<const BlockHash> hashes) const;
  void look_for_remembered(Put& put, std::size_t i) const;
  Usage first_usage(const Put& put, std::size_t i) const;  ///< Of put.hashes[i], when it is stored.
  double worth(const Put& put, std::size_t i) const;
  void not_admit_rest(Put& put);
  void tell_capacity(std::size_t block_bytes);
  /// Marks all found blocks as used at `now`, or `idle` before.
  void use(const Found& found, TimePoint now, Duration idle = {}) {
    const Tick tick = pool.tick(now, idle);
    pool.use(found.prefix, tick);
    if (found.disk.block_count > 0) tier->touch(found.disk.last, tick);
  }
  // -- sets (store_set.cc, store_set_put.cc)
  struct FoundSet {
    Space* space;
    std::vector<BlockId> memory, disk;  ///< Per hash; `disk` only for those not in memory.
  };
  bool is_set(SpaceId id) const {
    const Space* const space = spaces.find(id);
    return space != nullptr && space->record->is_set();
  }
  Result<Space*> set_space(SpaceId id, std::size_t hash_count) const;
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
  /// Makes or finds the arena's class for such slots, and counts it as the namespace's. False: too many classes.
  bool use_class(Space& space, std::size_t slot_bytes);
  /// The slot size for a set's block of that length.
  std::size_t slot_bytes(const Space& set, std::size_t length) const {
    // The capacity at the start: a length has one slot size, for any later capacity.
    return set_slot_bytes(length, set.record->block_bytes(), config.arena.capacity_bytes);
  }
  std::size_t slot_bytes(const Put& put, std::size_t i) const {
    return put.is_set() ? slot_bytes(*put.space, put.lengths[i]) : put.space->record->block_bytes();
  }
  bool may_use_class(std::size_t slot_bytes) const;
  std::uint32_t group_of(const Space& space, std::size_t slot_bytes) {  ///< The group of its blocks in such slots.
    return tenants ? tenants->group(space.owner, slot_bytes) : pool.arena().add_class(slot_bytes);
  }
  Result<std::size_t> drop_all(SpaceId id, DiskDrop* kept);
  DiskDrop disk_drop(const Space& space, const BlockHash& hash) const;

  /// The top blocks that a drop removes, each with all below: the last of `hashes`; without, every first block.
  static std::vector<BlockId> tops_of(const PrefixIndex& index, TreeId tree, std::span<const BlockHash> hashes);
  Result<std::vector<BlockId>> path(const PathEnd& end) const;
  const PrefixIndex* index_of(Tier of) const;  ///< nullptr without such a tier.
  bool has_copy(Tier of, BlockId block) const;
  PinnedPrefix pin_blocks(std::span<const BlockId> blocks);  ///< Blocks of one chain, first to last, for a move.
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
