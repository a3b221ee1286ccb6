// index/prefix_index.h: block hashes -> longest cached prefix, and where each block lies.
//
// In: a chain of block hashes. Out: how many of its first blocks are here, and the slot of each.
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

/// Radix trees over block hashes, one per namespace: an edge is a run of blocks, split where prefixes diverge.
///   1. A block's parent is in the index as long as the block is: only leaf ends (and whole subtrees) are removed.
///   2. A BlockId stays valid over splits, appends and removals of other blocks.
///   3. recency(b) of a leaf end is the largest tick given to it or to any block that ever was below it and is gone. So
///      touching one block, the last of a prefix, keeps its whole prefix recent, in O(1).
///   4. oldest_leaf_end() never names a pinned block, and names the least recent of the rest.
///   5. Each edge knows how many pinned blocks are in it and below it. So whether anything at or below a block is
///   pinned takes a look at one edge, however much hangs below it.
///   6. Of covers, and all blocks above them, each is counted once, however many covers share it.
/// Cost: match at most 10 ns a block at 10 M blocks, also after churn; memory at most 120 bytes a block in runs of 16
/// and more (a prompt of one block takes 230), token ids not counted. Nothing is ever copied as a whole to grow; a
/// split or a join moves at most the blocks of one edge. Equal calls give equal answers and orders, whatever the
/// machine. Thread safety: none, the Store's lock covers it.
class PrefixIndex {
 public:
  struct NewBlock {
    BlockHash hash;
    SlotId slot;
    std::uint32_t position;  ///< In its whole prefix, 0 for the first; a node that owns part of a chain sees gaps.
    std::span<const std::uint32_t> token_ids = {};  ///< Optional; copied.
    ExtraDigest extra = {};                         ///< With token ids.
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
  explicit PrefixIndex(std::uint64_t hash_seed = 0);
  ~PrefixIndex();
  PrefixIndex(PrefixIndex&&) noexcept;
  PrefixIndex& operator=(PrefixIndex&&) noexcept;

  /// An empty tree; the id of a removed one is used again. `group`, a small number: see oldest_leaf_end(group).
  TreeId add_tree(std::uint32_t group = 0);
  /// Requires: is_empty(tree). Its id may come back from the next add_tree().
  void remove_tree(TreeId tree);
  bool has_tree(TreeId tree) const;
  bool is_empty(TreeId tree) const;  ///< Neither linked blocks nor unlinked ones that are not forgotten yet.
  /// Trees that have lost their last block since the last call, each once. One may have got others meanwhile.
  std::vector<TreeId> take_emptied();

  /// The longest prefix of `hashes` that is in the tree.
  Prefix match(TreeId tree, std::span<const BlockHash> hashes) const;
  /// The blocks of a prefix found by match, first to last, into `blocks` of exactly prefix.block_count elements.
  void blocks_of(const Prefix& prefix, std::span<BlockId> blocks) const;
  /// Among the blocks that directly follow `parent` (kNoBlock: the first blocks of the tree) and carry token ids, one
  /// that has the same extra and shares the most leading ids with `token_ids`, at least one. (An extra that concerns
  /// only what follows the shared ids counts as well: who knows where it begins?) Candidates count only if they
  /// directly follow: their position is the parent's plus one (0 under the root), since otherwise blocks on other nodes
  /// lie between and the prefix might differ. O(log candidates).
  PartialBlock match_partial(TreeId tree, BlockId parent, std::span<const std::uint32_t> token_ids,
                             const ExtraDigest& extra = {}) const;

  /// The child of `parent` called `hash`, or kNoBlock.
  BlockId find_child(TreeId tree, BlockId parent, const BlockHash& hash) const;
  /// Adds `block` below `parent` (kNoBlock: below the root), used at `tick`, not pinned.
  /// Requires: find_child(tree, parent, block.hash) == kNoBlock, parent is in this tree.
  BlockId insert(TreeId tree, BlockId parent, const NewBlock& block, Tick tick);
  /// Removes a block without children. Requires: is_leaf_end(block), no pins.
  void remove_leaf_end(BlockId block);
  /// Takes the block and all below it out of the tree; no match finds them again. Each is handed to `removed`, children
  /// before parents; `removed` may read the block it is given (all but parent) and unpin it, nothing else. A block
  /// without pins is gone when `removed` returns. A pinned one stays known by its BlockId (is_linked() false) until the
  /// last unpin; its owner then calls forget(). Requires: no covers among them.
  void unlink_subtree(BlockId block, const std::function<void(BlockId)>& removed);
  void forget(BlockId block);  ///< Requires: !is_linked(block), no pins.

  // -- removal in slices: cut off at once, taken apart later
  /// Cuts the block and all below it off the tree: no match and no find_child() meets them again, but they are linked
  /// still (below a root that nobody finds), and counted, until reap() has taken them apart. `label` comes back with
  /// each of them. Covers go with what is cut off: returns how many of the blocks above are covered no more.
  /// Cost: one split, and the edges above.
  std::size_t detach(BlockId block, std::uint32_t label);
  void detach_all(TreeId tree, std::uint32_t label);  ///< The same with all blocks of a tree. O(1).
  bool has_detached() const;
  /// Takes blocks that were detached out of the index, children before parents, as long as there are steps. Each is
  /// handed to `removed` with its label, which may read the block, unpin it and must uncover a cover, nothing else. A
  /// block without pins is gone then; a pinned one stays known, as with unlink_subtree(). Returns how many.
  std::size_t reap(Steps& steps, const std::function<void(BlockId, std::uint32_t label)>& removed);
  /// Whether a match can find the block: linked, and neither it nor a block above it is detached. O(edges above).
  bool is_attached(BlockId block) const;

  void touch(BlockId block, Tick tick);  ///< Marks the block, and so its whole prefix, as used at `tick`.
  void pin(BlockId block);    ///< Counted; at most 2^32-1. A pinned block is not evicted, so neither is its prefix.
  void unpin(BlockId block);  ///< Requires: pin_count(block) > 0.
  // Pins cost O(edges above the block); those of a whole prefix together cost as much as one.
  void pin(std::span<const BlockId> prefix);    ///< Each of them; of one chain, first to last, without a gap.
  void unpin(std::span<const BlockId> prefix);  ///< The same ones. Some may be unlinked by now.
  void move_pin(BlockId from, BlockId to);      ///< As pin(to), unpin(from). Requires: `to` directly follows `from`.
  /// Whether the block or one below it is pinned: then it cannot be evicted. Cost: O(its edge), counted in `steps`.
  bool has_pinned(BlockId block, Steps& steps) const;

  // -- covers: blocks that are counted together with all above them, shared ones once
  /// The block becomes a cover. Returns how many blocks (it and those above, up to its root) are covered now and were
  /// not before. Requires: is_linked(block), pinned, not a cover; it stays pinned until uncover().
  /// Cost: O(edges that are covered now and were not).
  std::size_t cover(BlockId block);
  std::size_t uncovered_count(BlockId block) const;  ///< What cover() would return.
  /// The reverse. Returns how many blocks are covered no more, and counts the edges looked at in `steps`.
  std::size_t uncover(BlockId block, Steps* steps = nullptr);
  bool is_cover(BlockId block) const;

  /// The least recently used leaf end that is not pinned, in any tree; kNoBlock if there is none.
  /// Cost: amortised O(log leaves); but one call may find that many leaf ends were used or pinned since the last. With
  /// `steps` it stops when none are left: then kNoBlock says nothing, and the next call goes on.
  BlockId oldest_leaf_end(Steps* steps = nullptr);
  /// The same among the trees of a group (blocks of one size, say).
  BlockId oldest_leaf_end(std::uint32_t group, Steps* steps = nullptr);

  bool is_leaf_end(BlockId block) const;
  bool is_linked(BlockId block) const;
  const BlockHash& hash(BlockId block) const;
  TreeId tree(BlockId block) const;
  BlockId parent(BlockId block) const;  ///< kNoBlock for a first block. Requires: is_linked(block).
  SlotId slot(BlockId block) const;
  void set_slot(BlockId block, SlotId slot);
  std::uint32_t position(BlockId block) const;
  std::uint32_t pin_count(BlockId block) const;
  Tick recency(BlockId block) const;  ///< Exact for leaf ends (invariant 3); a lower bound for others.

  std::size_t block_count() const;  ///< Linked blocks in all trees.
  std::size_t block_count(TreeId tree) const;
  /// What the blocks that are here take, and what hangs on them: entries, edges, token ids. Goes down with each that is
  /// removed. (memory_bytes() does not: tables keep their memory for the next blocks.) O(1).
  std::size_t used_bytes() const;
  std::size_t memory_bytes() const;  ///< Heap bytes in use by the index, all included.

  /// Every linked block of a tree, parents before children.
  void for_each(TreeId tree, const std::function<void(BlockId)>& visit) const;
  void for_each_detached(const std::function<void(BlockId)>& visit) const;  ///< The same of what reap() will remove.
  /// Checks every invariant; for tests. Returns an empty string or what is broken.
  std::string check() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kv
