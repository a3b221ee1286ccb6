// store/desks/put/set_puts.h: blocks of a set enter: each by its own name, alone or as a group.
//
// Follow a block (put to a set): it enters as a hash in plan(), is added to a put, and becomes visible in commit() or
// commit_group().
#pragma once

#include "store/desks/disk_desk.h"
#include "store/desks/learning_desk.h"
#include "store/desks/put/put_slots.h"

namespace kv {

/// PutDesk's part for sets.
///   1. A put with groups keeps pins on the members that were here at the offer, until their group is committed.
///   2. A group is linked in one step, once all of it is here; or not at all.
class SetPuts {
 public:
  SetPuts(Shelf& shelf, SpaceDesk& spaces, LearningDesk& learning, DiskDesk& disk, PutSlots& slots)
      : shelf_(shelf), spaces_(spaces), learning_(learning), disk_(disk), slots_(slots) {}

  struct OfferOptions {
    SessionId session{};
    std::span<const std::uint32_t> lengths;  ///< Per hash, 1 to the set's bound.
    bool may_lose = true;                    ///< As PutDesk::OfferOptions.
    /// Also wants blocks that lie only on disk, because a get has read them. Else they count as stored.
    bool promote = false;
    PutId put{};                                       ///< The put of the earlier parts, if they have one.
    std::uint32_t first = 0;                           ///< The index of hashes[0] in the whole list.
    bool is_part = false;                              ///< More parts follow: take no slots yet.
    std::span<const std::uint32_t> group_counts = {};  ///< As ReadDesk::SetMatchOptions. The same for all parts.
    ReuseHint hint = ReuseHint::kNone;
  };
  /// The error in an offer, as PutDesk::offer_set().
  error_code check(const SpaceTable::Space& set, std::span<const BlockHash> hashes, const OfferOptions& options) const;
  /// Which of `hashes` are wanted. Marks the others as used.
  OfferPlan plan(const FoundSet& found, std::span<const BlockHash> hashes, const OfferOptions& options, TimePoint now);
  /// Adds the plan's wanted blocks to `put`, and numbers them as in the whole list.
  void add(OpenPut& put, OfferPlan& plan, const FoundSet& found, std::span<const BlockHash> hashes,
           const OfferOptions& options);
  /// For put.hashes[i], as PutDesk::commit().
  CommitStatus commit(OpenPut& put, std::size_t i, std::span<const std::uint64_t> checksums, TimePoint now);
  /// For the next group of `put`, as PutDesk::commit_group().
  std::vector<CommitStatus> commit_group(OpenPut& put, std::span<const std::uint64_t> checksums, TimePoint now);

 private:
  using Space = SpaceTable::Space;

  bool could_hold_groups(const Space& set, const OfferOptions& options) const;
  void add_wanted(OpenPut& put, const FoundSet& found, std::span<const BlockHash> hashes, const OfferOptions& options,
                  std::span<const std::uint32_t> wanted);
  bool is_here(TreeId set, const BlockHash& hash) const;
  CommitStatus status_of(const OpenPut& put, std::size_t i, std::span<const std::uint64_t> checksums) const;
  CommitStatus link(OpenPut& put, std::size_t i, CommitStatus status, std::span<const std::uint64_t> checksums,
                    TimePoint now);

  Shelf& shelf_;
  SpaceDesk& spaces_;
  LearningDesk& learning_;
  DiskDesk& disk_;
  PutSlots& slots_;
};

}  // namespace kv
