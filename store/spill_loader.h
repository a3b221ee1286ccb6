// store/spill_loader.h: after a restart, puts what is on disk into the index again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <unordered_map>
#include <vector>

#include "store/block_pool.h"
#include "store/disk_tier.h"

namespace kv {

/// Takes the records of a disk newest first, so that what was used last is found first, and the tier is full of the
/// most recent blocks. A block that comes before the one above it waits for that. Of two records of one block (it was
/// written again) the newer counts. The node serves meanwhile: blocks may be in memory, or be written to disk, before
/// their old record comes. Thread safety: none, the Store's lock covers it. Cost: a hash table entry for each block
/// until it is destroyed.
class SpillLoader {
 public:
  /// Loaded blocks count as used at `tick` and before, in their order.
  SpillLoader(DiskTier& tier, BlockPool& pool, Tick tick) : tier_(tier), pool_(pool), tick_(tick) {}

  /// False once the tier is full: what follows was used longer ago than all that is there. Then place_some().
  bool add(TreeId tree, const DiskRecord& record);
  /// Places at most so many of the blocks whose place is known by now, and returns how many; a first block may have a
  /// million below it that waited.
  std::size_t place_some(std::size_t count_max);
  bool has_more() const { return !ready_.empty(); }  ///< To be placed.
  std::uint64_t loaded_count() const { return loaded_count_; }
  /// Keys of blocks without those above them: nobody can ask for them.
  std::vector<DiskKey> orphans() const;

 private:
  struct Name {
    TreeId tree;
    BlockHash hash;
    bool operator==(const Name&) const = default;
  };
  struct HashName {
    std::size_t operator()(const Name& name) const {
      return static_cast<std::size_t>(hash_prefix(name.hash) ^
                                      (std::uint64_t{static_cast<std::uint32_t>(name.tree)} << 32));
    }
  };

  struct Ready {
    TreeId tree;
    BlockId parent;
    DiskRecord record;
  };

  BlockId find(const Name& name) const;
  BlockId place(TreeId tree, BlockId parent, const DiskRecord& record);

  DiskTier& tier_;
  BlockPool& pool_;
  Tick tick_;
  std::uint64_t loaded_count_ = 0;
  std::vector<Ready> ready_;  ///< To be placed, last one first.
  std::unordered_map<Name, BlockId, HashName> known_;
  std::unordered_map<Name, std::vector<DiskRecord>, HashName> waiting_;  ///< By the name of the block above.
};

}  // namespace kv
