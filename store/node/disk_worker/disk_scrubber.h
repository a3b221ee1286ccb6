// store/node/disk_worker/disk_scrubber.h: reads blocks on disk to find damage before a client needs them.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "store/disk/disk.h"
#include "store/node/locked_store.h"

namespace kv {

/// Goes through all blocks on disk, again and again, and drops damaged ones. Thread safety: step() from one thread; the
/// counters from any.
class DiskScrubber {
 public:
  /// `bytes_per_second`: 0 disables scrubbing. Keeps references.
  DiskScrubber(LockedStore& store, Clock& clock, std::uint64_t bytes_per_second)
      : store_(store), clock_(clock), bytes_per_second_(bytes_per_second) {}

  /// Reads the next block from `disk`, if one is due; blocks on the disk. Returns when to call next.
  TimePoint step(const Disk& disk);

  void set_rate(std::uint64_t bytes_per_second) { bytes_per_second_ = bytes_per_second; }  ///< Any thread.
  std::uint64_t block_count() const { return blocks_; }
  std::uint64_t damaged_count() const { return damaged_; }
  std::uint64_t round_count() const { return rounds_; }  ///< How often all blocks have been read.

 private:
  void verify(const DiskDesk::ScrubBlock& block, const Disk& disk);

  LockedStore& store_;
  Clock& clock_;
  std::atomic<std::uint64_t> bytes_per_second_;
  TimePoint next_{};
  DiskTier::Cursor cursor_;
  std::vector<DiskDesk::ScrubBlock> due_;  ///< The next block last.
  std::atomic<std::uint64_t> blocks_{0}, damaged_{0}, rounds_{0};
};

}  // namespace kv
