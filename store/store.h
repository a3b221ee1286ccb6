// store/: blocks, slots, leases, eviction. Start here.
//
// Knows no socket, thread or clock, and no disk but by its interface: time is handed in, bytes are moved by others. The
// daemon around the Store is the room store/node/. Files, in reading order:
//   store.h         what a node holds and decides: match, pin, offer, commit, evict, spill (this file)
//   store_impl.h    the parts that a Store is made of, for its code in store.cc, store_put.cc (a block enters),
//                   store_set.cc and store_set_put.cc (blocks that stand alone), store_spill.cc (what lies on disk),
//                   store_paths.cc (what is here, for whoever hands it on), store_look.cc (the same for people to look
//                   at), store_misses.cc (why something is not here), store_capacity.cc (more memory, or less, and
//                   other limits while it runs) and store_check.cc (figures and invariants)
//   size_class.h    how long a slot the block of a set gets
//   block_pool.h    the blocks that are here: what they are called and where they lie, kept in step
//   arena.h         where the bytes lie
//   count_pool.h       what the nodes of a cluster have counted, put together; yield_counts.h: as it travels
//   eviction_policy.h  what a block is worth: by its last use, or by the hits that it will bring (yield_policy.h, made
//                   of yield_table.h, reuse_shadow.h, ghost_table.h and age_clock.h)
//   evictor.h       which block goes when a slot is wanted
//   hit_curve.h     what the hit rate would be with less memory, or more (use_order.h, heavy_blocks.h, shadow_cache.h)
//   lease_table.h   what was promised to whom, until when
//   context_table.h  which prefixes are kept by name, whose they are and until when (context.h, context_ends.h;
//                   store_contexts.cc); context_file.h: over a restart
//   space_table.h   which namespaces there are, and which of them may be forgotten
//   tenant_table.h  who holds how much, and whose blocks may go for whom
//   disk.h          what is needed of a disk
//   disk_tier.h     which blocks lie on disk, and which of them go
//   spiller.h       what goes to disk next
//   spill_loader.h  what comes back from disk after a restart
//   event_log.h     what came and went lately, for routers (store_events.cc)
//   departed_table.h  when blocks left, and why; root_sample.h: which first blocks are asked for, and which stored
//   tree_sample.h   what a sample says of the trees: how large, and how much used
//
// Follow a block (get): it enters as a hash in pin_prefix() and leaves as pinned bytes, which a mover then sends.
// Follow a block (put): it enters as a hash in offer(), gets a staged slot that a mover fills, and becomes visible in
// commit().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "index/block_hash.h"
#include "index/miss_kind.h"
#include "index/name_groups.h"
#include "index/namespace_record.h"
#include "index/prefix_index.h"
#include "store/arena.h"
#include "store/context_file.h"
#include "store/context_table.h"
#include "store/disk_tier.h"
#include "store/event_log.h"
#include "store/eviction_policy.h"
#include "store/hit_curve.h"
#include "store/lease_table.h"
#include "store/space_table.h"
#include "store/spiller.h"
#include "store/tenant_table.h"
#include "store/yield_counts.h"

namespace kv {

enum class PutId : std::uint64_t {};  ///< Never reused.

struct StoreConfig {
  ArenaConfig arena;
  Duration lease_duration = std::chrono::seconds(10);
  std::size_t lease_count_max = 65536;  ///< In the node.
  std::size_t lease_count_per_session_max = 1024;
  std::size_t namespace_count_max = 1024;  ///< With blocks, or idle and remembered.
  double retained_fraction_max = 0.5;      ///< Of the arena, by retain() and contexts.
  ContextLimits contexts;
  double leased_fraction_max = 0.5;      ///< Of the arena: what leases keep, shared blocks counted once.
  std::size_t chain_blocks_max = 65536;  ///< In one request.
  /// Memory for what is kept of blocks besides their bytes (StoreStats::index_used_bytes). Beyond this bound, blocks
  /// are evicted as for lack of arena. Blocks on disk get half of it at most. 0: 256 MiB and a 16th of the arena.
  std::size_t index_bytes_max = 0;
  std::uint64_t hash_seed = 0;  ///< As PrefixIndex.
  bool has_tenants = false;     ///< Namespaces belong to the `tenant` of their record, and set_tenants() may be called.
  /// What a block counts for at least, to its tenant. A 32nd of it has to be enough for what the index keeps of a
  /// block.
  std::uint64_t tenant_charge_min = 8192;
  PolicyKind policy = PolicyKind::kLru;
  /// kYield is LRU while requests name parts of chains, of which other nodes have the rest, and nothing is pooled.
  bool lru_unless_pooled = false;
  HitCurveConfig curve;
  std::size_t departed_count_max =
      262144;                       ///< Blocks that left and are remembered, of 8 bytes each (departed_table.h).
  std::size_t event_count_max = 0;  ///< Changes that the log keeps, of 80 bytes each (event_log.h). 0: no log.
  DiskTierConfig disk;              ///< No capacity: no disk tier.
  SpillerConfig spill;
};

/// Counters since start and gauges now. Counters only grow.
struct StoreStats {
  std::uint64_t capacity_bytes = 0, allocated_bytes = 0, slab_bytes = 0;  ///< slab_bytes: granules given to some class.
  std::uint64_t block_count = 0, staged_count = 0, pinned_count = 0, lease_count = 0, namespace_count = 0;
  std::uint64_t set_block_count = 0, set_bytes = 0;  ///< Of the blocks: those of sets; and their lengths.
  std::uint64_t leased_bytes = 0;  ///< Of all blocks that leases keep, each once; at most leased_fraction_max.
  std::uint64_t index_bytes = 0;   ///< Of heap, free entries for the next blocks included.
  std::uint64_t index_used_bytes = 0, index_bytes_max = 0;
  std::uint64_t forgotten_namespaces = 0;  ///< To make room for others.
  /// Hits in memory, hits on disk, misses.
  std::uint64_t match_hit_blocks = 0, match_disk_blocks = 0, match_miss_blocks = 0;
  std::uint64_t get_hit_blocks = 0, get_disk_blocks = 0, get_miss_blocks = 0;
  std::uint64_t stored_blocks = 0, already_stored_blocks = 0, refused_blocks = 0, put_conflict_blocks = 0;
  std::uint64_t not_admitted_blocks = 0;  ///< Not in refused_blocks.
  std::uint64_t unlearned_uses = 0;       ///< Of the policy's sample; see Store::learn().
  /// Matches of chains that did not find all, by why the first block that was missed was not here; [0] of those that
  /// found nothing, [1] of the others.
  std::array<std::array<std::uint64_t, kMissKindCount>, 2> match_misses{};
  std::uint64_t evicted_blocks = 0, evicted_bytes = 0, dropped_blocks = 0, slab_moves = 0;
  std::uint64_t leases_granted = 0, leases_expired = 0, leases_refused = 0;
  std::uint64_t work_steps = 0;           ///< Steps of all calls (index/steps.h).
  std::uint64_t work_steps_call_max = 0;  ///< Of the call that took most, since the start. A gauge.
  /// [i]: evicted 2^i..2^(i+1) ms after their last use ([0]: under 2 ms; the last: all longer ago).
  std::array<std::uint64_t, 32> eviction_age_log2_ms{};
  struct SizeClass {
    std::uint64_t block_bytes, slot_count, used_count, slab_count;
  };
  std::vector<SizeClass> classes;
  // Disk tier.
  std::uint64_t disk_block_count = 0;  ///< With those that are in memory too.
  std::uint64_t disk_only_bytes = 0;   ///< Of blocks that are nowhere else: what the capacity is for.
  std::uint64_t disk_log_bytes = 0;    ///< Of all blocks written and not given back, dead ones too.
  std::uint64_t spilled_blocks = 0, disk_evicted_blocks = 0, rewritten_blocks = 0;
  std::uint64_t spill_skipped_blocks = 0;   ///< Evicted without a write, as never used again or unlikely to be.
  std::uint64_t lost_unspilled_blocks = 0;  ///< The same, since the disk was too slow or off.
  std::uint64_t lost_blocks = 0;            ///< On disk, but not to be read again.
};

struct NamespaceStats {
  SpaceId id;
  std::string record;                      ///< Canonical text.
  std::uint64_t block_count, total_bytes;  ///< Of all its blocks; of a set's their lengths.
  SpaceTraffic traffic = {};
  RootSample::Counts roots = {};
};

/// All that a node holds. The daemon reaches it only through LockedStore (store/node/), for microseconds at a time.
///   1. A block that match or pin_prefix finds was committed with checksums and has never changed since.
///   2. A slot is reused only when nothing pins its block: no lease, no running move, no put below it.
///   3. offer() refuses for lack of memory only if nothing unpinned could be evicted. A block with a pinned block below
///      counts as pinned. With several block sizes in use: only if every run of granules that is long enough for a slab
///      of the size holds a pin.
///   4. Among blocks of one size, eviction takes leaf ends in the policy's order (eviction_policy.h). Between sizes
///   memory moves by
///      slabs, when the ages of what would go are far apart (evictor.h).
///   5. StoreStats::allocated_bytes = blocks linked + staged + unlinked but pinned, byte for byte; of a set's blocks
///      their slots (size_class.h).
///   6. StoreStats::leased_bytes = all blocks at and above a leased one, each once, byte for byte; dropped ones count
///      while they are in memory. At most leased_fraction_max of the arena.
///   7. A block of a set has one length for as long as its name is here, in memory or on disk. Chains and sets share
///      memory, disk and one order of use.
///   8. Of names that are asked for as a group (index/name_groups.h), match_set and pin_set find all or none, and what
///      they find they mark as used at one moment. Of a group that a put offers, what was not here is linked in one
///      step, once all of the group is here; or not at all. A group whose member has gone is a miss. No table of groups
///      is kept: members that are used together have one age, so eviction takes those of one size one after another,
///      and those of another size when their turn comes. Restarts and the disk know nothing of groups either.
///   9. With tenants: no put of another tenant evicts a block of one that holds no more than its guarantee, in memory;
///      and none has more than its maximum, unless that was lowered since. tenant_table.h has the rules.
/// Every call does a bounded amount of work: all that concerns the blocks it names, and of the work that grows with the
/// Store (looking for memory, evicting, dropping, ending leases) at most kStepsMax steps (index/steps.h). Later calls
/// do the rest; OfferPlan::again and is_dropping() say that there is more. `now` may go back from call to call only by
/// as long as the callers wait for the lock. Thread safety: none.
class Store {
 public:
  static constexpr Duration kIdleMax = std::chrono::hours(24 * 30);
  static constexpr std::size_t kStepsPerCall = 8192;  ///< Some 100 us.
  /// The last piece of work may take more than was left: at most the blocks of one edge that is split, or the edges
  /// above one block whose lease ends. Twice the budget covers both.
  static constexpr std::size_t kStepsMax = 2 * kStepsPerCall;

  static Result<std::unique_ptr<Store>> create(const StoreConfig& config);
  ~Store();
  std::span<std::byte> memory() const;  ///< Where all slots lie. Stays where it is.

  // -- another capacity, and other limits, while it runs
  // More: commit the pages, then set_capacity(). Less: set_capacity(); then relocate(), copy and end_relocation() until
  // is_shrunk(); then discard the pages. In steps of a GiB or less: the cost of a step is bounded by its granules.
  struct CapacityBounds {
    std::uint64_t now_bytes, min_bytes, max_bytes, granule_bytes;  ///< min: the largest block of any namespace.
  };
  CapacityBounds capacity_bounds() const;
  /// Errors: kUnsupported without ArenaConfig::capacity_bytes_max; kBadRequest if that is not whole granules, none, or
  /// more than the maximum; kTooLarge if a namespace has blocks that would not fit any more.
  Result<void> set_capacity(std::size_t bytes);
  ArenaMemory& pages();  ///< Where this commits and discards, without the lock, by one caller at a time.
  /// A block that lies behind the capacity, and where it is to lie. Both are pinned: copy without the lock.
  struct Relocation {
    BlockId block;
    SlotId to;
    std::span<const std::byte> from;
    std::span<std::byte> into;  ///< As long as `from`.
  };
  /// The next of them, some `bytes_max`. Makes room as for a put, so what is worth least goes. Empty: go on with the
  /// next call, or what is left is in use; then after a pause. `may_lose`: as OfferOptions.
  std::vector<Relocation> relocate(std::size_t bytes_max, bool may_lose, TimePoint now);
  /// They were copied. What came into use meanwhile stays where it is, for a later call.
  void end_relocation(std::span<const Relocation> relocations);
  bool is_shrunk();  ///< Nothing lies behind the capacity.
  /// Of StoreConfig: what can be told anew. Lower bounds take nothing away from who holds more.
  void set_limits(const StoreConfig& config);

  // -- namespaces
  /// Opens or finds the namespace, for `session` (none: 0) until end_session(). At namespace_count_max an idle one
  /// makes room: one without blocks, here or on disk, and without puts; those that no session has open go first, the
  /// least recently used before others. Whoever still asks for it by its number gets kNoNamespace, and may open it
  /// again. Errors: kBusy if none is idle; kTooLarge if not even one block fits the arena; kOverQuota if its tenant has
  /// as many as it may, and none of them is idle.
  Result<SpaceId> open(const NamespaceRecord& record, SessionId session = {});
  /// nullptr if the namespace is unknown, or was forgotten.
  std::shared_ptr<const NamespaceRecord> find_namespace(SpaceId space) const;
  std::size_t namespace_count() const;
  std::vector<NamespaceStats> namespaces() const;
  /// Forgets a namespace without blocks and puts, whoever has it open. False: it is not idle, or unknown.
  bool forget(SpaceId space);

  // -- tenants
  // Of a Store that has_tenants.
  /// The limits of all tenants that have any, in place of those before.
  void set_tenants(const std::vector<TenantLimits>& limits);
  std::vector<TenantStats> tenants() const;  ///< By name. Empty without has_tenants.

  // -- match
  struct MatchOptions {
    SessionId session{};
    bool lease = false;  ///< Pin what was found until the lease ends.
    /// Token ids of the blocks `hashes`, block_size each, and of the blocks that follow, in part or whole. Only for a
    /// chain without gaps (see PrefixIndex::match_partial). May be shorter: there is no partial match beyond its end.
    std::span<const std::uint32_t> token_ids = {};
    /// extra_digest() of each of `hashes`, and one more for the block that follows. Empty: the blocks have no extras;
    /// or, in a namespace of an engine's own hashes, nobody knows, and there is no partial match.
    std::span<const ExtraDigest> extras = {};
    ReuseHint hint = ReuseHint::kNone;  ///< When the blocks will be asked for again.
    ChainPart chain = {};               ///< Of what the hashes are a part.
    bool is_elsewhere = false;          ///< They belong to another node: what is not found was not missed here.
    /// Looked for before the call, as sample() said. nullptr: not at all; the call does it.
    const SampledNames* sampled = nullptr;
  };
  struct Match {
    std::size_t memory_block_count = 0;  ///< Leading blocks in memory; a lease is for these.
    std::size_t disk_block_count = 0;    ///< That follow, on disk.
    std::size_t known_block_count = 0;   ///< Leading blocks that are here, or left not long ago.
    LeaseId lease{};                     ///< 0 if none was asked for, none could be granted, or nothing was found.
    /// Why no lease, if one was asked for and blocks were found: kBusy, at a limit of leases or leased_fraction_max;
    /// kOverQuota, at the tenant's.
    Errc lease_error{};
    std::size_t partial_token_count = 0;  ///< Leading token ids shared with a stored block that follows the prefix.
    BlockHash partial_block{};            ///< That block's hash; valid if partial_token_count > 0.
  };
  /// Finds the longest prefix of `hashes` held, and marks it as used. With `token_ids` also finds, among stored blocks
  /// of the same extra, the one that shares the most leading tokens with the block that follows; that one is neither
  /// leased nor marked. Errors: kNoNamespace, kTooLarge (chain_blocks_max), kBadRequest (extras do not fit the hashes).
  Result<Match> match(SpaceId space, std::span<const BlockHash> hashes, const MatchOptions& options, TimePoint now);
  /// Ends a lease early. Errors: kStaleLease.
  Result<void> release(SessionId session, LeaseId lease);

  // -- get
  struct PinnedBlock {
    BlockId id;
    std::uint32_t index;                       ///< Of its hash in the call.
    std::span<const std::byte> bytes;          ///< In the arena; stable and constant while pinned.
    std::span<const std::uint64_t> checksums;  ///< Of its stripes.
  };
  struct SpilledBlock {
    BlockId id;
    std::uint32_t index;  ///< As of a PinnedBlock.
    DiskKey key;
    std::uint64_t seed;         ///< checksum_seed of the block.
    std::uint32_t block_bytes;  ///< Of this block.
    bool promote;               ///< Should be in memory: put it there (offer, commit) once it is read.
  };
  /// What unpin() is to undo: of a chain a prefix, of a set the blocks that were found.
  struct PinnedPrefix {
    std::vector<PinnedBlock> blocks;    ///< First to last.
    std::vector<SpilledBlock> spilled;  ///< Those that follow, on disk; of a set all that are nowhere else.
    SpaceKind kind = SpaceKind::kChain;
  };
  struct GetOptions {
    SessionId session{};
    LeaseId lease{};    ///< Released in the same step. One that has ended is ignored: the blocks are looked up anyway.
    bool disk = false;  ///< Also what lies on disk.
    bool is_part = false;  ///< Another call of the same get follows, with more hashes; only the last one is counted.
  };
  /// Pins each block of the longest prefix for a move, and marks it as used. The caller moves the bytes without the
  /// lock, then calls unpin exactly once (for an empty prefix the call may be left out). Errors: kNoNamespace,
  /// kTooLarge (chain_blocks_max); the lease then lives on.
  Result<PinnedPrefix> pin_prefix(SpaceId space, std::span<const BlockHash> hashes, const GetOptions& options,
                                  TimePoint now);
  void unpin(const PinnedPrefix& prefix);

  // -- put
  struct StagedBlock {
    std::uint32_t index;           ///< In the offered chain or set.
    std::span<std::byte> bytes;    ///< To be filled without the lock by the put's owner alone.
    std::uint64_t seed;            ///< checksum_seed of the block.
    bool completes_group = false;  ///< The last one of its group that is wanted; of a put with groups.
  };
  struct OfferPlan {
    PutId put{};  ///< 0 when every block is here already: then no end_put. Else end_put must be called.
    std::size_t stored_count = 0;  ///< Leading blocks already here at the offer; of a set all that are.
    /// Wanted now: consecutive in the chain, after the blocks that were here or staged before. Of a set: in order.
    std::vector<StagedBlock> staged;
    std::vector<std::uint32_t> wanted;  ///< Of a set, by the offer alone: the indices of all blocks not here.
    std::size_t refused_count = 0;      ///< The rest of the chain; no memory for them now.
    /// Why, if some are refused: kOutOfMemory passes. kTooLarge does not: there are as many slot sizes as there may be.
    /// kNotAdmitted does not, for this put: the policy gives what would have to go more worth. kOverQuota passes: the
    /// tenant has as much memory as it may, and all of that is pinned.
    Errc refused_why = Errc::kOutOfMemory;
    /// Some were refused only because this call reached its bound on work: call offer_more at once.
    bool again = false;
  };
  struct OfferOptions {
    SessionId session{};
    std::span<const std::uint32_t> positions = {};  ///< Per hash, strictly increasing; empty: 0, 1, 2, ...
    std::span<const std::uint32_t> token_ids = {};  ///< hashes.size() * block_size ids, or empty.
    /// extra_digest() of each block, or empty: as in a match. In a namespace of an engine's own hashes token ids are
    /// kept only together with them.
    std::span<const ExtraDigest> extras = {};
    /// They were last used so long ago, elsewhere: they count as used then, here too. At most kIdleMax is believed.
    Duration idle{};
    /// Whether blocks that are not on disk may be evicted. If not, blocks for which only they could make room are
    /// refused: try again when the disk has caught up.
    bool may_lose = true;
    ReuseHint hint = ReuseHint::kNone;  ///< As MatchOptions.
    ChainPart chain = {};               ///< The same.
    bool is_admitted = false;           ///< Whatever the policy gives it: somebody keeps it. Never kNotAdmitted.
  };
  /// Token ids are kept only if they are small beside the block itself. Else the block is stored without them, and no
  /// partial match names it.
  static constexpr std::size_t kept_ids_bytes_max(std::size_t block_bytes) {
    return block_bytes / 4 > 1024 ? block_bytes / 4 : 1024;
  }
  /// Decides which blocks of the chain are wanted, and stages slots for them, evicting as needed. The prefix already
  /// here stays pinned until end_put. The spans are copied as far as needed. A plan that stages nothing and refuses
  /// something still has a put, to try again with. Errors: kNoNamespace, kTooLarge (chain_blocks_max), kBadRequest (no
  /// hashes, or positions, token_ids, extras or chain do not fit them).
  Result<OfferPlan> offer(SpaceId space, std::span<const BlockHash> hashes, const OfferOptions& options, TimePoint now);
  /// Tries again to stage blocks that were refused. The plan's `staged` has only those staged by this call. Errors:
  /// kBadRequest for an unknown put.
  Result<OfferPlan> offer_more(PutId put, TimePoint now, bool may_lose = true);

  enum class CommitStatus : std::uint8_t { kStored, kAlreadyStored, kConflict, kRefused };
  /// Makes the next staged block (in chain order) visible. `checksums` were computed by the caller over the staged
  /// bytes, after the last write to them, and equal what the writer claimed. In all cases but kStored this put's slot
  /// is freed. kAlreadyStored: someone else stored the block meanwhile, with equal checksums. kConflict: with others,
  /// and the first is kept. In both cases the chain goes on below the stored block. kRefused: the block above was
  /// dropped meanwhile, and all that follow are refused as well.
  CommitStatus commit(PutId put, std::span<const std::uint64_t> checksums, TimePoint now);
  /// Frees what was staged and not committed, and ends the put's pins. No move may still write the staged bytes.
  void end_put(PutId put);

  // -- sets: namespaces of blocks that stand alone
  // match, pin_prefix and offer are for chains, match_set, pin_set and offer_set for sets; of the other kind each is
  // refused (kUnsupported). What else takes hashes means each of them in a set, and the prefix in a chain. A lease on a
  // set counts as one for each block. Each name costs a lookup of its own, at two cache misses and more: so long lists
  // come in parts, one a call.
  enum class Held : std::uint8_t { kNowhere, kInMemory, kOnDisk };
  struct SetMatch {
    std::vector<Held> held;              ///< Of each hash.
    std::vector<std::uint32_t> lengths;  ///< Of each hash; 0 if it is held nowhere.
    LeaseId lease{};                     ///< On all blocks in memory, as Match::lease; released as a whole.
    Errc lease_error{};
  };
  struct SetMatchOptions {
    SessionId session{};
    bool lease = false;
    LeaseId rest{};  ///< Of the parts before this one. It grows; or, if it cannot, it is released and there is none.
    /// How the hashes are cut into groups, of which none has one twice (check_groups); empty: each is alone. A lease is
    /// for the groups that memory has as a whole.
    std::span<const std::uint32_t> group_counts = {};
    ReuseHint hint = ReuseHint::kNone;  ///< As MatchOptions.
  };
  /// Which of `hashes` are held; marks those as used. Errors: kNoNamespace, kTooLarge (chain_blocks_max), kUnsupported,
  /// kBadRequest (group_counts that do not cut this list).
  Result<SetMatch> match_set(SpaceId set, std::span<const BlockHash> hashes, const SetMatchOptions& options,
                             TimePoint now);
  struct SetGetOptions {
    SessionId session{};
    LeaseId lease{};                            ///< Released once all hashes were looked at. As GetOptions::lease.
    bool disk = false;                          ///< Also what lies on disk.
    std::span<const std::uint32_t> rooms = {};  ///< Of each hash: a longer block is not pinned. Empty: no bound.
    std::uint64_t bytes_max = ~0ull;            ///< Stop looking behind the block, or group, that reaches this sum.
    std::size_t count_max = ~std::size_t{0};    ///< Stop looking before there are more hashes. A first group is looked
                                                ///< at whole, however long it is.
    std::span<const std::uint32_t> group_counts = {};  ///< As SetMatchOptions.
  };
  struct PinnedSet {
    PinnedPrefix pinned;                 ///< In the order of the hashes, in memory and on disk each.
    std::size_t looked_count = 0;        ///< So many hashes were looked at. Go on with the rest.
    std::size_t looked_group_count = 0;  ///< They are so many groups; without group_counts 0.
    struct TooLong {
      std::uint32_t index, length;
    };
    std::vector<TooLong> too_long;  ///< Held, and longer than their rooms.
  };
  /// Pins those of `hashes` that are held, for a move, and marks them as used. Then as pin_prefix; unpin() ends it. Of
  /// a group all are pinned or none: none if some are nowhere, or on disk without `disk`, or longer than their rooms.
  Result<PinnedSet> pin_set(SpaceId set, std::span<const BlockHash> hashes, const SetGetOptions& options,
                            TimePoint now);
  struct SetOfferOptions {
    SessionId session{};
    std::span<const std::uint32_t> lengths;  ///< Of each hash, 1 to the set's bound.
    bool may_lose = true;                    ///< As OfferOptions.
    /// Blocks that lie on disk alone are wanted too, for someone has read them. Else they count as stored.
    bool promote = false;
    PutId put{};                                       ///< Of the parts before this one, if they have one.
    std::uint32_t first = 0;                           ///< The index of hashes[0] in the whole list.
    bool is_part = false;                              ///< More follow: nothing is staged yet.
    std::span<const std::uint32_t> group_counts = {};  ///< As SetMatchOptions. Parts of one list have groups, or none.
    ReuseHint hint = ReuseHint::kNone;                 ///< As MatchOptions.
  };
  /// As offer(): decides which blocks are wanted, and stages slots for them; offer_more, commit and end_put follow. A
  /// name that is held is stored already, whatever its length is there. Commits come in the order of the plan. Of a
  /// list in parts, each plan has the part's `wanted` and `stored_count`, and the last one has the rest. With groups a
  /// plan stages whole groups, what was here of them stays pinned until they are committed or the put ends, and
  /// commit_group() takes the place of commit(). Errors: kNoNamespace, kTooLarge, kUnsupported, kBadRequest (no hashes,
  /// lengths that do not fit them or the bound, group_counts that do not cut them, or a put that is not of this
  /// session, set and list).
  Result<OfferPlan> offer_set(SpaceId set, std::span<const BlockHash> hashes, const SetOfferOptions& options,
                              TimePoint now);
  /// Makes the staged blocks of the next group visible, all at once: those up to the next that completes_group.
  /// `checksums` are theirs, one block's after another's; else as commit(). Returns the status of each. If the group
  /// cannot be whole, since one of the blocks is kConflict or one that was here has gone, those that would have been
  /// stored are kRefused.
  std::vector<CommitStatus> commit_group(PutId put, std::span<const std::uint64_t> checksums, TimePoint now);
  /// Drops each of `hashes`, as drop() does; drop_more() goes on. Appends to `*kept` what the disk must keep. At least
  /// one hash: without, drop() means the whole namespace.
  Result<std::size_t> erase(SpaceId set, std::span<const BlockHash> hashes, std::vector<DiskDrop>* kept, TimePoint now);

  // -- what is here, for whoever hands it on
  /// A path is what one tree has from its first block to a leaf end; of chains, in memory. The id is good as long as
  /// the hash is still that of the block.
  struct PathEnd {
    SpaceId space;
    BlockId block;
    BlockHash hash;
    TimePoint used;  ///< Last.
  };
  struct PathCursor {
    std::uint32_t next = 0;
    bool is_done = false;
  };
  /// Appends the ends of paths that were used at `since` or later, some in each call until `cursor` is done. What
  /// changes between the calls may be missed, or come twice.
  void list_paths(PathCursor& cursor, TimePoint since, std::vector<PathEnd>& ends) const;
  /// The names of its blocks, first to last. Errors: kNotFound, if the end is not here any more; kTooLarge
  /// (chain_blocks_max).
  Result<std::vector<BlockHash>> path_of(const PathEnd& end) const;
  /// The most that a block of the path behind its first `skipped` was used, the put that brought it included: what was
  /// asked for again has more than 1. Errors: as path_of.
  Result<std::size_t> path_uses(const PathEnd& end, std::size_t skipped) const;
  /// Pins the path, as pin_prefix does, and marks nothing as used. Then unpin(). Errors: as path_of.
  Result<PinnedPrefix> pin_path(const PathEnd& end);

  // -- what is here, for people to look at
  // Nothing here counts as a use. Each call does some 100 us of work; the caller lets others in between two calls.
  using Tier = BlockTier;
  struct SpaceView {
    SpaceId id;
    NamespaceId name;
    std::shared_ptr<const NamespaceRecord> record;
    std::uint64_t block_count, total_bytes;  ///< In memory, as NamespaceStats.
    std::uint64_t disk_block_count;          ///< With those that are in memory too.
    SpaceTraffic traffic = {};
    RootSample::Counts roots = {};
  };
  static constexpr std::size_t kSpacesPerCall = 256;
  /// The next namespaces by name, kSpacesPerCall at most: behind `after`, or (nullptr) from the first one on.
  std::vector<SpaceView> list_spaces(const NamespaceId* after) const;
  /// An edge of a namespace's tree: blocks that follow one another without a branch; what is below it is below the
  /// last.
  struct EdgeView {
    static constexpr std::uint32_t kNoParent = 0xFFFFFFFF;

    SpaceId space{};
    BlockId first = kNoBlock;
    std::uint64_t name = 0;            ///< short_hash() of the first block: tells whether `first` is still the same.
    std::uint32_t parent = kNoParent;  ///< Where in the list the edge above it is, always before it.
    std::uint32_t block_count = 0, child_count = 0;
    std::uint32_t position = 0;  ///< Of the first block, in its whole prefix; 0 in a set.
    std::uint64_t bytes = 0;     ///< Of its blocks.
    TimePoint used{};            ///< Last use of its end, or of some end below.
    std::uint8_t use_count = 0;  ///< Of its end, as Usage.
    std::uint32_t weight = 0;    ///< So many blocks does it stand for: 0 if it is there for one below it alone.
    std::uint32_t copied = 0;    ///< Of these, how many are on disk too; of the disk, in memory too.
  };
  struct TreeScope {
    Tier tier = Tier::kMemory;
    std::optional<SpaceId> space = {};  ///< Nothing: all of them.
    BlockId top = kNoBlock;             ///< With `space`: the edge that begins with this block, and all below.
    std::uint64_t top_name = 0;         ///< As EdgeView::name.
  };
  /// A deeper edge's blocks count as those of the edge here.
  static constexpr std::size_t kEdgesAboveMax = 64;
  /// Appends all edges in scope, if one call can look at them. Else appends nothing and returns false: take a sample.
  /// Requires: a scope with a namespace. Errors: kNoNamespace; kNotFound, if the top has gone.
  Result<bool> list_edges(const TreeScope& scope, std::vector<EdgeView>& edges) const;
  struct SampleCursor {
    std::uint32_t next = 0;
    std::uint32_t stride = 1;  ///< Each block met stands for so many.
    bool is_done = false;
  };
  /// A cursor with which `looks` blocks at most are looked at, in all calls; those out of scope are looked at too.
  SampleCursor sample_cursor(Tier tier, std::uint32_t looks, std::uint64_t random) const;
  /// Appends blocks in scope, each as the edges from the top of the scope down to its own, some in each call until
  /// `cursor` is done. What changes between the calls may be missed, or come twice.
  void sample_edges(const TreeScope& scope, SampleCursor& cursor, std::vector<EdgeView>& edges) const;

  // -- what came and went, for whoever keeps a list of what is here (store_events.cc)
  bool has_events() const;  ///< StoreConfig::event_count_max.
  /// Appends some of what changed from number `from` on: until page.next is no more than what it was asked for, there
  /// is more. A drop of many blocks at once is a gap. Requires: has_events().
  void read_events(std::uint64_t from, EventPage& page) const;
  /// All blocks of memory, then those of the disk, in no order.
  struct BlockCursor {
    Tier tier = Tier::kMemory;
    std::uint32_t next = 0;
    bool is_done = false;
  };
  /// Appends some of the blocks that are here, as stored, until `cursor` is done; sets page.next to the number of the
  /// next change. What changes between the calls may be missed, or come twice: apply what changed since the first one.
  void list_blocks(BlockCursor& cursor, EventPage& page) const;

  // -- why something is not here (store_misses.cc)
  struct Miss {
    std::size_t memory_block_count = 0, disk_block_count = 0;  ///< As Match.
    MissKind why = MissKind::kUnknown;  ///< Of the first block behind these. kUnknown: all of the chain is here.
    Duration left{};                    ///< It left, or was refused, so long ago.
    Duration idle{};                    ///< And had not been used for so long by then; of an evicted one.
    Duration remembers{};               ///< kNotRemembered: had it left in this time, that would be known.
    SpaceTraffic traffic;               ///< Of the namespace.
  };
  /// Looks as match() does, and says why the chain ends where it does; of a set, the first name that is not here is
  /// explained, and what is given before it counts. Marks and counts nothing. Errors: as match.
  Result<Miss> explain(SpaceId space, std::span<const BlockHash> hashes, TimePoint now);
  struct SpaceLook {
    NamespaceId name;
    std::shared_ptr<const NamespaceRecord> record;
    bool has_chain = false;  ///< All of the chain that was looked for is here.
    std::uint64_t block_count = 0;
    SpaceTraffic traffic;
  };
  static constexpr std::size_t kLookedForMax = 64;     ///< Blocks of a chain.
  static constexpr std::size_t kLookedInPerCall = 64;  ///< Namespaces: some 100 us.
  /// The next kLookedInPerCall namespaces, by name as in list_spaces(): of those of chains, or of sets, whether `chain`
  /// (kLookedForMax blocks at most; names of a set) is in them. `owner`: those of others are left out; nullptr: none
  /// is. Moves `after` to the last one looked at; false: there are no more.
  bool look_in_spaces(bool are_sets, std::span<const BlockHash> chain, const std::string* owner,
                      std::optional<NamespaceId>& after, std::vector<SpaceLook>& looks) const;

  // -- retention
  /// Marks the longest prefix as used. Returns its block count.
  Result<std::size_t> touch(SpaceId space, std::span<const BlockHash> hashes, TimePoint now);
  /// Keeps the longest prefix until unretain or drop. Returns its block count. Idempotent. Errors: kBusy if more than
  /// retained_fraction_max would be kept; then nothing changed. `*fresh` (may be nullptr) gets, of a set, the names
  /// that were not retained before: to undo the first parts of a list.
  Result<std::size_t> retain(SpaceId space, std::span<const BlockHash> hashes, std::vector<BlockHash>* fresh = nullptr);
  /// Takes retention off the blocks of the longest prefix. Returns how many had it.
  Result<std::size_t> unretain(SpaceId space, std::span<const BlockHash> hashes);
  /// For the end: from here on nothing is kept from eviction, by contexts neither.
  void unretain_all();

  // -- named contexts (store_contexts.cc)
  // An owner's prefixes of chains that are kept in memory for a time, each under a name. What is kept counts as
  // retained: within retained_fraction_max and the tenant's limit, once for all contexts and requests that keep it; the
  // last of them lets it go. A drop ends it for all of them. Where the bounds have no room for a block, contexts of the
  // same owner and lower priority give up blocks for it, the lowest first and of equals the latest; each from its
  // chains' ends, and only what nobody else keeps. They keep them again when there is room.
  struct ContextOrder {
    std::string owner, name;
    std::vector<std::string> tags = {};
    SpaceId space{};
    std::vector<BlockHash> hashes;                 ///< One chain,
    std::vector<std::uint32_t> chain_counts = {};  ///< or several, each of so many blocks, all hashes in all.
    ContextLife life;
    std::uint8_t priority = kContextPriorityDefault;  ///< At most kContextPriorityMax.
    ContextPlace place = {};
  };
  /// A context as it is now.
  struct ContextView {
    std::string name;
    std::vector<std::string> tags;
    std::shared_ptr<const NamespaceRecord> record;
    std::size_t wanted_count = 0, kept_count = 0;  ///< Blocks.
    /// Why fewer are kept than wanted: kNotFound, they are not in memory, so far; kBusy, retained_fraction_max;
    /// kOverQuota, the tenant's limit. 0: all are.
    Errc why{};
    std::uint64_t lost_count = 0;     ///< Blocks that were kept, and dropped.
    std::uint64_t yielded_count = 0;  ///< Blocks that were kept, and given up for contexts of higher priority.
    ContextLife life;
    std::uint8_t priority = kContextPriorityDefault;
    TimePoint created{}, end{};
    std::optional<TimePoint> used;
    std::uint64_t written_tokens = 0, read_tokens = 0;
    double stored_token_seconds = 0;
    bool is_warming = false;
    /// Of find_context() and warm_context(): the leading blocks that memory has, kept or not, and those that follow on
    /// disk.
    std::optional<std::size_t> memory_count = {}, disk_count = {};
  };
  /// Keeps what memory has of the chains, the leading blocks of each; what comes later is kept when tend_contexts()
  /// gets there. A context of that name is replaced: it ends in the same step, whatever it was for. Errors:
  /// kNoNamespace, kUnsupported (a set), kTooLarge (chain_blocks_max), kBadRequest (no name or hashes, counts that do
  /// not cut them or are more than kContextChainsMax, a life that is not 1 ns to kContextTtlMax), kOverQuota and kBusy
  /// (StoreConfig::contexts); then nothing changed, and the words name what was given, and the bound that it is over.
  Result<ContextView, Failure> create_context(ContextOrder order, TimePoint now);
  /// Another life, from now on, and another priority if one is given. Errors: kNotFound, the owner has no such context;
  /// kBadRequest.
  Result<ContextView> extend_context(std::string_view owner, std::string_view name, ContextLife life, TimePoint now,
                                     std::optional<std::uint8_t> priority = std::nullopt);
  /// As it was last; what it kept is let go by and by. Errors: kNotFound.
  Result<ContextView> delete_context(std::string_view owner, std::string_view name, TimePoint now);
  Result<ContextView> find_context(std::string_view owner, std::string_view name, TimePoint now);
  /// And what it is of.
  struct ContextContent {
    ContextId id{};  ///< Of another one of the same name it is another.
    HashList hashes;
    ContextPlace place;
    std::vector<std::uint32_t> chain_counts;
  };
  Result<std::pair<ContextView, ContextContent>> tell_context(std::string_view owner, std::string_view name,
                                                              TimePoint now);
  /// The owner's next ones by name, behind `after` ("": from the first on).
  std::vector<ContextView> list_contexts(std::string_view owner, std::string_view after, std::size_t count_max,
                                         TimePoint now);
  /// Ends all that the owner has, some of them in each call; false: that was all.
  bool delete_contexts(std::string_view owner, TimePoint now);
  /// Has what the disk has of the context brought to memory (next_to_warm), or no more of it. Without a disk tier there
  /// is nothing to bring. Errors: kNotFound.
  Result<ContextView> warm_context(std::string_view owner, std::string_view name, bool is_wanted, TimePoint now);
  /// Blocks of a context to be read, offered as admitted, and committed. Then keep_context(), end_put() and unpin().
  struct WarmWork {
    ContextId context{};
    SpaceId space{};
    NamespaceId space_name;
    HashList hashes;
    std::size_t first = 0, count = 0;  ///< In `hashes`: the chain, up to the last block of this work.
    PinnedPrefix pinned;               ///< Of that chain; on disk all of them.
    std::span<const BlockHash> chain() const { return hashes.view().subspan(first, count); }
  };
  /// Some `bytes_max` that the next of the contexts in turn lacks, as far as the bounds on what is kept have room for
  /// them: so what goes for them goes for what is kept. Nothing: there is nothing, now.
  std::optional<WarmWork> next_to_warm(std::uint64_t bytes_max, TimePoint now);
  bool is_warming(ContextId context) const;
  std::size_t warming_count() const;
  /// Keeps what has come of it. True: there is more of it, call again.
  bool keep_context(ContextId context, TimePoint now);
  /// What was promised to be kept, and is not.
  struct ContextNews {
    std::string owner, name;
    std::size_t wanted_count, kept_count;
    std::uint64_t lost_count, yielded_count;
    Errc why;
  };
  /// Ends contexts whose time is over, lets go what they kept, and looks at some of the others: whether a drop has
  /// taken blocks of theirs, and whether more can be kept now. Call this every so often. Each shortfall is told once.
  std::vector<ContextNews> tend_contexts(TimePoint now);
  // Over a restart (context_file.h).
  /// The first two grow with each change: orders and ends; uses, which may put off an end, and are figures.
  struct ContextChanges {
    std::uint64_t orders = 0, uses = 0;
    std::size_t count = 0;  ///< Contexts.
  };
  ContextChanges context_changes() const;
  /// Appends the next contexts behind `after`, which moves on, some in each call; false: that was all. What changes
  /// between the calls may be missed, or come as it was.
  bool copy_contexts(ContextId& after, std::vector<KeptContext>& kept, TimePoint now);
  /// kEnded: its time is over, and it counts as expired. kRefused: there is one of that name, no room for it, or what
  /// create_context() would not take.
  enum class Restored : std::uint8_t { kBack, kEnded, kRefused };
  Restored restore_context(KeptContext kept, TimePoint now);
  std::vector<ContextTotals> context_totals() const;  ///< Stored seconds as of the last look at each.
  /// Forgets the last of `hashes` and all blocks below it, if all of `hashes` are here; with no hashes, the whole
  /// namespace. For blocks of a set see erase(). When this returns, no match finds any of them: not those being moved,
  /// leased or retained either. Slots are freed in bounded steps, those of pinned blocks when the last pin ends. What a
  /// load has yet to find is dropped when it is found. Returns how many blocks were dropped by this call; while
  /// is_dropping(), drop_more() goes on and returns how many more (of all drops under way together). On disk they are
  /// erased by and by: `*kept` (may be nullptr) is what the disk must keep, durably, so that a restart before then does
  /// not find them; also when nothing was dropped here, since evicted blocks may lie there.
  Result<std::size_t> drop(SpaceId space, std::span<const BlockHash> hashes, DiskDrop* kept = nullptr);
  bool is_dropping() const;
  std::size_t drop_more(TimePoint now);

  // -- disk tier
  void set_disk_places(std::vector<DiskPlace> places,
                       std::span<const DiskPlace> leaving = {});  ///< Disk::places() and leaving(), as they change.
  /// As spill_work(), of what lies in a directory that leaves (Spiller::drain).
  SpillWork drain_work(DiskPlace place, std::uint64_t bytes_max, TimePoint now);
  DiskTier::PlaceUse disk_place_use(DiskPlace place) const;
  std::size_t evict_from_disk(std::uint64_t bytes, TimePoint now);  ///< As DiskTier::evict_oldest.
  /// Some of its blocks, with those below them: how many. Until disk_place_use() says that there are none.
  std::size_t give_up_disk_place(DiskPlace place, TimePoint now);
  void forget_disk_place(DiskPlace place);  ///< As DiskTier::forget_place.
  /// Whether memory is short, of bytes or of slots of some size, so that spill_work() has something to do.
  bool wants_spill() const;
  /// What to do on disk now, as Spiller::next; finish_spill() must follow.
  SpillWork spill_work(std::uint64_t bytes_max, TimePoint now, bool everything = false);
  std::size_t finish_spill(const SpillWork& work, const SpillOutcome& outcome);  ///< How many blocks were lost.
  bool is_on_disk(BlockId block) const;  ///< Of a pinned block of the disk tier: false once it was dropped.
  struct FailedRead {
    DiskKey moved_to{};         ///< Not 0: the block was moved meanwhile and lies here; read again.
    bool is_forgotten = false;  ///< It still lay there; now it is forgotten, with all blocks below it.
  };
  /// A spilled block was not found under `key`, or was damaged.
  FailedRead read_failed(BlockId block, DiskKey key);

  struct ScrubBlock {
    BlockId id;
    DiskKey key;
    NamespaceId space;
    BlockHash hash;
    std::uint64_t seed;  ///< checksum_seed of the block.
    std::size_t block_bytes;
  };
  /// Blocks on disk whose turn it is to be read and verified, oldest first; call read_failed() for damaged ones. Moves
  /// the cursor on, and back to its default once it has been through all of them. Looks at `entries_max` keys, dead
  /// ones included: the result may be empty before the end.
  std::vector<ScrubBlock> blocks_to_scrub(DiskTier::Cursor& cursor, std::size_t entries_max) const;

  /// Puts what a disk holds into the index, while the node serves. In this order: begin_load(), before any
  /// spill_work(), with the disk's epoch; load_namespace() for each that the disk names; load_spilled() with the
  /// records newest first, some hundred a call, until there is no room for older ones or there are no more; end_load().
  /// A load that broke off may start again from the newest record. A namespace is opened with the first of its blocks;
  /// when there are too many, those used longest ago are lost. `drops`: Disk::drops().
  void begin_load(TimePoint now, std::uint32_t epoch, std::span<const DiskDrop> drops = {});
  void load_namespace(const NamespaceRecord& record);
  struct Loaded {
    bool has_room = true;
    bool again = false;  ///< More blocks found their place than fit one call: call with no records until this is false.
  };
  Loaded load_spilled(std::span<const DiskRecord> records);
  /// `is_whole`: the load saw everything, or as much as there is room for; what it did not see is dropped. Not whole,
  /// after an error or a stop: what it did not see stays for the next start. Returns how many blocks came back.
  std::uint64_t end_load(bool is_whole);

  // -- housekeeping
  /// Ends leases that are over and goes on with freeing what was let go, some of it in each call. Call this every so
  /// often; match and offer do the same on the side.
  void expire_leases(TimePoint now);
  /// Ends every lease and put of a session. No move of the session may be running. Of many leases, the last ones end
  /// with the calls that follow.
  void end_session(SessionId session);

  /// Goes on with what the policy and the curve learn from what was asked for: some 30 us, of which no request has any.
  /// Returns whether there is more. Call it often, again and again until it returns false, and let others in between
  /// two calls. What is not learned in time is not learned (StoreStats::unlearned_uses).
  bool learn();

  StoreStats stats() const;
  /// What the hit rate would be by capacity; nothing if that is turned off. Some ten microseconds.
  struct Curve {
    HitCurve::Report report;
    std::uint64_t block_bytes = 0;  ///< On average, as a point's block_count was made from the bytes there are.
  };
  std::optional<Curve> curve() const;
  /// Which blocks are learned from. Changes with the capacity, so it is asked for again and again.
  std::optional<NameSample> sample() const;
  std::optional<PrintSample> curve_sample() const;
  // Several nodes learn together (count_pool.h). What this one has counted; nullptr: its policy counts nothing. Copy it
  // in parts, some ten classes under one lock.
  const YieldTable* yield_table() const;
  std::uint64_t age_clock() const;  ///< Blocks that were offered so far, as the policy counts them.
  /// What others have counted, in ages of yield_table()->unit(), in place of what was told before.
  void set_pooled(YieldTable::Pooled pooled);
  /// What the node had counted before a restart (read_learned): learned from besides, until it is forgotten.
  void set_before(YieldCounts counts);
  /// Checks every invariant that can be checked; for tests and simulation. Returns an empty string or what is broken.
  std::string check() const;

 private:
  using Space = SpaceTable::Space;
  struct Put;
  struct Impl;
  class SetPinning;
  explicit Store(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kv
