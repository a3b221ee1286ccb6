// store/node/spill/spill.h: the disk tier as sessions see it: somebody who reads blocks for them, and writes when told
// that memory is short. The daemon's has threads (spill_driver.h), the simulation's has none.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "store/disk.h"
#include "store/node/metrics.h"

namespace kv {

/// Thread safety: all calls from any thread.
class Spill {
 public:
  virtual ~Spill() = default;

  /// Whether blocks on disk can be had now. (One that does not take writes may well give what it has.)
  virtual bool can_read() const = 0;
  /// Reads and verifies a block. `done` is called once, on some thread, perhaps before this returns. What is destroyed
  /// with `waiter` waits for it: once it has gone, a read that has not begun may be left out.
  /// Errors: of read_verified(); kBusy when too much is being read, or nobody waits any more.
  using ReadDone = std::function<void(Result<DiskBlock>)>;
  virtual void read(DiskKey key, std::uint64_t seed, std::size_t block_bytes, std::weak_ptr<const void> waiter,
                    ReadDone done) = 0;
  /// How long reading `bytes` takes about, from what it took lately.
  virtual std::chrono::microseconds estimate_read(std::uint64_t bytes) const = 0;

  /// Keeps a drop, durably, so that a restart does not undo it. `done` is called once, on some thread, perhaps before
  /// this returns: whether the drop is kept. However long that takes; who waits has a deadline of its own.
  virtual void keep_drop(const DiskDrop& drop, std::function<void(bool is_kept)> done) = 0;

  virtual void notify() = 0;  ///< Memory was taken: there may be something to write.
  /// Whether a put should rather wait a moment for the disk than evict blocks that are not on it yet. Not when that was
  /// tried just now and took too long.
  virtual bool keeps_up() const = 0;
  virtual void fell_behind(Duration pause) = 0;

  virtual std::vector<NodeMetrics::Value> stats() const = 0;
};

}  // namespace kv
