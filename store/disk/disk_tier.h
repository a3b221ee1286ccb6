// store/disk/disk_tier.h: the blocks on disk, their keys, and which of them go when the disk is full.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "index/prefix_index.h"
#include "index/stable_table.h"
#include "store/disk/disk.h"
#include "store/tables/departed_table.h"
#include "store/tables/event_log.h"
#include "store/tables/tenant_table.h"

namespace kv {

struct DiskTierConfig {
  std::uint64_t capacity_bytes = 0;  ///< For blocks that lie only on disk. 0: disabled.
  /// The part of the log that is given back at once. 0: a 64th of the capacity, 64 MiB to 1 GiB.
  std::uint64_t segment_bytes = 0;
  /// The log may reach this multiple of its live bytes before its oldest segment is given back.
  double log_factor = 1.25;
  /// Bytes that may be written again because their segment goes, as a share of the bytes on disk.
  double rewrite_share = 0.08;
  std::uint8_t promote_reads = 2;  ///< A block goes back to memory with its n-th read from disk.
  std::uint64_t hash_seed = 0;
  /// Bound on used_bytes(): beyond it, blocks go as beyond the capacity. 0: unbounded.
  std::uint64_t index_bytes_max = 0;
};

/// The second tier's index. On disk the blocks are a log, cut into segments of consecutive keys; an evicted block only
/// becomes dead in it, and the oldest segment is given back as a whole once the log is too long:
///
///     | segment 0: dead live dead | segment 1 ... | segment n: live live live <- next key |
///       next to go: what still lives there is written again at the end, or evicted
///
/// A block may lie in memory and on disk. They are linked as *copies*, and memory releases its own without a write.
///   1. With a block, all blocks above it are on disk, so that a restart can find it.
///   2. A block with a copy in memory is pinned here, so neither it nor the blocks above it are evicted.
///   3. only_bytes() counts the blocks without a copy in memory; trim() keeps it within the capacity by evicting leaf
///      ends, least recently used first. With tenants (tenant_table.h) blocks of tenants over their guarantee go before
///      others, and those of a tenant over its maximum in any case.
///   4. A key is alive iff its block's slot is that key.
///   5. Blocks in a leaving directory do not count for the log's length: they go with the directory.
/// Thread safety: the Store's lock. Memory: at most 100 bytes a block (see PrefixIndex).
class DiskTier {
 public:
  explicit DiskTier(const DiskTierConfig& config);
  /// Before the first block. The table counts additions and removals, and says which blocks may go.
  void use_tenants(TenantTable* tenants) { tenants_ = tenants; }
  void use_departed(DepartedTable& departed) { departed_ = &departed; }  ///< Records departures.
  void use_events(EventLog* events) { events_ = events; }                ///< Records all changes.

  /// Adds the namespace's tree. Add and remove in the order of memory's trees: both have the same TreeId.
  /// `block_bytes`: of every block of a chain; of a set's largest.
  /// `cohort`: the tenant's. `seeds`: the name that the checksums are bound to, if it differs from `name`.
  TreeId add_tree(const NamespaceId& name, std::size_t block_bytes, TreeKind kind = TreeKind::kChain,
                  std::uint32_t cohort = 0, const std::optional<NamespaceId>& seeds = std::nullopt);
  PrefixIndex& own_index() { return index_; }
  void remove_tree(TreeId tree) { index_.remove_tree(tree); }  ///< Requires: index().is_empty(tree).
  std::vector<TreeId> take_emptied() { return index_.take_emptied(); }
  const NamespaceId& name(TreeId tree) const { return trees_[static_cast<std::size_t>(tree)].name; }
  const PrefixIndex& index() const { return index_; }
  std::size_t block_bytes(BlockId block) const {
    const TreeId tree = index_.tree(block);
    return index_.is_set(tree) ? index_.position(block) : trees_[static_cast<std::size_t>(tree)].block_bytes;
  }
  std::size_t block_bytes(TreeId tree) const { return trees_[static_cast<std::size_t>(tree)].block_bytes; }
  std::uint64_t seed(BlockId block) const;
  /// Whether a block of the tree may have this length, place and parent.
  bool is_plausible(TreeId tree, const DiskRecord& record) const;
  DiskKey key(BlockId block) const { return DiskKey{static_cast<std::uint64_t>(index_.slot(block))}; }

  // -- blocks
  /// The key for a new write of the block with that hash, larger than all before. While the places stay the same,
  /// blocks of one hash go to one place.
  DiskKey new_key(const BlockHash& hash);
  /// `places`: take new blocks; {0} at first, never empty. `leaving`: their blocks are being moved elsewhere.
  void set_places(std::vector<DiskPlace> places, std::span<const DiskPlace> leaving = {});
  const std::vector<DiskPlace>& places() const { return places_; }
  /// The block was written under `key`, larger than all before. Requires: the block is not in the index, but `parent`
  /// is (kNoBlock: a first block).
  BlockId add(TreeId tree, BlockId parent, const BlockHash& hash, std::uint32_t position, DiskKey key, Tick tick);
  /// The block was written again, under `key`. `is_paid`: from the budget for rewriting.
  void move(BlockId block, DiskKey key, bool is_paid = true);
  /// Takes the block and all below it out of the index, and appends their keys to `keys`. Copies in memory stay. `why`:
  /// the recorded reason for blocks that leave both tiers.
  std::size_t remove(BlockId block, std::vector<DiskKey>& keys, MissKind why = MissKind::kDropped);
  /// Evicts until only_bytes() is within the capacity; after a reduction this takes several calls.
  void trim();
  void set_limits(std::uint64_t capacity_bytes, std::uint8_t promote_reads);

  // -- after a restart
  /// From now on keys have this epoch, larger than that of any key on disk; before the call it is 1. Requires: earlier
  /// keys are smaller.
  void start_epoch(std::uint32_t epoch);
  DiskKey next_key() const { return DiskKey{next_key_}; }  ///< All keys given so far are smaller.
  bool is_full() const { return only_bytes_ >= config_.capacity_bytes || is_index_full(); }
  /// The index memory for the blocks on disk.
  std::uint64_t used_bytes() const {
    return index_.used_bytes() + index_.block_count() * (sizeof(Entry) + sizeof(DiskSide) + sizeof(MemorySide));
  }
  void load_key(DiskKey key, std::uint64_t bytes);  ///< Records a key on disk. Call with ever smaller keys.
  /// As add, for a key already passed to load_key(), not necessarily the last one.
  BlockId load(TreeId tree, BlockId parent, const BlockHash& hash, std::uint32_t position, DiskKey key, Tick tick);

  void touch(BlockId block, Tick tick) { index_.touch(block, tick); }
  void pin(BlockId block) { index_.pin(block); }
  void unpin(BlockId block);
  bool count_read(BlockId block);  ///< Counts a read. Returns whether the block should go back to memory.

  // -- copies in memory
  BlockId copy_on_disk(BlockId memory) const;  ///< Or kNoBlock.
  BlockId copy_in_memory(BlockId disk) const;
  void add_copy(BlockId memory, BlockId disk);  ///< Requires: neither has one.
  /// The block leaves memory; its last use there was at `recency`. Without a copy on disk, does nothing.
  void remove_copy(BlockId memory, Tick recency);

  // -- the log
  /// Whether the oldest segment should go.
  bool is_log_full() const;
  /// Blocks of the oldest segment that have to be written again before it can go: up to `bytes_max`, or one block.
  /// Evicts those not worth a write. Visits some thousand keys a call: ask until is_oldest_dead().
  std::vector<BlockId> live_in_oldest(std::uint64_t bytes_max);
  bool is_oldest_dead() const { return dead_entries_ == segments_.front().entries.size(); }
  DiskKey oldest_key() const { return segments_.empty() ? DiskKey{next_key_} : segments_.front().first_key; }
  /// Forgets the oldest segment. Returns the key below which all blocks are dead. Requires: is_oldest_dead().
  DiskKey end_segment();

  // -- directories that leave
  struct PlaceUse {
    std::uint64_t block_count = 0, bytes = 0;
  };
  PlaceUse in_place(DiskPlace place) const { return in_place_[place]; }  ///< Its live blocks.
  /// Makes room for blocks to be moved: evicts the least recently used ones, this many bytes or one block; at most some
  /// hundred blocks. Until the last directory has left, the log is kept short. Returns how many were evicted.
  std::size_t evict_oldest(std::uint64_t bytes);
  /// The directory is empty. Requires: in_place() is zero.
  void forget_place(DiskPlace place);

  // -- walking through the log
  /// A place in the log, valid while the log moves on. The default is the log's beginning.
  struct Cursor {
    DiskKey segment{};
    std::size_t entry = 0;
    bool operator==(const Cursor&) const = default;
  };
  /// The live blocks in the next `entries_max` entries of the log. Moves the cursor on; at the log's end, back.
  std::vector<BlockId> live_from(Cursor& cursor, std::size_t entries_max) const;
  /// The same for one directory: up to `bytes_max`, or one block.
  std::vector<BlockId> live_in_place(Cursor& cursor, DiskPlace place, std::uint64_t bytes_max,
                                     std::size_t entries_max) const;

  struct Stats {
    std::uint64_t block_count = 0, only_bytes = 0, log_bytes = 0, live_bytes = 0, index_bytes = 0;
    std::uint64_t spilled_blocks = 0, evicted_blocks = 0, rewritten_blocks = 0, rewritten_bytes = 0;
  };
  Stats stats() const;
  std::uint64_t only_bytes() const { return only_bytes_; }
  std::uint64_t written_count() const { return counters_.spilled_blocks; }  ///< Blocks, since the start.
  std::string check() const;  ///< Every invariant; for tests. Empty, or the broken one.

 private:
  struct Entry {
    DiskKey key;
    BlockId block;
  };
  struct Segment {
    DiskKey first_key;
    std::uint64_t bytes = 0;  ///< Includes dead blocks.
    std::vector<Entry> entries;
    std::array<std::uint64_t, kPlaceCount> place_bytes{};
  };
  struct Tree {
    NamespaceId name, seeds;
    std::size_t block_bytes;
  };
  struct DiskSide {
    BlockId memory = kNoBlock;
    std::uint8_t reads = 0;
  };
  struct MemorySide {
    BlockId disk = kNoBlock;
  };

  static std::uint64_t first_key(std::uint32_t epoch) { return (std::uint64_t{epoch} << 40) + kPlaceCount; }
  bool is_index_full() const { return config_.index_bytes_max > 0 && used_bytes() >= config_.index_bytes_max; }
  bool is_live(const Entry& entry) const { return index_.is_linked(entry.block) && key(entry.block) == entry.key; }
  BlockId insert(TreeId tree, BlockId parent, const BlockHash& hash, std::uint32_t position, DiskKey key, Tick tick);
  void append(DiskKey key, BlockId block);
  void count_written(Segment& segment, DiskKey key, std::uint64_t bytes);
  template <class Visit>
  void walk(Cursor& cursor, std::size_t entries_max, const Visit& visit) const;
  void count_in_place(DiskKey key, std::uint64_t bytes, bool is_more);
  void count_removal(BlockId block);
  void evict(BlockId block);
  BlockId oldest_leaf_end();
  void remember(BlockId block, MissKind why, Duration idle = {}) const;

  void trim_tenants();
  void count_only(BlockId block, bool is_more);

  DiskTierConfig config_;
  PrefixIndex index_;
  TenantTable* tenants_ = nullptr;
  DepartedTable* departed_ = nullptr;
  EventLog* events_ = nullptr;
  std::vector<Tree> trees_;
  StableTable<DiskSide> disk_sides_;      ///< By BlockId on disk.
  StableTable<MemorySide> memory_sides_;  ///< By BlockId in memory.
  std::deque<Segment> segments_;
  std::size_t dead_entries_ = 0;           ///< Leading entries of the oldest segment known to be dead.
  std::uint64_t next_key_ = first_key(1);  ///< With place 0.
  std::vector<DiskPlace> places_{0}, leaving_;
  bool is_short_ = false;  ///< The other directories are too full for leaving blocks: dead bytes are given back sooner.
  std::array<PlaceUse, kPlaceCount> in_place_{};
  std::array<std::uint64_t, kPlaceCount> log_in_place_{};  ///< log_bytes_ by place.
  std::uint64_t only_bytes_ = 0, live_bytes_ = 0, log_bytes_ = 0;
  double rewrite_credit_ = 0;
  Stats counters_;
};

}  // namespace kv
