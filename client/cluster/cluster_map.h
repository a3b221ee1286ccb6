// client/cluster/cluster_map.h: the owner of each block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "index/block_hash.h"

namespace kv {

/// A chain is cut into *extents*, and one node owns a whole extent. A get then talks to few nodes, and a dead node
/// takes only its own extents; placing each block by its own hash would give every node a part of every prefix.
///   1. Clients with the same names, weights and extent_blocks pick the same owners, in any list order (golden test).
///   2. A block's owner depends only on the blocks up to it: it is the same for each prefix of the chain with that
///      block. So each call gets the chain from its first block on; it may end anywhere. (Exception: a chain that ends
///      in a hot root may be asked for on any node.)
///   3. The start of an extent is read from the hashes, not counted from the chain's start: a change near the start
///      moves the blocks before the next natural anchor, and leaves those behind it.
///   4. An extent has at most extent_blocks_max() blocks, not counting a hot root; in an uncut map, all of its chain's.
///   5. A node holds extents in proportion to its weight; adding or removing one moves only its own extents.
/// A *hot root*, leading blocks shared by many prompts (client/hot/hot_sets.h), is part of the first extent: each owner
/// of such an extent holds the root in front of its own blocks, so every node soon has a copy. The extent's anchor is
/// the first block behind the root, so prompts that share only the root are spread over all nodes.
/// The blocks of a set stand alone: each is its own extent. A group lies together, where its first name belongs.
/// Immutable. Cost: some nanoseconds per block, and per extent and node.
class ClusterMap {
 public:
  struct Node {
    std::string name;
    double weight = 1.0;  ///< 0: known, but owns no block.
  };
  /// Consecutive blocks of one owner in a chain: from `begin` to before `end`.
  struct Extent {
    std::size_t begin, end;
    std::size_t node;    ///< An index into the list of nodes.
    std::size_t anchor;  ///< The block that determines the owner: `begin`, unless a hot root lies before it.
  };
  /// 4,096 tokens in blocks of 16: a get talks to few nodes, and a dead node takes little (docs/cluster.md).
  static constexpr std::size_t kExtentBlocksDefault = 256;
  static constexpr std::size_t kExtentBlocksLimit = 1 << 20;
  static constexpr std::size_t kExtentLengthMax = 4;  ///< In extent_blocks.

  /// `extent_blocks`: one block in this many is an anchor. Part of the placement, equal on all clients. Throws
  /// std::invalid_argument: empty list, an empty or repeated name, a weight that is negative or not finite, all weights
  /// 0, extent_blocks not 1..kExtentBlocksLimit.
  explicit ClusterMap(std::span<const Node> nodes, std::size_t extent_blocks = kExtentBlocksDefault);

  /// The same map without these nodes: their blocks belong to their successors, and all others stay. If every node were
  /// left out, the map as it is.
  ClusterMap without(std::span<const std::size_t> nodes) const;

  /// The same map with one extent for each chain. For a list of one node, which has all of every chain: a cut would
  /// cost a request there, and looking for it some nanoseconds a block.
  ClusterMap uncut() const;

  std::size_t node_count() const { return seeds_.size(); }
  std::size_t owner_count() const { return owners_.size(); }  ///< Nodes of positive weight.
  std::size_t extent_blocks_max() const { return extent_blocks_ * kExtentLengthMax; }
  /// The owner rule for chains, defined only here. Without gaps, in chain order. The first `hot_blocks` are the hot
  /// root, part of the first extent.
  std::vector<Extent> extents(Hashes chain, std::size_t hot_blocks = 0) const;
  /// The owner of a block that stands alone, and of the extent that begins with `anchor`: an index into the list.
  std::size_t owner(const BlockHash& anchor) const { return owner(anchor, node_count()); }
  /// The owner without the node `except`; `except` itself if all others have weight 0.
  std::size_t owner(const BlockHash& anchor, std::size_t except) const;

 private:
  bool is_anchor(const BlockHash& block) const;
  bool have_equal_weights() const;

  std::vector<std::size_t> owners_;
  std::vector<std::uint64_t> seeds_;  ///< By node, like the lists below.
  std::vector<double> weights_;
  std::vector<std::uint32_t> ranks_;  ///< By name: breaks ties independently of the list's order.
  bool equal_weights_ = true, is_cut_ = true;
  std::size_t extent_blocks_;
};

}  // namespace kv
