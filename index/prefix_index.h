// index/: the names of blocks, and which blocks are here. Start here.
//
// Independent of block memory, disk, network, threads and clock (recency is a count of uses). In reading order:
//   block_hash.h        a block's name: 32 bytes for its tokens and all tokens before them
//   namespace_record.h  everything else that shapes a block's bytes: model, element type, layout, tenant
//   reuse_hint.h        a caller's hint about a request's future
//   name_groups.h       names of a set whose blocks are useful only together
//   steps.h             the work budget of one call under the Store's lock
//   prefix_index.h      block hashes -> longest cached prefix, and where each block lies (this file)
// and the parts of a PrefixIndex:
//   edges.h             its blocks, and the edges of its radix trees
//   block_run.h         the blocks of one edge
//   child_map.h         the edges that begin below a node
//   token_table.h       the token ids of blocks that came with any
//   stable_table.h      a growing array whose elements stay in place
//   trees.h             edges split, joined and cut, with all counts
//   cover_table.h       blocks that count together with all above them
//   leaf_order.h        the eviction order of leaf ends, over many heaps: leaf_heap.h
//
// Follow a block: it enters as one hash of a chain, and leaves as the slot of its bytes, or not at all: match() returns
// how many of the chain's first blocks are here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "index/block_hash.h"
#include "index/steps.h"

namespace kv {

enum class TreeId : std::uint32_t {};
enum class BlockId : std::uint32_t {};          ///< A block in the index, valid until its removal; then reused.
inline constexpr BlockId kNoBlock{0xFFFFFFFF};  ///< As a parent: the root.
enum class SlotId : std::uint64_t {};           ///< A place in the arena; opaque here.
enum class Tick : std::uint64_t {};             ///< Order of use: a larger tick is later. Not time.
enum class TreeKind : std::uint8_t {
  kChain,  ///< Blocks continue one another.
  kSet,    ///< Blocks stand alone: each hangs directly below the root, so each is a leaf end.
};

/// How often a block was used, and the kind of its latest use; for eviction decisions.
struct Usage {
  std::uint8_t use_count = 0;  ///< Saturates at 255.
  /// How many blocks, here or gone, the latest use continued beyond this one. Saturates at 255.
  std::uint8_t passed = 0;
  std::uint16_t trait = 0;  ///< Of the latest use: the argument of use().

  friend bool operator==(const Usage&, const Usage&) = default;
};

/// Sorts leaf ends into queues, each with its own order of use. `queue_of` is pure, with values below `count`.
struct LeafQueues {
  static constexpr std::uint32_t kCountMax = 256;

  std::uint32_t count = 1;
  std::uint32_t (*queue_of)(Usage) = [](Usage) { return std::uint32_t{0}; };
};

/// Radix trees over block hashes, one per namespace: an edge is a run of blocks, split where prefixes diverge.
///   1. A block's parent is in the index as long as the block is: only leaf ends and whole subtrees are removed.
///   2. A BlockId stays valid over splits, appends and removals of other blocks.
///   3. recency(b) of a leaf end is the largest tick given to the block itself or to any removed block that was below
///      it. So touching the last block of a prefix keeps the whole prefix recent, in O(1).
///   4. oldest_leaf_end() names the least recent unpinned leaf end.
///   5. Each edge counts the pinned blocks in itself and below. So one edge shows whether any block at or below a block
///      is pinned, however many edges hang below it.
///   6. All covers and the blocks above them are counted once each, however many covers share a block.
///   7. usage(b) of a leaf end counts each use() of the block itself and of any block that ever was below: these uses
///      went through it. A block comes with its past uses; an insertion subtracts these from the block above, which had
///      inherited them, or counted them as its own.
///   8. In a set no block is above another. Blocks of a set may belong to several cohorts; those of a chain to the
///      tree's.
/// Cost: match at most 10 ns a block at 10 M blocks, also after churn; memory at most 120 bytes a block in runs of 16
/// and more (a prompt of one block takes 230), without token ids. Growth never copies a whole table; a split or join
/// moves at most one edge's blocks. Results are equal on every machine. Thread safety: the Store's lock.
class PrefixIndex {
 public:
  struct NewBlock {
    BlockHash hash;
    SlotId slot;
    /// In its whole prefix, from 0; a node with part of a chain sees gaps. In a set, the length in bytes.
    std::uint32_t position;
    std::span<const std::uint32_t> token_ids = {};  ///< Optional; copied.
    ExtraDigest extra = {};                         ///< With token ids.
    std::uint32_t cohort = 0;                       ///< In a set.
    Usage usage = {.use_count = 1};                 ///< Its known uses, this one included.
  };
  struct Prefix {
    std::size_t block_count = 0;
    BlockId last = kNoBlock;  ///< The block_count-th block; kNoBlock if block_count is 0.
  };
  struct PartialBlock {
    std::size_t token_count = 0;  ///< Leading tokens shared with the stored sibling; 0 without one.
    BlockId block = kNoBlock;
  };

  /// `hash_seed` keeps callers with their own hashes from making lookups slow; a daemon passes a random number.
  explicit PrefixIndex(std::uint64_t hash_seed = 0, LeafQueues queues = {});
  ~PrefixIndex();

  static constexpr std::uint32_t kCohortMax = 4095, kTreeMax = (1 << 20) - 1;
  /// An empty tree; ids of removed trees are reused. `cohort`, at most kCohortMax: see oldest_leaf_end(cohort).
  TreeId add_tree(std::uint32_t cohort = 0, TreeKind kind = TreeKind::kChain);
  /// Requires: is_empty(tree). The next add_tree() may return this id.
  void remove_tree(TreeId tree);
  bool has_tree(TreeId tree) const;
  bool is_set(TreeId tree) const;
  bool is_empty(TreeId tree) const;  ///< It has neither linked blocks nor unlinked ones that are not forgotten yet.
  /// Trees that have lost their last block since the last call, each once. Some may have new blocks meanwhile.
  std::vector<TreeId> take_emptied();

  /// The longest prefix of `hashes` that is in the tree.
  Prefix match(TreeId tree, std::span<const BlockHash> hashes) const;
  /// The blocks of a prefix found by match, first to last, into `blocks` of exactly prefix.block_count elements.
  void blocks_of(const Prefix& prefix, std::span<BlockId> blocks) const;
  /// Among the blocks that directly follow `parent` (kNoBlock: the first blocks of the tree) and carry token ids: one
  /// with the same extra that shares the most leading ids with `token_ids`, at least one. Extras are compared whole,
  /// even if they concern only tokens after the shared ids: the index does not record where in a block an extra begins.
  /// "Directly" means that the position is the parent's plus one (0 under the root); else blocks on other nodes lie
  /// between, and the prefix might differ. O(log candidates).
  PartialBlock match_partial(TreeId tree, BlockId parent, std::span<const std::uint32_t> token_ids,
                             const ExtraDigest& extra = {}) const;

  /// For each of `hashes`, the block of that name in a set, or kNoBlock. Cost: O(1) a block; its four cache misses
  /// mostly overlap with those of the others.
  void find_each(TreeId set, std::span<const BlockHash> hashes, std::span<BlockId> blocks) const;
  /// The child of `parent` called `hash`, or kNoBlock.
  BlockId find_child(TreeId tree, BlockId parent, const BlockHash& hash) const;
  /// Adds `block` below `parent` (kNoBlock: below the root), used at `tick`, not pinned. Requires: find_child(tree,
  /// parent, block.hash) == kNoBlock, parent is in this tree.
  BlockId insert(TreeId tree, BlockId parent, const NewBlock& block, Tick tick);
  /// Requires: is_leaf_end(block), unpinned.
  void remove_leaf_end(BlockId block);
  /// Takes the block and all below it out of the tree, and hands each to `removed`, children before parents. `removed`
  /// may only read the block that it is given (all but parent) and unpin it. An unpinned block is gone when `removed`
  /// returns. A pinned block stays known by its BlockId (is_linked() false) until its last unpin; the caller of that
  /// unpin then calls forget(). Requires: no covers among them.
  void unlink_subtree(BlockId block, const std::function<void(BlockId)>& removed);
  void forget(BlockId block);  ///< Requires: unlinked, unpinned.

  // -- removal in bounded steps: cut off at once, freed later
  /// Cuts the block and all below it off the tree: hides them from match() and find_child(). Until reap() frees them
  /// they are still linked, below a hidden root, and still counted. reap() returns `label` with each of them. Their
  /// covers go too: returns how many blocks above were uncovered. Cost: one split, and the edges above.
  std::size_t detach(BlockId block, std::uint32_t label);
  void detach_all(TreeId tree, std::uint32_t label);  ///< The same for all blocks of a tree. O(1).
  bool has_detached() const;
  /// Removes detached blocks from the index, children before parents, as long as there are steps. Hands each to
  /// `removed` with its label. `removed` may only read and unpin the block, and must uncover a cover. An unpinned block
  /// is then gone; a pinned one stays known, as with unlink_subtree(). Returns how many were removed.
  std::size_t reap(Steps& steps, const std::function<void(BlockId, std::uint32_t label)>& removed);
  /// Whether a match can find the block: linked, and neither it nor a block above it is detached. O(edges above).
  bool is_attached(BlockId block) const;

  void touch(BlockId block, Tick tick);  ///< Marks the block, and so its whole prefix, as used at `tick`.
  /// The same, and counts the use. `trait`, `passed`: as in Usage.
  void use(BlockId block, Tick tick, std::uint16_t trait, std::uint8_t passed = 0);
  /// Corrects the kind of the latest use.
  void correct(BlockId block, std::uint16_t trait);
  // A pin costs O(edges above the block), for a whole prefix as much as for its last block.
  void pin(BlockId block);    ///< Counted; at most 2^32-1. Protects the block and its prefix from eviction.
  void unpin(BlockId block);  ///< Requires: pin_count(block) > 0.
  void pin(std::span<const BlockId> prefix);    ///< Each block; a gapless part of one chain, first to last.
  void unpin(std::span<const BlockId> prefix);  ///< The blocks given to pin(). Some may be unlinked by now.
  void move_pin(BlockId from, BlockId to);      ///< As pin(to), unpin(from). Requires: `to` directly follows `from`.
  /// Whether this block or one below is pinned, which rules out its eviction. Cost: O(its edge), counted in `steps`.
  bool has_pinned(BlockId block, Steps& steps) const;

  // -- covers: blocks that count together with all above them, shared ones once
  /// Makes the block a cover. Returns how many blocks (this one and those above, up to the root) become covered.
  /// Requires: linked, pinned until uncover(), not a cover. Cost: O(newly covered edges).
  std::size_t cover(BlockId block);
  std::size_t uncovered_count(BlockId block) const;  ///< The result that cover() would return.
  /// The reverse. Returns how many blocks were uncovered, and counts the visited edges in `steps`.
  std::size_t uncover(BlockId block, Steps* steps = nullptr);
  bool is_cover(BlockId block) const;

  /// The least recently used unpinned leaf end in all trees; kNoBlock without one. Cost: amortised O(log leaves) for
  /// any number of cohorts; but one call may find that many leaf ends were used or pinned since the last call. `steps`
  /// counts all visits and ends the search when used up: then kNoBlock is inconclusive, and the next call goes on.
  BlockId oldest_leaf_end(Steps* steps = nullptr);
  /// The same among the trees of a cohort (blocks of one size, say).
  BlockId oldest_leaf_end(std::uint32_t cohort, Steps* steps = nullptr);

  /// The same among the leaf ends of one queue of LeafQueues. When its latest use moves a leaf end to another queue, it
  /// stays in the old one until its turn comes there: a use leaves the heap alone.
  BlockId oldest_leaf_end(std::uint32_t cohort, std::uint32_t queue, Steps* steps);
  /// From this queue on, the cohort never had a leaf end. O(1).
  std::uint32_t queue_end(std::uint32_t cohort) const;
  /// By queue, up to queue_end(): a lower bound of the last use of oldest_leaf_end(cohort, queue); kNoTick if the queue
  /// is certainly empty. Valid until the next change. O(1).
  static constexpr Tick kNoTick{~std::uint64_t{0}};
  std::span<const Tick> oldest_bounds(std::uint32_t cohort) const;
  std::uint32_t cohort(BlockId block) const;  ///< Requires: is_linked(block).

  // -- bands: cohorts that act as one
  static constexpr std::uint32_t kNoBand = ~std::uint32_t{0};
  /// Moves the cohort into a band; kNoBand, the initial state: out of its band. Bands are numbered from 0 up, without
  /// large gaps. Cost: O(queues in use * log cohorts).
  void set_band(std::uint32_t cohort, std::uint32_t band);
  std::uint32_t band(std::uint32_t cohort) const;
  // As with a cohort, over all cohorts of the band. Cost: O(log cohorts + log leaves), amortised.
  BlockId oldest_in_band(std::uint32_t band, Steps* steps);
  BlockId oldest_in_band(std::uint32_t band, std::uint32_t queue, Steps* steps);
  std::uint32_t band_queue_end(std::uint32_t band) const;
  std::optional<Tick> oldest_bound_in_band(std::uint32_t band, std::uint32_t queue) const;

  bool is_leaf_end(BlockId block) const;
  /// Some leaf end at or below `block`, the same one until a change below. Cost: O(edges between).
  BlockId leaf_end_below(BlockId block, Steps& steps) const;
  /// Visits the blocks below `block`, each after the one above it, until `visit` returns false or the steps are used
  /// up. `visit` may only pin and read blocks.
  void visit_below(BlockId block, Steps& steps, const std::function<bool(BlockId)>& visit) const;
  // -- the shape of the trees, for drawing
  struct Edge {
    BlockId first = kNoBlock, last = kNoBlock;
    std::uint32_t block_count = 0;  ///< In its run.
    std::uint32_t depth = 0;        ///< Blocks of the tree above the first one.
    std::uint32_t child_count = 0;  ///< Edges that begin below the last one.
  };
  Edge edge(BlockId block) const;  ///< The block's edge. Requires: is_linked(block). O(1).
  /// Visits the edge of `top` and all below it (kNoBlock: the whole tree), each after the one above it, until `visit`
  /// returns false or the steps are used up. Returns whether all were visited. `visit` may only read blocks.
  bool visit_edges(TreeId tree, BlockId top, Steps& steps, const std::function<bool(const Edge&)>& visit) const;

  bool is_linked(BlockId block) const;  ///< Accepts any id.
  std::uint32_t block_id_end() const;   ///< All ids are below it: a loop over them meets every block.
  const BlockHash& hash(BlockId block) const;
  TreeId tree(BlockId block) const;
  BlockId parent(BlockId block) const;  ///< kNoBlock for a first block. Requires: is_linked(block).
  SlotId slot(BlockId block) const;
  void set_slot(BlockId block, SlotId slot);
  std::uint32_t position(BlockId block) const;
  std::uint32_t pin_count(BlockId block) const;
  Usage usage(BlockId block) const;   ///< Exact for leaf ends (invariant 7).
  Tick recency(BlockId block) const;  ///< Exact for leaf ends (invariant 3); a lower bound for others.

  std::size_t block_count() const;  ///< Linked blocks in all trees.
  std::size_t block_count(TreeId tree) const;
  std::uint64_t total_bytes(TreeId set) const;  ///< Lengths of its linked blocks.
  struct SetTotals {
    std::size_t block_count = 0;
    std::uint64_t bytes = 0;
  };
  SetTotals set_totals() const;
  /// Bytes of the present blocks: entries, edges, token ids. Falls with each removed block, unlike memory_bytes():
  /// tables keep their memory for later blocks. O(1).
  std::size_t used_bytes() const;
  std::size_t memory_bytes() const;  ///< All heap bytes of the index.

  /// Every linked block of a tree, parents before children.
  void for_each(TreeId tree, const std::function<void(BlockId)>& visit) const;
  void for_each_detached(
      const std::function<void(BlockId)>& visit) const;  ///< The same for blocks that reap() has yet to remove.
  /// Checks every invariant; for tests. Returns an empty string or the broken one.
  std::string check() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kv
