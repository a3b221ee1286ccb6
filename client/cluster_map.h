// client/cluster_map.h: which node owns a block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "index/block_hash.h"

namespace kv {

/// Weighted rendezvous hashing of each block's own hash: owner(block) = argmax over nodes of -weight / ln(u), where u
/// in (0, 1) is the XXH3-64 of the block hash, seeded with the XXH3-64 of the node's name.
///   1. Every client with the same names and weights picks the same owner, whatever the order of its list (golden
///      test).
///   2. A node holds blocks in proportion to its weight; adding or removing one moves only the blocks that it gains or
///      loses.
/// Immutable. Cost: some nanoseconds per block and node.
class ClusterMap {
 public:
  struct Node {
    std::string name;
    double weight = 1.0;
  };
  /// Throws std::invalid_argument: no node, an empty or doubled name, a weight that is not finite and positive.
  explicit ClusterMap(std::span<const Node> nodes);

  std::size_t node_count() const { return seeds_.size(); }
  /// The only place that says who owns a block. An index into the list of nodes.
  std::size_t owner(const BlockHash& block) const;
  /// Positions in `chain` of the blocks that each node owns, increasing; one list per node.
  std::vector<std::vector<std::uint32_t>> split(std::span<const BlockHash> chain) const;

 private:
  std::vector<std::uint64_t> seeds_;
  std::vector<double> weights_;
  std::vector<std::uint32_t> ranks_;  ///< By name: breaks ties, so that the order of the list never matters.
  bool equal_weights_ = true;
};

}  // namespace kv
