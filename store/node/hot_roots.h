// store/node/hot_roots.h: which blocks many recent matches began with. Clients keep those on every node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "index/block_hash.h"
#include "store/node/access/space_owner.h"

namespace kv {

/// A system prompt is the beginning of most prompts. If it lay on one node, so would all that follows it (DESIGN: hot
/// root). So each match that a client makes is counted by one node, and blocks that more than 1 % of matches begin with
/// are *hot*: the client asks any node for them, and lays what follows behind them.
///
/// Beginnings are counted in a tree of *runs*, blocks that were met together so far. A match walks a few runs,
/// comparing one hash for each, since a block's hash names all before it; and adds one run at most:
///
///       [s0 .. s31]  900            the system prompt, up to where prompts first differed
///         +-- [a0 .. a9]  120       one application's
///         |     +-- [x0 .. x31]  1
///         +-- [b0 .. b31]  7
///
/// What a match weighs. A block that is not hot is looked for on its owner, which sees all matches that begin with it;
/// a hot one on any of `nodes`, so that one match seen here stands for that many. All matches are taken for `nodes`
/// times those seen here. So a block's share is about the same before and after it is hot. How many nodes there are is
/// the median of what an owner's last matches said: one that lies changes nothing.
///
/// Whose matches count against whose. Owners are counted apart: a block is hot by its share of its own owner's matches,
/// times the number of owners, or of all matches, whichever is more. So an owner with its fair share of all matches
/// keeps its hot roots, whatever others claim or send.
///   1. The blocks above a hot one are hot.
///   2. A list has at most kHotBlocksMax blocks, over all namespaces; of these each owner has its share, if it has use
///      for it.
///   3. At most kBlocksMax blocks are kept in runs; beyond that no run is added until the next kWindow. What an owner
///      lacks of its share of these no other one takes.
///   4. A namespace's version is 0 while it has no hot block, and another one whenever the list is another.
/// Hot from 1 % on, and until less than half a percent: a share that hovers changes nothing. Halved every kWindow
/// matches, so that "recent" is the last thousand or two.
/// Clients decide what is counted. One that lies makes blocks of namespaces that its owner may use hot, or less so:
/// that costs this owner's hits and room, and no byte is wrong. Thread safety: any thread. The mutex is held for a walk
/// along one beginning; every kReview matches for one over all runs (some ten microseconds).
class HotRoots {
 public:
  static constexpr std::size_t kRootBlocksMax = 2048;  ///< Of one chain.
  static constexpr std::size_t kBlocksMax = 1 << 15;   ///< 1 MiB of hashes.
  static constexpr std::size_t kRunBlocks = 32;        ///< Of a run that begins where chains differ.
  static constexpr std::uint32_t kWindow = 512, kReview = 32;
  static constexpr std::size_t kOwnersMax = 256;  ///< Further ones count as one.
  static constexpr std::uint64_t kHotOneIn = 100, kColdOneIn = 200, kForgetOneIn = 800;

  struct List {
    std::uint64_t version = 0;
    std::vector<BlockHash> blocks;  ///< Each after the blocks before it in its chain.
  };

  HotRoots();
  ~HotRoots();

  /// A match of a chain that begins with `beginning`, whose first `hot_blocks` the client takes for hot, and which
  /// spreads over `nodes`. `owner`: whose the namespace is, always the same. Returns the namespace's version.
  std::uint64_t count(const NamespaceId& space, std::span<const BlockHash> beginning, std::size_t hot_blocks,
                      std::uint32_t nodes, const SpaceOwner& owner = {});
  std::uint64_t version(const NamespaceId& space) const;
  std::shared_ptr<const List> list(const NamespaceId& space) const;  ///< Never nullptr.
  /// A run that many recent matches began with.
  struct Beginning {
    NamespaceId space;
    SpaceOwner owner;
    BlockHash last;               ///< Of its blocks.
    std::size_t block_count = 0;  ///< From the beginning of the chain to `last`.
    double share = 0;  ///< Of all matches, or its owner's, those that began with it; about, since it forgets.
    bool is_hot = false;
  };
  /// At most `count_max`, the most used first; none with a share below half a percent. Cost: as a review.
  std::vector<Beginning> most_used(std::size_t count_max) const;
  std::size_t hot_block_count() const;
  std::size_t kept_block_count() const;
  /// Empty, or which invariant is broken. For tests.
  std::string check() const;

 private:
  struct Run;
  struct Space;
  struct Owner;

  Owner& owner_named(const SpaceOwner& owner);
  void hear(Owner& owner, std::uint32_t nodes);
  std::uint64_t matches_of(const Owner& owner) const;
  std::uint64_t matches_for_review(const Owner& owner) const;
  std::size_t room_for(const Owner& owner) const;
  void split(Run& run, std::size_t at);
  void add(Owner& owner, Run& parent, std::span<const BlockHash> blocks, std::size_t depth, std::uint64_t weight);
  void review();
  void age();
  void forget_rare(Owner& owner, Run& run, std::uint64_t least);
  void join(Run& run, std::uint64_t least);

  mutable std::mutex mutex_;
  std::map<SpaceOwner, std::unique_ptr<Owner>> owners_;  ///< With matches, or runs.
  std::map<NamespaceId, std::unique_ptr<Space>> spaces_;
  std::uint64_t total_ = 0;  ///< Weight of all matches, as counts are.
  std::uint32_t match_count_ = 0;
  std::size_t block_count_ = 0, hot_count_ = 0;
};

}  // namespace kv
