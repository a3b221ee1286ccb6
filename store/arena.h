// store/arena.h: the node's block memory, one memfd cut into slabs by size class.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "index/prefix_index.h"

namespace kv {

struct ArenaConfig {
  std::size_t capacity_bytes = 0;               ///< Of the whole arena. Not rounded: all of it can hold blocks.
  std::size_t granule_bytes = 2 * 1024 * 1024;  ///< Slabs are whole runs of granules (the arena's last one may be shorter).
  bool huge_pages = true;                       ///< Use MFD_HUGETLB when enough huge pages are reserved; else ordinary pages.
  bool touch = true;                            ///< Write every page at start: first touch is 50 times slower than a copy.
  /// Called while touching, with bytes touched so far. Optional.
  std::function<void(std::size_t)> progress = nullptr;
};

/// Memory for blocks. A size class per block size in use; a slab is the shortest run of granules that wastes at most 3 % on blocks of
/// its class. A slot's stripe checksums are kept beside it, outside the arena.
///   1. A slot belongs to at most one owner between allocate() and free().
///   2. allocated_bytes() is the sum of block_bytes over allocated slots.
///   3. Slots of a slab that is empty can be given to any class at once.
///   4. With capacity_bytes = n * b, granule_bytes = b (b a multiple of 4096), exactly n blocks of b bytes fit.
/// Thread safety: none for the bookkeeping (the Store's lock); bytes() and checksums() of a slot that the caller owns or pinned may be used
/// without the lock while others call anything.
class Arena {
 public:
  /// Errors: system errors of memfd_create, ftruncate, mmap; kBadRequest for a zero capacity.
  static Result<std::unique_ptr<Arena>> create(const ArenaConfig& config);
  ~Arena();

  /// A free slot of block_bytes bytes, contents unspecified; nullopt if nothing is free (evict and ask again).
  std::optional<SlotId> allocate(std::size_t block_bytes);
  void free(SlotId slot);

  std::span<std::byte> bytes(SlotId slot) const;           ///< block_bytes long, 64-byte aligned.
  std::span<std::uint64_t> checksums(SlotId slot) const;   ///< stripe_count(block_bytes) elements.

  // The rest of the interface (size classes, slab statistics, slab reassignment) is the store's own business: see below.
 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kv
