// index/edges.h: the tables of a PrefixIndex: its blocks, and the edges of its trees.
#pragma once

#include <cstdint>
#include <memory>
#include <set>

#include "base/assert.h"
#include "index/block_run.h"
#include "index/child_map.h"
#include "index/prefix_index.h"
#include "index/stable_table.h"
#include "index/token_table.h"

namespace kv::radix {

using NodeId = std::uint32_t;
inline constexpr NodeId kNoNode = 0xFFFFFFFF;        ///< As a block's node: the BlockId is free.
inline constexpr NodeId kUnlinkedNode = 0xFFFFFFFE;  ///< As a block's node: pinned, but no longer in a tree.

constexpr std::uint32_t to_int(BlockId block) { return static_cast<std::uint32_t>(block); }

/// A block's data besides its hash. Half a cache line, so that one read brings all of it. A match reads only hashes,
/// and touches the Block of a prefix's last block only.
struct Block {
  std::uint64_t slot = 0;
  std::uint64_t recency = 0;
  std::uint32_t pin_count = 0;
  std::uint32_t position = 0;
  NodeId node = kNoNode;
  std::uint32_t depth = 0;  ///< Blocks above it in its tree: a split leaves it unchanged, unlike an offset in the run.
};
static_assert(sizeof(Block) == 32);

using Candidates = std::set<BlockId, TokenTable::Order>;

/// An edge of a tree together with its children. A root has an empty run. One cache line: a walk takes one miss per
/// edge, besides those for the hashes.
struct alignas(64) Node {
  BlockRun run;
  ChildMap children;
  std::unique_ptr<Candidates> candidates;  ///< Children for match_partial, by their first block's token ids.
  NodeId parent = kNoNode;                 ///< kNoNode for a root. In a free node: the next free one.
  std::uint32_t tree : 20 = 0;
  std::uint32_t cohort : 12 = 0;   ///< The cohort whose heap it is in as a leaf.
  std::uint32_t first_depth = 0;   ///< Depth of the run's first block.
  std::uint32_t pinned_count = 0;  ///< Pinned blocks of the run and of all runs below.
};
static_assert(sizeof(Node) == 64);

/// Ids from callers are checked by at() and linked(), and trusted from there on.
struct Edges {
  StableTable<Block> blocks;
  StableTable<Usage> usages;  ///< By block.
  StableTable<Node> nodes;

  bool is_known(BlockId block) const { return to_int(block) < blocks.size() && blocks[to_int(block)].node != kNoNode; }
  bool is_linked(BlockId block) const { return is_known(block) && blocks[to_int(block)].node != kUnlinkedNode; }
  Block& at(BlockId block) {
    KV_ASSERT(is_known(block));
    return blocks[to_int(block)];
  }
  const Block& linked(BlockId block) const {
    KV_ASSERT(is_linked(block));
    return blocks[to_int(block)];
  }
  /// The block's index in its run.
  std::uint32_t offset(const Block& block) const { return block.depth - nodes[block.node].first_depth; }
  const BlockHash& hash(const Block& linked) const { return nodes[linked.node].run.hashes()[offset(linked)]; }
  bool is_root(const Node& node) const { return node.parent == kNoNode; }
  /// The block above the node's first block; kNoBlock below a root.
  BlockId above(const Node& node) const {
    return is_root(nodes[node.parent]) ? kNoBlock : nodes[node.parent].run.last();
  }
};

}  // namespace kv::radix
