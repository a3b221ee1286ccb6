#include "index/prefix_index.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/assert.h"
#include "index/block_run.h"
#include "index/child_map.h"
#include "index/cover_table.h"
#include "index/leaf_heap.h"
#include "index/stable_table.h"
#include "index/token_table.h"

namespace kv {
namespace {

using NodeId = std::uint32_t;
constexpr NodeId kNoNode = 0xFFFFFFFF;        // as a block's node: the BlockId is free
constexpr NodeId kUnlinkedNode = 0xFFFFFFFE;  // as a block's node: pinned, but no longer in a tree

// A join undoes a split and moves one edge's blocks. Both may alternate as prefixes come and go; these bounds keep each
// under some microseconds. A longer edge stays split: one more hop in hundreds of blocks is free.
constexpr std::size_t kJoinMovedMax = 256;
constexpr std::size_t kJoinBlocksMax = 4096;

__extension__ using Wide = unsigned __int128;

// The allocated size of one element in a standard container, for used_bytes().
constexpr std::size_t kMapNodeBytes = 80, kSetNodeBytes = 48;

constexpr int kUseCountMax = 255;  // Usage::use_count

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
  std::uint32_t group : 12 = 0;    ///< The group whose heap it is in as a leaf.
  std::uint32_t first_depth = 0;   ///< Depth of the run's first block.
  std::uint32_t pinned_count = 0;  ///< Pinned blocks of the run and of all runs below.
};
static_assert(sizeof(Node) == 64);

constexpr std::size_t kNodeBytes = sizeof(Node) + sizeof(LeafHeap::Entry) + 2 * sizeof(std::uint32_t);

struct Tree {
  NodeId root = kNoNode;  ///< kNoNode: removed.
  std::uint32_t group = 0;
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
  /// The block above the cut, which inherits their recency (invariant 3). The hash detects a reused id.
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

// Hashes ahead. A run is some pages long and often uncached, and the hardware prefetch stops at each page. Measured:
// 8.2 -> 6.4 ns a block when cold, 1.46 -> 1.55 when warm.
constexpr std::size_t kPrefetchAhead = 32;
constexpr std::uint32_t kPrefetchUp = 4;  // Evictions ahead, of some 100 ns each.
constexpr std::size_t kFoundAtOnce = 16;  // Names of a set: as many misses as a core keeps in flight.

/// The number of equal leading hashes. Four words by XOR and OR: one branch a block instead of a call of memcmp.
std::size_t common_count(const BlockHash* a, const BlockHash* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (i % 2 == 0 && i + kPrefetchAhead < count) __builtin_prefetch(a + i + kPrefetchAhead);
    std::uint64_t x[4], y[4];
    std::memcpy(x, a + i, sizeof x);
    std::memcpy(y, b + i, sizeof y);
    if (((x[0] ^ y[0]) | (x[1] ^ y[1]) | (x[2] ^ y[2]) | (x[3] ^ y[3])) != 0) return i;
  }
  return count;
}

}  // namespace

struct PrefixIndex::Impl {
  const std::uint64_t hash_seed;
  const LeafQueues queues;
  StableTable<Block> blocks;
  StableTable<Usage> usages;
  StableTable<Node> nodes;
  std::vector<Tree> trees;
  std::vector<TreeId> free_trees, emptied_trees;
  /// By group and queue (heap_of()): the nodes without children. A key is a lower bound of the leaf end's recency:
  /// touch() leaves the heap entry alone, and oldest_leaf_end() updates a stale one when it reaches the top.
  std::vector<LeafHeap> leaves;
  std::vector<Tick> tops;                 ///< By heap: its top key, contiguous for a scan; or kNoTick.
  std::vector<std::uint32_t> queue_ends;  ///< By group: see queue_end().
  LeafHeap::Positions leaf_positions;     ///< By node: its place in its heap.
  StableTable<std::uint32_t> leaf_heaps;  ///< By node: its heap. Unset outside heaps.
  /// The non-empty heaps, each by a lower bound of its keys, like a leaf's key for its recency.
  LeafHeap::Positions heap_positions;
  LeafHeap heaps{heap_positions};
  /// The same for each band and queue. All of this is empty until a group is put into a band.
  std::vector<std::uint32_t> band_of;
  LeafHeap::Positions band_positions;
  std::vector<LeafHeap> bands;
  std::vector<std::uint32_t> band_queue_ends;
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
  SetTotals set_totals;

  Impl(std::uint64_t seed, LeafQueues leaf_queues) : hash_seed(seed), queues(leaf_queues) {
    KV_ASSERT(queues.count > 0 && queues.count <= LeafQueues::kCountMax);
  }

  // -- access. Ids from callers are checked on entry, and trusted from there on.

  Block& at(BlockId block) {
    KV_ASSERT(is_known(block));
    return blocks[to_int(block)];
  }
  bool is_known(BlockId block) const { return to_int(block) < blocks.size() && blocks[to_int(block)].node != kNoNode; }
  bool is_linked(BlockId block) const { return is_known(block) && blocks[to_int(block)].node != kUnlinkedNode; }
  const Block& linked(BlockId block) const {
    KV_ASSERT(is_linked(block));
    return blocks[to_int(block)];
  }
  Tree& at(TreeId tree) {
    KV_ASSERT(has_tree(tree));
    return trees[static_cast<std::size_t>(tree)];
  }

  bool has_tree(TreeId tree) const {
    const auto i = static_cast<std::size_t>(tree);
    return i < trees.size() && trees[i].root != kNoNode;
  }

  bool is_in_heap(NodeId node) const { return leaf_positions[node] != 0; }
  LeafHeap& heap_with(NodeId node) { return leaves[leaf_heaps[node]]; }  ///< Requires: is_in_heap(node).
  const LeafHeap& heap_with(NodeId node) const { return leaves[leaf_heaps[node]]; }
  /// Updates the top of a changed heap. A renamed leaf keeps its key.
  void note_top(std::uint32_t heap) { tops[heap] = leaves[heap].empty() ? kNoTick : Tick{leaves[heap].top().key}; }
  /// The leaf's proper heap, by its end's latest use.
  std::uint32_t heap_of(NodeId leaf) const {
    const Node& node = nodes[leaf];
    return node.group * queues.count + queues.queue_of(usages[to_int(node.run.last())]);
  }
  void take_out_of_heap(NodeId node) {
    if (!is_in_heap(node)) return;
    heap_with(node).erase(node);
    note_top(leaf_heaps[node]);
  }
  /// An edge was split or joined, and its leaf end is now in `to`.
  void rename_leaf(NodeId from, NodeId to) {
    if (!is_in_heap(from)) return;
    leaf_heaps[to] = leaf_heaps[from];
    heap_with(from).rename(from, to);
  }

  /// The block's index in its run.
  std::uint32_t offset(const Block& block) const { return block.depth - nodes[block.node].first_depth; }
  bool is_root(const Node& node) const { return node.parent == kNoNode; }
  /// The block above the node's first block; kNoBlock below a root.
  BlockId above(const Node& node) const {
    return is_root(nodes[node.parent]) ? kNoBlock : nodes[node.parent].run.last();
  }

  /// Mixes the whole hash with the seed, since a caller may choose any 32 bytes as its own block hash.
  std::uint32_t fingerprint(const BlockHash& hash) const {
    std::uint64_t word[4];
    std::memcpy(word, hash.bytes.data(), sizeof word);
    const auto fold = [](std::uint64_t a, std::uint64_t b) {
      const auto product = static_cast<Wide>(a) * b;
      return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
    };
    const std::uint64_t low = fold(word[0] ^ hash_seed ^ 0x9E3779B97F4A7C15, word[1] ^ 0xD1B54A32D192ED03);
    const std::uint64_t high = fold(word[2] ^ hash_seed ^ 0x8CB92BA72F3D8DD7, word[3] ^ 0xABC98388FB8FAC03);
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

  void need_group(std::uint32_t group) {
    KV_ASSERT(group <= kGroupMax);
    if (queue_ends.size() <= group) queue_ends.resize(group + 1);
    while (leaves.size() < (std::size_t{group} + 1) * queues.count) {
      leaves.emplace_back(leaf_positions);
      tops.push_back(kNoTick);
      heap_positions[heap_positions.add()] = 0;
    }
    if (!band_of.empty()) need_band_positions();
  }

  void need_band_positions() {
    while (band_positions.size() < leaves.size()) band_positions[band_positions.add()] = 0;
  }

  std::uint32_t band(std::uint32_t group) const { return group < band_of.size() ? band_of[group] : kNoBand; }
  LeafHeap& band_heap(std::uint32_t band, std::uint32_t queue) {
    return bands[std::size_t{band} * queues.count + queue];
  }

  /// Takes from the free list first: the tables never shrink, so a freed entry is the cheapest.
  NodeId new_node(std::uint32_t tree, NodeId parent, std::uint32_t first_depth) {
    NodeId id = free_node;
    if (id != kNoNode) {
      free_node = nodes[id].parent;
    } else {
      id = nodes.add();
      leaf_positions[leaf_positions.add()] = 0;
      leaf_heaps.add();
      KV_ASSERT(leaf_positions.size() == nodes.size());
    }
    Node& node = nodes[id];
    node.tree = tree & kTreeMax;
    node.group = trees[tree].group & kGroupMax;
    node.parent = parent;
    node.first_depth = first_depth;
    node.pinned_count = 0;
    ++used_node_count;
    return id;
  }

  /// `heir`: takes over reap()'s position at this node.
  void free_empty_node(NodeId id, NodeId heir) {
    Node& node = nodes[id];
    if (reaping == id) reaping = heir;
    --used_node_count;
    KV_ASSERT(node.run.empty() && node.children.size() == 0 && !node.candidates && !is_in_heap(id));
    node.parent = free_node;
    free_node = id;
  }

  /// Whether match_partial may name `block` as a follower of `parent`.
  bool is_candidate(BlockId parent, BlockId block) const {
    return tokens.has(block) &&
           blocks[to_int(block)].position == (parent == kNoBlock ? 0 : blocks[to_int(parent)].position + 1);
  }

  /// Requires: child.parent is `parent`, and its run is not empty.
  void link_child(NodeId parent, NodeId child) {
    Node& node = nodes[parent];
    const BlockRun& run = nodes[child].run;
    node.children.insert(fingerprint(run.hashes()[0]), child, heap_bytes);
    if (!is_candidate(above(nodes[child]), run.ids()[0])) return;
    if (!node.candidates) node.candidates = std::make_unique<Candidates>(TokenTable::Order{&tokens});
    candidate_count += node.candidates->insert(run.ids()[0]).second;
  }

  void unlink_child(NodeId parent, NodeId child) {
    Node& node = nodes[parent];
    const BlockRun& run = nodes[child].run;
    node.children.erase(fingerprint(run.hashes()[0]), child, heap_bytes);
    if (!node.candidates) return;
    candidate_count -= node.candidates->erase(run.ids()[0]);
    if (node.candidates->empty()) node.candidates.reset();
  }

  void move_children(NodeId from, NodeId to) {
    nodes[to].children = std::move(nodes[from].children);
    nodes[to].candidates = std::move(nodes[from].candidates);
    nodes[to].children.for_each([&](NodeId child) { nodes[child].parent = to; });
  }

  /// Assigns the run's blocks, and the covers among them, to `node`. Returns how many are pinned. (A cover is pinned,
  /// so only pinned blocks need a cover lookup.)
  std::uint32_t set_node(const BlockRun& run, NodeId node) {
    std::uint32_t pinned = 0;
    for (std::uint32_t i = 0; i < run.size(); ++i) {
      Block& block = blocks[to_int(run.ids()[i])];
      if (block.pin_count > 0) {
        ++pinned;
        covers.move(block.node, node, block.depth);
      }
      block.node = node;
    }
    return pinned;
  }

  /// Adds newly pinned blocks of the node's run to the counts up to the root (5), or up to `below` if the caller goes
  /// on from there. 0 - count for newly unpinned ones.
  void add_pinned(NodeId id, std::uint32_t count, NodeId below = kNoNode) {
    for (; id != below && id != kNoNode; id = nodes[id].parent) nodes[id].pinned_count += count;  // modulo 2^32
  }

  /// Cuts the node's run after `count` blocks and returns the node that ends there. The half that is cheaper to move
  /// gets the new node: a move rewrites each block's node, and for the lower half each child's parent too.
  ///
  ///     upper is new:  parent -> other [0, count) -> id [count, size) -> children
  ///     lower is new:  parent -> id [0, count) -> other [count, size) -> children
  NodeId split(NodeId id, std::uint32_t count) {
    Node& node = nodes[id];
    const std::uint32_t size = node.run.size();
    KV_ASSERT(count > 0 && count < size);
    const bool is_upper_new = count < size - count + node.children.size();
    const NodeId other =
        new_node(node.tree, is_upper_new ? node.parent : id, node.first_depth + (is_upper_new ? 0 : count));
    nodes[other].run = is_upper_new ? node.run.copy(0, count, heap_bytes) : node.run.copy(count, size, heap_bytes);
    const std::uint32_t moved_pinned = set_node(nodes[other].run, other);
    if (is_upper_new) {
      nodes[other].pinned_count = node.pinned_count;
      node.pinned_count -= moved_pinned;
      nodes[node.parent].children.replace(fingerprint(node.run.hashes()[0]), id, other);
      if (covers.is_covered(id)) covers.add_child(other);
      replace_run(node, node.run.copy(count, size, heap_bytes));
      node.first_depth += count;
      node.parent = other;
      link_child(other, id);
      return other;
    }
    move_children(id, other);
    covers.move_children(id, other);
    if (covers.is_covered(other)) covers.add_child(id);
    // The upper half keeps its count, which includes all below (5). The lower half sums its own and its children's.
    nodes[other].pinned_count = moved_pinned;
    if (node.pinned_count > 0) {
      nodes[other].children.for_each([&](NodeId child) { nodes[other].pinned_count += nodes[child].pinned_count; });
    }
    rename_leaf(id, other);
    replace_run(node, node.run.copy(0, count, heap_bytes));  // exact: an inner run does not grow
    link_child(id, other);
    return id;
  }

  void replace_run(Node& node, BlockRun run) {
    node.run.clear(heap_bytes);
    node.run = std::move(run);
  }

  /// Undoes an obsolete split: merges a node with its only child.
  void join_only_child(NodeId id) {
    Node& node = nodes[id];
    if (is_root(node) || node.children.size() != 1) return;
    NodeId child_id = kNoNode;
    node.children.for_each([&](NodeId only) { child_id = only; });
    Node& child = nodes[child_id];
    KV_ASSERT(child.parent == id && child.first_depth == node.first_depth + node.run.size());
    // As in split(), the part that is cheaper to move goes into the other.
    const std::size_t child_moved = child.run.size() + child.children.size(), node_moved = node.run.size();
    if (std::min(child_moved, node_moved) > kJoinMovedMax) return;
    if (node.run.size() + child.run.size() > kJoinBlocksMax) return;

    unlink_child(id, child_id);
    if (child_moved <= node_moved) {
      set_node(child.run, id);
      covers.move_children(child_id, id);
      node.run.append(child.run, heap_bytes);
      move_children(child_id, id);
      rename_leaf(child_id, id);
      replace_run(child, {});
      free_empty_node(child_id, id);
    } else {
      set_node(node.run, child_id);
      covers.forget_children(id);
      nodes[node.parent].children.replace(fingerprint(node.run.hashes()[0]), id, child_id);
      child.parent = node.parent;
      child.first_depth = node.first_depth;
      child.pinned_count = node.pinned_count;
      BlockRun run = node.run.copy(0, node.run.size(), heap_bytes);
      run.append(child.run, heap_bytes);
      replace_run(child, std::move(run));
      replace_run(node, {});
      free_empty_node(id, child_id);
    }
  }

  // -- covers. A walk upward stops at the first node that was covered before, or still is: all above are unchanged.

  /// The number of covered blocks in the node's run; always the first ones.
  std::uint32_t covered_count(NodeId id) const {
    if (covers.empty()) return 0;
    if (covers.child_count(id) > 0) return nodes[id].run.size();
    const std::uint32_t end = covers.end(id);
    return end == 0 ? 0 : end - nodes[id].first_depth;
  }

  /// The node has become covered. Returns how many blocks above it become covered.
  std::size_t cover_above(NodeId id) {
    std::size_t fresh = 0;
    for (id = nodes[id].parent; !is_root(nodes[id]); id = nodes[id].parent) {
      const std::uint32_t before = covered_count(id);
      covers.add_child(id);
      fresh += nodes[id].run.size() - before;
      if (before > 0) break;
    }
    return fresh;
  }

  /// A child of `above` was uncovered. Returns how many blocks, from `above` up, are uncovered.
  std::size_t uncover_above(NodeId above, Steps* steps) {
    std::size_t ended = 0;
    for (NodeId id = above; !is_root(nodes[id]); id = nodes[id].parent) {
      covers.remove_child(id);
      const std::uint32_t after = covered_count(id);
      if (steps != nullptr) steps->take(Steps::kBlock);
      ended += nodes[id].run.size() - after;
      if (after > 0) break;
    }
    return ended;
  }

  void for_each(NodeId root, const std::function<void(BlockId)>& visit) const {
    std::vector<NodeId> todo{root};
    while (!todo.empty()) {
      const Node& node = nodes[todo.back()];
      todo.pop_back();
      for (std::uint32_t i = 0; i < node.run.size(); ++i) visit(node.run.ids()[i]);
      node.children.for_each([&](NodeId child) { todo.push_back(child); });
    }
  }

  // -- eviction order

  /// Puts the node into its proper heap, after its leaf end has changed or the node has become a leaf or ceased to be
  /// one. Pinned leaf ends may stay in the heap: oldest_leaf_end() removes those it meets, and unpin() puts them back.
  /// So a pin leaves the heap alone.
  void update_leaf(NodeId id) {
    const Node& node = nodes[id];
    if (node.run.empty() || node.children.size() > 0) return take_out_of_heap(id);
    const Block& end = blocks[to_int(node.run.last())];
    const std::uint32_t belongs = heap_of(id);
    if (is_in_heap(id) && leaf_heaps[id] != belongs) take_out_of_heap(id);
    if (!is_in_heap(id)) {
      if (end.pin_count > 0) return;
      add_to_heap(id, belongs, end.recency);
    } else if (heap_with(id).key(id) > end.recency) {
      heap_with(id).set_key(id, end.recency);  // a larger recency waits: an older key is still a lower bound
      note_top(belongs);
      lower_bound(belongs, end.recency);
    }
  }

  void add_to_heap(NodeId leaf, std::uint32_t heap, std::uint64_t recency) {
    leaf_heaps[leaf] = heap;
    leaves[heap].insert(leaf, recency);
    note_top(heap);
    std::uint32_t& queue_end = queue_ends[heap / queues.count];
    queue_end = std::max(queue_end, static_cast<std::uint32_t>(heap % queues.count) + 1);
    lower_bound(heap, recency);
  }

  /// A heap received an entry with this key.
  void lower_bound(std::uint32_t heap, std::uint64_t key) {
    lower_bound_in(heaps, heap, key);
    if (band_of.empty()) return;
    if (const std::uint32_t of = band(heap / queues.count); of != kNoBand) {
      const std::uint32_t queue = heap % queues.count;
      lower_bound_in(band_heap(of, queue), heap, key);
      band_queue_ends[of] = std::max(band_queue_ends[of], queue + 1);
    }
  }
  static void lower_bound_in(LeafHeap& order, std::uint32_t heap, std::uint64_t key) {
    if (!order.contains(heap)) {
      order.insert(heap, key);
    } else if (order.key(heap) > key) {
      order.set_key(heap, key);
    }
  }

  /// The oldest leaf end of all heaps in `order`. It is in the heap with the least bound, if that bound is the key of
  /// the heap's top. Only this function updates bounds, one for each change of a heap's top. So a query over thousands
  /// of mostly untouched heaps costs no more than one over a few.
  BlockId oldest_in(LeafHeap& order, Steps* steps) {
    while (!order.empty()) {
      const auto [bound, heap] = order.top();
      LeafHeap& of_heap = leaves[heap];
      if (of_heap.empty()) {
        order.erase(heap);
      } else if (of_heap.top().key > bound) {
        order.set_key(heap, of_heap.top().key);
      } else if (const BlockId end = top_leaf_end(of_heap); end != kNoBlock) {
        return end;
      }
      if (steps == nullptr) continue;
      steps->take(Steps::kLeaf);
      if (!steps->are_left()) break;
    }
    return kNoBlock;
  }

  /// The leaf end at the top of the heap; if it is pinned or was used since, repairs that and returns kNoBlock. Each
  /// pin or use causes at most one repair, and so pays for it.
  BlockId top_leaf_end(LeafHeap& heap) {
    const auto [key, leaf] = heap.top();
    const BlockId end = nodes[leaf].run.last();
    const Block& block = at(end);
    if (block.pin_count > 0) {
      take_out_of_heap(leaf);
    } else if (block.recency > key) {
      // Its latest use may also have been of another kind.
      const std::uint32_t belongs = heap_of(leaf);
      if (belongs == leaf_heaps[leaf]) {
        heap.set_key(leaf, block.recency);
        note_top(belongs);
      } else {
        take_out_of_heap(leaf);
        add_to_heap(leaf, belongs, block.recency);
      }
    } else {
      return end;
    }
    return kNoBlock;
  }

  /// A removed block leaves its recency and its uses to the block above (3, 7).
  void inherit(BlockId above, std::uint64_t recency, Usage usage) {
    if (above != kNoBlock) inherit(blocks[to_int(above)].recency, usages[to_int(above)], recency, usage);
  }

  /// `blocks_up`: the distance from the block to the heir.
  static void inherit(std::uint64_t& heir_recency, Usage& heir, std::uint64_t recency, Usage usage,
                      std::uint32_t blocks_up = 1) {
    if (recency >= heir_recency) {
      heir.trait = usage.trait;
      heir.passed = static_cast<std::uint8_t>(std::min(usage.passed + blocks_up, 255u));
    }
    heir_recency = std::max(heir_recency, recency);
    heir.use_count = static_cast<std::uint8_t>(std::min(heir.use_count + usage.use_count, kUseCountMax));
  }

  /// The same for a leaf end about to be removed. A detached subtree's first block has none above: its recency waits in
  /// the Detached for the block that was above the cut.
  void bequeath(BlockId block) {
    const Block& gone = at(block);
    const Usage usage = usages[to_int(block)];
    const Node& node = nodes[gone.node];
    const std::uint32_t count = offset(gone);
    // The blocks above often go next, and their data is seldom in cache.
    if (count >= kPrefetchUp) {
      const std::uint32_t up = count - kPrefetchUp, id = to_int(node.run.ids()[up]);
      __builtin_prefetch(&blocks[id], 1);
      __builtin_prefetch(&usages[id], 1);
      __builtin_prefetch(node.run.hashes() + up);
    }
    const BlockId next = count > 0 ? node.run.ids()[count - 1] : above(node);
    if (next != kNoBlock) return inherit(next, gone.recency, usage);
    if (node.parent == trees[node.tree].root) return;
    const auto piece =
        std::find_if(detached.begin(), detached.end(), [&](const Detached& each) { return each.root == node.parent; });
    if (piece != detached.end()) inherit(piece->recency, piece->usage, gone.recency, usage, 0);
  }

  void end_detached() {
    const Detached& piece = detached.front();
    free_empty_node(piece.root, kNoNode);
    if (is_linked(piece.above) && hash(piece.above) == piece.above_hash) {
      inherit(piece.above, piece.recency, piece.usage);
      update_leaf(blocks[to_int(piece.above)].node);  // its uses may place it in another queue
    }
    detached.pop_front();
  }
  const BlockHash& hash(BlockId block) const {
    const Block& known = linked(block);
    return nodes[known.node].run.hashes()[offset(known)];
  }

  // -- blocks

  BlockId new_block() {
    std::uint32_t id = free_block;
    if (id != 0xFFFFFFFF) {
      free_block = blocks[id].depth;
    } else {
      id = blocks.add();
      usages.add();
    }
    return BlockId{id};
  }

  void free(BlockId block) {
    tokens.erase(block);
    blocks[to_int(block)].node = kNoNode;
    blocks[to_int(block)].depth = free_block;
    free_block = to_int(block);
  }

  void count_removed(std::uint32_t id, const Block& block) {
    Tree& tree = trees[id];
    KV_ASSERT(linked_count > 0 && tree.block_count > 0);
    --linked_count;
    --tree.block_count;
    if (tree.kind == TreeKind::kSet) {
      tree.total_bytes -= block.position;
      set_totals.bytes -= block.position;
      --set_totals.block_count;
    }
    note_if_empty(id);
  }

  void note_if_empty(std::uint32_t id) {
    Tree& tree = trees[id];
    if (tree.block_count > 0 || tree.unlinked_count > 0 || tree.is_in_emptied) return;
    tree.is_in_emptied = true;
    emptied_trees.push_back(TreeId{id});
  }

  /// Frees a node that lost its last block. Its parent may now be a leaf, or have one child left and join with it.
  void remove_empty_node(NodeId id, NodeId parent) {
    free_empty_node(id, parent);
    update_leaf(parent);
    join_only_child(parent);
  }

  /// Removes a leaf end from its run, and with the run's last block the run from the tree. The Block entry stays.
  void cut_leaf_end(BlockId block) {
    const NodeId id = at(block).node;
    Node& node = nodes[id];
    KV_ASSERT(node.run.last() == block && node.children.size() == 0);  // invariant 1
    count_removed(node.tree, at(block));
    if (node.run.size() > 1) {
      node.run.truncate(node.run.size() - 1, heap_bytes);
      update_leaf(id);
    } else {
      unlink_child(node.parent, id);
      node.run.clear(heap_bytes);
      update_leaf(id);
      remove_empty_node(id, node.parent);
    }
  }

  /// A pinned leaf end becomes unlinked: out of the tree, but known by its id until the last unpin.
  void take_out_leaf_end(BlockId block) {
    Block& gone = at(block);
    KV_ASSERT(gone.pin_count > 0);
    const Node& node = nodes[gone.node];
    orphans[to_int(block)] = {node.run.hashes()[offset(gone)], TreeId{node.tree}};
    ++trees[node.tree].unlinked_count;
    add_pinned(gone.node, 0u - 1);
    cut_leaf_end(block);
    gone.node = kUnlinkedNode;
  }

  std::string check() const;
  std::string check_tree(NodeId root, std::uint32_t tree, std::size_t& node_count, std::size_t& bytes,
                         std::size_t& candidates, std::size_t& block_count, std::size_t& covering_nodes) const;
  const char* check_node(NodeId id) const;  ///< nullptr, or the broken invariant.
};

PrefixIndex::PrefixIndex(std::uint64_t hash_seed, LeafQueues queues)
    : impl_(std::make_unique<Impl>(hash_seed, queues)) {}
PrefixIndex::~PrefixIndex() = default;

TreeId PrefixIndex::add_tree(std::uint32_t group, TreeKind kind) {
  Impl& impl = *impl_;
  impl.need_group(group);
  TreeId tree{static_cast<std::uint32_t>(impl.trees.size())};
  if (impl.free_trees.empty()) {
    impl.trees.emplace_back();
  } else {
    tree = impl.free_trees.back();
    impl.free_trees.pop_back();
  }
  Tree& added = impl.trees[static_cast<std::size_t>(tree)];
  KV_ASSERT(static_cast<std::size_t>(tree) <= kTreeMax);
  added.group = group;
  added.kind = kind;
  added.root = impl.new_node(static_cast<std::uint32_t>(tree), kNoNode, 0);
  return tree;
}

void PrefixIndex::remove_tree(TreeId id) {
  Impl& impl = *impl_;
  KV_ASSERT(is_empty(id));  // including unlinked blocks: forget() will need their tree
  Tree& tree = impl.at(id);
  KV_ASSERT(tree.root != kNoNode && impl.nodes[tree.root].children.size() == 0);
  if (tree.is_in_emptied) std::erase(impl.emptied_trees, id);
  impl.nodes[tree.root].children.clear(impl.heap_bytes);
  impl.free_empty_node(tree.root, kNoNode);
  tree = {};
  impl.free_trees.push_back(id);
}

bool PrefixIndex::has_tree(TreeId tree) const { return impl_->has_tree(tree); }

bool PrefixIndex::is_set(TreeId tree) const { return impl_->at(tree).kind == TreeKind::kSet; }

bool PrefixIndex::is_empty(TreeId tree) const {
  return impl_->at(tree).block_count == 0 && impl_->at(tree).unlinked_count == 0;
}

std::vector<TreeId> PrefixIndex::take_emptied() {
  for (const TreeId tree : impl_->emptied_trees) impl_->at(tree).is_in_emptied = false;
  return std::exchange(impl_->emptied_trees, {});
}

/// One hash lookup an edge, and within an edge a comparison of two arrays: prompts that share a long beginning cost a
/// sequential read, not a search for each block.
PrefixIndex::Prefix PrefixIndex::match(TreeId tree, std::span<const BlockHash> hashes) const {
  const Impl& impl = *impl_;
  Prefix prefix;
  for (NodeId id = impl_->at(tree).root; prefix.block_count < hashes.size();) {
    id = impl.find_child_node(impl.nodes[id], hashes[prefix.block_count]);
    if (id == kNoNode) break;
    const BlockRun& run = impl.nodes[id].run;
    const std::size_t count = std::min<std::size_t>(run.size(), hashes.size() - prefix.block_count);
    const std::size_t equal = common_count(run.hashes(), &hashes[prefix.block_count], count);
    KV_ASSERT(equal > 0);  // the child was found by its first hash
    prefix.block_count += equal;
    prefix.last = run.ids()[equal - 1];
    if (equal < run.size()) break;
  }
  return prefix;
}

void PrefixIndex::blocks_of(const Prefix& prefix, std::span<BlockId> blocks) const {
  KV_ASSERT(blocks.size() == prefix.block_count);
  if (blocks.empty()) return;
  const Block& last = impl_->linked(prefix.last);
  KV_ASSERT(last.depth + 1 == prefix.block_count);
  // Upward from the last block, since nodes link to their parents; each run fills the part of `blocks` before it.
  std::size_t left = prefix.block_count;
  for (NodeId id = last.node; left > 0; id = impl_->nodes[id].parent) {
    const Node& node = impl_->nodes[id];
    std::copy_n(node.run.ids(), left - node.first_depth, blocks.begin() + node.first_depth);
    left = node.first_depth;
  }
}

PrefixIndex::PartialBlock PrefixIndex::match_partial(TreeId tree, BlockId parent,
                                                     std::span<const std::uint32_t> token_ids,
                                                     const ExtraDigest& extra) const {
  const Impl& impl = *impl_;
  const TokenTable::Tokens wanted{extra, token_ids};
  PartialBlock best;
  const auto consider = [&](BlockId block) {
    const std::size_t count = TokenTable::common_count(impl.tokens.of(block), wanted);
    if (count > best.token_count) best = {count, block};
  };
  const auto [id, count] = impl_->place(tree, parent);
  const Node& node = impl.nodes[id];
  if (count < node.run.size()) {
    if (impl.is_candidate(parent, node.run.ids()[count])) consider(node.run.ids()[count]);
  } else if (node.candidates) {
    // In lexicographic order the longest common prefix is with a neighbour of the place of `wanted`.
    const auto after = node.candidates->lower_bound(wanted);
    if (after != node.candidates->begin()) consider(*std::prev(after));
    if (after != node.candidates->end()) consider(*after);
  }
  return best;
}

void PrefixIndex::find_each(TreeId set, std::span<const BlockHash> hashes, std::span<BlockId> blocks) const {
  KV_ASSERT(is_set(set) && blocks.size() == hashes.size());
  const Impl& impl = *impl_;
  const ChildMap& children = impl.nodes[impl_->at(set).root].children;
  std::array<std::uint32_t, kFoundAtOnce> prints;
  std::array<NodeId, kFoundAtOnce> likely;
  // In rounds over a few names: each round reads what the last one prefetched, so all misses overlap.
  for (std::size_t first = 0; first < hashes.size(); first += kFoundAtOnce) {
    const auto some = hashes.subspan(first, std::min(kFoundAtOnce, hashes.size() - first));
    for (std::size_t k = 0; k < some.size(); ++k) children.prefetch(prints[k] = impl.fingerprint(some[k]));
    for (std::size_t k = 0; k < some.size(); ++k) {
      likely[k] = children.find(prints[k], [](NodeId) { return true; });
      if (likely[k] != kNoNode) __builtin_prefetch(&impl.nodes[likely[k]]);
    }
    for (std::size_t k = 0; k < some.size(); ++k) {
      if (likely[k] == kNoNode) continue;
      const BlockRun& run = impl.nodes[likely[k]].run;
      __builtin_prefetch(run.hashes());
      __builtin_prefetch(run.ids());  // 32 bytes on, perhaps in the next line
    }
    for (std::size_t k = 0; k < some.size(); ++k) {
      BlockId& block = blocks[first + k] = kNoBlock;
      if (likely[k] == kNoNode) continue;
      const auto is_it = [&](NodeId child) { return impl.nodes[child].run.hashes()[0] == some[k]; };
      const NodeId child = children.find(prints[k], is_it);
      if (child == kNoNode) continue;
      block = impl.nodes[child].run.ids()[0];
      __builtin_prefetch(&impl.blocks[to_int(block)]);  // for the caller
    }
  }
}

BlockId PrefixIndex::find_child(TreeId tree, BlockId parent, const BlockHash& hash) const {
  // Inside a run the only child is the next block; a choice exists only behind the run's end.
  const auto [id, count] = impl_->place(tree, parent);
  const Node& node = impl_->nodes[id];
  if (count < node.run.size()) return node.run.hashes()[count] == hash ? node.run.ids()[count] : kNoBlock;
  const NodeId child = impl_->find_child_node(node, hash);
  return child == kNoNode ? kNoBlock : impl_->nodes[child].run.ids()[0];
}

/// Children hang only below the last block of an edge. A parent in the middle of an edge splits the edge first; its
/// half gets the block as second child.
BlockId PrefixIndex::insert(TreeId tree, BlockId parent, const NewBlock& block, Tick tick) {
  Impl& impl = *impl_;
  KV_ASSERT(find_child(tree, parent, block.hash) == kNoBlock);
  auto [id, count] = impl.place(tree, parent);
  if (count < impl.nodes[id].run.size()) id = impl.split(id, count);

  // A leaf's run grows in place. Below a node with children, or a root with its empty run, the block begins a new edge.
  const bool is_append = count > 0 && impl.nodes[id].children.size() == 0;
  Tree& of_tree = impl.at(tree);
  const bool is_set = of_tree.kind == TreeKind::kSet;
  KV_ASSERT(!is_set || (parent == kNoBlock && block.token_ids.empty()));  // invariant 8
  const std::uint32_t depth = impl.nodes[id].first_depth + count;
  const NodeId target = is_append ? id : impl.new_node(static_cast<std::uint32_t>(tree), id, depth);
  const BlockId added = impl.new_block();
  impl.blocks[to_int(added)] = {
      static_cast<std::uint64_t>(block.slot), static_cast<std::uint64_t>(tick), 0, block.position, target, depth};
  impl.usages[to_int(added)] = block.usage;
  if (parent != kNoBlock) {
    std::uint8_t& of_parent = impl.usages[to_int(parent)].use_count;
    of_parent -= std::min(of_parent, block.usage.use_count);
  }
  if (!block.token_ids.empty()) impl.tokens.set(added, block.token_ids, block.extra);
  impl.nodes[target].run.append(block.hash, added, impl.heap_bytes);
  if (is_set) {
    impl.need_group(block.group);
    impl.nodes[target].group = block.group & kGroupMax;
    of_tree.total_bytes += block.position;
    impl.set_totals.bytes += block.position;
    ++impl.set_totals.block_count;
  }
  if (!is_append) {
    impl.link_child(id, target);
    impl.update_leaf(id);
  }
  impl.update_leaf(target);
  ++impl.linked_count;
  ++of_tree.block_count;
  return added;
}

/// Only leaf ends are removed, one by one: removing an inner block would make the blocks below unreachable.
void PrefixIndex::remove_leaf_end(BlockId block) {
  Impl& impl = *impl_;
  KV_ASSERT(is_leaf_end(block));
  KV_ASSERT(pin_count(block) == 0);
  impl.bequeath(block);  // first: afterwards the block is unlinked from the one above
  impl.cut_leaf_end(block);
  impl.free(block);
}

/// In one call, so its time grows with the subtree. detach() and reap() do the same in bounded steps.
void PrefixIndex::unlink_subtree(BlockId block, const std::function<void(BlockId)>& removed) {
  Impl& impl = *impl_;
  const NodeId top = impl.linked(block).node;
  const NodeId top_parent = impl.nodes[top].parent;
  const std::uint32_t kept = impl.offset(impl.at(block));
  const BlockId above = parent(block);
  const std::uint32_t tree = impl.nodes[top].tree;

  // The tree is complete without the blocks before the first is handed out: `removed` queries the index about them.
  std::vector<NodeId> node_ids{top};  // parents before children
  for (std::size_t i = 0; i < node_ids.size(); ++i) {
    impl.nodes[node_ids[i]].children.for_each([&](NodeId child) { node_ids.push_back(child); });
  }
  std::vector<BlockRun> runs;
  for (const NodeId id : node_ids) {
    Node& node = impl.nodes[id];
    impl.take_out_of_heap(id);
    if (node.candidates) impl.candidate_count -= node.candidates->size();
    node.candidates.reset();
    node.children.clear(impl.heap_bytes);
    if (id != top) {
      runs.push_back(std::move(node.run));
      impl.free_empty_node(id, top);
    }
  }
  Node& node = impl.nodes[top];
  if (kept == 0) {
    impl.unlink_child(top_parent, top);
    runs.insert(runs.begin(), std::move(node.run));
  } else {
    runs.insert(runs.begin(), node.run.copy(kept, node.run.size(), impl.heap_bytes));
    node.run.truncate(kept, impl.heap_bytes);
  }
  const std::uint32_t top_depth = impl.at(block).depth;
  std::uint64_t recency = 0;
  Usage usage = {};
  std::uint32_t pinned = 0;
  for (const BlockRun& run : runs) {
    for (std::uint32_t i = 0; i < run.size(); ++i) {
      Block& gone = impl.at(run.ids()[i]);
      impl.inherit(recency, usage, gone.recency, impl.usages[to_int(run.ids()[i])], gone.depth - top_depth);
      pinned += gone.pin_count > 0;
      gone.node = kUnlinkedNode;
      impl.count_removed(tree, gone);
    }
  }
  impl.inherit(above, recency, usage);
  impl.add_pinned(top, 0 - pinned);
  if (kept == 0) {
    impl.remove_empty_node(top, top_parent);
  } else {
    impl.update_leaf(top);
  }

  for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
    for (std::uint32_t i = run->size(); i-- > 0;) {
      const BlockId gone = run->ids()[i];
      impl.orphans[to_int(gone)] = {run->hashes()[i], TreeId{tree}};
      ++impl.trees[tree].unlinked_count;
      removed(gone);
      if (impl.at(gone).pin_count == 0) forget(gone);  // `removed` may have ended the last pin
    }
    run->clear(impl.heap_bytes);
  }
}

void PrefixIndex::forget(BlockId block) {
  KV_ASSERT(impl_->at(block).node == kUnlinkedNode);
  KV_ASSERT(pin_count(block) == 0);
  const auto orphan = impl_->orphans.find(to_int(block));
  KV_ASSERT(orphan != impl_->orphans.end());
  const auto tree = static_cast<std::uint32_t>(orphan->second.tree);
  impl_->orphans.erase(orphan);
  impl_->free(block);
  KV_ASSERT(impl_->trees[tree].unlinked_count > 0);
  --impl_->trees[tree].unlinked_count;
  impl_->note_if_empty(tree);
}

void PrefixIndex::touch(BlockId block, Tick tick) {
  std::uint64_t& recency = impl_->at(block).recency;
  recency = std::max(recency, static_cast<std::uint64_t>(tick));
}

void PrefixIndex::use(BlockId block, Tick tick, std::uint16_t trait, std::uint8_t passed) {
  touch(block, tick);
  Usage& usage = impl_->usages[to_int(block)];
  usage = {static_cast<std::uint8_t>(std::min(usage.use_count + 1, kUseCountMax)), passed, trait};
}

void PrefixIndex::correct(BlockId block, std::uint16_t trait) { impl_->usages[to_int(block)].trait = trait; }

void PrefixIndex::pin(BlockId block) {
  Block& pinned = impl_->at(block);
  KV_ASSERT(pinned.pin_count < 0xFFFFFFFF);
  if (++pinned.pin_count == 1 && pinned.node != kUnlinkedNode) impl_->add_pinned(pinned.node, 1);
}

void PrefixIndex::unpin(BlockId block) {
  Block& unpinned = impl_->at(block);
  KV_ASSERT(unpinned.pin_count > 0);
  if (--unpinned.pin_count > 0 || unpinned.node == kUnlinkedNode) return;
  impl_->add_pinned(unpinned.node, 0u - 1);
  if (is_leaf_end(block)) impl_->update_leaf(unpinned.node);  // oldest_leaf_end() may have taken it out of the heap
}

/// From the last block up. Carries the count of fresh pins along, so that each edge above is written once.
void PrefixIndex::pin(std::span<const BlockId> prefix) {
  Impl& impl = *impl_;
  std::uint32_t fresh = 0;
  NodeId node = kNoNode;
  for (std::size_t i = prefix.size(); i-- > 0;) {
    Block& block = impl.at(prefix[i]);
    KV_ASSERT(block.pin_count < 0xFFFFFFFF && block.node != kUnlinkedNode);
    if (block.node != node) {
      impl.add_pinned(node, fresh, block.node);
      node = block.node;
    }
    fresh += ++block.pin_count == 1;
  }
  impl.add_pinned(node, fresh);
}

void PrefixIndex::unpin(std::span<const BlockId> prefix) {
  Impl& impl = *impl_;
  std::uint32_t ended = 0;
  NodeId node = kNoNode;
  for (std::size_t i = prefix.size(); i-- > 0;) {
    Block& block = impl.at(prefix[i]);
    KV_ASSERT(block.pin_count > 0);
    if (block.node == kUnlinkedNode) {  // so are those after it in the chain, uncounted by edges
      --block.pin_count;
      continue;
    }
    if (block.node != node) {
      // Blocks detached since the pin have a root of their own. The walk from there ends at that root, not at this
      // node, and the carried count is spent: start again.
      NodeId at = node;
      for (; at != block.node && at != kNoNode; at = impl.nodes[at].parent) impl.nodes[at].pinned_count -= ended;
      if (at == kNoNode) ended = 0;
      node = block.node;
    }
    if (--block.pin_count > 0) continue;
    ++ended;
    if (is_leaf_end(prefix[i])) impl.update_leaf(block.node);
  }
  impl.add_pinned(node, 0 - ended);
}

void PrefixIndex::move_pin(BlockId from, BlockId to) {
  Impl& impl = *impl_;
  Block& old = impl.at(from);
  Block& next = impl.at(to);
  KV_ASSERT(old.pin_count > 0 && next.pin_count < 0xFFFFFFFF && parent(to) == from);
  const std::uint32_t gained = ++next.pin_count == 1, lost = --old.pin_count == 0;
  // Within one edge only the sum changes. Across two, `to` begins the edge directly below that of `from`.
  if (old.node != next.node) impl.nodes[next.node].pinned_count += gained;
  if (gained != lost) impl.add_pinned(old.node, gained - lost);
}

bool PrefixIndex::has_pinned(BlockId block, Steps& steps) const {
  const Impl& impl = *impl_;
  const Block& known = impl.linked(block);
  const Node& node = impl.nodes[known.node];
  steps.take(Steps::kBlock);
  if (node.pinned_count == 0) return false;
  const std::uint32_t count = impl.offset(known);
  if (count == 0) return true;
  // The edge counts its whole run; pinned blocks above this one do not matter here.
  steps.take(count);
  std::uint32_t above = 0;
  for (std::uint32_t i = 0; i < count; ++i) above += impl.blocks[to_int(node.run.ids()[i])].pin_count > 0;
  return node.pinned_count > above;
}

// -- covers

std::size_t PrefixIndex::cover(BlockId block) {
  Impl& impl = *impl_;
  const Block& known = impl.linked(block);
  KV_ASSERT(known.pin_count > 0 && !is_cover(block));  // set_node() moves only pinned covers
  const std::uint32_t before = impl.covered_count(known.node), end = impl.offset(known) + 1;
  impl.covers.add(known.node, known.depth);
  if (before > 0) return std::max(end, before) - before;
  return end + impl.cover_above(known.node);
}

std::size_t PrefixIndex::uncovered_count(BlockId block) const {
  const Impl& impl = *impl_;
  NodeId id = impl.linked(block).node;
  std::size_t end = impl.offset(impl.linked(block)) + 1, count = 0;
  for (; !impl.is_root(impl.nodes[id]); end = impl.nodes[id].run.size()) {
    const std::size_t covered = impl.covered_count(id);
    count += std::max(end, covered) - covered;
    if (covered > 0) break;
    id = impl.nodes[id].parent;
  }
  return count;
}

/// The mirror of cover(): counting ends where another cover below or beside keeps the blocks above covered.
std::size_t PrefixIndex::uncover(BlockId block, Steps* steps) {
  Impl& impl = *impl_;
  const Block& known = impl.linked(block);
  KV_ASSERT(impl.covers.remove(known.node, known.depth));
  const std::uint32_t after = impl.covered_count(known.node), end = impl.offset(known) + 1;
  if (steps != nullptr) steps->take(Steps::kBlock);
  if (after > 0) return std::max(end, after) - after;
  return end + impl.uncover_above(impl.nodes[known.node].parent, steps);
}

bool PrefixIndex::is_cover(BlockId block) const {
  return impl_->is_linked(block) && impl_->covers.contains(impl_->at(block).node, impl_->at(block).depth);
}

BlockId PrefixIndex::oldest_leaf_end(Steps* steps) { return impl_->oldest_in(impl_->heaps, steps); }

BlockId PrefixIndex::oldest_leaf_end(std::uint32_t group, Steps* steps) {
  if (impl_->queues.count == 1) return oldest_leaf_end(group, 0, steps);
  // A repair may move a leaf to another queue, so each round starts again from the least bound.
  for (;;) {
    const std::span<const Tick> bounds = oldest_bounds(group);
    const auto least = std::ranges::min_element(bounds);
    if (least == bounds.end() || *least == kNoTick) return kNoBlock;
    const std::size_t heap =
        std::size_t{group} * impl_->queues.count + static_cast<std::size_t>(least - bounds.begin());
    if (const BlockId end = impl_->top_leaf_end(impl_->leaves[heap]); end != kNoBlock) return end;
    if (steps == nullptr) continue;
    steps->take(Steps::kLeaf);
    if (!steps->are_left()) return kNoBlock;
  }
}

BlockId PrefixIndex::oldest_leaf_end(std::uint32_t group, std::uint32_t queue, Steps* steps) {
  KV_ASSERT(queue < impl_->queues.count);
  const std::size_t heap = std::size_t{group} * impl_->queues.count + queue;
  if (heap >= impl_->leaves.size()) return kNoBlock;
  LeafHeap& leaves = impl_->leaves[heap];
  while (!leaves.empty()) {
    if (const BlockId end = impl_->top_leaf_end(leaves); end != kNoBlock) return end;
    if (steps == nullptr) continue;
    steps->take(Steps::kLeaf);
    if (!steps->are_left()) break;
  }
  return kNoBlock;
}

std::uint32_t PrefixIndex::queue_end(std::uint32_t group) const {
  return group < impl_->queue_ends.size() ? impl_->queue_ends[group] : 0;
}

std::span<const Tick> PrefixIndex::oldest_bounds(std::uint32_t group) const {
  const std::uint32_t end = queue_end(group);
  if (end == 0) return {};
  return std::span(impl_->tops).subspan(std::size_t{group} * impl_->queues.count, end);
}

void PrefixIndex::set_band(std::uint32_t group, std::uint32_t band) {
  Impl& impl = *impl_;
  impl.need_group(group);
  if (impl.band_of.size() <= group) impl.band_of.resize(group + 1, kNoBand);
  impl.need_band_positions();
  for (; band != kNoBand && impl.band_queue_ends.size() <= band; impl.band_queue_ends.push_back(0)) {
    for (std::uint32_t queue = 0; queue < impl.queues.count; ++queue) impl.bands.emplace_back(impl.band_positions);
  }
  const std::uint32_t before = std::exchange(impl.band_of[group], band);
  if (before == band) return;
  for (std::uint32_t queue = 0, end = queue_end(group); queue < end; ++queue) {
    const std::uint32_t heap = group * impl.queues.count + queue;
    if (before != kNoBand && impl.band_positions[heap] != 0) impl.band_heap(before, queue).erase(heap);
    if (band != kNoBand && !impl.leaves[heap].empty()) impl.lower_bound(heap, impl.leaves[heap].top().key);
  }
}

std::uint32_t PrefixIndex::band(std::uint32_t group) const { return impl_->band(group); }

BlockId PrefixIndex::oldest_in_band(std::uint32_t band, Steps* steps) {
  // As in oldest_leaf_end(group): repairs move leaves.
  for (;;) {
    std::uint32_t least = impl_->queues.count;
    std::optional<Tick> bound;
    for (std::uint32_t queue = 0, end = band_queue_end(band); queue < end; ++queue) {
      const auto of_queue = oldest_bound_in_band(band, queue);
      if (!of_queue || (bound && *bound <= *of_queue)) continue;
      bound = of_queue;
      least = queue;
    }
    if (!bound) return kNoBlock;
    const BlockId end = oldest_in_band(band, least, steps);
    if (steps != nullptr && !steps->are_left()) return end;
    if (end != kNoBlock && (band_queue_end(band) == 1 || recency(end) == *bound)) return end;
  }
}

BlockId PrefixIndex::oldest_in_band(std::uint32_t band, std::uint32_t queue, Steps* steps) {
  KV_ASSERT(queue < impl_->queues.count);
  if (queue >= band_queue_end(band)) return kNoBlock;
  return impl_->oldest_in(impl_->band_heap(band, queue), steps);
}

std::uint32_t PrefixIndex::band_queue_end(std::uint32_t band) const {
  return band < impl_->band_queue_ends.size() ? impl_->band_queue_ends[band] : 0;
}

std::optional<Tick> PrefixIndex::oldest_bound_in_band(std::uint32_t band, std::uint32_t queue) const {
  if (queue >= band_queue_end(band)) return std::nullopt;
  const LeafHeap& order = impl_->band_heap(band, queue);
  if (order.empty()) return std::nullopt;
  return Tick{order.top().key};
}

std::uint32_t PrefixIndex::group(BlockId block) const { return impl_->nodes[impl_->linked(block).node].group; }

// -- removal in bounded steps

/// Cuts a subtree off for the price of one split, whatever its size: walks no longer find its blocks, and reap() frees
/// them later, a few at a time, between requests.
std::size_t PrefixIndex::detach(BlockId block, std::uint32_t label) {
  Impl& impl = *impl_;
  KV_ASSERT(is_linked(block));
  const BlockId above = parent(block);
  NodeId top = impl.at(block).node;
  const std::uint32_t kept = impl.offset(impl.at(block));
  if (kept > 0) {
    const NodeId upper = impl.split(top, kept);
    top = impl.at(block).node;
    KV_ASSERT(impl.nodes[top].parent == upper);
  }
  // Now `top` is a whole edge that begins with the block. Move it below its own root, and subtract its counts above.
  const NodeId old_parent = impl.nodes[top].parent;
  impl.unlink_child(old_parent, top);
  impl.add_pinned(old_parent, 0 - impl.nodes[top].pinned_count);
  const std::size_t uncovered = impl.covers.is_covered(top) ? impl.uncover_above(old_parent, nullptr) : 0;
  const NodeId root = impl.new_node(impl.nodes[top].tree, kNoNode, impl.nodes[top].first_depth);
  impl.nodes[top].parent = root;
  impl.nodes[root].pinned_count = impl.nodes[top].pinned_count;
  impl.link_child(root, top);
  impl.detached.push_back({.root = root, .label = label, .above = above});
  if (above != kNoBlock) impl.detached.back().above_hash = impl.hash(above);
  impl.update_leaf(old_parent);
  impl.join_only_child(old_parent);
  return uncovered;
}

void PrefixIndex::detach_all(TreeId tree, std::uint32_t label) {
  Impl& impl = *impl_;
  NodeId& root = impl.at(tree).root;
  if (impl.nodes[root].children.size() == 0) return;
  // The tree gets a new, empty root; the old one takes all edges with it.
  impl.detached.push_back({.root = root, .label = label});
  root = impl.new_node(static_cast<std::uint32_t>(tree), kNoNode, 0);
}

bool PrefixIndex::has_detached() const { return !impl_->detached.empty(); }

bool PrefixIndex::is_attached(BlockId block) const {
  if (!impl_->is_linked(block)) return false;
  NodeId id = impl_->at(block).node;
  while (!impl_->is_root(impl_->nodes[id])) id = impl_->nodes[id].parent;
  return impl_->trees[impl_->nodes[id].tree].root == id;
}

std::size_t PrefixIndex::reap(Steps& steps, const std::function<void(BlockId, std::uint32_t)>& removed) {
  Impl& impl = *impl_;
  std::size_t count = 0;
  while (!impl.detached.empty() && steps.are_left()) {
    const NodeId root = impl.detached.front().root;
    const std::uint32_t label = impl.detached.front().label;
    // Depth first, without a stack: go down to some leaf, remove its blocks from the end; the empty node then hands the
    // walk to its parent (free_empty_node). Between calls only `reaping` is needed.
    if (impl.reaping == kNoNode) impl.reaping = root;
    const NodeId id = impl.reaping;
    if (const NodeId child = impl.nodes[id].children.any(); child != ChildMap::kNone) {
      steps.take(Steps::kBlock);
      impl.reaping = child;
      continue;
    }
    if (id == root) {
      impl.end_detached();
      continue;
    }
    steps.take(Steps::kRemoval);
    ++count;
    const BlockId gone = impl.nodes[id].run.last();
    removed(gone, label);
    KV_ASSERT(impl.covers.empty() || !is_cover(gone));
    impl.bequeath(gone);
    if (impl.at(gone).pin_count > 0) {
      impl.take_out_leaf_end(gone);
    } else {
      impl.cut_leaf_end(gone);
      impl.free(gone);
    }
  }
  return count;
}

bool PrefixIndex::is_leaf_end(BlockId block) const {
  if (!impl_->is_linked(block)) return false;
  const Node& node = impl_->nodes[impl_->linked(block).node];
  return node.run.last() == block && node.children.size() == 0;
}

bool PrefixIndex::is_linked(BlockId block) const { return impl_->is_linked(block); }
std::uint32_t PrefixIndex::block_id_end() const { return impl_->blocks.size(); }

BlockId PrefixIndex::leaf_end_below(BlockId block, Steps& steps) const {
  NodeId id = impl_->linked(block).node;
  for (;;) {
    steps.take(Steps::kBlock);
    const NodeId child = impl_->nodes[id].children.any();
    if (child == ChildMap::kNone) return impl_->nodes[id].run.last();
    id = child;
  }
}

void PrefixIndex::visit_below(BlockId block, Steps& steps, const std::function<bool(BlockId)>& visit) const {
  const Impl& impl = *impl_;
  NodeId id = impl.linked(block).node;
  std::uint32_t from = impl.offset(impl.linked(block)) + 1;
  std::vector<NodeId> edges;  // still to be visited; at most as many as steps were taken
  for (;;) {
    const Node& node = impl.nodes[id];
    for (std::uint32_t i = from; i < node.run.size(); ++i) {
      if (!steps.are_left() || !visit(node.run.ids()[i])) return;
      steps.take(Steps::kBlock);
    }
    const bool is_whole = node.children.visit_some([&](NodeId child) {
      edges.push_back(child);
      steps.take(Steps::kGranule);
      return steps.are_left();
    });
    if (!is_whole || edges.empty()) return;
    id = edges.back();
    edges.pop_back();
    from = 0;
  }
}

PrefixIndex::Edge PrefixIndex::edge(BlockId block) const {
  const Node& node = impl_->nodes[impl_->linked(block).node];
  return {node.run.ids()[0], node.run.last(), node.run.size(), node.first_depth, node.children.size()};
}

bool PrefixIndex::visit_edges(TreeId tree, BlockId top, Steps& steps,
                              const std::function<bool(const Edge&)>& visit) const {
  const Impl& impl = *impl_;
  std::vector<NodeId> edges;  // still to be visited; at most as many as steps were taken
  const auto add_children = [&](NodeId id) {
    return impl.nodes[id].children.visit_some([&](NodeId child) {
      edges.push_back(child);
      steps.take(Steps::kGranule);
      return steps.are_left();
    });
  };
  if (top != kNoBlock) {
    edges.push_back(impl.linked(top).node);
  } else if (!add_children(impl_->at(tree).root)) {
    return false;
  }
  while (!edges.empty()) {
    if (!steps.are_left()) return false;
    steps.take(Steps::kBlock);
    const NodeId id = edges.back();
    edges.pop_back();
    if (!visit(edge(impl.nodes[id].run.last())) || !add_children(id)) return false;
  }
  return true;
}

const BlockHash& PrefixIndex::hash(BlockId block) const {
  const Block& known = impl_->at(block);
  if (known.node == kUnlinkedNode) return impl_->orphans.at(to_int(block)).hash;
  return impl_->nodes[known.node].run.hashes()[impl_->offset(known)];
}

TreeId PrefixIndex::tree(BlockId block) const {
  const Block& known = impl_->at(block);
  if (known.node == kUnlinkedNode) return impl_->orphans.at(to_int(block)).tree;
  return TreeId{impl_->nodes[known.node].tree};
}

BlockId PrefixIndex::parent(BlockId block) const {
  const Block& linked = impl_->linked(block);
  const Node& node = impl_->nodes[linked.node];
  const std::uint32_t offset = impl_->offset(linked);
  return offset > 0 ? node.run.ids()[offset - 1] : impl_->above(node);
}

SlotId PrefixIndex::slot(BlockId block) const { return SlotId{impl_->at(block).slot}; }
void PrefixIndex::set_slot(BlockId block, SlotId slot) { impl_->at(block).slot = static_cast<std::uint64_t>(slot); }
std::uint32_t PrefixIndex::position(BlockId block) const { return impl_->at(block).position; }
std::uint32_t PrefixIndex::pin_count(BlockId block) const { return impl_->at(block).pin_count; }
Usage PrefixIndex::usage(BlockId block) const {
  KV_ASSERT(impl_->is_known(block));
  return impl_->usages[to_int(block)];
}
Tick PrefixIndex::recency(BlockId block) const { return Tick{impl_->at(block).recency}; }
std::size_t PrefixIndex::block_count() const { return impl_->linked_count; }
std::size_t PrefixIndex::block_count(TreeId tree) const { return impl_->at(tree).block_count; }

std::uint64_t PrefixIndex::total_bytes(TreeId set) const {
  KV_ASSERT(is_set(set));
  return impl_->at(set).total_bytes;
}

PrefixIndex::SetTotals PrefixIndex::set_totals() const { return impl_->set_totals; }

std::size_t PrefixIndex::used_bytes() const {
  return (impl_->linked_count + impl_->orphans.size()) * (sizeof(Block) + sizeof(Usage)) +
         impl_->used_node_count * kNodeBytes + impl_->heap_bytes + impl_->tokens.used_bytes() +
         impl_->covers.used_bytes() + impl_->orphans.size() * kMapNodeBytes + impl_->candidate_count * kSetNodeBytes;
}

std::size_t PrefixIndex::memory_bytes() const {
  std::size_t leaves_bytes = impl_->leaves.capacity() * sizeof(LeafHeap) + impl_->tops.capacity() * sizeof(Tick) +
                             impl_->leaf_positions.heap_bytes() + impl_->leaf_heaps.heap_bytes() +
                             impl_->heaps.heap_bytes() + impl_->heap_positions.heap_bytes() +
                             impl_->band_positions.heap_bytes() + impl_->bands.capacity() * sizeof(LeafHeap);
  for (const LeafHeap& heap : impl_->leaves) leaves_bytes += heap.heap_bytes();
  for (const LeafHeap& order : impl_->bands) leaves_bytes += order.heap_bytes();
  return allocated_bytes(sizeof(Impl)) + impl_->blocks.heap_bytes() + impl_->usages.heap_bytes() +
         impl_->nodes.heap_bytes() + leaves_bytes + impl_->tokens.heap_bytes() + impl_->heap_bytes +
         impl_->trees.capacity() * sizeof(Tree) +
         (impl_->free_trees.capacity() + impl_->emptied_trees.capacity()) * sizeof(TreeId) +
         impl_->covers.used_bytes() + impl_->orphans.size() * kMapNodeBytes + impl_->candidate_count * kSetNodeBytes;
}

void PrefixIndex::for_each(TreeId tree, const std::function<void(BlockId)>& visit) const {
  impl_->for_each(impl_->at(tree).root, visit);
}

void PrefixIndex::for_each_detached(const std::function<void(BlockId)>& visit) const {
  for (const Detached& piece : impl_->detached) impl_->for_each(piece.root, visit);
}

std::string PrefixIndex::check() const { return impl_->check(); }

// -- checks, for tests: every sum is recounted from the blocks up, and every link is followed both ways

std::string PrefixIndex::Impl::check() const {
  std::size_t node_count = 0, bytes = 0, candidates = 0, linked = 0, free_blocks = 0, unlinked = 0, free_nodes = 0;
  std::size_t free_tree_count = 0, unlinked_of_trees = 0, emptied = 0, cover_count = 0, covering_nodes = 0;
  std::vector<std::size_t> block_counts(trees.size());
  std::vector<std::uint64_t> total_bytes(trees.size());
  for (std::uint32_t tree = 0; tree < trees.size(); ++tree) {
    free_tree_count += trees[tree].root == kNoNode;
    unlinked_of_trees += trees[tree].unlinked_count;
    emptied += trees[tree].is_in_emptied;
    if (trees[tree].root == kNoNode) continue;
    if (auto problem =
            check_tree(trees[tree].root, tree, node_count, bytes, candidates, block_counts[tree], covering_nodes);
        !problem.empty())
      return problem;
  }
  for (const Detached& piece : detached) {
    const std::uint32_t tree = nodes[piece.root].tree;
    if (piece.root == trees[tree].root) return "what was detached is still in its tree";
    if (auto problem = check_tree(piece.root, tree, node_count, bytes, candidates, block_counts[tree], covering_nodes);
        !problem.empty())
      return problem;
  }
  for (std::uint32_t tree = 0; tree < trees.size(); ++tree) {
    if (block_counts[tree] != trees[tree].block_count)
      return "tree " + std::to_string(tree) + ": wrong count of blocks";
    linked += trees[tree].block_count;
  }
  for (std::uint32_t i = 0; i < blocks.size(); ++i) {
    if (!is_linked(BlockId{i})) continue;
    const Node& node = nodes[blocks[i].node];
    if (trees[node.tree].kind != TreeKind::kSet) {
      if (node.group != trees[node.tree].group) return "a chain has a node of another group";
      continue;
    }
    if (node.run.size() != 1 || node.children.size() != 0 || !is_root(nodes[node.parent]))
      return "a block of a set does not stand alone";
    total_bytes[node.tree] += blocks[i].position;
  }
  SetTotals totals;
  for (std::uint32_t tree = 0; tree < trees.size(); ++tree) {
    if (total_bytes[tree] != trees[tree].total_bytes) return "tree " + std::to_string(tree) + ": wrong total_bytes";
    totals.bytes += total_bytes[tree];
    if (trees[tree].kind == TreeKind::kSet) totals.block_count += trees[tree].block_count;
  }
  if (totals.bytes != set_totals.bytes || totals.block_count != set_totals.block_count) return "wrong set_totals";
  for (std::uint32_t i = free_block; i != 0xFFFFFFFF; i = blocks[i].depth) ++free_blocks;
  for (NodeId i = free_node; i != kNoNode; i = nodes[i].parent) ++free_nodes;
  for (std::uint32_t i = 0; i < blocks.size(); ++i) {
    if (tokens.has(BlockId{i}) && blocks[i].node == kNoNode)
      return "free block " + std::to_string(i) + " has token ids";
    if (blocks[i].node == kUnlinkedNode) unlinked += orphans.count(i);
    if (blocks[i].pin_count > 0 && is_linked(BlockId{i}))
      cover_count += covers.contains(blocks[i].node, blocks[i].depth);
  }
  if (cover_count != covers.count()) return "a cover is no pinned block";
  if (covering_nodes != covers.parent_count()) return "covered children are counted of a node that is not in a tree";
  if (free_tree_count != free_trees.size()) return "a removed tree is not free";
  if (unlinked_of_trees != orphans.size()) return "unlinked_count is not that of the unlinked blocks";
  if (emptied != emptied_trees.size()) return "emptied trees are miscounted";
  if (linked != linked_count) return "linked_count is not the sum over the trees";
  if (orphans.size() != unlinked) return "orphans are not the unlinked blocks";
  if (linked + unlinked + free_blocks != blocks.size()) return "a block is neither linked, unlinked nor free";
  if (node_count + free_nodes != nodes.size()) return "a node is neither in a tree nor free";
  if (bytes != heap_bytes)
    return "heap_bytes is " + std::to_string(heap_bytes) + " and should be " + std::to_string(bytes);
  if (candidates != candidate_count) return "candidate_count is wrong";
  if (node_count != used_node_count) return "used_node_count is wrong";
  std::size_t ids_bytes = 0;
  for (std::uint32_t i = 0; i < blocks.size(); ++i) ids_bytes += tokens.ids_bytes(BlockId{i});
  if (ids_bytes != tokens.used_bytes()) return "the token ids' bytes are miscounted";
  std::size_t entries = 0, positions = 0;
  for (const LeafHeap& heap : leaves) {
    if (!heap.check()) return "a leaf heap is out of order";
    entries += heap.size();
  }
  for (NodeId i = 0; i < nodes.size(); ++i) positions += leaf_positions[i] != 0;
  if (entries != positions) return "a leaf is in two heaps";
  if (!heaps.check()) return "the heap of heaps is out of order";
  for (const LeafHeap& order : bands)
    if (!order.check()) return "a band's heap of heaps is out of order";
  for (std::uint32_t heap = 0; heap < leaves.size(); ++heap) {
    if (tops[heap] != (leaves[heap].empty() ? kNoTick : Tick{leaves[heap].top().key}))
      return "the top of a heap is not what is noted of it";
    if (leaves[heap].empty()) continue;
    if (!heaps.contains(heap)) return "a heap with leaves is in no order";
    if (heaps.key(heap) > leaves[heap].top().key) return "a heap's bound is above the key of its oldest leaf";
    const std::uint32_t of = band(heap / queues.count);
    if (of == kNoBand) continue;
    const LeafHeap& order = bands[std::size_t{of} * queues.count + heap % queues.count];
    if (band_positions[heap] == 0 || order.key(heap) > leaves[heap].top().key)
      return "a band does not know its oldest leaf";
  }
  return {};
}

std::string PrefixIndex::Impl::check_tree(NodeId root, std::uint32_t tree, std::size_t& node_count, std::size_t& bytes,
                                          std::size_t& candidates, std::size_t& block_count,
                                          std::size_t& covering_nodes) const {
  std::vector<NodeId> todo{root};
  if (!nodes[root].run.empty() || !is_root(nodes[root])) return "a root is not a root";
  while (!todo.empty()) {
    const NodeId id = todo.back();
    const Node& node = nodes[id];
    todo.pop_back();
    const auto in = [id](const char* what) { return "node " + std::to_string(id) + ": " + what; };
    if (node.tree != tree) return in("wrong tree");
    if (const char* const wrong = check_node(id); wrong != nullptr) return in(wrong);
    std::size_t children = 0, candidate_children = 0;
    std::uint32_t pinned = 0, covered = 0;
    const char* problem = nullptr;
    for (std::uint32_t i = 0; i < node.run.size(); ++i) pinned += blocks[to_int(node.run.ids()[i])].pin_count > 0;
    node.children.for_each([&](NodeId child) {
      todo.push_back(child);
      ++children;
      pinned += nodes[child].pinned_count;
      covered += covers.is_covered(child);
      const BlockRun& run = nodes[child].run;
      if (nodes[child].parent != id) problem = "a child has another parent";
      if (nodes[child].first_depth != node.first_depth + node.run.size()) problem = "a child has a wrong depth";
      if (run.empty() || find_child_node(node, run.hashes()[0]) != child) problem = "a child cannot be found";
      if (run.empty() || !is_candidate(above(nodes[child]), run.ids()[0])) return;
      ++candidate_children;
      if (!node.candidates || !node.candidates->contains(run.ids()[0])) problem = "a candidate is missing";
    });
    if (problem != nullptr) return in(problem);
    if (children != node.children.size()) return in("wrong count of children");
    if (pinned != node.pinned_count) return in("wrong count of pinned blocks");
    if (covers.child_count(id) != (is_root(node) ? 0 : covered)) return in("wrong count of covered children");
    covering_nodes += covers.child_count(id) > 0;
    if (candidate_children != (node.candidates ? node.candidates->size() : 0)) return in("wrong count of candidates");
    if (node.candidates && node.candidates->empty()) return in("an empty set of candidates");
    ++node_count;
    block_count += node.run.size();
    bytes += node.run.heap_bytes() + node.children.heap_bytes();
    candidates += candidate_children;
  }
  return {};
}

const char* PrefixIndex::Impl::check_node(NodeId id) const {
  const Node& node = nodes[id];
  for (std::uint32_t i = 0; i < node.run.size(); ++i) {
    const std::uint32_t block = to_int(node.run.ids()[i]);
    if (block >= blocks.size() || blocks[block].node != id) return "a block is of another node";
    if (blocks[block].depth != node.first_depth + i) return "a block has a wrong depth";
  }
  if (is_root(node)) return is_in_heap(id) ? "a root is in the leaf heap" : nullptr;
  if (node.run.empty()) return "an empty run";
  if (node.children.size() > 0) return is_in_heap(id) ? "an inner node is in the leaf heap" : nullptr;
  const Block& end = blocks[to_int(node.run.last())];
  if (!is_in_heap(id)) return end.pin_count == 0 ? "an unpinned leaf is not in the leaf heap" : nullptr;
  if (leaf_heaps[id] / queues.count != node.group) return "a leaf is in the heap of another group";
  const std::uint64_t key = heap_with(id).key(id);
  if (key == end.recency && leaf_heaps[id] != heap_of(id)) return "a leaf is in the heap of another queue";
  return key > end.recency ? "a leaf's key is above its recency" : nullptr;
}

}  // namespace kv
