// index/trees.h: the trees of a PrefixIndex: how edges are split, joined and cut, and everything that is counted of
// them.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "index/cover_table.h"
#include "index/edges.h"
#include "index/leaf_order.h"

namespace kv::radix {

struct Tree {
  NodeId root = kNoNode;  ///< kNoNode: removed.
  std::uint32_t cohort = 0;
  TreeKind kind = TreeKind::kChain;
  bool is_in_emptied = false;
  std::size_t block_count = 0;
  std::size_t unlinked_count = 0;
  std::uint64_t total_bytes = 0;  ///< For the linked blocks of a set.
};

/// Blocks that detach() cut off. They hang below a root of their own until reap() has freed them.
struct Detached {
  NodeId root;
  std::uint32_t label;
  /// The block above the cut, which inherits their recency (PrefixIndex, 3). The hash detects a reused id.
  BlockId above = kNoBlock;
  BlockHash above_hash = {};
  std::uint64_t recency = 0;  ///< The latest of the removed blocks.
  Usage usage = {};
};

/// The facts of an unlinked block that were in its run.
struct Orphan {
  BlockHash hash;
  TreeId tree;
};

/// The state of a PrefixIndex, which is its only door. Calls that keep links and counts right over a split, a join or a
/// removal are here.
///   1. A root has an empty run, any other node a block. A child begins at the depth where its parent's run ends, and
///      is found there by its first hash.
///   2. A block names its node and its depth. Each BlockId is linked, unlinked with an Orphan, or free.
///   3. A node's pinned_count is that of its run and all nodes below; its candidates are those of its children that
///      match_partial() may name; a tree's counts are those of its linked blocks, detached ones included.
///   4. linked_count, heap_bytes, candidate_count and used_node_count are sums over all nodes, those of detached blocks
///      included.
struct Trees : Edges {
  static constexpr int kUseCountMax = 255;  ///< Usage::use_count

  const std::uint64_t hash_seed;
  LeafOrder order;
  std::vector<Tree> trees;
  std::vector<TreeId> free_trees, emptied_trees;
  TokenTable tokens;
  CoverTable covers;
  std::unordered_map<std::uint32_t, Orphan> orphans;
  std::uint32_t free_block = 0xFFFFFFFF;  ///< First of a list through Block::depth.
  NodeId free_node = kNoNode;
  std::deque<Detached> detached;
  NodeId reaping = kNoNode;  ///< The position of reap() in detached.front(); kNoNode: at the root.
  std::size_t linked_count = 0;
  std::size_t heap_bytes = 0;  ///< For runs and child maps.
  std::size_t candidate_count = 0;
  std::size_t used_node_count = 0;
  PrefixIndex::SetTotals set_totals;

  Trees(std::uint64_t seed, LeafQueues queues) : hash_seed(seed), order(*this, queues) {}

  // -- access
  using Edges::at;
  Tree& at(TreeId tree) {
    KV_ASSERT(has_tree(tree));
    return trees[static_cast<std::size_t>(tree)];
  }

  bool has_tree(TreeId tree) const {
    const auto i = static_cast<std::size_t>(tree);
    return i < trees.size() && trees[i].root != kNoNode;
  }

  /// Mixes the whole hash with the seed, since a caller may choose any 32 bytes as its own block hash.
  std::uint32_t fingerprint(const BlockHash& hash) const {
    std::uint64_t word[4];
    std::memcpy(word, hash.bytes.data(), sizeof word);
    const std::uint64_t low = multiply_fold(word[0] ^ hash_seed ^ 0x9E3779B97F4A7C15, word[1] ^ 0xD1B54A32D192ED03);
    const std::uint64_t high = multiply_fold(word[2] ^ hash_seed ^ 0x8CB92BA72F3D8DD7, word[3] ^ 0xABC98388FB8FAC03);
    return static_cast<std::uint32_t>((low ^ high) >> 32 ^ (low ^ high));
  }

  NodeId find_child_node(const Node& parent, const BlockHash& hash) const {
    if (parent.children.size() == 0) return kNoNode;
    return parent.children.find(fingerprint(hash), [&](NodeId child) { return nodes[child].run.hashes()[0] == hash; });
  }

  /// The end of a block `parent` (or a root), where its children begin.
  struct Place {
    NodeId node;
    std::uint32_t count;  ///< Blocks of the node's run up to the parent.
  };
  Place place(TreeId tree, BlockId parent) {
    if (parent == kNoBlock) return {at(tree).root, 0};
    const Block& block = linked(parent);
    KV_ASSERT(nodes[block.node].tree == static_cast<std::uint32_t>(tree));
    return {block.node, offset(block) + 1};
  }

  // -- structure
  NodeId new_node(std::uint32_t tree, NodeId parent, std::uint32_t first_depth);
  /// `heir`: takes over reap()'s position at this node.
  void free_empty_node(NodeId id, NodeId heir);
  /// Whether match_partial may name `block` as a follower of `parent`.
  bool is_candidate(BlockId parent, BlockId block) const {
    return tokens.has(block) &&
           blocks[to_int(block)].position == (parent == kNoBlock ? 0 : blocks[to_int(parent)].position + 1);
  }

  /// Requires: child.parent is `parent`, and its run is not empty.
  void link_child(NodeId parent, NodeId child);
  void unlink_child(NodeId parent, NodeId child);
  /// Adds newly pinned blocks of the node's run to the counts up to the root (3), or up to `below` if the caller goes
  /// on from there. 0 - count for newly unpinned ones.
  void add_pinned(NodeId id, std::uint32_t count, NodeId below = kNoNode) {
    for (; id != below && id != kNoNode; id = nodes[id].parent) nodes[id].pinned_count += count;  // modulo 2^32
  }

  /// Cuts the node's run after `count` blocks and returns the node that ends there. The half that is cheaper to move
  /// gets the new node: a move rewrites each block's node, and for the lower half each child's parent too.
  ///
  ///     upper is new:  parent -> other [0, count) -> id [count, size) -> children
  ///     lower is new:  parent -> id [0, count) -> other [count, size) -> children
  NodeId split(NodeId id, std::uint32_t count);
  /// Undoes an obsolete split: merges a node with its only child.
  void join_only_child(NodeId id);
  void for_each(NodeId root, const std::function<void(BlockId)>& visit) const;

  // -- covers. A walk upward stops at the first node that was covered before, or still is: all above are unchanged.
  /// The number of covered blocks in the node's run; always the first ones.
  std::uint32_t covered_count(NodeId id) const;
  /// A child of `above` was uncovered. Returns how many blocks, from `above` up, are uncovered.
  std::size_t uncover_above(NodeId above, Steps* steps);

  // -- removal
  BlockId new_block();
  void free(BlockId block);
  void count_removed(std::uint32_t tree, const Block& block);
  void note_if_empty(std::uint32_t tree);
  /// Frees a node that lost its last block. Its parent may now be a leaf, or have one child left and join with it.
  void remove_empty_node(NodeId id, NodeId parent);
  /// Removes a leaf end from its run, and with the run's last block the run from the tree. The Block entry stays.
  void cut_leaf_end(BlockId block);
  /// A pinned leaf end becomes unlinked: out of the tree, but known by its id until the last unpin.
  void take_out_leaf_end(BlockId block);
  /// A removed block leaves its recency and its uses to the block above (PrefixIndex, 3 and 7).
  void inherit(BlockId above, std::uint64_t recency, Usage usage) {
    if (above != kNoBlock) inherit(blocks[to_int(above)].recency, usages[to_int(above)], recency, usage);
  }
  /// `blocks_up`: the distance from the block to the heir.
  static void inherit(std::uint64_t& heir_recency, Usage& heir, std::uint64_t recency, Usage usage,
                      std::uint32_t blocks_up = 1);
  /// The same for a leaf end about to be removed. A detached subtree's first block has none above: its recency waits in
  /// the Detached for the block that was above the cut.
  void bequeath(BlockId block);
  void end_detached();

  std::size_t used_bytes() const;
  std::size_t memory_bytes() const;
  std::string check() const;  ///< For tests: empty, or the broken invariant.

 private:
  struct Recount;
  void move_children(NodeId from, NodeId to);
  std::uint32_t set_node(const BlockRun& run, NodeId node);
  void replace_run(Node& node, BlockRun run);
  std::string check_tree(NodeId root, std::uint32_t tree, Recount& found) const;
  const char* check_node(NodeId id) const;
  const char* check_sets() const;
  const char* check_blocks() const;
  const char* check_nodes(const Recount& found) const;
};

}  // namespace kv::radix
