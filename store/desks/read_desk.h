// store/desks/read_desk.h: finding blocks, promising them, and pinning them while they move.
//
// Follow a block (get): it enters as a hash in pin_prefix() and leaves as pinned bytes, which a mover then sends.
#pragma once

#include <deque>

#include "index/name_groups.h"
#include "store/desks/context_desk.h"
#include "store/desks/learning_desk.h"
#include "store/desks/set_pinning.h"

namespace kv {

/// Matches, leases, gets and retention.
///   1. The blocks found in memory are the longest prefix there, or for a set whole groups; those on disk follow.
///   2. StoreStats::leased_bytes = all blocks at and above a leased one, each once, byte for byte; dropped ones count
///      while they are in memory. A lease is granted only within leased_fraction_max of the arena.
///   3. Retained blocks take at most retained_fraction_max of the arena, with those that contexts keep.
///   4. `move_pin_count_` = pins of pin_prefix(), pin_set() and pin_path() without their unpin().
///   5. A chain's request counts once: for the policy, for the namespace's traffic, and for the figures.
class ReadDesk {
 public:
  ReadDesk(Shelf& shelf, SpaceDesk& spaces, LearningDesk& learning, DiskDesk& disk, ContextDesk& contexts);

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
  /// Ends a lease early. Errors: kStaleLease.
  Result<void> release(SessionId session, LeaseId lease);

  // -- get
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
  /// Pins the held blocks among `hashes` for a move, and marks them as used. Then as pin_prefix; unpin() ends it.
  Result<SetPinning::Pinned> pin_set(SpaceId set, std::span<const BlockHash> hashes, const SetPinning::Options& options,
                                     TimePoint now);
  void unpin(const PinnedPrefix& prefix);

  // -- retention
  /// Marks the longest prefix as used. Returns its block count.
  Result<std::size_t> touch(SpaceId space, std::span<const BlockHash> hashes, TimePoint now);
  /// Keeps the longest prefix until unretain or drop. Returns its block count. Idempotent. Errors: kBusy, without
  /// changes, if more than retained_fraction_max would be kept. For a set, `*fresh` (may be nullptr) receives the newly
  /// retained names, to undo the first parts of a list.
  Result<std::size_t> retain(SpaceId space, std::span<const BlockHash> hashes, std::vector<BlockHash>* fresh);
  /// Ends the retention of the longest prefix. Returns how many of its blocks had it.
  Result<std::size_t> unretain(SpaceId space, std::span<const BlockHash> hashes);
  /// For shutdown: neither retention nor contexts protect blocks from eviction any more.
  void unretain_all();

  // -- for other desks
  /// Marks all found blocks as used at `now`, or `idle` before; not as a request.
  void use(const FoundChain& found, TimePoint now, Duration idle = {});
  PinnedPrefix pin_blocks(std::span<const BlockId> blocks);  ///< Blocks of one chain, first to last, for a move.
  void expire_leases(TimePoint now, Steps& steps);
  void end_session(SessionId session);  ///< Its leases end over later calls.
  void end_more(Steps& steps);          ///< Goes on with that.
  void set_limits(const StoreConfig& config);
  std::size_t lease_count() const { return leases_.lease_count(); }
  std::string check(Shelf::Tally& tally) const;
  std::uint64_t move_pin_count() const { return move_pin_count_; }

 private:
  using Space = SpaceTable::Space;
  using GroupCounts = std::span<const std::uint32_t>;

  std::size_t ask(const FoundChain& found, std::span<const BlockHash> hashes, ReuseHint hint, const ChainPart& chain,
                  TimePoint now, const SampledNames* sampled = nullptr);
  void count_lookup(const FoundChain& found, std::span<const BlockHash> hashes, TimePoint now) const;
  void count_miss(const Space& space, std::size_t found_count, const BlockHash& missed, TimePoint now);
  void find_partial(const FoundChain& found, const MatchOptions& options, Match& match) const;
  Result<LeaseId> grant(SessionId session, BlockId block, TimePoint now);
  Result<LeaseId> grant_set(const SetMatchOptions& options, std::span<const BlockId> blocks, TimePoint now);
  void end_lease(BlockId block, Steps& steps);
  static std::vector<BlockId> leasable(const FoundSet& found, GroupCounts group_counts);
  static void keep_whole_groups(FoundSet& found, GroupCounts group_counts);
  Result<std::size_t> touch_set(SpaceId id, std::span<const BlockHash> hashes, TimePoint now);
  Result<std::size_t> retain_set(SpaceId id, std::span<const BlockHash> hashes, std::vector<BlockHash>* fresh);
  Result<std::size_t> unretain_set(SpaceId id, std::span<const BlockHash> hashes);

  Shelf& shelf_;
  SpaceDesk& spaces_;
  LearningDesk& learning_;
  DiskDesk& disk_;
  ContextDesk& contexts_;
  LeaseTable leases_;
  std::deque<SessionId> ending_sessions_;  ///< Ended, with leases left to end.
  std::uint64_t move_pin_count_ = 0;
};

}  // namespace kv
