// store/node/spill_driver.h: the threads that wait for the disk, so that nobody else does.
#pragma once

#include <atomic>
#include <boost/asio/thread_pool.hpp>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "store/disk.h"
#include "store/node/locked_store.h"
#include "store/node/spill.h"

namespace kv {

struct SpillDriverConfig {
  std::size_t read_threads = 4;
  std::uint64_t batch_bytes = 8 << 20;             ///< Written at a time.
  std::uint64_t write_bytes_per_second = 0;        ///< 0: as fast as the disk takes it.
  std::uint64_t read_queue_bytes_max = 512 << 20;  ///< Being read; more is refused.
  Duration retry_after = 5s;                       ///< How long the disk is left alone after it failed.
  Duration stuck_after = 2s;  ///< A write that takes longer makes the disk count as stuck: nobody reads from it then.
};

/// Carries out what Store wants of the disk. One thread writes, some read, one loads after a restart. A disk that fails
/// is left alone for a while and then tried again; meanwhile blocks are evicted without being spilled.
/// Thread safety: start() and stop() from one thread; the others from any.
class SpillDriver final : public Spill {
 public:
  SpillDriver(LockedStore& store, std::unique_ptr<Disk> disk, Clock& clock, const SpillDriverConfig& config);
  ~SpillDriver() override;  ///< stop(false) if that was not done.

  void start();
  /// Ends the threads. `save`: writes what is in memory first.
  void stop(bool save);

  void notify() override;
  bool keeps_up() const override {
    return is_on_ && !is_stuck() && clock_.now() >= TimePoint(Duration(behind_until_.load()));
  }
  void fell_behind(Duration pause) override { behind_until_ = (clock_.now() + pause).time_since_epoch().count(); }
  bool can_read() const override { return !stopping_ && !is_stuck(); }
  void read(DiskKey key, std::uint64_t seed, std::size_t block_bytes, ReadDone done) override;
  std::chrono::microseconds estimate_read(std::uint64_t bytes) const override;
  std::vector<NodeMetrics::Value> stats() const override;
  std::string trouble() const;  ///< Why the disk is off, or empty.

 private:
  void write_loop();
  void load();
  bool work_once(bool everything);
  void failed(const char* what, error_code error);
  bool is_stuck() const;

  LockedStore& store_;
  const std::unique_ptr<Disk> disk_;
  Clock& clock_;
  const SpillDriverConfig config_;

  std::atomic<bool> stopping_{false}, is_on_{true}, loading_{false};
  std::atomic<Duration::rep> behind_until_{0};
  std::atomic<std::int64_t> busy_since_ns_{0};  ///< Of the write under way; 0: none.
  std::atomic<std::uint64_t> reading_bytes_{0}, read_bytes_{0}, read_failures_{0}, read_refusals_{0}, loaded_blocks_{0};
  std::atomic<std::uint64_t> outages_{0};
  std::atomic<double> read_seconds_per_byte_{1e-9};
  mutable std::mutex mutex_;  ///< Of the two below.
  std::condition_variable wake_;
  bool is_notified_ = false;
  std::string trouble_;
  std::thread writer_, loader_;
  asio::thread_pool readers_;
};

}  // namespace kv
