// client/cluster_map.h: which node owns a block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "index/block_hash.h"

namespace kv {

/// A chain is cut into *extents*, and one node owns a whole extent. A get then talks to few nodes, and a dead node
/// takes only its own extents, where placing each block by its own hash gives every node a part of every prefix.
///   1. Every client with the same names, weights and extent_blocks picks the same owners, whatever the order of its
///      list (golden test).
///   2. A block's owner depends on the blocks up to it alone: it is the same for each prefix of the chain that has the
///      block. So each call must be given the chain from its first block on; it may end anywhere. (Of a hot root this
///      does not hold: a chain that ends in it may be asked for on any node.)
///   3. Where an extent begins is read from the hashes, not counted from the chain's start: a change near the start
///      moves what lies before the next natural anchor, and nothing behind it.
///   4. An extent has at most extent_blocks_max() blocks.
///      Behind a hot root, that is: its blocks count for none, whatever their hashes.
///   5. A node holds extents in proportion to its weight; adding or removing one moves only the extents that it gains
///      or loses.
/// A *hot root*, blocks that many prompts begin with (client/hot/hot_sets.h), is where the first extent begins: each
/// owner of one holds it in front of its own blocks, and so every node does before long. The extent's anchor is the
/// first block behind it, so that prompts which share only the root lie on all nodes.
/// The blocks of a set stand alone: each is its own extent. Those that are named as a group lie together, where the
/// first of them belongs.
/// Immutable. Cost: some nanoseconds per block, and per extent and node.
class ClusterMap {
 public:
  struct Node {
    std::string name;
    double weight = 1.0;  ///< 0: it is known and owns nothing.
  };
  /// Blocks of one owner in a chain: from `begin` to before `end`.
  struct Extent {
    std::size_t begin, end;
    std::size_t node;  ///< An index into the list of nodes.
  };
  /// Each block alone. With 256 (4,096 tokens in blocks of 16) a get talks to few nodes, and a dead node takes little.
  /// But then blocks that many prompts begin with, and behind these each prompt's own up to its next anchor, all lie on
  /// one node. So this stays 1 until such blocks lie on every node (docs/cluster.md).
  static constexpr std::size_t kExtentBlocksDefault = 1;
  static constexpr std::size_t kExtentBlocksLimit = 1 << 20;
  static constexpr std::size_t kExtentLengthMax = 4;  ///< In extent_blocks.

  /// `extent_blocks`: one block in so many is an anchor; 1: each block is an extent. A part of the placement, equal on
  /// all clients. Throws std::invalid_argument: no node, an empty or doubled name, a weight that is not finite or
  /// negative, no positive one, extent_blocks not 1..kExtentBlocksLimit.
  explicit ClusterMap(std::span<const Node> nodes, std::size_t extent_blocks = kExtentBlocksDefault);

  /// The same without some nodes: what they own belongs to who would have it if they left, and nothing else moves. If
  /// nobody would be left, as it is.
  ClusterMap without(std::span<const std::size_t> nodes) const;

  std::size_t node_count() const { return seeds_.size(); }
  std::size_t owner_count() const { return owners_.size(); }  ///< Nodes that own something.
  bool has_extents() const { return extent_blocks_ > 1; }     ///< Else each block is one.
  std::size_t extent_blocks_max() const { return extent_blocks_ * kExtentLengthMax; }
  /// The owner rule: the only place that says who owns which block of a chain. Without gaps, in chain order. The first
  /// `hot_blocks` are its hot root, which is part of the first extent. Where each block is an extent there is none.
  std::vector<Extent> extents(std::span<const BlockHash> chain, std::size_t hot_blocks = 0) const;
  /// The owner of a block that stands alone, and of the extent that begins with it. An index into the list of nodes.
  std::size_t owner(const BlockHash& anchor) const { return owner(anchor, node_count()); }
  /// Who would own it without the node `except`; that node if no other owns anything.
  std::size_t owner(const BlockHash& anchor, std::size_t except) const;

 private:
  bool is_anchor(const BlockHash& block) const;
  bool have_equal_weights() const;

  std::vector<std::size_t> owners_;   ///< Nodes of positive weight.
  std::vector<std::uint64_t> seeds_;  ///< By node, as the rest.
  std::vector<double> weights_;
  std::vector<std::uint32_t> ranks_;  ///< By name: breaks ties, so that the order of the list never matters.
  bool equal_weights_ = true;
  std::size_t extent_blocks_;
};

}  // namespace kv
