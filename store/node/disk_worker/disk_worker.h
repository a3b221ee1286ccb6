// store/node/disk_worker/: the disk tier at work. Start here.
//
// Carries out the Store's disk decisions (store/spill/spiller.h), so that sessions and the Store's lock never wait for
// a disk; and has the offline tool. Independent of sockets and sessions: readers pass callbacks. Uses a disk only as
// kv::Disk; only the tool depends on RocksDB. Files, in reading order:
//   disk_worker.h      the disk tier as sessions see it
//   disk_threads.h     the daemon's implementation: threads that open, load, write, flush and keep drops
//   disk_reader.h     the threads that read, and the bound on bytes being read
//   disk_scrubber.h   reads blocks ahead of any request, and drops damaged ones
//   disk_tool.h       `kvstore-node disk`: inspect, verify, compact a directory that is not in use by a node
//   disk_report.h     the tool's results and how they are printed
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "store/disk/disk.h"
#include "store/node/metrics.h"

namespace kv {

/// A requester that may be destroyed before its answer comes. Does not keep the requester alive.
class Waiter {
 public:
  template <class T>
  Waiter(const std::shared_ptr<T>& object) : object_(object) {}
  bool is_gone() const { return object_.expired(); }

 private:
  std::weak_ptr<const void> object_;
};

/// Reads blocks for sessions, and writes when memory is short. The daemon's implementation has threads
/// (disk_threads.h), the simulation's is single-threaded. Thread safety: all calls from any thread.
class DiskWorker {
 public:
  virtual ~DiskWorker() = default;

  /// Whether blocks on disk can be read now. A disk that refuses writes may still be readable.
  virtual bool can_read() const = 0;
  /// Reads and verifies a block. `done` is called once, on some thread, perhaps before this returns. `waiter` is the
  /// requester: once it is destroyed, a read that has not begun may be skipped. Errors: those of read_verified(); kBusy
  /// when too much is being read, or the requester is gone.
  using ReadDone = std::function<void(Result<DiskBlock>)>;
  virtual void read(DiskKey key, std::uint64_t seed, std::size_t block_bytes, Waiter waiter, ReadDone done) = 0;
  /// How long reading `bytes` takes, estimated from recent reads.
  virtual std::chrono::microseconds estimate_read(std::uint64_t bytes) const = 0;

  /// Keeps a drop durably, so that a restart does not undo it. `done` is called once, on some thread, perhaps before
  /// this returns, with whether the drop is kept. That may take any time: callers set a deadline of their own.
  virtual void keep_drop(const DiskDrop& drop, std::function<void(bool is_kept)> done) = 0;

  /// As Disk::purge(). Errors: kBusy until a disk is open and loaded; the same holds for namespaces_on_disk().
  virtual Result<DiskPurge> purge([[maybe_unused]] std::span<const DiskDrop> dropped,
                                  [[maybe_unused]] const std::function<bool(const DiskPurge&)>& goes_on) {
    return make_error_code(Errc::kUnsupported);
  }
  /// The records of all namespaces on the disk, including those for which a restart had no room.
  virtual Result<std::vector<std::string>> namespaces_on_disk() const { return make_error_code(Errc::kUnsupported); }

  virtual void notify() = 0;  ///< Memory was taken: writes may be due.
  /// Whether a put should wait a moment for the disk, rather than evict blocks that are not yet on it.
  virtual bool keeps_up() const = 0;
  /// A put has waited too long: keeps_up() is false for `pause`.
  virtual void fell_behind(Duration pause) = 0;

  virtual std::vector<NodeMetrics::Value> stats() const = 0;
};

}  // namespace kv
