// index/: what blocks are called, and which of them are here. Start here.
//
// Knows no memory for blocks, no disk, network or thread, and no clock: recency is a count of uses, handed in. Files,
// in reading order:
//   block_hash.h        what a block is called: 32 bytes that name its tokens and all tokens before them
//   namespace_record.h  what else shapes a block's bytes: model, element type, layout, tenant
//   reuse_hint.h        what a caller says of a request's future
//   name_groups.h       names of a set whose blocks are of use only together
//   steps.h             how much one call may do under the Store's lock
//   prefix_index.h      block hashes -> longest cached prefix, and where each block lies (this file)
// and what a PrefixIndex is made of:
//   block_run.h         the blocks of one edge of the radix tree
//   child_map.h         which edges begin below a node
//   leaf_heap.h         which leaf end is evicted first
//   cover_table.h       what is counted together with all above it
//   token_table.h       the token ids of blocks that came with any
//   stable_table.h      a growing array whose elements stay where they are
//
// Follow a block: it enters as one hash of a chain, and leaves as the slot where its bytes lie, or not at all: match()
// says how many of the chain's first blocks are here.
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

enum class TreeId : std::uint32_t {};           ///< One namespace's tree.
enum class BlockId : std::uint32_t {};          ///< A block in the index, stable until it is removed; then reused.
inline constexpr BlockId kNoBlock{0xFFFFFFFF};  ///< As a parent: the root.
enum class SlotId : std::uint64_t {};           ///< Where the bytes lie in the arena; opaque here.
inline constexpr SlotId kNoSlot{~std::uint64_t{0}};
enum class Tick : std::uint64_t {};  ///< Order of use: a larger tick was used later. Not time.
enum class TreeKind : std::uint8_t {
  kChain,  ///< Blocks continue one another.
  kSet,    ///< Blocks stand alone: each hangs directly below the root, so each is a leaf end.
};

/// How often a block was used, and what its latest use was like; for whoever decides what is evicted.
struct Usage {
  std::uint8_t use_count = 0;  ///< At most 255: then it stays there.
  /// How many blocks the latest use went on beyond this one, here or gone. At most 255.
  std::uint8_t passed = 0;
  std::uint16_t trait = 0;  ///< Of the latest use: what the caller of use() said.

  friend bool operator==(const Usage&, const Usage&) = default;
};

/// Sorts leaf ends into queues, each with an order of use of its own. `queue_of` is a pure function with values below
/// `count`. The default: one queue.
struct LeafQueues {
  static constexpr std::uint32_t kCountMax = 256;

  std::uint32_t count = 1;
  std::uint32_t (*queue_of)(Usage) = [](Usage) { return std::uint32_t{0}; };
};

/// Radix trees over block hashes, one per namespace: an edge is a run of blocks, split where prefixes diverge.
///   1. A block's parent is in the index as long as the block is: only leaf ends and whole subtrees are removed.
///   2. A BlockId stays valid over splits, appends and removals of other blocks.
///   3. recency(b) of a leaf end is the largest tick given to the block itself or to any block that ever was below and
///      is gone. So touching one block, the last of a prefix, keeps the whole prefix recent, in O(1).
///   4. oldest_leaf_end() never names a pinned block, and names the least recent of the rest.
///   5. Each edge knows how many pinned blocks it has in itself and below. So whether anything at or below a block is
///      pinned takes a look at one edge, however much hangs below it.
///   6. Of covers, and all blocks above them, each is counted once, however many covers share it.
///   7. usage(b) of a leaf end counts each use() of the block itself and of any block that ever was below: these went
///      through it. A block that is inserted takes the uses that it comes with away from the block above, which had
///      inherited them from it, or counted them as its own.
///   8. In a set no block is above another. Blocks of a set may be of several groups; those of a chain are of the
///      tree's.
/// Cost: match at most 10 ns a block at 10 M blocks, also after churn; memory at most 120 bytes a block in runs of 16
/// and more (a prompt of one block takes 230), token ids not counted. No table is ever copied as a whole to grow; a
/// split or a join moves the blocks of one edge at most. Equal calls give equal answers and orders, whatever the
/// machine. Thread safety: none, the Store's lock covers it.
class PrefixIndex {
 public:
  struct NewBlock {
    BlockHash hash;
    SlotId slot;
    /// In its whole prefix, 0 for the first; a node that owns part of a chain sees gaps. In a set, where no block has a
    /// place, the block's length in bytes.
    std::uint32_t position;
    std::span<const std::uint32_t> token_ids = {};  ///< Optional; copied.
    ExtraDigest extra = {};                         ///< With token ids.
    std::uint32_t group = 0;                        ///< In a set.
    Usage usage = {.use_count = 1};                 ///< What is known of it by now, this use included.
  };
  struct Prefix {
    std::size_t block_count = 0;
    BlockId last = kNoBlock;  ///< The block_count-th block; kNoBlock if block_count is 0.
  };
  struct PartialBlock {
    std::size_t token_count = 0;  ///< Leading tokens that the stored sibling shares; 0 if there is none.
    BlockId block = kNoBlock;
  };

  /// `hash_seed` keeps callers who bring their own hashes from making lookups slow; a daemon passes a random number.
  explicit PrefixIndex(std::uint64_t hash_seed = 0, LeafQueues queues = {});
  ~PrefixIndex();
  PrefixIndex(PrefixIndex&&) noexcept;
  PrefixIndex& operator=(PrefixIndex&&) noexcept;

  static constexpr std::uint32_t kGroupMax = 4095, kTreeMax = (1 << 20) - 1;
  /// An empty tree; ids of removed trees are used again. `group`, at most kGroupMax: see oldest_leaf_end(group).
  TreeId add_tree(std::uint32_t group = 0, TreeKind kind = TreeKind::kChain);
  /// Requires: is_empty(tree). The next add_tree() may return this id.
  void remove_tree(TreeId tree);
  bool has_tree(TreeId tree) const;
  bool is_set(TreeId tree) const;
  bool is_empty(TreeId tree) const;  ///< Neither linked blocks nor unlinked ones that are not forgotten yet.
  /// Trees that have lost their last block since the last call, each once. Some may have got new blocks meanwhile.
  std::vector<TreeId> take_emptied();

  /// The longest prefix of `hashes` that is in the tree.
  Prefix match(TreeId tree, std::span<const BlockHash> hashes) const;
  /// The blocks of a prefix found by match, first to last, into `blocks` of exactly prefix.block_count elements.
  void blocks_of(const Prefix& prefix, std::span<BlockId> blocks) const;
  /// Among the blocks that directly follow `parent` (kNoBlock: the first blocks of the tree) and carry token ids: one
  /// with the same extra that shares the most leading ids with `token_ids`, at least one. Extras are compared whole,
  /// even if they concern only what comes after the shared ids: nobody here knows where in a block an extra begins.
  /// "Directly" means that the position is the parent's plus one (0 under the root); else blocks on other nodes lie
  /// between, and the prefix might differ. O(log candidates).
  PartialBlock match_partial(TreeId tree, BlockId parent, std::span<const std::uint32_t> token_ids,
                             const ExtraDigest& extra = {}) const;

  /// Of each of `hashes`, the block of that name in a set, or kNoBlock. Cost: O(1) a block, four cache misses, most
  /// of them at the same time as those of the others.
  void find_each(TreeId set, std::span<const BlockHash> hashes, std::span<BlockId> blocks) const;
  /// The child of `parent` called `hash`, or kNoBlock.
  BlockId find_child(TreeId tree, BlockId parent, const BlockHash& hash) const;
  /// Adds `block` below `parent` (kNoBlock: below the root), used at `tick`, not pinned.
  /// Requires: find_child(tree, parent, block.hash) == kNoBlock, parent is in this tree.
  BlockId insert(TreeId tree, BlockId parent, const NewBlock& block, Tick tick);
  /// Removes a block without children. Requires: is_leaf_end(block), no pins.
  void remove_leaf_end(BlockId block);
  /// Takes the block and all below it out of the tree; no match finds them again. Each is handed to `removed`, children
  /// before parents. `removed` may read the block that it is given (all but parent) and unpin it, nothing else. A block
  /// without pins is gone when `removed` returns. A pinned block stays known by its BlockId (is_linked() false) until
  /// its last unpin; whoever unpins then calls forget(). Requires: no covers among them.
  void unlink_subtree(BlockId block, const std::function<void(BlockId)>& removed);
  void forget(BlockId block);  ///< Requires: !is_linked(block), no pins.

  // -- removal in bounded steps: cut off at once, taken apart later
  /// Cuts the block and all below it off the tree. No match and no find_child() meets them again, but until reap() has
  /// taken them apart they are still linked, below a root that nobody finds, and still counted. `label` comes back with
  /// each of them. Covers go with what is cut off: returns how many of the blocks above are covered no more.
  /// Cost: one split, and the edges above.
  std::size_t detach(BlockId block, std::uint32_t label);
  void detach_all(TreeId tree, std::uint32_t label);  ///< The same with all blocks of a tree. O(1).
  bool has_detached() const;
  /// Takes detached blocks out of the index, children before parents, as long as there are steps. Each is handed to
  /// `removed` with its label. `removed` may read the block and unpin it, must uncover a cover, and does nothing else.
  /// A block without pins is gone then; a pinned one stays known, as with unlink_subtree(). Returns how many were taken
  /// out.
  std::size_t reap(Steps& steps, const std::function<void(BlockId, std::uint32_t label)>& removed);
  /// Whether a match can find the block: linked, and neither it nor a block above it is detached. O(edges above).
  bool is_attached(BlockId block) const;

  void touch(BlockId block, Tick tick);  ///< Marks the block, and so its whole prefix, as used at `tick`.
  /// The same, and counts it. `trait`, `passed`: as in Usage.
  void use(BlockId block, Tick tick, std::uint16_t trait, std::uint8_t passed = 0);
  /// The latest use was of this kind after all.
  void correct(BlockId block, std::uint16_t trait);
  // A pin costs O(edges above the block); pinning a whole prefix costs no more than pinning its last block.
  void pin(BlockId block);    ///< Counted; at most 2^32-1. A pinned block is not evicted, so neither is its prefix.
  void unpin(BlockId block);  ///< Requires: pin_count(block) > 0.
  void pin(std::span<const BlockId> prefix);    ///< Each of them; of one chain, first to last, without a gap.
  void unpin(std::span<const BlockId> prefix);  ///< The blocks given to pin(). Some may be unlinked by now.
  void move_pin(BlockId from, BlockId to);      ///< As pin(to), unpin(from). Requires: `to` directly follows `from`.
  /// Whether this block or one below is pinned: then it cannot be evicted. Cost: O(its edge), counted in `steps`.
  bool has_pinned(BlockId block, Steps& steps) const;

  // -- covers: blocks that are counted together with all above them, shared ones once
  /// The block becomes a cover. Returns how many blocks (this one and those above, up to the root) are covered now and
  /// were not before. Requires: is_linked(block), pinned, not a cover; the block stays pinned until uncover().
  /// Cost: O(edges that are covered now and were not).
  std::size_t cover(BlockId block);
  std::size_t uncovered_count(BlockId block) const;  ///< What cover() would return.
  /// The reverse. Returns how many blocks are covered no more, and counts the edges looked at in `steps`.
  std::size_t uncover(BlockId block, Steps* steps = nullptr);
  bool is_cover(BlockId block) const;

  /// The least recently used leaf end that is not pinned, in any tree; kNoBlock if there is none.
  /// Cost: amortised O(log leaves), however many groups there are; but one call may find that many leaf ends were used
  /// or pinned since the last call. With `steps`, all that it looks at is counted, and the search stops when none are
  /// left: then kNoBlock says nothing, and the next call goes on.
  BlockId oldest_leaf_end(Steps* steps = nullptr);
  /// The same among the trees of a group (blocks of one size, say).
  BlockId oldest_leaf_end(std::uint32_t group, Steps* steps = nullptr);

  /// The same among those that LeafQueues sorts into one queue. A leaf end whose latest use belongs into another queue
  /// than the one before stays where it was until its turn comes there: a use costs no heap operation.
  BlockId oldest_leaf_end(std::uint32_t group, std::uint32_t queue, Steps* steps);
  /// No queue from this one on has ever had a leaf end of the group. O(1).
  std::uint32_t queue_end(std::uint32_t group) const;
  /// By queue, up to queue_end(): a lower bound of what oldest_leaf_end(group, queue) was last used at; kNoTick if
  /// there is certainly none. Good until the next call that changes anything. O(1).
  static constexpr Tick kNoTick{~std::uint64_t{0}};
  std::span<const Tick> oldest_bounds(std::uint32_t group) const;
  std::uint32_t group(BlockId block) const;  ///< Requires: is_linked(block).

  // -- bands: groups that are looked at as one
  static constexpr std::uint32_t kNoBand = ~std::uint32_t{0};
  /// Puts the group into a band, instead of the one where it was; kNoBand, as at first: into none. Bands are numbered
  /// from 0 up, without large gaps. Cost: O(queues in use * log groups).
  void set_band(std::uint32_t group, std::uint32_t band);
  std::uint32_t band(std::uint32_t group) const;
  // As with a group, over all groups of the band. Cost: O(log groups + log leaves), amortised.
  BlockId oldest_in_band(std::uint32_t band, Steps* steps);
  BlockId oldest_in_band(std::uint32_t band, std::uint32_t queue, Steps* steps);
  std::uint32_t band_queue_end(std::uint32_t band) const;
  std::optional<Tick> oldest_bound_in_band(std::uint32_t band, std::uint32_t queue) const;

  bool is_leaf_end(BlockId block) const;
  /// Some leaf end at or below `block`, the same one as long as nothing below changes. Cost: O(edges between).
  BlockId leaf_end_below(BlockId block, Steps& steps) const;
  /// Blocks below `block`, each after the one above it, until `visit` returns false or no steps are left. `visit` may
  /// pin and read blocks, nothing else.
  void visit_below(BlockId block, Steps& steps, const std::function<bool(BlockId)>& visit) const;
  // -- the shape of the trees, for whoever draws them
  struct Edge {
    BlockId first = kNoBlock, last = kNoBlock;
    std::uint32_t block_count = 0;  ///< Of its run.
    std::uint32_t depth = 0;        ///< Blocks above the first one, in its tree.
    std::uint32_t child_count = 0;  ///< Edges that begin below the last one.
  };
  Edge edge(BlockId block) const;  ///< The one that the block is in. Requires: is_linked(block). O(1).
  /// The edge of `top` and all below it (kNoBlock: all of the tree), each after the one above it, until `visit` returns
  /// false or no steps are left. Returns whether all were visited. `visit` may read blocks, nothing else.
  bool visit_edges(TreeId tree, BlockId top, Steps& steps, const std::function<bool(const Edge&)>& visit) const;

  bool is_linked(BlockId block) const;  ///< Any id may be asked about.
  std::uint32_t block_id_end() const;   ///< All ids are below it: whoever looks at each in turn meets every block.
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
  SetTotals set_totals() const;  ///< Over all sets.
  /// Bytes that the blocks here take, with what hangs on them: entries, edges, token ids. Goes down with each block
  /// that is removed, unlike memory_bytes(): tables keep their memory for the next blocks. O(1).
  std::size_t used_bytes() const;
  std::size_t memory_bytes() const;  ///< Heap bytes of the index, everything included.

  /// Every linked block of a tree, parents before children.
  void for_each(TreeId tree, const std::function<void(BlockId)>& visit) const;
  void for_each_detached(
      const std::function<void(BlockId)>& visit) const;  ///< The same of what reap() has yet to remove.
  /// Checks every invariant; for tests. Returns an empty string or what is broken.
  std::string check() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kv
