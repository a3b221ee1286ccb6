// store/spill/disk_loader.h: puts the disk's blocks into the index again after a restart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "index/namespace_record.h"
#include "store/disk/disk_tier.h"
#include "store/memory/block_pool.h"

namespace kv {

/// Takes the records of a disk newest first, so a full tier holds the most recent blocks. A block that comes before the
/// block above it waits for that one. When a block was written again, its newer record counts. The node serves
/// meanwhile, and before, while the disk is still opening: blocks may be in memory, be written to disk, or be dropped
/// before their old record comes. Thread safety: the Store's lock. Cost: a hash table entry for each block, and each
/// drop, until it is destroyed.
class DiskLoader {
 public:
  DiskLoader(DiskTier& tier, BlockPool& pool) : tier_(tier), pool_(pool) {}

  /// A namespace on the disk, before the first record of its blocks. It is opened when one of them is found.
  void add_space(const NamespaceId& name, std::shared_ptr<const NamespaceRecord> record) {
    spaces_[name] = std::move(record);
  }
  /// nullptr if absent from the disk.
  std::shared_ptr<const NamespaceRecord> space(const NamespaceId& name) const;
  /// A forgotten namespace that the disk may have: only the end of the load shows whether it has blocks.
  void keep_space(const NamespaceId& name) { spaces_.try_emplace(name); }
  const std::map<NamespaceId, std::shared_ptr<const NamespaceRecord>>& spaces() const { return spaces_; }
  /// Whether blocks of the tree were found, or dropped before they were found.
  bool needs(TreeId tree) const { return needed_trees_.contains(tree); }

  /// Before the first record. Loaded blocks count as used at `tick` and before, in their order. Records of this start
  /// are skipped from now on: their blocks are in the index, or dead. `drops`: from earlier starts, perhaps not carried
  /// out. Their blocks do not come back, nor do the blocks below: where an upper block was stored again since and a
  /// lower one was not, the records' keys show the drop.
  void begin(Tick tick, std::span<const DiskDrop> drops = {});
  /// False once the tier is full: all later records were used longer ago. Then call place_some(). Skips records already
  /// seen, so that a load that broke off may begin again at the newest.
  bool add(TreeId tree, const DiskRecord& record);
  /// As add, for a block without a namespace: it takes room on disk, but is not found (`is_for_good`: ever).
  bool skip(const DiskRecord& record, bool is_for_good);
  /// Places at most `count_max` of the blocks whose place is known by now, and returns how many; a first block may have
  /// a million waiting blocks below it.
  std::size_t place_some(std::size_t count_max);
  bool has_more() const { return !ready_.empty(); }
  std::uint64_t loaded_count() const { return loaded_count_; }
  /// As Store::drop, for records still to come: the last of `hashes`, or the tree, and all below.
  void drop(TreeId tree, std::span<const BlockHash> hashes);

  /// Returns and clears the keys that the next start must not find: of blocks that were dropped or written again.
  std::vector<DiskKey> take_erased() { return std::exchange(erased_, {}); }
  /// Keys of blocks without those above them, unreachable for requests.
  std::vector<DiskKey> orphans() const;

 private:
  struct Name {
    TreeId tree;
    BlockHash hash;
    bool operator==(const Name&) const = default;
  };
  struct HashName {
    std::size_t operator()(const Name& name) const {
      return static_cast<std::size_t>(short_hash(name.hash) ^
                                      (std::uint64_t{static_cast<std::uint32_t>(name.tree)} << 32));
    }
  };

  struct Known {
    BlockId block;
    DiskKey key;    ///< If the block's key differs by now, it went and was written again.
    DiskKey since;  ///< The key under which the block was first stored; later moves of its bytes do not count.
  };
  struct Ready {
    TreeId tree;
    DiskRecord record;
  };

  bool see(const DiskRecord& record, bool* is_new);
  struct Dropped {
    std::unordered_map<BlockHash, DiskKey> blocks;  ///< With all below, if older than the key.
    DiskKey all{};                                  ///< The same for the whole namespace.
    std::set<DiskKey> bounds;
  };

  const Known* find_known(const Name& name) const;
  BlockId find(const Name& name) const;
  bool was_dropped(const DiskRecord& record, const Known* parent) const;
  bool is_dropped(const Name& name) const { return dropped_trees_.contains(name.tree) || dropped_.contains(name); }
  bool is_outdated(TreeId tree, const DiskRecord& record) const;
  BlockId place(TreeId tree, BlockId parent, const DiskRecord& record);

  DiskTier& tier_;
  BlockPool& pool_;
  Tick tick_{};
  DiskKey seen_from_{};  ///< Records from here on were seen, or belong to this start.
  std::uint64_t loaded_count_ = 0;
  std::vector<Ready> ready_;  ///< To be placed, last one first.
  std::unordered_map<Name, Known, HashName> known_;
  std::unordered_map<Name, std::vector<DiskRecord>, HashName> waiting_;  ///< By the name of the block above.
  std::unordered_set<Name, HashName> dropped_;                           ///< Records below these never get a place.
  std::unordered_set<TreeId> dropped_trees_;
  std::unordered_set<TreeId> needed_trees_;  ///< The trees of all other members.
  std::map<NamespaceId, std::shared_ptr<const NamespaceRecord>> spaces_;
  std::map<NamespaceId, Dropped> dropped_earlier_;
  std::vector<DiskKey> erased_;
};

}  // namespace kv
