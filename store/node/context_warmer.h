// store/node/context_warmer.h: brings what the disk has of named contexts to memory, ahead of need.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/event.h"
#include "store/node/metrics.h"
#include "store/node/session/node_context.h"

namespace kv {

/// After a start, and for whoever asks (Store::warm_context). Nobody waits for it and nothing is lost by it: what it
/// does not bring is read from disk by the get that needs it.
///   1. A part of one context at a time, contexts in turn; each block is verified before it is visible.
///   2. At most kPartBytes (and one block) are being brought, and no more than bytes_per_second of them.
///   3. What the bounds on what is kept have no room for is not brought, so what goes for a block goes for one that is
///   kept. Nothing goes that is nowhere else while the disk could still take it.
/// Thread safety: set_rate(), stats() from any thread; else on the executor, which outlives the disk tier.
class ContextWarmer {
 public:
  static constexpr std::uint64_t kPartBytes = 16 << 20;
  static constexpr Duration kIdlePause = 250ms;  ///< Between two looks for work, and when a part did not get on.

  /// `node` has a disk tier, and outlives this. `bytes_per_second`: 0, nothing is brought.
  ContextWarmer(asio::any_io_executor executor, NodeContext& node, std::uint64_t bytes_per_second);

  asio::awaitable<void> run();  ///< Until stop().
  void stop();
  void set_rate(std::uint64_t bytes_per_second) { bytes_per_second_ = bytes_per_second; }
  std::vector<NodeMetrics::Value> stats() const;

 private:
  asio::awaitable<bool> bring(Store::WarmWork work);
  asio::awaitable<void> pause_until(TimePoint when);

  const asio::any_io_executor executor_;
  NodeContext& node_;
  std::atomic<std::uint64_t> bytes_per_second_;
  std::atomic<std::uint64_t> blocks_{0}, bytes_{0};
  const std::unique_ptr<Alarm> alarm_;
  Event rung_;
  TimePoint next_at_{};  ///< Before then the rate allows no more.
  bool stops_ = false;
  Event* reading_ = nullptr;  ///< While a read is waited for.
};

/// A warmer on a thread of its own: what it copies takes no time of the node's I/O threads.
/// Thread safety: one thread makes and destroys it; the rest from any.
class ContextWarmerThread {
 public:
  /// `context` outlives the disk tier: reads come back to it.
  ContextWarmerThread(asio::io_context& context, NodeContext& node, std::uint64_t bytes_per_second);
  ~ContextWarmerThread() { stop(); }
  void stop();  ///< Ends the thread, within the block that is under way. From the thread that made this.

  void set_rate(std::uint64_t bytes_per_second) { warmer_.set_rate(bytes_per_second); }
  std::vector<NodeMetrics::Value> stats() const { return warmer_.stats(); }

 private:
  asio::io_context& context_;
  ContextWarmer warmer_;
  std::thread thread_;
};

}  // namespace kv
