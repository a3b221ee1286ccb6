// store/desks/drop_desk.h: blocks that are to be gone.
#pragma once

#include "store/desks/disk_desk.h"

namespace kv {

/// Drops of blocks, with all below them, from both tiers.
///   1. When a drop returns, matches do not find its blocks, including blocks being moved, leased or retained.
///   2. Memory is freed in bounded steps, that of a pinned block when its last pin ends.
///   3. The disk goes first: blocks that leave memory would count there from then on.
class DropDesk {
 public:
  DropDesk(Shelf& shelf, SpaceDesk& spaces, DiskDesk& disk) : shelf_(shelf), spaces_(spaces), disk_(disk) {}

  /// Forgets the last of `hashes` and all blocks below it, if all of `hashes` are here; without hashes, the whole
  /// namespace. For blocks of a set see erase(). A running load drops such blocks when it finds them. Returns how many
  /// blocks this call dropped; while is_dropping(), drop_more() goes on and returns how many more (of all drops under
  /// way together). Erasure on disk follows later: `*kept` (may be nullptr) is the drop that the disk must keep
  /// durably, so that a restart before then does not find the blocks. It is set even for 0 dropped blocks, because
  /// evicted ones may lie on disk.
  Result<std::size_t> drop(SpaceId space, std::span<const BlockHash> hashes, DiskDrop* kept);
  /// Drops each of `hashes`, as drop() does; drop_more() goes on. Appends to `*kept` the drops that the disk must keep.
  /// Requires at least one hash: an empty drop() means the whole namespace.
  Result<std::size_t> erase(SpaceId set, std::span<const BlockHash> hashes, std::vector<DiskDrop>* kept, TimePoint now);
  bool is_dropping() const { return shelf_.pool.index().has_detached(); }
  std::size_t drop_more(TimePoint now);

 private:
  Shelf& shelf_;
  SpaceDesk& spaces_;
  DiskDesk& disk_;
};

}  // namespace kv
