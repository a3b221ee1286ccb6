// store/node/live/capacity.h: gives the node more memory for blocks, or less, while it serves.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "store/node/disk_worker/disk_worker.h"
#include "store/node/locked_store.h"
#include "store/node/metrics.h"

namespace kv {

/// Brings the capacity to its target, in steps that are small beside the whole:
///
///     up     commit and touch pages -> the Store may use them
///     down   the Store uses less -> blocks behind the new end are copied to room that others made, as for puts
///            -> pages go back to the system
///
///   1. At every moment the capacity is backed by memory.
///   2. Blocks leave memory only if the eviction policy values them least, or if they are on disk.
///   3. A block in use is waited for. A leased or pinned (retained) block moves with its lease or pin.
/// Thread safety: all calls from any thread; the destructor waits for the step in progress.
class CapacityKeeper {
 public:
  /// `disk_worker`: nullptr without a disk tier. Both outlive this. `numa_nodes`: for added memory (base/numa.h).
  CapacityKeeper(LockedStore& store, DiskWorker* disk_worker, std::vector<unsigned> numa_nodes = {});
  ~CapacityKeeper();

  /// Sets the target to `bytes`. Returns "", or the reason for a refusal: bad size, or too little memory.
  std::string aim(std::uint64_t bytes);
  std::uint64_t target_bytes() const;
  std::vector<NodeMetrics::Value> stats() const;

 private:
  using Lock = std::unique_lock<std::mutex>;

  void run();
  void grow(std::uint64_t to);
  void shrink(std::uint64_t to);
  bool clear(std::uint64_t to);
  void failed(const std::string& why);
  void pause();
  std::uint64_t step_bytes() const;

  LockedStore& store_;
  DiskWorker* const disk_worker_;
  const std::vector<unsigned> numa_nodes_;
  ArenaMemory& pages_;
  std::uint64_t granule_bytes_ = 0, bytes_max_ = 0;
  mutable std::mutex mutex_;  ///< Guards the members below.
  std::condition_variable wake_;
  std::uint64_t now_bytes_ = 0, target_bytes_ = 0;
  bool stops_ = false, is_stuck_ = false;
  std::uint64_t changes_ = 0, failures_ = 0, moved_bytes_ = 0;
  std::thread thread_;
};

}  // namespace kv
