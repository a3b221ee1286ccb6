// store/desks/capacity_desk.h: another capacity, and other limits, at run time.
#pragma once

#include "store/desks/put/put_desk.h"

namespace kv {

/// Growing: commit the pages, then set_capacity(). Shrinking: set_capacity(); then relocate(), copy and
/// end_relocation() until is_shrunk(); then discard the pages. In steps of a GiB, which bounds the cost.
///   1. Each block of a namespace fits the capacity.
///   2. A block being copied is pinned, and so is its new slot, until end_relocation().
///   3. A lowered bound does not end existing holdings.
class CapacityDesk {
 public:
  CapacityDesk(Shelf& shelf, SpaceDesk& spaces, DiskDesk& disk, ReadDesk& reads, PutDesk& puts)
      : shelf_(shelf), spaces_(spaces), disk_(disk), reads_(reads), puts_(puts) {}

  struct Bounds {
    std::uint64_t now_bytes, min_bytes, max_bytes, granule_bytes;  ///< min: the largest block of any namespace.
  };
  Bounds bounds() const;
  /// Errors: kUnsupported without ArenaConfig::capacity_bytes_max; kBadRequest if `bytes` is 0, not a multiple of a
  /// granule, or over the maximum; kTooLarge if blocks of a namespace would not fit.
  Result<void> set_capacity(std::size_t bytes);
  std::span<std::byte> memory() const { return shelf_.pool.arena().memory(); }  ///< Of all slots, at a fixed address.
  /// For commit and discard, by one caller at a time, without the lock.
  ArenaMemory& pages() { return shelf_.pool.arena().pages(); }
  /// A block behind the capacity, and its new place. Both are pinned: copy without the lock.
  struct Relocation {
    BlockId block;
    SlotId to;
    std::span<const std::byte> from;
    std::span<std::byte> into;  ///< As long as `from`.
  };
  /// The next blocks to move, about `bytes_max`. Makes room as a put does, by evicting the blocks of least worth.
  /// Empty: call again at once, or, if the remaining blocks are in use, after a pause. `may_lose`: as OfferOptions.
  std::vector<Relocation> relocate(std::size_t bytes_max, bool may_lose, TimePoint now);
  /// The blocks were copied. A block that came into use meanwhile keeps its place, for a later call.
  void end_relocation(std::span<const Relocation> relocations);
  bool is_shrunk() { return shelf_.pool.arena().cut(); }  ///< All blocks lie within the capacity.
  /// Applies the members of StoreConfig that may change at run time.
  void set_limits(const StoreConfig& config);
  std::string check(Shelf::Tally& tally) const;

 private:
  bool can_relocate(BlockId block, std::size_t own_pins) const;

  Shelf& shelf_;
  SpaceDesk& spaces_;
  DiskDesk& disk_;
  ReadDesk& reads_;
  PutDesk& puts_;
  Arena::Cursor closed_at_;                         ///< The progress of relocate() through the closed slots.
  std::unordered_map<SlotId, BlockId> relocating_;  ///< The destination of each block being copied.
  bool limits_fell_ = false;
};

}  // namespace kv
