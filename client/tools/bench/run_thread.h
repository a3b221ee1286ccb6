// client/tools/bench/run_thread.h: one thread of `kvstore-bench run`: its client, its blocks, its calls in flight.
// Threads share only the options and the window, so that the node's contention is measured, not ours.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <latch>
#include <map>
#include <string>

#include "client/tools/latency_histogram.h"
#include "client/tools/tool_client.h"

namespace kv {

enum class RunCall { kGet, kPut, kMatch };

struct RunOptions {
  ConnectionOptions node;
  std::string op = "get";
  RunCall call = RunCall::kGet;           ///< Parsed from `op`.
  Transport transport = Transport::kTcp;  ///< Parsed from `node`.
  std::size_t block_bytes = 2u << 20;
  std::size_t batch = 16;       ///< Blocks per call.
  std::size_t concurrency = 1;  ///< Calls in flight, per thread.
  std::size_t connections = 2;  ///< Per node and thread.
  std::size_t thread_count = 1;
  std::size_t block_count = 0;       ///< Working set of get and match, over all threads; 0: chosen from the block size.
  std::size_t calls_per_second = 0;  ///< Of each thread and call in flight, evenly spaced; 0: unlimited.
  std::size_t memory_bytes = 512u << 20;  ///< Buffers of each thread, walked in random order.
  std::chrono::milliseconds duration{3000}, warm_up{500};
  std::chrono::microseconds busy_poll{0};
  bool is_set = false;  ///< Independent keys instead of chains.
  bool no_verify = false, check = false, json = false;
  std::string salt = "0";
  std::string tenant;  ///< Of the record; empty: none.
};

struct RunResult {
  std::uint64_t calls = 0, blocks = 0;  ///< In the measured window, by their ends.
  std::uint64_t unmeasured_calls = 0;   ///< Before or after it.
  std::uint64_t missing_blocks = 0;     ///< Requested, but not delivered, found or stored.
  std::uint64_t wrong_bytes = 0;        ///< With `check` only.
  std::map<std::string, std::uint64_t> reasons;
  LatencyHistogram latency;
};

/// The measured time. The main thread sets `begin` and `end` before it counts `go` down.
struct RunWindow {
  explicit RunWindow(std::size_t thread_count) : ready(static_cast<std::ptrdiff_t>(thread_count)), go(1) {}
  std::latch ready;  ///< Every thread has filled its working set.
  std::latch go;
  TimePoint begin, end;
  std::atomic<bool> is_cancelled = false;                         ///< A thread failed to get ready.
  std::atomic<std::uint64_t> filled_blocks = 0, done_blocks = 0;  ///< For the progress line.
};

/// Fills the working set, waits for `go`, then makes calls until the window ends: at least one. Throws on failure.
RunResult run_thread(const RunOptions& options, std::size_t thread, RunWindow& window);

}  // namespace kv
