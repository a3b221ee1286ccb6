#include "index/trees.h"

#include <algorithm>
#include <utility>

namespace kv::radix {
namespace {

// A join undoes a split and moves one edge's blocks. Both may alternate as prefixes come and go; these bounds keep each
// under some microseconds. A longer edge stays split: one more hop in hundreds of blocks is free.
constexpr std::size_t kJoinMovedMax = 256;
constexpr std::size_t kJoinBlocksMax = 4096;

// The allocated size of one element in a standard container, and of a node with its entry in the order of leaves.
constexpr std::size_t kMapNodeBytes = 80, kSetNodeBytes = 48;
constexpr std::size_t kNodeBytes = sizeof(Node) + sizeof(LeafHeap::Entry) + 2 * sizeof(std::uint32_t);

constexpr std::uint32_t kPrefetchUp = 4;  // Evictions ahead, of some 100 ns each.

}  // namespace

// -- structure

/// Takes from the free list first: the tables never shrink, so a freed entry is the cheapest.
NodeId Trees::new_node(std::uint32_t tree, NodeId parent, std::uint32_t first_depth) {
  NodeId id = free_node;
  if (id != kNoNode) {
    free_node = nodes[id].parent;
  } else {
    id = nodes.add();
    order.need_node();
  }
  Node& node = nodes[id];
  node.tree = tree & PrefixIndex::kTreeMax;
  node.cohort = trees[tree].cohort & PrefixIndex::kCohortMax;
  node.parent = parent;
  node.first_depth = first_depth;
  node.pinned_count = 0;
  ++used_node_count;
  return id;
}

void Trees::free_empty_node(NodeId id, NodeId heir) {
  Node& node = nodes[id];
  if (reaping == id) reaping = heir;
  --used_node_count;
  KV_ASSERT(node.run.empty() && node.children.size() == 0 && !node.candidates && !order.contains(id));
  node.parent = free_node;
  free_node = id;
}

void Trees::link_child(NodeId parent, NodeId child) {
  Node& node = nodes[parent];
  const BlockRun& run = nodes[child].run;
  node.children.insert(fingerprint(run.hashes()[0]), child, heap_bytes);
  if (!is_candidate(above(nodes[child]), run.ids()[0])) return;
  if (!node.candidates) node.candidates = std::make_unique<Candidates>(TokenTable::Order{&tokens});
  candidate_count += node.candidates->insert(run.ids()[0]).second;
}

void Trees::unlink_child(NodeId parent, NodeId child) {
  Node& node = nodes[parent];
  const BlockRun& run = nodes[child].run;
  node.children.erase(fingerprint(run.hashes()[0]), child, heap_bytes);
  if (!node.candidates) return;
  candidate_count -= node.candidates->erase(run.ids()[0]);
  if (node.candidates->empty()) node.candidates.reset();
}

void Trees::move_children(NodeId from, NodeId to) {
  nodes[to].children = std::move(nodes[from].children);
  nodes[to].candidates = std::move(nodes[from].candidates);
  nodes[to].children.for_each([&](NodeId child) { nodes[child].parent = to; });
}

/// Assigns the run's blocks, and the covers among them, to `node`. Returns how many are pinned. (A cover is pinned,
/// so only pinned blocks need a cover lookup.)
std::uint32_t Trees::set_node(const BlockRun& run, NodeId node) {
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

NodeId Trees::split(NodeId id, std::uint32_t count) {
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
  // The upper half keeps its count, which includes all below (3). The lower half sums its own and its children's.
  nodes[other].pinned_count = moved_pinned;
  if (node.pinned_count > 0) {
    nodes[other].children.for_each([&](NodeId child) { nodes[other].pinned_count += nodes[child].pinned_count; });
  }
  order.rename(id, other);
  replace_run(node, node.run.copy(0, count, heap_bytes));  // exact: an inner run does not grow
  link_child(id, other);
  return id;
}

void Trees::replace_run(Node& node, BlockRun run) {
  node.run.clear(heap_bytes);
  node.run = std::move(run);
}

void Trees::join_only_child(NodeId id) {
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
    order.rename(child_id, id);
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

void Trees::for_each(NodeId root, const std::function<void(BlockId)>& visit) const {
  std::vector<NodeId> todo{root};
  while (!todo.empty()) {
    const Node& node = nodes[todo.back()];
    todo.pop_back();
    for (std::uint32_t i = 0; i < node.run.size(); ++i) visit(node.run.ids()[i]);
    node.children.for_each([&](NodeId child) { todo.push_back(child); });
  }
}

// -- covers

std::uint32_t Trees::covered_count(NodeId id) const {
  if (covers.empty()) return 0;
  if (covers.child_count(id) > 0) return nodes[id].run.size();
  const std::uint32_t end = covers.end(id);
  return end == 0 ? 0 : end - nodes[id].first_depth;
}

std::size_t Trees::uncover_above(NodeId above, Steps* steps) {
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

// -- removal

BlockId Trees::new_block() {
  std::uint32_t id = free_block;
  if (id != 0xFFFFFFFF) {
    free_block = blocks[id].depth;
  } else {
    id = blocks.add();
    usages.add();
  }
  return BlockId{id};
}

void Trees::free(BlockId block) {
  tokens.erase(block);
  blocks[to_int(block)].node = kNoNode;
  blocks[to_int(block)].depth = free_block;
  free_block = to_int(block);
}

void Trees::count_removed(std::uint32_t id, const Block& block) {
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

void Trees::note_if_empty(std::uint32_t id) {
  Tree& tree = trees[id];
  if (tree.block_count > 0 || tree.unlinked_count > 0 || tree.is_in_emptied) return;
  tree.is_in_emptied = true;
  emptied_trees.push_back(TreeId{id});
}

void Trees::remove_empty_node(NodeId id, NodeId parent) {
  free_empty_node(id, parent);
  order.update(parent);
  join_only_child(parent);
}

void Trees::cut_leaf_end(BlockId block) {
  const NodeId id = at(block).node;
  Node& node = nodes[id];
  KV_ASSERT(node.run.last() == block && node.children.size() == 0);  // PrefixIndex, 1
  count_removed(node.tree, at(block));
  if (node.run.size() > 1) {
    node.run.truncate(node.run.size() - 1, heap_bytes);
    order.update(id);
  } else {
    unlink_child(node.parent, id);
    node.run.clear(heap_bytes);
    order.update(id);
    remove_empty_node(id, node.parent);
  }
}

void Trees::take_out_leaf_end(BlockId block) {
  Block& gone = at(block);
  KV_ASSERT(gone.pin_count > 0);
  const Node& node = nodes[gone.node];
  orphans[to_int(block)] = {node.run.hashes()[offset(gone)], TreeId{node.tree}};
  ++trees[node.tree].unlinked_count;
  add_pinned(gone.node, 0u - 1);
  cut_leaf_end(block);
  gone.node = kUnlinkedNode;
}

void Trees::inherit(std::uint64_t& heir_recency, Usage& heir, std::uint64_t recency, Usage usage,
                    std::uint32_t blocks_up) {
  if (recency >= heir_recency) {
    heir.trait = usage.trait;
    heir.passed = static_cast<std::uint8_t>(std::min(usage.passed + blocks_up, 255u));
  }
  heir_recency = std::max(heir_recency, recency);
  heir.use_count = static_cast<std::uint8_t>(std::min(heir.use_count + usage.use_count, kUseCountMax));
}

void Trees::bequeath(BlockId block) {
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

void Trees::end_detached() {
  const Detached& piece = detached.front();
  free_empty_node(piece.root, kNoNode);
  if (is_linked(piece.above) && hash(blocks[to_int(piece.above)]) == piece.above_hash) {
    inherit(piece.above, piece.recency, piece.usage);
    order.update(blocks[to_int(piece.above)].node);  // its uses may place it in another queue
  }
  detached.pop_front();
}

std::size_t Trees::used_bytes() const {
  return (linked_count + orphans.size()) * (sizeof(Block) + sizeof(Usage)) + used_node_count * kNodeBytes + heap_bytes +
         tokens.used_bytes() + covers.used_bytes() + orphans.size() * kMapNodeBytes + candidate_count * kSetNodeBytes;
}

std::size_t Trees::memory_bytes() const {
  return allocated_bytes(sizeof *this) + blocks.heap_bytes() + usages.heap_bytes() + nodes.heap_bytes() +
         order.heap_bytes() + tokens.heap_bytes() + heap_bytes + trees.capacity() * sizeof(Tree) +
         (free_trees.capacity() + emptied_trees.capacity()) * sizeof(TreeId) + covers.used_bytes() +
         orphans.size() * kMapNodeBytes + candidate_count * kSetNodeBytes;
}

// -- checks, for tests: every sum is recounted from the blocks up, and every link is followed both ways

struct Trees::Recount {
  std::size_t node_count = 0, bytes = 0, candidates = 0, covering_nodes = 0;
  std::vector<std::size_t> block_counts;  ///< By tree.
};

std::string Trees::check() const {
  Recount found{.block_counts = std::vector<std::size_t>(trees.size())};
  for (std::uint32_t tree = 0; tree < trees.size(); ++tree) {
    if (trees[tree].root == kNoNode) continue;
    if (auto problem = check_tree(trees[tree].root, tree, found); !problem.empty()) return problem;
  }
  for (const Detached& piece : detached) {
    const std::uint32_t tree = nodes[piece.root].tree;
    if (piece.root == trees[tree].root) return "what was detached is still in its tree";
    if (auto problem = check_tree(piece.root, tree, found); !problem.empty()) return problem;
  }
  for (std::uint32_t tree = 0; tree < trees.size(); ++tree) {
    if (found.block_counts[tree] != trees[tree].block_count)
      return "tree " + std::to_string(tree) + ": wrong count of blocks";
  }
  if (found.bytes != heap_bytes)
    return "heap_bytes is " + std::to_string(heap_bytes) + " and should be " + std::to_string(found.bytes);
  if (const char* const wrong = check_sets(); wrong != nullptr) return wrong;
  if (const char* const wrong = check_blocks(); wrong != nullptr) return wrong;
  if (const char* const wrong = check_nodes(found); wrong != nullptr) return wrong;
  const char* const wrong = order.check();
  return wrong == nullptr ? "" : wrong;
}

const char* Trees::check_sets() const {
  std::vector<std::uint64_t> total_bytes(trees.size());
  for (std::uint32_t i = 0; i < blocks.size(); ++i) {
    if (!is_linked(BlockId{i})) continue;
    const Node& node = nodes[blocks[i].node];
    if (trees[node.tree].kind != TreeKind::kSet) {
      if (node.cohort != trees[node.tree].cohort) return "a chain has a node of another cohort";
      continue;
    }
    if (node.run.size() != 1 || node.children.size() != 0 || !is_root(nodes[node.parent]))
      return "a block of a set does not stand alone";
    total_bytes[node.tree] += blocks[i].position;
  }
  PrefixIndex::SetTotals totals;
  for (std::uint32_t tree = 0; tree < trees.size(); ++tree) {
    if (total_bytes[tree] != trees[tree].total_bytes) return "a tree has wrong total_bytes";
    totals.bytes += total_bytes[tree];
    if (trees[tree].kind == TreeKind::kSet) totals.block_count += trees[tree].block_count;
  }
  return totals.bytes == set_totals.bytes && totals.block_count == set_totals.block_count ? nullptr
                                                                                          : "wrong set_totals";
}

const char* Trees::check_blocks() const {
  std::size_t linked = 0, unlinked = 0, free_blocks = 0, cover_count = 0, ids_bytes = 0;
  std::size_t free_tree_count = 0, unlinked_of_trees = 0, emptied = 0;
  for (const Tree& tree : trees) {
    linked += tree.block_count;
    free_tree_count += tree.root == kNoNode;
    unlinked_of_trees += tree.unlinked_count;
    emptied += tree.is_in_emptied;
  }
  for (std::uint32_t i = free_block; i != 0xFFFFFFFF; i = blocks[i].depth) ++free_blocks;
  for (std::uint32_t i = 0; i < blocks.size(); ++i) {
    if (tokens.has(BlockId{i}) && blocks[i].node == kNoNode) return "a free block has token ids";
    ids_bytes += tokens.ids_bytes(BlockId{i});
    if (blocks[i].node == kUnlinkedNode) unlinked += orphans.count(i);
    if (blocks[i].pin_count > 0 && is_linked(BlockId{i}))
      cover_count += covers.contains(blocks[i].node, blocks[i].depth);
  }
  if (cover_count != covers.count()) return "a cover is no pinned block";
  if (free_tree_count != free_trees.size()) return "a removed tree is not free";
  if (unlinked_of_trees != orphans.size()) return "unlinked_count is not that of the unlinked blocks";
  if (emptied != emptied_trees.size()) return "emptied trees are miscounted";
  if (linked != linked_count) return "linked_count is not the sum over the trees";
  if (orphans.size() != unlinked) return "orphans are not the unlinked blocks";
  if (linked + unlinked + free_blocks != blocks.size()) return "a block is neither linked, unlinked nor free";
  return ids_bytes == tokens.used_bytes() ? nullptr : "the token ids' bytes are miscounted";
}

const char* Trees::check_nodes(const Recount& found) const {
  std::size_t free_nodes = 0;
  for (NodeId i = free_node; i != kNoNode; i = nodes[i].parent) ++free_nodes;
  if (found.covering_nodes != covers.parent_count())
    return "covered children are counted of a node that is not in a tree";
  if (found.node_count + free_nodes != nodes.size()) return "a node is neither in a tree nor free";
  if (found.candidates != candidate_count) return "candidate_count is wrong";
  return found.node_count == used_node_count ? nullptr : "used_node_count is wrong";
}

std::string Trees::check_tree(NodeId root, std::uint32_t tree, Recount& found) const {
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
    found.covering_nodes += covers.child_count(id) > 0;
    if (candidate_children != (node.candidates ? node.candidates->size() : 0)) return in("wrong count of candidates");
    if (node.candidates && node.candidates->empty()) return in("an empty set of candidates");
    ++found.node_count;
    found.block_counts[tree] += node.run.size();
    found.bytes += node.run.heap_bytes() + node.children.heap_bytes();
    found.candidates += candidate_children;
  }
  return {};
}

const char* Trees::check_node(NodeId id) const {
  const Node& node = nodes[id];
  for (std::uint32_t i = 0; i < node.run.size(); ++i) {
    const std::uint32_t block = to_int(node.run.ids()[i]);
    if (block >= blocks.size() || blocks[block].node != id) return "a block is of another node";
    if (blocks[block].depth != node.first_depth + i) return "a block has a wrong depth";
  }
  if (!is_root(node) && node.run.empty()) return "an empty run";
  return order.check(id);
}

}  // namespace kv::radix
