// store/desks/look_desk.h: looks at what is here: for other nodes, for routers, and for people.
#pragma once

#include <optional>

#include "index/miss_kind.h"
#include "store/desks/put/put_desk.h"
#include "store/tables/event_log.h"

namespace kv {

/// Paths, edges, changes and the reasons of misses.
///   1. A look does not count as a use: blocks keep their age.
///   2. A call is bounded for any store: some 100 us. What one call cannot visit is visited by several, or by a sample.
class LookDesk {
 public:
  LookDesk(Shelf& shelf, SpaceDesk& spaces, ReadDesk& reads, PutDesk& puts)
      : shelf_(shelf), spaces_(spaces), reads_(reads), puts_(puts) {}

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
    BlockTier tier = BlockTier::kMemory;
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
  SampleCursor sample_cursor(BlockTier tier, std::uint32_t looks, std::uint64_t random) const;
  /// Appends blocks in scope, each as the edges from the top of the scope down to its own, some in each call until
  /// `cursor` is done. Changes between the calls may be missed, or come twice.
  void sample_edges(const TreeScope& scope, SampleCursor& cursor, std::vector<EdgeView>& edges) const;

  // -- changes, for routers that mirror the node's contents
  /// Appends some of the changes from number `from` on. All were read once page.next <= `from`. A drop of many blocks
  /// at once is a gap. Requires: StoreConfig::event_count_max > 0.
  void read_events(std::uint64_t from, EventPage& page) const;
  /// All blocks in memory, then those on disk, unordered.
  struct BlockCursor {
    BlockTier tier = BlockTier::kMemory;
    std::uint32_t next = 0;
    bool is_done = false;
  };
  /// Appends some of the node's blocks, as stored, until `cursor` is done; sets page.next to the number of the next
  /// change. Changes between the calls may be missed, or come twice: apply the changes since the first call.
  void list_blocks(BlockCursor& cursor, EventPage& page) const;

  // -- reasons of misses
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

 private:
  using Space = SpaceTable::Space;

  Result<std::vector<BlockId>> path(const PathEnd& end) const;
  bool has_copy(BlockTier of, BlockId block) const;
  Result<Miss> explain_in_set(SpaceId id, std::span<const BlockHash> hashes, TimePoint now);
  void explain_departure(TreeId tree, const BlockHash& missed, TimePoint now, Miss& miss);

  Shelf& shelf_;
  SpaceDesk& spaces_;
  ReadDesk& reads_;
  PutDesk& puts_;
};

}  // namespace kv
