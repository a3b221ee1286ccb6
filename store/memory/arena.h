// store/memory/arena.h: the node's block memory, one memfd cut into slabs by size class.
//
//   granule   0      1      2      3      4      5      6      7 (shorter)
//           | 4 KiB| 80 MiB ...                  | free | 4 KiB|
//           +------+-----------------------------+------+------+
//             slab   slab: a run of granules              slab
//
// Slots of a slab lie one stride apart from the slab's start; the rest at its end is waste.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "index/prefix_index.h"
#include "index/steps.h"
#include "store/memory/arena_memory.h"

namespace kv {

/// Memory for blocks. One size class for each block size in use; a slab is the shortest run of granules that wastes at
/// most 3 % on blocks of its class. The stripe checksums of a slot are kept outside the arena.
///   1. A slot belongs to at most one owner between allocate() and free().
///   2. allocated_bytes() is the sum of block_bytes over allocated slots.
///   3. A slab ends with its last used slot: its granules are free for any class at once.
///   4. With capacity_bytes = n * b and granule_bytes = b, b a multiple of 4096, exactly n blocks of b bytes fit; the
///      same holds for any granule_bytes that is a multiple of b.
///   5. While the arena shrinks, the part behind its capacity is *closed*: slots there are not handed out again. A slab
///      that reaches over the end is closed as a whole.
/// Two exceptions to the 3 %: the slab at the arena's end may be a shorter run, because its granules would be useless
/// to its class otherwise; and blocks under 2 KiB are padded to a multiple of 64 bytes. Thread safety: the Store's
/// lock; bytes() and checksums() of an owned or pinned slot do without. Cost: allocate() and free() O(log slabs); a new
/// slab O(its slots); a whole search O(granules), over any number of calls.
class Arena {
 public:
  /// Errors: system errors of memfd_create, ftruncate, mmap, or of touching (the memory does not exist); kBadRequest
  /// for a zero capacity, or granules that are not a multiple of 4096 bytes.
  static Result<std::unique_ptr<Arena>> create(const ArenaConfig& config);
  ~Arena();

  /// A place in a window, or in the closed part.
  struct Cursor {
    std::size_t granule = 0;
    std::uint32_t slab = 0, slot = 0;
  };

  // -- another capacity, of an arena with capacity_bytes_max
  bool can_resize() const;
  std::size_t capacity_bytes_max() const;
  std::size_t granule_bytes() const;
  /// Grows the arena, once memory() has been committed so far; or shrinks it: then the part behind the new end is
  /// closed, for its slots to be freed. Requires: can_resize(), whole granules, 1 to the maximum. Cost: O(granules in
  /// between).
  void set_capacity(std::size_t bytes);
  /// A closed slot that is allocated, behind `cursor`; nullopt at the end, or without steps.
  std::optional<SlotId> next_closed(Cursor& cursor, Steps& steps) const;
  /// Whether the closed part is empty: then the memory behind the capacity may be discarded.
  bool cut();
  ArenaMemory& pages();  ///< To commit and discard, without the lock.

  /// The number of the size class, made if it is new; numbers start at 0 in order of making, and those of removed
  /// classes are used again. Requires: fits(block_bytes).
  std::uint32_t add_class(std::size_t block_bytes);
  void remove_class(std::size_t block_bytes);  ///< Requires: all its slots are free.
  /// Where a new slab may begin: only at multiples of its length, so that the gaps between slabs of one class fit
  /// another slab; or anywhere.
  enum class Place : std::uint8_t { kAligned, kAny };
  /// A free slot of block_bytes bytes, contents unspecified; nullopt if there is none (evict and ask again). Takes free
  /// slots at the lowest address first, so that the slabs at high addresses drain and come free for other classes.
  std::optional<SlotId> allocate(std::size_t block_bytes, Place place = Place::kAny);
  void free(SlotId slot);

  std::span<std::byte> bytes(SlotId slot) const;          ///< block_bytes long, 64-byte aligned.
  std::span<std::uint64_t> checksums(SlotId slot) const;  ///< stripe_count(block_bytes) elements.
  std::size_t block_bytes(SlotId slot) const;

  std::span<std::byte> memory() const;  ///< The committed memory, which devices register to move blocks.
  std::size_t capacity_bytes() const;
  std::size_t free_bytes() const;            ///< Unallocated; 0 while a shrinking arena is over its capacity.
  std::size_t allocated_bytes() const;       ///< Invariant 2.
  std::size_t slab_bytes() const;            ///< Granules that belong to a slab.
  bool fits(std::size_t block_bytes) const;  ///< Whether one such block fits the empty arena.

  struct SizeClass {
    std::size_t block_bytes;
    std::size_t stride_bytes;  ///< From slot to slot.
    std::size_t slab_count, slot_count, used_count;
  };
  std::vector<SizeClass> classes() const;  ///< In order of their numbers.
  std::size_t class_count() const;
  bool has_class(std::size_t block_bytes) const;

  // -- Slab reassignment, for the evictor: the choice of a run of granules to clear for a class that needs a slab.
  void set_owner(SlotId slot, BlockId block);  ///< The block in the slot; initially kNoBlock.
  BlockId owner(SlotId slot) const;
  bool is_allocated(SlotId slot) const;  ///< Accepts any value.
  void use(SlotId slot, Tick tick);      ///< The slab was used at `tick`. Ticks only grow.
  /// A held slot, of an incoming or a pinned block, cannot be cleared; nor can its slab, which counts its holds. One
  /// hold per slot.
  void hold(SlotId slot);
  void end_hold(SlotId slot);
  bool is_held(SlotId slot) const;
  /// Shielded slabs cannot be cleared either: some block in them has a pinned block below. end_shields() ends all.
  void shield(SlotId slot);
  void end_shields();
  /// Grows whenever a hold or shield ended that may have kept a slab from being cleared.
  std::uint64_t change_count() const;

  struct Window {
    std::size_t first_granule, granule_count;
    Tick last_use;  ///< The latest use of any slab in it.
  };
  /// Looks through the arena for runs of granules that can be cleared for a class: long enough for its slab, without
  /// held slabs and without slabs of that class itself (whose slots are better evicted one by one). A large arena takes
  /// several calls. Changes between them may be missed, so ask last_use() before clearing.
  struct Search {
    /// Among the windows that begin at a multiple of their length, the sixteenth that was used longest ago, unordered;
    /// 1 to 512. So one search pays for several slabs. In a small arena this is only the oldest.
    std::vector<Window> aligned;
    std::optional<Window> anywhere;  ///< The oldest at any place, if all aligned ones fail.
    bool is_over = false;            ///< The whole arena was visited.

   private:
    friend class Arena;
    std::size_t first = 0, end = 0;
    std::deque<std::pair<std::size_t, std::uint64_t>> later;  ///< Granules used later than all after them, up to `end`.
  };
  void search(std::size_t block_bytes, Search& search, Steps& steps) const;
  /// The window's last use, as of now; nullopt if it cannot be cleared (any more), or the arena ends before it.
  std::optional<Tick> last_use(const Window& window, std::size_t block_bytes) const;
  bool is_in(const Window& window, SlotId slot) const;  ///< Whether the slot's slab lies in it, at least partly.

  Cursor begin(const Window& window) const { return {.granule = window.first_granule}; }
  /// The next allocated slot of the slabs that lie at least partly in the window; moves the cursor behind that slot.
  /// nullopt at the window's end, or without steps. Freeing all of these slots frees the window.
  std::optional<SlotId> next_slot(const Window& window, Cursor& cursor, Steps& steps) const;

  /// Checks every invariant; for tests. Returns an empty string or the broken one.
  std::string check() const;

 private:
  struct Impl;
  explicit Arena(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kv
