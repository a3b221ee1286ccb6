// store/node/hot_roots.h: blocks that many recent matches began with. Clients keep those on every node.
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
#include "store/node/policy/space_owner.h"

namespace kv {

/// A system prompt is the beginning of most prompts. If it lay on one node, so would all blocks that follow it. So one
/// node counts each client match, and blocks that more than 1 % of matches begin with are *hot*: the client asks any
/// node for them, and places the following blocks behind them.
///
/// Beginnings are counted in a tree of *runs*: blocks that have always been met together. A match walks a few runs,
/// comparing one hash for each, since a block's hash names all blocks before it, and adds at most one run:
///
///       [s0 .. s31]  900            the system prompt, up to where prompts first differed
///         +-- [a0 .. a9]  120       one application's
///         |     +-- [x0 .. x31]  1
///         +-- [b0 .. b31]  7
///
/// The weight of a match. Clients look for a block that is not hot on its owner node, which sees all matches that begin
/// with it; for a hot one on any of `nodes`, so that one match seen here stands for that many. The total counts `nodes`
/// for each match seen here. So a block's share is about the same before and after it becomes hot. The number of nodes
/// is the median of an owner's recent matches: a single lying client has little effect.
///
/// Owners (SpaceOwner) are counted apart: a block's weight is compared with its owner's matches times the number of
/// owners, or with all matches, whichever is smaller. So others cannot crowd out an owner's hot roots.
///   1. The blocks above a hot one are hot.
///   2. A list has at most kHotBlocksMax blocks over all namespaces; each owner has its share, as far as it uses it.
///   3. At most kBlocksMax blocks are kept in runs; beyond that no run is added until the next kWindow. Unused shares
///      stay reserved.
///   4. A namespace's version is 0 while it has no hot block, and changes with its list.
/// Hot from 1 % on, and until less than half a percent, so that a share near the bound does not flap. Weights are
/// halved every kWindow matches, so that "recent" is the last thousand or two.
/// Clients control the counts. A lying one can make blocks of namespaces open to its owner hot, or less so: that costs
/// this owner's hits and room, never wrong bytes. Thread safety: any thread. The mutex is held for a walk along one
/// beginning; every kReview matches for a walk over all runs (some ten microseconds).
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

  /// Counts a match of a chain that begins with `beginning`. The client treats its first `hot_blocks` as hot and
  /// spreads over `nodes`. `owner`: the namespace's owner, always the same. Returns the namespace's version.
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
    double share = 0;             ///< Approximate share of all matches, or of its owner's, that began with the run.
    bool is_hot = false;
  };
  /// At most `count_max`, the most used first, with shares of half a percent and more. Cost: as a review.
  std::vector<Beginning> most_used(std::size_t count_max) const;
  std::size_t hot_block_count() const {
    const std::lock_guard lock(mutex_);
    return hot_count_;
  }
  /// "", or the broken invariant. For tests.
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
  void publish(std::vector<std::vector<BlockHash>> lists);
  void age();
  void forget_rare(Owner& owner, Run& run, std::uint64_t least);
  void join(Run& run, std::uint64_t least);

  mutable std::mutex mutex_;
  std::map<SpaceOwner, std::unique_ptr<Owner>> owners_;  ///< With matches, or runs.
  std::map<NamespaceId, std::unique_ptr<Space>> spaces_;
  std::uint64_t total_ = 0;  ///< Weight of all matches, in the unit of counts.
  std::uint32_t match_count_ = 0;
  std::size_t block_count_ = 0, hot_count_ = 0;
};

}  // namespace kv
