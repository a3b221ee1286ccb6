// store/: blocks, slots, leases, eviction. Start here.
//
// Independent of sockets, threads and clock, and of the disk but for its interface: callers pass the time in and move
// the bytes. The daemon around the Store is the room store/node/. Files, in reading order:
//   store.h         a node's contents and decisions: match, pin, offer, commit, evict, spill (this file)
//   store_impl.h    the parts of a Store, for its code in store.cc, store_put.cc (a block enters), store_set.cc and
//                   store_set_put.cc (blocks that stand alone), store_spill.cc (blocks on disk), store_paths.cc (paths
//                   to hand on to other nodes), store_look.cc (views for people), store_misses.cc (reasons of misses),
//                   store_capacity.cc (capacity and limits at run time) and store_figures.cc; tests/checks/ recounts it
//   size_class.h    the slot length for a set's block
//   block_pool.h    the blocks in memory: their names and their slots, kept in step
//   arena.h         the memory for the bytes
//   count_pool.h       sums of the counts of a cluster's nodes; yield_counts.h: their wire form
//   eviction_policy.h  a block's worth: by its last use, or by the hits expected of it (yield_policy.h, made of
//                   yield_table.h, reuse_shadow.h, ghost_table.h and age_clock.h); block_sample.h: which
//                   blocks policy and curve learn from
//   evictor.h       which block goes when a slot is wanted
//   hit_curve.h     the hit rate with less or more memory (use_order.h, heavy_blocks.h, shadow_cache.h)
//   lease_table.h   promises to clients, and their ends
//   context_table.h  prefixes kept by name, with owner and end (context.h, context_ends.h; store_contexts.cc);
//                   context_file.h: contexts over a restart
//   space_table.h   the namespaces, and which of them may be forgotten
//   tenant_table.h  each tenant's share, and whose blocks may go for whom
//   disk.h          the interface of a disk
//   disk_tier.h     the blocks on disk, and which of them go
//   spiller.h       the next blocks to write to disk
//   spill_loader.h  loading the disk's blocks after a restart
//   event_log.h     recent changes, for routers (store_events.cc)
//   departed_table.h  when and why blocks left; root_sample.h: which first blocks are asked for, and which stored
//   tree_sums.h     size and use of the trees, from a sample
//
// Follow a block (get): it enters as a hash in pin_prefix() and leaves as pinned bytes, which a mover then sends.
// Follow a block (put): it enters as a hash in offer(), gets a slot for a mover, and becomes visible in commit().
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
  std::size_t lease_count_max = 65536;  ///< Of the node.
  std::size_t lease_count_per_session_max = 1024;
  std::size_t namespace_count_max = 1024;  ///< Counts namespaces with blocks and remembered idle ones.
  double retained_fraction_max = 0.5;      ///< Share of the arena that retain() and contexts may keep.
  ContextLimits contexts;
  double leased_fraction_max = 0.5;      ///< Share of the arena that leases may keep; shared blocks count once.
  std::size_t chain_blocks_max = 65536;  ///< Per request.
  /// Bound on StoreStats::index_used_bytes; beyond it, blocks are evicted as if the arena were full. Blocks on disk get
  /// at most half. 0: 256 MiB plus a 16th of the arena.
  std::size_t index_bytes_max = 0;
  std::uint64_t hash_seed = 0;  ///< As in PrefixIndex.
  bool has_tenants = false;     ///< Namespaces belong to the `tenant` of their record, and set_tenants() may be called.
  /// The minimum charge of a block to its tenant. A 32nd of this charge must cover a block's entry in the index.
  std::uint64_t tenant_charge_min = 8192;
  PolicyKind policy = PolicyKind::kLru;
  /// kYield acts as LRU while requests name parts of chains whose rest is on other nodes, and counts are not pooled.
  bool lru_unless_pooled = false;
  HitCurveConfig curve;
  std::size_t departed_count_max = 262144;  ///< Remembered blocks that left; 8 bytes each (departed_table.h).
  std::size_t event_count_max = 0;          ///< Changes in the log, 80 bytes each (event_log.h). 0: off.
  DiskTierConfig disk;                      ///< Without capacity: no disk tier.
  SpillerConfig spill;
};

/// Counters since start and gauges now. Counters only grow.
struct StoreStats {
  std::uint64_t capacity_bytes = 0, allocated_bytes = 0, slab_bytes = 0;  ///< slab_bytes: granules of classes.
  std::uint64_t block_count = 0, staged_count = 0, pinned_count = 0, lease_count = 0, namespace_count = 0;
  std::uint64_t set_block_count = 0, set_bytes = 0;  ///< The sets' blocks, and the sum of their lengths.
  std::uint64_t leased_bytes = 0;  ///< Blocks kept by leases, each counted once; at most leased_fraction_max.
  std::uint64_t index_bytes = 0;   ///< Heap, including free entries for later blocks.
  std::uint64_t index_used_bytes = 0, index_bytes_max = 0;
  std::uint64_t forgotten_namespaces = 0;
  std::uint64_t match_hit_blocks = 0, match_disk_blocks = 0, match_miss_blocks = 0;
  std::uint64_t get_hit_blocks = 0, get_disk_blocks = 0, get_miss_blocks = 0;
  std::uint64_t stored_blocks = 0, already_stored_blocks = 0, refused_blocks = 0, put_conflict_blocks = 0;
  std::uint64_t not_admitted_blocks = 0;  ///< Not counted in refused_blocks.
  std::uint64_t unlearned_uses = 0;       ///< Uses in the policy's sample that it did not learn; see Store::learn().
  /// Incomplete chain matches, by why the first missed block was absent; [0]: found no block, [1]: found some.
  std::array<std::array<std::uint64_t, kMissKindCount>, 2> match_misses{};
  std::uint64_t evicted_blocks = 0, evicted_bytes = 0, dropped_blocks = 0, slab_moves = 0;
  std::uint64_t leases_granted = 0, leases_expired = 0, leases_refused = 0;
  std::uint64_t work_steps = 0;
  std::uint64_t work_steps_call_max = 0;  ///< The largest number of steps of one call since the start. A gauge.
  /// [i]: evicted 2^i..2^(i+1) ms after their last use ([0]: under 2 ms; the last entry is open).
  std::array<std::uint64_t, 32> eviction_age_log2_ms{};
  struct SizeClass {
    std::uint64_t block_bytes, slot_count, used_count, slab_count;
  };
  std::vector<SizeClass> classes;
  std::uint64_t disk_block_count = 0;  ///< Includes blocks that are also in memory.
  std::uint64_t disk_only_bytes = 0;   ///< Bytes of blocks that lie only on disk; the disk capacity bounds these.
  std::uint64_t disk_log_bytes = 0;    ///< All written bytes whose segment is not given back, dead blocks included.
  std::uint64_t spilled_blocks = 0, disk_evicted_blocks = 0, rewritten_blocks = 0;
  std::uint64_t spill_skipped_blocks = 0;   ///< Evicted unwritten: never used again, or unlikely to be.
  std::uint64_t lost_unspilled_blocks = 0;  ///< Evicted unwritten because the disk was too slow or off.
  std::uint64_t lost_blocks = 0;            ///< Became unreadable on disk.
};

struct NamespaceStats {
  SpaceId id;
  std::string record;                      ///< Canonical text.
  std::uint64_t block_count, total_bytes;  ///< All its blocks; a set's count with their lengths.
  SpaceTraffic traffic = {};
  RootSample::Counts roots = {};
};

/// A node's blocks and all decisions about them. Reached only through LockedStore (store/node/), for microseconds.
///   1. A block that match or pin_prefix finds was committed with checksums and has never changed since.
///   2. A slot is reused only when its block is unpinned: no lease, no running move, no put below it.
///   3. offer() refuses for lack of memory only if every block is pinned. A block with a pinned block below counts as
///      pinned. With several block sizes: only if every run of granules that fits its slab has a pin.
///   4. Among blocks of one size, eviction takes leaf ends in the policy's order (eviction_policy.h). Between sizes
///      memory moves by slabs, when the ages of the next victims are far apart (evictor.h).
///   5. StoreStats::allocated_bytes = blocks linked + staged + unlinked but pinned, byte for byte; a set's blocks count
///      with their slots (size_class.h).
///   6. StoreStats::leased_bytes = all blocks at and above a leased one, each once, byte for byte; dropped ones count
///      while they are in memory. At most leased_fraction_max of the arena.
///   7. A block of a set has one length for as long as its name is here, in memory or on disk. Chains and sets share
///      memory, disk and one order of use.
///   8. match_set and pin_set find a group of names (index/name_groups.h) whole or not at all, and mark its members as
///      used at one moment. When a put offers a group, its missing members are linked in one step, once all of the
///      group is here; or not at all. A group with an evicted member is a miss. Groups are not recorded: members used
///      together have one age, so eviction takes those of one size one after another, and those of another size when
///      their turn comes. Restarts and the disk do not see groups.
///   9. With tenants: a put never evicts from memory a block of another tenant that is within its guarantee. A tenant
///      has at most its maximum, unless that was lowered since. tenant_table.h has the rules.
/// Every call does a bounded amount of work: everything for the blocks it names, and at most kStepsMax steps
/// (index/steps.h) of the work that grows with the Store: looking for memory, evicting, dropping, ending leases. Later
/// calls do the rest; OfferPlan::again and is_dropping() report that there is more. `now` may go back between calls
/// only by as long as the callers wait for the lock. Not thread-safe.
class Store {
 public:
  static constexpr Duration kIdleMax = std::chrono::hours(24 * 30);
  static constexpr std::size_t kStepsPerCall = 8192;  ///< Some 100 us.
  /// The last piece of work may exceed the remaining budget by at most the blocks of one split edge, or the edges above
  /// one block whose lease ends. Twice the budget covers both.
  static constexpr std::size_t kStepsMax = 2 * kStepsPerCall;

  static Result<std::unique_ptr<Store>> create(const StoreConfig& config);
  ~Store();
  std::span<std::byte> memory() const;  ///< The memory of all slots, at a fixed address.

  // -- another capacity and other limits at run time
  // Growing: commit the pages, then set_capacity(). Shrinking: set_capacity(); then relocate(), copy and
  // end_relocation() until is_shrunk(); then discard the pages. In steps of a GiB, which bounds the cost.
  struct CapacityBounds {
    std::uint64_t now_bytes, min_bytes, max_bytes, granule_bytes;  ///< min: the largest block of any namespace.
  };
  CapacityBounds capacity_bounds() const;
  /// Errors: kUnsupported without ArenaConfig::capacity_bytes_max; kBadRequest if `bytes` is 0, not a multiple of a
  /// granule, or over the maximum; kTooLarge if blocks of a namespace would not fit.
  Result<void> set_capacity(std::size_t bytes);
  ArenaMemory& pages();  ///< For commit and discard, by one caller at a time, without the lock.
  /// A block behind the capacity, and its new place. Both are pinned: copy without the lock.
  struct Relocation {
    BlockId block;
    SlotId to;
    std::span<const std::byte> from;
    std::span<std::byte> into;  ///< As long as `from`.
  };
  /// The next blocks to move, about `bytes_max`. Makes room as a put does, by evicting the blocks of least worth.
  /// Empty: call again at once, or, if the remaining blocks are in use, after a pause. `may_lose`: as OfferOptions.
  std::vector<Relocation> relocate(std::size_t bytes_max, bool may_lose, TimePoint now);
  /// The blocks were copied. A block that came into use meanwhile keeps its place, for a later call.
  void end_relocation(std::span<const Relocation> relocations);
  bool is_shrunk();  ///< All blocks lie within the capacity.
  /// Applies the members of StoreConfig that may change at run time. A lowered bound does not end existing holdings.
  void set_limits(const StoreConfig& config);

  // -- namespaces
  /// Opens or finds the namespace, for `session` (0: none) until end_session(). At namespace_count_max an idle
  /// namespace makes room: one without puts and without blocks in memory or on disk; those without sessions go first,
  /// in order of last use. A later request by the number of a forgotten namespace gets kNoNamespace, and may open it
  /// again. Errors: kBusy if all are busy; kTooLarge if not even one block fits the arena; kOverQuota if its tenant's
  /// namespaces are at the maximum and all busy.
  Result<SpaceId> open(const NamespaceRecord& record, SessionId session = {});
  /// nullptr if the namespace is unknown, or was forgotten.
  std::shared_ptr<const NamespaceRecord> find_namespace(SpaceId space) const;
  std::size_t namespace_count() const;
  std::vector<NamespaceStats> namespaces() const;
  /// Forgets a namespace without blocks and puts, even if a session has it open. False: it is not idle, or unknown.
  bool forget(SpaceId space);

  // -- tenants, for a Store with has_tenants
  /// Replaces the limits of all tenants.
  void set_tenants(const std::vector<TenantLimits>& limits);
  std::vector<TenantStats> tenants() const;  ///< By name. Empty without has_tenants.

  // -- match
  struct MatchOptions {
    SessionId session{};
    bool lease = false;  ///< Pins the found blocks until the lease ends.
    /// Token ids of the blocks `hashes`, block_size each, and of some or all of the blocks that follow. Only for a
    /// chain without gaps (see PrefixIndex::match_partial). Where the ids end, partial matching ends.
    std::span<const std::uint32_t> token_ids = {};
    /// extra_digest() of each of `hashes`, and one more for the block that follows. Empty: without extras; in a
    /// namespace of an engine's own hashes the extras are unknown then, which rules out a partial match.
    std::span<const ExtraDigest> extras = {};
    ReuseHint hint = ReuseHint::kNone;  ///< When the blocks will be asked for again.
    ChainPart chain = {};               ///< The part of a chain that the hashes are.
    bool is_elsewhere = false;          ///< They belong to another node: an absent block does not count as missed here.
    /// Looked up before the call, as samples() says. nullptr: the call looks them up.
    const SampledNames* sampled = nullptr;
  };
  struct Match {
    std::size_t memory_block_count = 0;  ///< Leading blocks in memory; a lease covers these.
    std::size_t disk_block_count = 0;    ///< The blocks after them that are on disk.
    std::size_t known_block_count = 0;   ///< Leading blocks that are here, or left recently.
    LeaseId lease{};                     ///< 0 if not asked for or not granted.
    /// Why a lease asked for on found blocks was not granted: kBusy, at a limit of leases or leased_fraction_max;
    /// kOverQuota, at the tenant's limit.
    Errc lease_error{};
    std::size_t partial_token_count = 0;  ///< Leading token ids shared with a stored block that follows the prefix.
    BlockHash partial_block{};            ///< That block's hash; valid if partial_token_count > 0.
  };
  /// Finds the longest prefix of `hashes` held, and marks it as used. With `token_ids` also finds, among stored blocks
  /// of the same extra, the one that shares the most leading tokens with the block that follows; that block is neither
  /// leased nor marked. Errors: kNoNamespace, kTooLarge (chain_blocks_max), kBadRequest (extras do not fit the hashes).
  Result<Match> match(SpaceId space, std::span<const BlockHash> hashes, const MatchOptions& options, TimePoint now);
  /// Ends a lease early. Errors: kStaleLease.
  Result<void> release(SessionId session, LeaseId lease);

  // -- get
  struct PinnedBlock {
    BlockId id;
    std::uint32_t index;                       ///< Index of its hash in the call.
    std::span<const std::byte> bytes;          ///< In the arena; stable and constant while pinned.
    std::span<const std::uint64_t> checksums;  ///< One per stripe.
  };
  struct SpilledBlock {
    BlockId id;
    std::uint32_t index;  ///< As in PinnedBlock.
    DiskKey key;
    std::uint64_t seed;
    std::uint32_t block_bytes;
    bool promote;  ///< The block should be in memory: offer and commit it once it is read.
  };
  /// The pins that unpin() ends: a chain's prefix, or a set's found blocks.
  struct PinnedPrefix {
    std::vector<PinnedBlock> blocks;    ///< First to last.
    std::vector<SpilledBlock> spilled;  ///< On disk: a chain's next, or a set's others.
    SpaceKind kind = SpaceKind::kChain;
  };
  struct GetOptions {
    SessionId session{};
    LeaseId lease{};       ///< Released in the same step. An ended one is ignored: the blocks are looked up anyway.
    bool disk = false;     ///< Also finds blocks on disk.
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
    std::span<std::byte> bytes;    ///< Only the put's owner fills these, without the lock.
    std::uint64_t seed;            ///< checksum_seed of the block.
    bool completes_group = false;  ///< For a put with groups: the last wanted block of its group.
  };
  struct OfferPlan {
    PutId put{};                   ///< 0 when every block is here already. Otherwise end_put must be called.
    std::size_t stored_count = 0;  ///< Leading blocks already here at the offer; for a set, all that are here.
    /// Wanted now: consecutive in the chain, after the blocks that were here or staged before. For a set: in order.
    std::vector<StagedBlock> staged;
    std::vector<std::uint32_t> wanted;  ///< Sets only, and only in the offer: the indices of all absent blocks.
    std::size_t refused_count = 0;      ///< The rest of the chain, refused for now.
    /// Why some are refused. kOutOfMemory passes. kTooLarge is permanent: the number of slot sizes is at its maximum.
    /// kNotAdmitted holds for this put: the policy gives the victims more worth. kOverQuota passes: the tenant has its
    /// maximum of memory, all of it pinned.
    Errc refused_why = Errc::kOutOfMemory;
    /// Some were refused only because this call reached its bound on work: call offer_more at once.
    bool again = false;
  };
  struct OfferOptions {
    SessionId session{};
    std::span<const std::uint32_t> positions = {};  ///< Per hash, strictly increasing; empty: 0, 1, 2, ...
    std::span<const std::uint32_t> token_ids = {};  ///< hashes.size() * block_size ids, or empty.
    /// extra_digest() of each block, or empty: as in a match. In a namespace of an engine's own hashes token ids are
    /// kept only together with extras.
    std::span<const ExtraDigest> extras = {};
    /// Time since the blocks' last use elsewhere; here they count as used then too. At most kIdleMax is believed.
    Duration idle{};
    /// Whether blocks that are not on disk may be evicted. If not, offered blocks that would need such an eviction are
    /// refused: try again when the disk has caught up.
    bool may_lose = true;
    ReuseHint hint = ReuseHint::kNone;
    ChainPart chain = {};
    bool is_admitted = false;  ///< A context keeps them: never kNotAdmitted.
  };
  /// Token ids are kept only if small beside the block. Without them, it has no partial matches.
  static constexpr std::size_t kept_ids_bytes_max(std::size_t block_bytes) {
    return block_bytes / 4 > 1024 ? block_bytes / 4 : 1024;
  }
  /// Decides which blocks of the chain are wanted, and stages slots for them, evicting as needed. The prefix already
  /// here stays pinned until end_put. The spans are copied as far as needed. A plan that only refuses still has a put,
  /// to try again with. Errors: kNoNamespace, kTooLarge (chain_blocks_max), kBadRequest (empty hashes, or positions,
  /// token_ids, extras or chain do not fit them).
  Result<OfferPlan> offer(SpaceId space, std::span<const BlockHash> hashes, const OfferOptions& options, TimePoint now);
  /// Tries again to stage refused blocks; the plan has only this call's. Errors: kBadRequest for an unknown put.
  Result<OfferPlan> offer_more(PutId put, TimePoint now, bool may_lose = true);

  enum class CommitStatus : std::uint8_t { kStored, kAlreadyStored, kConflict, kRefused };
  /// Makes the next staged block (in chain order) visible. The caller computed `checksums` over the staged bytes after
  /// the last write to them, and they equal the writer's claim. In all cases but kStored this put's slot is freed.
  /// kAlreadyStored: another put stored the block meanwhile, with equal checksums. kConflict: with other checksums, and
  /// the first block is kept. In both cases the chain goes on below the stored block. kRefused: the block above was
  /// dropped meanwhile, and all that follow are refused as well.
  CommitStatus commit(PutId put, std::span<const std::uint64_t> checksums, TimePoint now);
  /// Frees the put's uncommitted slots and ends its pins. All moves into staged bytes must be over.
  void end_put(PutId put);

  // -- sets: namespaces of blocks that stand alone
  // match, pin_prefix and offer are for chains; match_set, pin_set and offer_set are for sets. The wrong kind is
  // refused (kUnsupported). The other calls with hashes apply to each hash in a set, and to the prefix in a chain. A
  // lease on a set counts as one for each block. Each name costs a lookup of its own, at least two cache misses: long
  // lists come in parts, one a call.
  enum class Held : std::uint8_t { kNowhere, kInMemory, kOnDisk };
  struct SetMatch {
    std::vector<Held> held;
    std::vector<std::uint32_t> lengths;  ///< Per hash; 0 if it is not held.
    LeaseId lease{};                     ///< On all blocks in memory, as Match::lease; released as a whole.
    Errc lease_error{};
  };
  struct SetMatchOptions {
    SessionId session{};
    bool lease = false;
    LeaseId rest{};  ///< The lease on the earlier parts; grows, or is released.
    /// How the hashes are cut into groups, each without repeats (check_groups); empty: each hash is alone. A lease
    /// covers the groups that are completely in memory.
    std::span<const std::uint32_t> group_counts = {};
    ReuseHint hint = ReuseHint::kNone;
  };
  /// Which of `hashes` are held; marks those as used. Errors: kNoNamespace, kTooLarge (chain_blocks_max), kUnsupported,
  /// kBadRequest (group_counts that do not cut this list).
  Result<SetMatch> match_set(SpaceId set, std::span<const BlockHash> hashes, const SetMatchOptions& options,
                             TimePoint now);
  struct SetGetOptions {
    SessionId session{};
    LeaseId lease{};  ///< Released once all hashes were looked up. As GetOptions::lease.
    bool disk = false;
    std::span<const std::uint32_t> rooms = {};  ///< Per hash: a longer block is not pinned. Empty: unbounded.
    std::uint64_t bytes_max = ~0ull;            ///< Stop behind the block, or group, that reaches this sum.
    std::size_t count_max = ~std::size_t{0};    ///< Stop before the number of hashes exceeds this. A first group is
                                                ///< always looked up whole.
    std::span<const std::uint32_t> group_counts = {};
  };
  struct PinnedSet {
    PinnedPrefix pinned;                 ///< In the order of the hashes, memory and disk each.
    std::size_t looked_count = 0;        ///< Hashes looked up so far. Go on with the rest.
    std::size_t looked_group_count = 0;  ///< The number of groups among them; 0 without group_counts.
    struct TooLong {
      std::uint32_t index, length;
    };
    std::vector<TooLong> too_long;  ///< Held, but longer than their rooms.
  };
  /// Pins the held blocks among `hashes` for a move, and marks them as used. Then as pin_prefix; unpin() ends it. A
  /// group is pinned only as a whole: not if a member is absent, on disk without `disk`, or longer than its room.
  Result<PinnedSet> pin_set(SpaceId set, std::span<const BlockHash> hashes, const SetGetOptions& options,
                            TimePoint now);
  struct SetOfferOptions {
    SessionId session{};
    std::span<const std::uint32_t> lengths;  ///< Per hash, 1 to the set's bound.
    bool may_lose = true;                    ///< As OfferOptions.
    /// Also wants blocks that lie only on disk, because a get has read them. Else they count as stored.
    bool promote = false;
    PutId put{};                                       ///< The put of the earlier parts, if they have one.
    std::uint32_t first = 0;                           ///< The index of hashes[0] in the whole list.
    bool is_part = false;                              ///< More parts follow: do not stage yet.
    std::span<const std::uint32_t> group_counts = {};  ///< As SetMatchOptions. The same for all parts.
    ReuseHint hint = ReuseHint::kNone;
  };
  /// As offer(): decides which blocks are wanted, and stages slots for them; offer_more, commit and end_put follow. A
  /// held name counts as stored, with any length. Commits come in the order of the plan. For a list in parts, each plan
  /// has the part's `wanted` and `stored_count`, and the last one has the rest. With groups a plan stages whole groups,
  /// their members already here stay pinned until the commit or the put's end, and commit_group() replaces commit().
  /// Errors: kNoNamespace, kTooLarge, kUnsupported, kBadRequest (empty hashes; lengths that do not fit them or the
  /// bound; group_counts that do not cut them; or a put of another session, set or list).
  Result<OfferPlan> offer_set(SpaceId set, std::span<const BlockHash> hashes, const SetOfferOptions& options,
                              TimePoint now);
  /// Makes the staged blocks of the next group visible, all at once: those up to the next that completes_group.
  /// `checksums` are theirs, one block's after another's; else as commit(). Returns the status of each. If the group
  /// cannot be whole, because one block is kConflict or an earlier member has gone, the others are kRefused.
  std::vector<CommitStatus> commit_group(PutId put, std::span<const std::uint64_t> checksums, TimePoint now);
  /// Drops each of `hashes`, as drop() does; drop_more() goes on. Appends to `*kept` the drops that the disk must keep.
  /// Requires at least one hash: an empty drop() means the whole namespace.
  Result<std::size_t> erase(SpaceId set, std::span<const BlockHash> hashes, std::vector<DiskDrop>* kept, TimePoint now);

  // -- paths, to hand on to other nodes
  /// A path is one tree's chain in memory from its first block to a leaf end. The id is valid while the hash matches.
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
  /// Appends the ends of paths used at `since` or later, some in each call until `cursor` is done. Changes between the
  /// calls may be missed, or come twice.
  void list_paths(PathCursor& cursor, TimePoint since, std::vector<PathEnd>& ends) const;
  /// The names of the path's blocks in order. Errors: kNotFound (the end is gone); kTooLarge (chain_blocks_max).
  Result<std::vector<BlockHash>> path_of(const PathEnd& end) const;
  /// The largest use count among the path's blocks behind its first `skipped`, the storing put included: more than 1
  /// means that a block was asked for again. Errors: as path_of.
  Result<std::size_t> path_uses(const PathEnd& end, std::size_t skipped) const;
  /// Pins the path as pin_prefix does, but does not mark it as used. Then unpin(). Errors: as path_of.
  Result<PinnedPrefix> pin_path(const PathEnd& end);

  // -- views for people
  // Views do not count as uses. Each call does some 100 us of work; the caller lets others in between two calls.
  using Tier = BlockTier;
  struct SpaceView {
    SpaceId id;
    NamespaceId name;
    std::shared_ptr<const NamespaceRecord> record;
    std::uint64_t block_count, total_bytes;  ///< In memory, as NamespaceStats.
    std::uint64_t disk_block_count;          ///< Includes blocks that are also in memory.
    SpaceTraffic traffic = {};
    RootSample::Counts roots = {};
  };
  static constexpr std::size_t kSpacesPerCall = 256;
  /// At most kSpacesPerCall namespaces in order of name, behind `after`, or (nullptr) from the first one on.
  std::vector<SpaceView> list_spaces(const NamespaceId* after) const;
  /// An edge of a namespace's tree: blocks that follow one another without a branch; its children hang below the last.
  struct EdgeView {
    static constexpr std::uint32_t kNoParent = 0xFFFFFFFF;

    SpaceId space{};
    BlockId first = kNoBlock;
    std::uint64_t name = 0;            ///< short_hash() of the first block: shows whether `first` is still the same.
    std::uint32_t parent = kNoParent;  ///< Index in the list of the edge above, always before this one.
    std::uint32_t block_count = 0, child_count = 0;
    std::uint32_t position = 0;  ///< Of the first block, in its whole prefix; 0 in a set.
    std::uint64_t bytes = 0;
    TimePoint used{};            ///< Last use of its end, or of an end below.
    std::uint8_t use_count = 0;  ///< Of its end, as Usage.
    std::uint32_t weight = 0;    ///< The number of blocks it stands for; 0 if it is listed only for an edge below.
    std::uint32_t copied = 0;    ///< How many of these are on disk too; for the disk tier, in memory too.
  };
  struct TreeScope {
    Tier tier = Tier::kMemory;
    std::optional<SpaceId> space = {};
    BlockId top = kNoBlock;      ///< With `space`: the edge that begins with this block, and all below.
    std::uint64_t top_name = 0;  ///< As EdgeView::name.
  };
  /// Blocks of a deeper edge count as those of the edge at this depth.
  static constexpr std::size_t kEdgesAboveMax = 64;
  /// Appends all edges in scope, if one call can visit them. Else returns false: take a sample. Requires: a scope with
  /// a namespace. Errors: kNoNamespace; kNotFound, if the top has gone.
  Result<bool> list_edges(const TreeScope& scope, std::vector<EdgeView>& edges) const;
  struct SampleCursor {
    std::uint32_t next = 0;
    std::uint32_t stride = 1;  ///< Each visited block stands for this many.
    bool is_done = false;
  };
  /// A cursor that visits at most `looks` blocks over all calls, including blocks out of scope.
  SampleCursor sample_cursor(Tier tier, std::uint32_t looks, std::uint64_t random) const;
  /// Appends blocks in scope, each as the edges from the top of the scope down to its own, some in each call until
  /// `cursor` is done. Changes between the calls may be missed, or come twice.
  void sample_edges(const TreeScope& scope, SampleCursor& cursor, std::vector<EdgeView>& edges) const;

  // -- changes, for routers that mirror the node's contents (store_events.cc)
  /// Appends some of the changes from number `from` on. All were read once page.next <= `from`. A drop of many blocks
  /// at once is a gap. Requires: StoreConfig::event_count_max > 0.
  void read_events(std::uint64_t from, EventPage& page) const;
  /// All blocks in memory, then those on disk, unordered.
  struct BlockCursor {
    Tier tier = Tier::kMemory;
    std::uint32_t next = 0;
    bool is_done = false;
  };
  /// Appends some of the node's blocks, as stored, until `cursor` is done; sets page.next to the number of the next
  /// change. Changes between the calls may be missed, or come twice: apply the changes since the first call.
  void list_blocks(BlockCursor& cursor, EventPage& page) const;

  // -- reasons of misses (store_misses.cc)
  struct Miss {
    std::size_t memory_block_count = 0, disk_block_count = 0;
    MissKind why = MissKind::kUnknown;  ///< Why the next block is absent. kUnknown: the whole chain is here.
    Duration left{};                    ///< Time since it left, or was refused.
    Duration idle{};                    ///< For an evicted block: how long it had been unused when it left.
    Duration remembers{};               ///< kNotRemembered: a departure within this time would be known.
    SpaceTraffic traffic;
  };
  /// Looks up as match() does, and explains why the chain ends; for a set, explains the first absent name and counts
  /// the names before it. Does not count as a use. Errors: as match.
  Result<Miss> explain(SpaceId space, std::span<const BlockHash> hashes, TimePoint now);
  struct SpaceLook {
    NamespaceId name;
    std::shared_ptr<const NamespaceRecord> record;
    bool has_chain = false;
    std::uint64_t block_count = 0;
    SpaceTraffic traffic;
  };
  static constexpr std::size_t kLookedForMax = 64;     ///< Blocks of a chain.
  static constexpr std::size_t kLookedInPerCall = 64;  ///< Namespaces; some 100 us.
  /// Reports whether `chain` (at most kLookedForMax blocks; names for a set) is in the next kLookedInPerCall namespaces
  /// of the kind, by name as in list_spaces(). `owner`: skip other owners' namespaces; nullptr: all. Moves `after` to
  /// the last one visited; false: it was the end.
  bool look_in_spaces(bool are_sets, std::span<const BlockHash> chain, const std::string* owner,
                      std::optional<NamespaceId>& after, std::vector<SpaceLook>& looks) const;

  // -- retention
  /// Marks the longest prefix as used. Returns its block count.
  Result<std::size_t> touch(SpaceId space, std::span<const BlockHash> hashes, TimePoint now);
  /// Keeps the longest prefix until unretain or drop. Returns its block count. Idempotent. Errors: kBusy, without
  /// changes, if more than retained_fraction_max would be kept. For a set, `*fresh` (may be nullptr) receives the newly
  /// retained names, to undo the first parts of a list.
  Result<std::size_t> retain(SpaceId space, std::span<const BlockHash> hashes, std::vector<BlockHash>* fresh = nullptr);
  /// Ends the retention of the longest prefix. Returns how many of its blocks had it.
  Result<std::size_t> unretain(SpaceId space, std::span<const BlockHash> hashes);
  /// For shutdown: neither retention nor contexts protect blocks from eviction any more.
  void unretain_all();

  // -- named contexts (store_contexts.cc)
  // Named prefixes of chains that an owner keeps in memory for a time. Kept blocks count as retained: within
  // retained_fraction_max and the tenant's limit, once for all contexts and requests that keep them; the last keeper
  // releases them. A drop ends the keeping for all. When the bounds have no room for a block, the same owner's contexts
  // of lower priority give up blocks for it, lowest priority first, and among equals the latest first; each from its
  // chains' ends, and only blocks without another keeper. They keep the blocks again when there is room.
  struct ContextOrder {
    std::string owner, name;
    std::vector<std::string> tags = {};
    SpaceId space{};
    std::vector<BlockHash> hashes;                 ///< One chain, unless chain_counts cuts it.
    std::vector<std::uint32_t> chain_counts = {};  ///< Lengths of several chains; hashes.size() in all.
    ContextLife life;
    std::uint8_t priority = kContextPriorityDefault;  ///< At most kContextPriorityMax.
    ContextPlace place = {};
  };
  struct ContextView {
    std::string name;
    std::vector<std::string> tags;
    std::shared_ptr<const NamespaceRecord> record;
    std::size_t wanted_count = 0, kept_count = 0;  ///< Blocks.
    /// Why fewer are kept than wanted: kNotFound, not in memory so far; kBusy, retained_fraction_max; kOverQuota, the
    /// tenant's limit. 0: all are kept.
    Errc why{};
    std::uint64_t lost_count = 0;     ///< Kept blocks that were dropped.
    std::uint64_t yielded_count = 0;  ///< Kept blocks given up for contexts of higher priority.
    ContextLife life;
    std::uint8_t priority = kContextPriorityDefault;
    TimePoint created{}, end{};
    std::optional<TimePoint> used;
    std::uint64_t written_tokens = 0, read_tokens = 0;
    double stored_token_seconds = 0;
    bool is_warming = false;
    /// Only from find_context() and warm_context(): leading blocks in memory, kept or not, and the next on disk.
    std::optional<std::size_t> memory_count = {}, disk_count = {};
  };
  /// Keeps the leading blocks of each chain that are in memory; tend_contexts() adds blocks that come later. Replaces a
  /// context of the same name, which ends in the same step. Errors: kNoNamespace, kUnsupported (a set), kTooLarge
  /// (chain_blocks_max), kBadRequest (an empty name or list, counts that do not cut them or are more than
  /// kContextChainsMax, a life that is not 1 ns to kContextTtlMax), kOverQuota and kBusy (StoreConfig::contexts).
  /// Unchanged after an error, whose text names the given value and the exceeded bound.
  Result<ContextView, Failure> create_context(ContextOrder order, TimePoint now);
  /// Sets another life, from now on, and, if given, another priority. Errors: kNotFound, kBadRequest.
  Result<ContextView> extend_context(std::string_view owner, std::string_view name, ContextLife life, TimePoint now,
                                     std::optional<std::uint8_t> priority = std::nullopt);
  /// Returns the context's last state; its blocks are released over later calls. Errors: kNotFound.
  Result<ContextView> delete_context(std::string_view owner, std::string_view name, TimePoint now);
  Result<ContextView> find_context(std::string_view owner, std::string_view name, TimePoint now);
  struct ContextContent {
    ContextId id{};  ///< A later context of the same name has another id.
    HashList hashes;
    ContextPlace place;
    std::vector<std::uint32_t> chain_counts;
  };
  Result<std::pair<ContextView, ContextContent>> tell_context(std::string_view owner, std::string_view name,
                                                              TimePoint now);
  /// The owner's next contexts by name, behind `after` ("": from the first on).
  std::vector<ContextView> list_contexts(std::string_view owner, std::string_view after, std::size_t count_max,
                                         TimePoint now);
  /// Ends all of the owner's contexts, some in each call; false: none are left.
  bool delete_contexts(std::string_view owner, TimePoint now);
  /// Starts or stops bringing the context's blocks from disk to memory (next_to_warm). Has no effect without a disk
  /// tier. Errors: kNotFound.
  Result<ContextView> warm_context(std::string_view owner, std::string_view name, bool is_wanted, TimePoint now);
  /// Blocks of a context to read, offer as admitted, and commit. Then keep_context(), end_put() and unpin().
  struct WarmWork {
    ContextId context{};
    SpaceId space{};
    NamespaceId space_name;
    HashList hashes;
    std::size_t first = 0, count = 0;  ///< In `hashes`: the chain, up to the last block of this work.
    PinnedPrefix pinned;               ///< Blocks of that chain, all on disk.
    std::span<const BlockHash> chain() const { return hashes.view().subspan(first, count); }
  };
  /// About `bytes_max` of blocks that the next context in turn lacks, as far as the bounds on kept bytes have room:
  /// evictions for these blocks thus serve kept blocks only. Empty: idle now.
  std::optional<WarmWork> next_to_warm(std::uint64_t bytes_max, TimePoint now);
  bool is_warming(ContextId context) const;
  std::size_t warming_count() const;
  /// Keeps the context's blocks that have come. True: more are left, call again.
  bool keep_context(ContextId context, TimePoint now);
  /// A context that keeps fewer blocks than promised.
  struct ContextNews {
    std::string owner, name;
    std::size_t wanted_count, kept_count;
    std::uint64_t lost_count, yielded_count;
    Errc why;
  };
  /// Ends contexts whose time is over, releases their blocks, and checks some of the others for dropped blocks and for
  /// more blocks to keep. Call this periodically. Each shortfall is reported once.
  std::vector<ContextNews> tend_contexts(TimePoint now);
  /// The first two count changes: `orders` counts orders and ends; `uses` counts uses, which may postpone an end.
  struct ContextChanges {
    std::uint64_t orders = 0, uses = 0;
    std::size_t count = 0;
  };
  ContextChanges context_changes() const;
  /// For context_file.h: appends some contexts behind `after` and moves `after` on; false: it was the end. Changes
  /// between the calls may be missed, or come in their old state.
  bool copy_contexts(ContextId& after, std::vector<KeptContext>& kept, TimePoint now);
  /// kEnded: its time is over, and it counts as expired. kRefused: its name is taken, or create_context() would refuse.
  enum class Restored : std::uint8_t { kBack, kEnded, kRefused };
  Restored restore_context(KeptContext kept, TimePoint now);
  std::vector<ContextTotals> context_totals() const;  ///< Stored seconds up to the last visit of each context.
  /// Forgets the last of `hashes` and all blocks below it, if all of `hashes` are here; without hashes, the whole
  /// namespace. For blocks of a set see erase(). When this returns, matches do not find these blocks, including blocks
  /// being moved, leased or retained. Slots are freed in bounded steps, those of pinned blocks when the last pin ends.
  /// A running load drops such blocks when it finds them. Returns how many blocks this call dropped; while
  /// is_dropping(), drop_more() goes on and returns how many more (of all drops under way together). Erasure on disk
  /// follows later: `*kept` (may be nullptr) is the drop that the disk must keep durably, so that a restart before then
  /// does not find the blocks. It is set even for 0 dropped blocks, because evicted ones may lie on disk.
  Result<std::size_t> drop(SpaceId space, std::span<const BlockHash> hashes, DiskDrop* kept = nullptr);
  bool is_dropping() const;
  std::size_t drop_more(TimePoint now);

  // -- disk tier
  void set_disk_places(std::vector<DiskPlace> places,
                       std::span<const DiskPlace> leaving = {});  ///< Disk::places() and leaving(), on each change.
  /// As spill_work(), for blocks in a leaving directory (Spiller::drain).
  SpillWork drain_work(DiskPlace place, std::uint64_t bytes_max, TimePoint now);
  DiskTier::PlaceUse disk_place_use(DiskPlace place) const;
  std::size_t evict_from_disk(std::uint64_t bytes, TimePoint now);  ///< As DiskTier::evict_oldest.
  /// Drops some of its blocks, with those below them, and returns how many. Call until disk_place_use() is 0.
  std::size_t give_up_disk_place(DiskPlace place, TimePoint now);
  void forget_disk_place(DiskPlace place);  ///< As DiskTier::forget_place.
  /// Whether memory is short of bytes, or of slots of some size, so that spill_work() has work.
  bool wants_spill() const;
  /// The next disk work, as Spiller::next; finish_spill() must follow.
  SpillWork spill_work(std::uint64_t bytes_max, TimePoint now, bool everything = false);
  std::size_t finish_spill(const SpillWork& work, const SpillOutcome& outcome);  ///< Returns the number of lost blocks.
  bool is_on_disk(BlockId block) const;  ///< For a pinned block of the disk tier: false once it was dropped.
  struct FailedRead {
    DiskKey moved_to{};         ///< Not 0: the block was moved meanwhile and lies here; read again.
    bool is_forgotten = false;  ///< It still lay under `key`; now it is forgotten, with all blocks below it.
  };
  /// A spilled block was not found under `key`, or was damaged.
  FailedRead read_failed(BlockId block, DiskKey key);

  struct ScrubBlock {
    BlockId id;
    DiskKey key;
    NamespaceId space;
    BlockHash hash;
    std::uint64_t seed;
    std::size_t block_bytes;
  };
  /// Blocks on disk due for reading and verification, oldest first; call read_failed() for damaged ones. Moves the
  /// cursor on, and after the last one back to its default. Visits `entries_max` keys, live or dead: may be empty
  /// midway.
  std::vector<ScrubBlock> blocks_to_scrub(DiskTier::Cursor& cursor, std::size_t entries_max) const;

  /// Puts a disk's blocks into the index, while the node serves. In this order: begin_load(), before any spill_work(),
  /// with the disk's epoch; load_namespace() for each namespace on the disk; load_spilled() with the records newest
  /// first, some hundred a call, until the tier is full or there are no more; end_load(). A load that broke off may
  /// start again from the newest record. A namespace is opened with the first of its blocks; when there are too many,
  /// those used longest ago are lost. `drops`: Disk::drops().
  void begin_load(TimePoint now, std::uint32_t epoch, std::span<const DiskDrop> drops = {});
  void load_namespace(const NamespaceRecord& record);
  struct Loaded {
    bool has_room = true;
    bool again = false;  ///< One call could not place all blocks: call without records until this is false.
  };
  Loaded load_spilled(std::span<const DiskRecord> records);
  /// `is_whole`: the load saw everything, or as much as there is room for; unseen blocks are dropped. Not whole, after
  /// an error or a stop: unseen blocks stay for the next start. Returns how many blocks came back.
  std::uint64_t end_load(bool is_whole);

  // -- housekeeping
  /// Ends expired leases and goes on freeing released memory, some of it in each call. Call this periodically; match
  /// and offer also do some of it.
  void expire_leases(TimePoint now);
  /// Ends every lease and put of a session, whose moves must be over. Many leases end over later calls.
  void end_session(SessionId session);

  /// Runs one 30 us slice of the policy's and the curve's background learning. Requests do not pay for it. Returns
  /// whether there is more. Call it often, in a loop until it returns false, and let others in between two calls. Uses
  /// that it does not learn in time are lost (StoreStats::unlearned_uses).
  bool learn();

  StoreStats stats() const;
  /// The hit rate by capacity; empty if the curve is off. Some ten microseconds.
  struct Curve {
    HitCurve::Report report;
    std::uint64_t block_bytes = 0;  ///< The average that turns a point's bytes into its block_count.
  };
  std::optional<Curve> curve() const;
  /// Which blocks are learned from. Changes with the capacity, so ask again regularly.
  SampledNames::Samples samples() const;
  // Several nodes learn together (count_pool.h). This node's counts; nullptr: its policy does not count. Copy them in
  // parts, some ten classes under one lock.
  const YieldTable* yield_table() const;
  std::uint64_t age_clock() const;  ///< Blocks offered so far, as the policy counts them.
  /// Replaces the other nodes' counts, in ages of yield_table()->unit().
  void set_pooled(YieldTable::Pooled pooled);
  /// The node's own counts from before a restart (read_learned). They supplement its learning until they are forgotten.
  void set_before(YieldCounts counts);
  /// Checks every invariant that can be checked; for tests, which define it (tests/checks/), like that of each table.
  /// Returns an empty string or the broken invariant.
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
