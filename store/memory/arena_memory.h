// store/memory/arena_memory.h: the bytes behind the arena.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>

#include "base/result.h"

namespace kv {

struct ArenaConfig {
  std::size_t capacity_bytes = 0;  ///< Not rounded: all of it can hold blocks.
  /// The maximum for set_capacity(); then both are whole granules. 0: a fixed capacity.
  std::size_t capacity_bytes_max = 0;
  /// Slabs are whole runs of granules; the arena's last granule may be shorter.
  std::size_t granule_bytes = 2 * 1024 * 1024;
  bool huge_pages = true;  ///< Use MFD_HUGETLB when enough huge pages are reserved; else ordinary pages.
  bool touch = true;       ///< Write every page at start: first touch is 50 times slower than a copy.
  /// Called while touching, with bytes touched so far, on one thread at a time. Optional.
  std::function<void(std::size_t)> progress = nullptr;

  std::size_t bytes_max() const { return capacity_bytes_max > capacity_bytes ? capacity_bytes_max : capacity_bytes; }
};

/// A memfd and its mapping. All addresses are reserved at the start, so it never moves; the committed part has memory.
///
///     | committed: read, written, touched    | reserved: no memory, and no access |
///     0                                committed_bytes()                     bytes_max()
/// Thread safety: commit() and discard() from one thread at a time, while others use the part that stays committed.
class ArenaMemory {
 public:
  /// Commits config.capacity_bytes. Errors: of memfd_create, ftruncate, mmap, or of touching (too little memory).
  static Result<std::unique_ptr<ArenaMemory>> create(const ArenaConfig& config);
  ~ArenaMemory();
  ArenaMemory(const ArenaMemory&) = delete;
  ArenaMemory& operator=(const ArenaMemory&) = delete;

  std::byte* data() const { return base_; }
  std::size_t committed_bytes() const { return committed_bytes_; }  ///< Whole pages.
  bool uses_huge_pages() const { return page_bytes_ != 4096; }      ///< Huge pages were reserved for it.

  /// Makes the first `bytes` usable, touched if configured: 0.3 s a GiB and more. The first time on all
  /// processors at once. Unchanged after an error.
  error_code commit(std::size_t bytes);
  /// Returns the memory behind the first `bytes` to the system, contents included. It must not be in use.
  void discard(std::size_t bytes);

 private:
  ArenaMemory() = default;
  error_code reserve(const ArenaConfig& config, std::size_t page_bytes);
  error_code touch(std::size_t from, std::size_t bytes) const;

  int fd_ = -1;
  std::byte* reserved_ = nullptr;  ///< Before base_, which is at a huge page's boundary.
  std::size_t reserved_bytes_ = 0;
  std::byte* base_ = nullptr;
  std::atomic<std::size_t> committed_bytes_{0};
  std::size_t page_bytes_ = 4096;
  bool wants_huge_ = false, touch_ = true;
  std::function<void(std::size_t)> progress_;
};

}  // namespace kv
