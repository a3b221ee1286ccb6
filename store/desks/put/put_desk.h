// store/desks/put/put_desk.h: blocks enter: offered by name, given slots, committed.
//
// Follow a block (put): it enters as a hash in offer(), gets a slot for a mover, and becomes visible in commit().
#pragma once

#include <deque>
#include <map>
#include <set>
#include <utility>

#include "store/desks/put/open_put.h"
#include "store/desks/put/put_slots.h"
#include "store/desks/put/set_puts.h"
#include "store/desks/read_desk.h"

namespace kv {

/// Puts under way. A put to a chain extends one prefix; a put to a set looks up each name alone.
///   1. A block becomes visible in commit(), with checksums, and never changes afterwards: what is here stays.
///   2. A put keeps a pin on the last block of its chain that is here, which keeps all above. Sets: see SetPuts.
///   3. A slot that is taken belongs to one put, or waits in `unwanted_` to be freed, some per call: until then the put
///      counts as under way, so its namespace stays.
class PutDesk {
 public:
  PutDesk(Shelf& shelf, SpaceDesk& spaces, LearningDesk& learning, DiskDesk& disk, ContextDesk& contexts,
          ReadDesk& reads)
      : shelf_(shelf),
        spaces_(spaces),
        learning_(learning),
        disk_(disk),
        reads_(reads),
        slots_(shelf, spaces, contexts),
        sets_(shelf, spaces, learning, disk, slots_) {}

  static constexpr Duration kIdleMax = std::chrono::hours(24 * 30);
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
  /// Decides which blocks of the chain are wanted, and takes slots for them, evicting as needed. The prefix already
  /// here stays pinned until end_put. The spans are copied as far as needed. A plan that only refuses still has a put,
  /// to try again with. Errors: kNoNamespace, kTooLarge (chain_blocks_max), kBadRequest (empty hashes, or positions,
  /// token_ids, extras or chain do not fit them).
  Result<OfferPlan> offer(SpaceId space, std::span<const BlockHash> hashes, const OfferOptions& options, TimePoint now);
  /// Tries again to take slots for refused blocks; the plan has only this call's. Errors: kBadRequest for an unknown
  /// put.
  Result<OfferPlan> offer_more(PutId put, TimePoint now, bool may_lose);

  /// Makes the next incoming block (in chain order) visible. The caller computed `checksums` over its bytes after
  /// the last write to them, and they equal the writer's claim. In all cases but kStored this put's slot is freed;
  /// after kAlreadyStored and kConflict the chain goes on below the stored block, after kRefused all that follow are
  /// refused.
  CommitStatus commit(PutId put, std::span<const std::uint64_t> checksums, TimePoint now);
  /// Frees the put's uncommitted slots and ends its pins. All moves into them must be over.
  void end_put(PutId put);

  // -- sets
  /// As offer(): decides which blocks are wanted, and takes slots for them; offer_more, commit and end_put follow. A
  /// held name counts as stored, with any length. Commits come in the order of the plan. For a list in parts, each plan
  /// has the part's `wanted` and `stored_count`, and the last one has the rest. With groups a plan takes slots for
  /// whole groups, their members already here stay pinned until the commit or the put's end, and commit_group()
  /// replaces commit(). Errors: kNoNamespace, kTooLarge, kUnsupported, kBadRequest (empty hashes; lengths that do not
  /// fit them or the bound; group_counts that do not cut them; or a put of another session, set or list).
  Result<OfferPlan> offer_set(SpaceId set, std::span<const BlockHash> hashes, const SetPuts::OfferOptions& options,
                              TimePoint now);
  /// Makes the incoming blocks of the next group visible, all at once: those up to the next that completes_group.
  /// `checksums` are theirs, one block's after another's; else as commit(). Returns the status of each. If the group
  /// cannot be whole, because one block is kConflict or an earlier member has gone, the others are kRefused.
  std::vector<CommitStatus> commit_group(PutId put, std::span<const std::uint64_t> checksums, TimePoint now);

  // -- for other desks
  /// Goes on with work left by earlier calls: slots and pins of ended puts, leases of ended sessions, cut-off blocks.
  void tidy(TimePoint now, Steps& steps);
  void end_session(SessionId session);  ///< Ends its puts, because only the session could.
  /// Whether one of the latest puts is bringing the first block that memory lacks.
  bool is_storing_next(const FoundChain& found, std::span<const BlockHash> hashes) const;
  std::size_t index_used_bytes() const { return slots_.index_used_bytes(); }
  std::string check(Shelf::Tally& tally) const;

 private:
  using Space = SpaceTable::Space;
  /// Slots and pins of an ended put, to be freed.
  struct Unwanted {
    Space* space;
    std::vector<SlotId> slots;
    std::vector<BlockId> pinned;
  };

  OpenPut& begin(SessionId session, Space& space);
  void keep_ids(OpenPut& put, const OfferOptions& options);
  void end(std::map<PutId, OpenPut>::iterator put);
  Result<OpenPut*> set_put(Space& set, const SetPuts::OfferOptions& options);

  Shelf& shelf_;
  SpaceDesk& spaces_;
  LearningDesk& learning_;
  DiskDesk& disk_;
  ReadDesk& reads_;
  PutSlots slots_;
  SetPuts sets_;
  std::map<PutId, OpenPut> puts_;
  std::set<std::pair<SessionId, PutId>> puts_by_session_;
  std::deque<Unwanted> unwanted_;
  std::uint64_t put_count_ = 0;  ///< Since the start: the last PutId.
};

}  // namespace kv
