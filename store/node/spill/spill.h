// store/node/spill/: the disk tier at work. Start here.
//
// Carries out what the Store decides about its disk (store/spiller.h), so that neither sessions nor the Store's lock
// ever wait for a disk; and the tool that looks at a directory from outside. Knows no socket and no session: whoever
// reads hands in a callback. Knows a disk as kv::Disk only; the tool alone knows RocksDB. Files, in reading order:
//   spill.h            the disk tier as sessions see it
//   spill_driver.h     the daemon's: threads that open, load, write, flush and keep drops
//   spill_reader.h     the threads that read, and the bound of what is being read
//   spill_scrubber.h   reads blocks before anybody asks for them, and drops damaged ones
//   spill_tool.h       `kvstore-node spill`: inspect, verify, compact a directory that no node uses
//   spill_report.h     what the tool finds out, and how it is shown
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "store/disk.h"
#include "store/node/metrics.h"

namespace kv {

/// Somebody who waits for an answer and may be gone before it comes. Does not keep whoever that is.
class Waiter {
 public:
  template <class T>
  Waiter(const std::shared_ptr<T>& object) : object_(object) {}
  bool is_gone() const { return object_.expired(); }

 private:
  std::weak_ptr<const void> object_;
};

/// Reads blocks for sessions, and writes when memory is short. The daemon's has threads (spill_driver.h), the
/// simulation's has none. Thread safety: all calls from any thread.
class Spill {
 public:
  virtual ~Spill() = default;

  /// Whether blocks on disk can be read now. A disk that takes no writes may still give what it has.
  virtual bool can_read() const = 0;
  /// Reads and verifies a block. `done` is called once, on some thread, perhaps before this returns. `waiter` is
  /// whoever waits for the block: once that is destroyed, a read that has not begun may be left out. Errors: those of
  /// read_verified(); kBusy when too much is being read, or nobody waits any more.
  using ReadDone = std::function<void(Result<DiskBlock>)>;
  virtual void read(DiskKey key, std::uint64_t seed, std::size_t block_bytes, Waiter waiter, ReadDone done) = 0;
  /// How long reading `bytes` takes, estimated from recent reads.
  virtual std::chrono::microseconds estimate_read(std::uint64_t bytes) const = 0;

  /// Keeps a drop durably, so that a restart does not undo it. `done` is called once, on some thread, perhaps before
  /// this returns, with whether the drop is kept. That may take any time: whoever waits has a deadline of its own.
  virtual void keep_drop(const DiskDrop& drop, std::function<void(bool is_kept)> done) = 0;

  /// As Disk::purge(). Errors: kBusy while no disk is open and loaded; so of the next.
  virtual Result<DiskPurge> purge([[maybe_unused]] std::span<const DiskDrop> dropped,
                                  [[maybe_unused]] const std::function<bool(const DiskPurge&)>& goes_on) {
    return make_error_code(Errc::kUnsupported);
  }
  /// The records of all namespaces that the disk keeps, those included that no restart has found room for.
  virtual Result<std::vector<std::string>> namespaces_on_disk() const { return make_error_code(Errc::kUnsupported); }

  virtual void notify() = 0;  ///< Memory was taken: there may be something to write.
  /// Whether a put should wait a moment for the disk, rather than evict blocks that are not on it yet.
  virtual bool keeps_up() const = 0;
  /// A put has waited too long: keeps_up() is false for `pause`.
  virtual void fell_behind(Duration pause) = 0;

  virtual std::vector<NodeMetrics::Value> stats() const = 0;
};

}  // namespace kv
