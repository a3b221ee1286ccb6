#include "index/prefix_index.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "index/trees.h"

namespace kv {
namespace {

using radix::Block, radix::Detached, radix::kNoNode, radix::kUnlinkedNode, radix::Node, radix::NodeId, radix::to_int,
    radix::Tree;

// Hashes ahead. A run is some pages long and often uncached, and the hardware prefetch stops at each page. Measured:
// 8.2 -> 6.4 ns a block when cold, 1.46 -> 1.55 when warm.
constexpr std::size_t kPrefetchAhead = 32;
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

struct PrefixIndex::Impl : radix::Trees {
  using Trees::Trees;
};

PrefixIndex::PrefixIndex(std::uint64_t hash_seed, LeafQueues queues)
    : impl_(std::make_unique<Impl>(hash_seed, queues)) {}
PrefixIndex::~PrefixIndex() = default;

// -- trees

TreeId PrefixIndex::add_tree(std::uint32_t cohort, TreeKind kind) {
  Impl& impl = *impl_;
  impl.order.need_cohort(cohort);
  TreeId tree{static_cast<std::uint32_t>(impl.trees.size())};
  if (impl.free_trees.empty()) {
    impl.trees.emplace_back();
  } else {
    tree = impl.free_trees.back();
    impl.free_trees.pop_back();
  }
  Tree& added = impl.trees[static_cast<std::size_t>(tree)];
  KV_ASSERT(static_cast<std::size_t>(tree) <= kTreeMax);
  added.cohort = cohort;
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

// -- lookup

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

// -- insertion and removal

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
    impl.order.need_cohort(block.cohort);
    impl.nodes[target].cohort = block.cohort & kCohortMax;
    of_tree.total_bytes += block.position;
    impl.set_totals.bytes += block.position;
    ++impl.set_totals.block_count;
  }
  if (!is_append) {
    impl.link_child(id, target);
    impl.order.update(id);
  }
  impl.order.update(target);
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

/// In one call, so its time grows with the subtree. detach() and reap() do the same in bounded steps. Here all pins are
/// taken off in one sum: one by one, each walks the edges above, which in a deep subtree takes seconds.
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
    impl.order.take_out(id);
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
    impl.order.update(top);
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
  if (above != kNoBlock) impl.detached.back().above_hash = hash(above);
  impl.order.update(old_parent);
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

// -- use and pins

void PrefixIndex::touch(BlockId block, Tick tick) {
  std::uint64_t& recency = impl_->at(block).recency;
  recency = std::max(recency, static_cast<std::uint64_t>(tick));
}

void PrefixIndex::use(BlockId block, Tick tick, std::uint16_t trait, std::uint8_t passed) {
  touch(block, tick);
  Usage& usage = impl_->usages[to_int(block)];
  usage = {static_cast<std::uint8_t>(std::min(usage.use_count + 1, Impl::kUseCountMax)), passed, trait};
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
  if (is_leaf_end(block)) impl_->order.update(unpinned.node);  // oldest_leaf_end() may have taken it out of the heap
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
    if (is_leaf_end(prefix[i])) impl.order.update(block.node);
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
  std::size_t fresh = end;
  for (NodeId id = impl.nodes[known.node].parent; !impl.is_root(impl.nodes[id]); id = impl.nodes[id].parent) {
    const std::uint32_t covered = impl.covered_count(id);
    impl.covers.add_child(id);
    fresh += impl.nodes[id].run.size() - covered;
    if (covered > 0) break;
  }
  return fresh;
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

// -- eviction order

BlockId PrefixIndex::oldest_leaf_end(Steps* steps) { return impl_->order.oldest(steps); }
BlockId PrefixIndex::oldest_leaf_end(std::uint32_t cohort, Steps* steps) { return impl_->order.oldest(cohort, steps); }
BlockId PrefixIndex::oldest_leaf_end(std::uint32_t cohort, std::uint32_t queue, Steps* steps) {
  return impl_->order.oldest(cohort, queue, steps);
}
std::uint32_t PrefixIndex::queue_end(std::uint32_t cohort) const { return impl_->order.queue_end(cohort); }
std::span<const Tick> PrefixIndex::oldest_bounds(std::uint32_t cohort) const { return impl_->order.bounds(cohort); }
void PrefixIndex::set_band(std::uint32_t cohort, std::uint32_t band) { impl_->order.set_band(cohort, band); }
std::uint32_t PrefixIndex::band(std::uint32_t cohort) const { return impl_->order.band(cohort); }
BlockId PrefixIndex::oldest_in_band(std::uint32_t band, Steps* steps) {
  return impl_->order.oldest_in_band(band, steps);
}
BlockId PrefixIndex::oldest_in_band(std::uint32_t band, std::uint32_t queue, Steps* steps) {
  return impl_->order.oldest_in_band(band, queue, steps);
}
std::uint32_t PrefixIndex::band_queue_end(std::uint32_t band) const { return impl_->order.band_queue_end(band); }
std::optional<Tick> PrefixIndex::oldest_bound_in_band(std::uint32_t band, std::uint32_t queue) const {
  return impl_->order.bound_in_band(band, queue);
}
std::uint32_t PrefixIndex::cohort(BlockId block) const { return impl_->nodes[impl_->linked(block).node].cohort; }

// -- the shape of the trees

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

namespace {

/// Returns whether all children were pushed before the steps were used up.
bool push_children(const Node& node, std::vector<NodeId>& edges, Steps& steps) {
  return node.children.visit_some([&](NodeId child) {
    edges.push_back(child);
    steps.take(Steps::kGranule);
    return steps.are_left();
  });
}

}  // namespace

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
    if (!push_children(node, edges, steps) || edges.empty()) return;
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
  if (top != kNoBlock) {
    edges.push_back(impl.linked(top).node);
  } else if (!push_children(impl.nodes[impl_->at(tree).root], edges, steps)) {
    return false;
  }
  while (!edges.empty()) {
    if (!steps.are_left()) return false;
    steps.take(Steps::kBlock);
    const Node& node = impl.nodes[edges.back()];
    edges.pop_back();
    if (!visit(edge(node.run.last())) || !push_children(node, edges, steps)) return false;
  }
  return true;
}

// -- facts

const BlockHash& PrefixIndex::hash(BlockId block) const {
  const Block& known = impl_->at(block);
  if (known.node == kUnlinkedNode) return impl_->orphans.at(to_int(block)).hash;
  return impl_->hash(known);
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

std::size_t PrefixIndex::used_bytes() const { return impl_->used_bytes(); }
std::size_t PrefixIndex::memory_bytes() const { return impl_->memory_bytes(); }

void PrefixIndex::for_each(TreeId tree, const std::function<void(BlockId)>& visit) const {
  impl_->for_each(impl_->at(tree).root, visit);
}

void PrefixIndex::for_each_detached(const std::function<void(BlockId)>& visit) const {
  for (const Detached& piece : impl_->detached) impl_->for_each(piece.root, visit);
}

std::string PrefixIndex::check() const { return impl_->check(); }

}  // namespace kv
