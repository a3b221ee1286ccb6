// store/node/jobs/context_warmer.h: brings blocks of named contexts from disk to memory, ahead of need.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/event.h"
#include "store/node/metrics.h"
#include "store/node/session/core/node_context.h"

namespace kv {

/// Runs after a start, and on request (Store::warm_context). Gets never wait, but read from disk.
///   1. Contexts take turns, one part at a time; each block is verified before it is visible.
///   2. At most kPartBytes (and one block) are in progress, at no more than bytes_per_second.
///   3. Blocks beyond the bounds on kept contexts are not brought, so a block is evicted only for one that is kept. A
///      block that is in memory only is not evicted while the disk could still take it.
/// Thread safety: set_rate(), stats() from any thread; the rest on the executor, which outlives the disk tier.
class ContextWarmer {
 public:
  static constexpr std::uint64_t kPartBytes = 16 << 20;
  static constexpr Duration kIdlePause = 250ms;  ///< Between two searches for work, and after a part without progress.

  /// `node` has a disk tier, and outlives this. `bytes_per_second`: 0: off.
  ContextWarmer(asio::any_io_executor executor, NodeContext& node, std::uint64_t bytes_per_second);

  asio::awaitable<void> run();  ///< Returns after stop().
  void stop();
  void set_rate(std::uint64_t bytes_per_second) { bytes_per_second_ = bytes_per_second; }
  std::vector<NodeMetrics::Value> stats() const;

 private:
  asio::awaitable<bool> bring(ContextDesk::WarmWork work);
  asio::awaitable<void> pause_until(TimePoint when);

  const asio::any_io_executor executor_;
  NodeContext& node_;
  std::atomic<std::uint64_t> bytes_per_second_;
  std::atomic<std::uint64_t> blocks_{0}, bytes_{0};
  const std::unique_ptr<Alarm> alarm_;
  Event rung_;
  TimePoint next_at_{};  ///< Earliest time that the rate allows.
  bool stops_ = false;
  Event* reading_ = nullptr;  ///< While waiting for a read.
};

}  // namespace kv
