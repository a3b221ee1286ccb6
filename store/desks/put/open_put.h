// store/desks/put/open_put.h: a put under way: the offered chain or names, and how far they have come.
#pragma once

#include "store/memory/arena.h"
#include "store/tables/space_table.h"

namespace kv {

enum class PutId : std::uint64_t {};  ///< Never reused.

struct IncomingBlock {
  std::uint32_t index;           ///< In the offered chain or set.
  std::span<std::byte> bytes;    ///< Only the put's owner fills these, without the lock.
  std::uint64_t seed;            ///< checksum_seed of the block.
  bool completes_group = false;  ///< For a put with groups: the last wanted block of its group.
};

/// kAlreadyStored: another put stored the block meanwhile, with equal checksums. kConflict: with other checksums, and
/// the first block is kept. kRefused: the block above was dropped meanwhile, or its group cannot be whole.
enum class CommitStatus : std::uint8_t { kStored, kAlreadyStored, kConflict, kRefused };

struct OfferPlan {
  PutId put{};                   ///< 0 when every block is here already. Otherwise end_put must be called.
  std::size_t stored_count = 0;  ///< Leading blocks already here at the offer; for a set, all that are here.
  /// Wanted now: consecutive in the chain, after the blocks that were here or incoming before. For a set: in order.
  std::vector<IncomingBlock> incoming;
  std::vector<std::uint32_t> wanted;  ///< Sets only, and only in the offer: the indices of all absent blocks.
  std::size_t refused_count = 0;      ///< The rest of the chain, refused for now.
  /// Why some are refused. kOutOfMemory passes. kTooLarge is permanent: the number of slot sizes is at its maximum.
  /// kNotAdmitted holds for this put: the policy gives the victims more worth. kOverQuota passes: the tenant has its
  /// maximum of memory, all of it pinned.
  Errc refused_why = Errc::kOutOfMemory;
  /// Some were refused only because this call reached its bound on work: call offer_more at once.
  bool again = false;
};

/// A put under way. Its chain from the first block that was not here at the offer:
///     | committed | incoming      | refused so far |
///     0           committed_count  slots.size()     hashes.size()
struct OpenPut {
  PutId id{};
  SessionId session{};
  SpaceTable::Space* space = nullptr;  ///< Stays alive: it counts this put.
  std::size_t stored_count = 0;        ///< Blocks of the offered chain before hashes[0].
  BlockId tail =
      kNoBlock;  ///< The last block of the chain that is here; pinned, which keeps all above. kNoBlock: the root.
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

  std::size_t ids_bytes() const { return token_ids.size() * sizeof(token_ids[0]); }
  bool is_set() const { return space->record->is_set(); }
  /// Leading slots that can be filled: without those of an incomplete group.
  std::size_t usable_count() const;
  /// Where the three lists' uncommitted part begins: the ends of the last committed group.
  Group committed_group() const { return committed_groups == 0 ? Group{} : groups[committed_groups - 1]; }
  bool ends_group(std::size_t i) const;  ///< Whether hashes[i] is the last of its group.
};

}  // namespace kv
