// store/node/disk_worker/disk_reader.h: threads that read blocks from the disk tier for sessions.
#pragma once

#include <atomic>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "store/disk/disk.h"
#include "store/node/disk/call_watch.h"
#include "store/node/disk_worker/disk_worker.h"

namespace kv {

/// Bytes that count against a bound for as long as this lives. Thread safety: none; the counter is shared by threads.
class HeldBytes {
 public:
  using Counter = std::shared_ptr<std::atomic<std::uint64_t>>;
  HeldBytes() = default;  ///< Zero bytes.
  HeldBytes(Counter counter, std::uint64_t bytes) : counter_(std::move(counter)), bytes_(bytes) { *counter_ += bytes; }
  HeldBytes(HeldBytes&&) noexcept = default;
  HeldBytes& operator=(HeldBytes&& other) noexcept {
    std::swap(counter_, other.counter_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~HeldBytes();

 private:
  Counter counter_;
  std::uint64_t bytes_ = 0;
};

/// Reads and verifies, a bounded amount at a time.
///   1. A block counts against the bound until its receiver releases it: a slow client holds blocks for long.
/// Thread safety: all from any thread but the constructor.
class DiskReader {
 public:
  /// `held_bytes_max` bounds the blocks being read plus those read and still held; more are refused.
  DiskReader(const Clock& clock, std::size_t thread_count, std::uint64_t held_bytes_max)
      : clock_(clock),
        thread_count_(thread_count),
        held_bytes_max_(held_bytes_max),
        watch_(clock),
        threads_(thread_count) {}
  ~DiskReader() { threads_.join(); }  ///< Waits for the disk.

  /// As DiskWorker::read. `disk` outlives this.
  void read(const Disk& disk, DiskKey key, std::uint64_t seed, std::size_t block_bytes, Waiter waiter,
            DiskWorker::ReadDone done);
  void refuse() { is_refusing_ = true; }                          ///< From now on all reads, queued ones included.
  std::chrono::microseconds estimate(std::uint64_t bytes) const;  ///< As DiskWorker::estimate_read.

  const CallWatch& watch() const { return watch_; }
  std::uint64_t read_bytes() const { return read_bytes_; }
  std::uint64_t failure_count() const { return failures_; }
  std::uint64_t refusal_count() const { return refusals_; }

 private:
  const Clock& clock_;
  const std::size_t thread_count_;
  const std::uint64_t held_bytes_max_;
  CallWatch watch_;
  std::atomic<bool> is_refusing_{false};
  /// Shared with the blocks, which may outlive this.
  const HeldBytes::Counter held_bytes_ = std::make_shared<std::atomic<std::uint64_t>>(0);
  std::atomic<std::uint64_t> queued_bytes_{0}, read_bytes_{0}, failures_{0}, refusals_{0};
  std::atomic<double> seconds_per_byte_{1e-9};
  asio::thread_pool threads_;
};

}  // namespace kv
