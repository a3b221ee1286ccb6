// store/spill/spiller.h: chooses the next blocks to write to disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "index/namespace_record.h"
#include "index/steps.h"
#include "store/disk/disk.h"
#include "store/disk/disk_tier.h"
#include "store/memory/block_pool.h"
#include "store/memory/evictor.h"

namespace kv {

struct SpillerConfig {
  /// Share of the memory that spilling ahead keeps free, so that a put finds room without waiting for the disk. When
  /// puts are faster than the disk, it runs out and blocks are evicted unwritten.
  double reserve = 1.0 / 32;
  bool write_through = false;  ///< Write each block once it is stored, before its memory is wanted.
  /// While half of the reserve is used up, because the disk or its write budget is slower than puts: evict unwritten
  /// the blocks that were never used again.
  bool skip_unused = false;
  /// Once the disk is full: evict unwritten the blocks that are less likely than this to be used while they would stay
  /// there, where the eviction policy has an estimate. 0: everything is written.
  double chance_min = 0.1;
};

/// A spill thread's next work, done outside the lock: read the blocks to move, write, erase, drop.
struct SpillWork {
  std::vector<DiskWrite> writes;  ///< Keys grow. Spans stay valid until finish(); see sources.
  /// Per write: 0, or the block's present key on disk. Such a block is read and verified first.
  std::vector<DiskKey> sources;
  std::vector<std::pair<NamespaceId, std::string>> spaces;  ///< Records to keep before the blocks.
  std::vector<DiskKey> erased;                              ///< Must not come back with a restart.
  std::vector<NamespaceId> gone_spaces;  ///< Records to remove, after all else: their blocks on disk are dead.
  DiskKey drop_before{};                 ///< 0: nothing to drop.
  std::uint64_t write_bytes = 0;
  bool is_drain = false;  ///< Only moves blocks out of a leaving directory.

  bool empty() const { return writes.empty() && erased.empty() && gone_spaces.empty() && drop_before == DiskKey{}; }

 private:
  friend class Spiller;
  struct Item {
    BlockId memory, disk;  ///< One or both; pinned.
  };
  std::vector<Item> items;
  std::vector<TreeId> space_trees;  ///< For `spaces`. These trees stay alive: `items` has blocks in them.
};

struct SpillOutcome {
  std::vector<bool> is_written;         ///< One per write.
  error_code error;                     ///< The disk failed, perhaps midway: unwritten blocks will be tried again.
  std::size_t lost_count = 0;           ///< Blocks to be moved that are damaged or gone. Skipped; not an error.
  std::vector<std::size_t> unreadable;  ///< Indices of writes whose source the disk failed to read; an error.
};
/// Does `work` on the disk: namespaces, verified reads of the blocks to move, writes, erasures, drops. Takes as long as
/// the disk does; never under the Store's lock.
SpillOutcome carry_out(const SpillWork& work, Disk& disk);

/// Writes the blocks next to be evicted, oldest first, each after all blocks above it that are not on disk yet. So a
/// prefix lies on disk in its order, and a restart finds each block with those above. Blocks already on disk are
/// evicted at once. First come the victims for a size without slots (Evictor::write_victims), however many bytes are
/// free. Also moves blocks out of the oldest segment of the log. The disk keeps a namespace's record from its first
/// block there until the namespace is forgotten: the record is written before that block, and removed after the last
/// block has gone. Thread safety: the Store's lock. At most one SpillWork at a time.
class Spiller {
 public:
  Spiller(const SpillerConfig& config, BlockPool& pool, Evictor& evictor, DiskTier& tier)
      : config_(config), pool_(pool), evictor_(evictor), tier_(tier) {}

  /// About `bytes_max` of writes, or one block. Empty: idle until more is stored. `everything`: all blocks in memory go
  /// to disk and leave, as before a stop. Requires: finish() was called for the previous work.
  SpillWork next(std::uint64_t bytes_max, TimePoint now, bool everything = false);
  /// About `bytes_max` of blocks to move out of a leaving directory, or one, oldest first, so upper blocks come before
  /// lower ones. Empty: none among the visited entries; ask again until DiskTier::in_place() is zero.
  SpillWork drain(DiskPlace place, std::uint64_t bytes_max, TimePoint now);
  /// Enters written blocks into the index, and removes lost ones. Returns how many were lost.
  std::size_t finish(const SpillWork& work, const SpillOutcome& outcome);

  void set_limits(const SpillerConfig& config) { config_ = config; }  ///< Except skip_unused, which needs a history.
  bool is_memory_short() const;           ///< Less is free than the reserve, or a size class lacks slots.
  void stored(BlockId block, Tick tick);  ///< A block was linked in memory.
  /// Takes the block and all below it off the disk permanently.
  void remove(BlockId disk, MissKind why = MissKind::kDropped) { tier_.remove(disk, erased_, why); }
  void erase_later(std::vector<DiskKey> keys) { erased_.insert(erased_.end(), keys.begin(), keys.end()); }
  void add_tree(TreeId tree, std::shared_ptr<const NamespaceRecord> record);
  /// The namespace is forgotten. Requires: memory and disk have lost all its blocks. Returns whether the disk may have
  /// its record; if so, call remove_record().
  bool remove_tree(TreeId tree);
  void remove_record(const NamespaceId& id) { gone_spaces_.insert(id); }
  /// A directory without records may have joined: each namespace's record is written again, with its next block.
  void tell_records_again();
  /// Drops blocks in the directory, with all below. Visits up to `entries_max` log entries. Returns the block count.
  std::size_t give_up_place(DiskPlace place, std::size_t entries_max);
  void found_record(TreeId tree) { records_[static_cast<std::size_t>(tree)].may_be_on_disk = true; }
  /// While a load adds to the log's old end, that end is not cut off.
  void keep_log() { keep_log_ = true; }
  /// The load is over. `is_whole`: it saw all that there was room for, so older entries may be dropped.
  void end_keep_log(bool is_whole) {
    keep_log_ = false;
    drop_unknown_ = is_whole;
  }
  /// In memory, pinned for the present SpillWork.
  const std::unordered_set<BlockId>& taken() const { return taken_; }
  std::uint64_t skipped_count() const { return skipped_count_; }
  std::uint64_t lost_count() const { return lost_count_; }

 private:
  struct StoredAt {
    Tick tick{};
  };
  struct Record {
    std::shared_ptr<const NamespaceRecord> record;
    bool is_told = false;  ///< Written to the disk, or first in the present SpillWork.
    bool may_be_on_disk = false;
  };

  std::uint64_t reserve_bytes() const;
  void move_live(SpillWork& work, std::uint64_t bytes_max);
  void write_oldest(SpillWork& work, std::uint64_t bytes_max, TimePoint now, bool everything, Steps& steps);
  bool is_worth_a_write(BlockId leaf_end) const;
  bool is_unused(BlockId block) const;  ///< In memory, unused since it was stored.
  bool add_chain(SpillWork& work, BlockId block, std::uint64_t bytes_max);
  void add(SpillWork& work, BlockId memory, BlockId disk);
  void tell_record(SpillWork& work, TreeId tree);
  void finish_write(const SpillWork::Item& item, DiskKey key, bool is_drain);

  SpillerConfig config_;
  BlockPool& pool_;
  Evictor& evictor_;
  DiskTier& tier_;
  std::vector<DiskKey> erased_;
  std::vector<Record> records_;
  std::set<NamespaceId> gone_spaces_;  ///< Records that the disk may still have.
  bool keep_log_ = false, drop_unknown_ = false;
  DiskKey drop_before_{};                 ///< Until the disk has done it.
  std::unordered_set<DiskKey> suspects_;  ///< Failed to be read for a move, the last time.
  DiskTier::Cursor drained_to_;
  std::vector<BlockId> fresh_;  ///< To be written through. Unpinned: ids may be reused.
  std::unordered_set<BlockId> taken_;
  StableTable<StoredAt> stored_at_;  ///< By BlockId in memory; only for skip_unused.
  std::uint64_t skipped_count_ = 0, lost_count_ = 0;
};

}  // namespace kv
