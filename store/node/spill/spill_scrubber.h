// store/node/spill/spill_scrubber.h: reads what lies on disk before somebody asks for it, so that damage is found while
// the block can still be recomputed at leisure.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/clock.h"
#include "store/disk.h"
#include "store/node/locked_store.h"

namespace kv {

/// Goes through all blocks on disk, again and again, and drops those that are damaged. Thread safety: step() from one
/// thread; the counters from any.
class SpillScrubber {
 public:
  /// `bytes_per_second`: 0 for no scrubbing. Keeps references.
  SpillScrubber(LockedStore& store, Clock& clock, std::uint64_t bytes_per_second)
      : store_(store), clock_(clock), bytes_per_second_(bytes_per_second) {}

  /// Reads the next block from `disk`, if it is time for it and there is one; takes as long as the disk does. Returns
  /// when there is more to do.
  TimePoint step(const Disk& disk);

  std::uint64_t block_count() const { return blocks_; }
  std::uint64_t damaged_count() const { return damaged_; }
  std::uint64_t round_count() const { return rounds_; }  ///< Times that all blocks have been read.

 private:
  void verify(const Store::ScrubBlock& block, const Disk& disk);

  LockedStore& store_;
  Clock& clock_;
  const std::uint64_t bytes_per_second_;
  TimePoint next_{};
  DiskTier::Cursor cursor_;
  std::vector<Store::ScrubBlock> due_;  ///< Last one first.
  std::atomic<std::uint64_t> blocks_{0}, damaged_{0}, rounds_{0};
};

}  // namespace kv
