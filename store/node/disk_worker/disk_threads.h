// store/node/disk_worker/disk_threads.h: the threads that wait for the disk on behalf of all others.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "store/disk/disk.h"
#include "store/node/disk/call_watch.h"
#include "store/node/disk_worker/disk_reader.h"
#include "store/node/disk_worker/disk_scrubber.h"
#include "store/node/disk_worker/disk_worker.h"
#include "store/node/locked_store.h"

namespace kv {

struct DiskThreadsConfig {
  std::size_t read_threads = 4;
  /// Of one write, pinned meanwhile: at most an eighth of the memory, so that a hanging disk leaves the rest to puts.
  std::uint64_t batch_bytes = 8 << 20;
  std::uint64_t write_bytes_per_second = 0;          ///< 0: as fast as the disk takes it.
  std::uint64_t drain_bytes_per_second = 128 << 20;  ///< Moved out of a leaving directory; 0: as fast as possible.
  std::uint64_t scrub_bytes_per_second = 16 << 20;   ///< Read and verified while sessions read nothing; 0: never.
  std::uint64_t read_queue_bytes_max = 512 << 20;    ///< Being read, or read and still held; more is refused.
  Duration retry_after = 5s;                         ///< How long a failed disk is left alone.
  std::size_t drop_queue_max = 65'536;               ///< Drops waiting to be kept; more are not kept.
  Duration stuck_after = 2s;     ///< A call that takes longer marks the disk as stuck; reads then stop.
  Duration give_up_after = 30s;  ///< stop() gives up a disk that completes no call for so long.
  /// A leaving directory that yields no block for so long is given up, along with its remaining blocks.
  Duration drain_give_up_after = 60s;
};

/// Carries out the Store's disk work. One thread opens, loads and scrubs; one writes; one keeps drops; several read.
///   1. Only these threads wait for the disk. Requests from other threads are queued or answered from memory.
///   2. A disk that fails, even to open, is left alone for retry_after and then tried again. Meanwhile the tier is off:
///      blocks are evicted unwritten. Reads go on, since a full disk is still readable.
///   3. A disk that does not answer counts as stuck, and reads stop too, until a call ends.
///   4. Queues have bounds: read_queue_bytes_max, drop_queue_max, batch_bytes.
///   5. The writer empties a leaving directory in batches, at its own rate, and flushes before the directory is closed.
/// Thread safety: start() and stop() from one thread; the others from any.
class DiskThreads final : public DiskWorker {
 public:
  DiskThreads(LockedStore& store, OpenDisk open, Clock& clock, const DiskThreadsConfig& config);
  ~DiskThreads() override;  ///< Calls stop(false) if not stopped yet. Waits for the disk, however long it takes.

  /// Starts the threads. Waits up to `patience` for the disk to be accepted. Returns why it was *refused*, if only the
  /// operator can remove the reason (directory in use by another node or for another purpose, permissions), or "".
  std::string start(Duration patience = 1s);
  /// Ends the threads. `save`: writes all blocks in memory first. False: the disk does not answer, and its threads
  /// cannot be joined, so end the process without destroying this.
  bool stop(bool save);

  void notify() override;
  bool keeps_up() const override {
    return is_on_ && !is_stuck() && clock_.now() >= TimePoint(Duration(behind_until_.load()));
  }
  void fell_behind(Duration pause) override { behind_until_ = (clock_.now() + pause).time_since_epoch().count(); }
  bool can_read() const override { return open_disk_ != nullptr && !stopping_ && !is_stuck(); }
  void read(DiskKey key, std::uint64_t seed, std::size_t block_bytes, Waiter waiter, ReadDone done) override;
  std::chrono::microseconds estimate_read(std::uint64_t bytes) const override { return reader_.estimate(bytes); }
  void keep_drop(const DiskDrop& drop, std::function<void(bool)> done) override;
  Result<DiskPurge> purge(std::span<const DiskDrop> dropped,
                          const std::function<bool(const DiskPurge&)>& goes_on) override;
  Result<std::vector<std::string>> namespaces_on_disk() const override;
  std::vector<NodeMetrics::Value> stats() const override;
  /// As Disk::set_directories, from one thread at a time. Returns "", or the reason for a refusal.
  std::string set_directories(const std::vector<std::string>& paths);
  /// Applies the rates, stuck_after and give_up_after.
  void set_limits(const DiskThreadsConfig& config);

 private:
  void open_disk();
  void load();
  error_code load_once();
  void scrub();
  void wait(Duration duration);
  void write_loop();
  void save();
  bool flush();
  void keep_drops();
  void forget_drops();
  void recovered();
  std::uint64_t work_once(bool everything);
  std::uint64_t drain_once();
  bool look_at_leaving();
  DiskTier::PlaceUse use_of(DiskPlace place);
  DiskTier::PlaceUse count_drained(const SpillWork& work, const SpillOutcome& outcome, std::size_t evicted,
                                   std::size_t lost);
  std::uint64_t drain_fails(const DiskTier::PlaceUse& use, const std::string& why);
  void tell_places(std::vector<DiskPlace> places, std::span<const LeavingDirectory> leaving);
  bool end_drain();
  void keep_stats();
  DiskStats last_stats() const;
  std::uint64_t finished_calls() const;
  void failed(const char* what, error_code error);
  bool is_stuck() const;

  LockedStore& store_;
  const OpenDisk open_;
  Clock& clock_;
  const DiskThreadsConfig config_;
  std::atomic<std::uint64_t> write_bytes_per_second_, drain_bytes_per_second_;
  std::atomic<Duration::rep> give_up_after_, stuck_after_;
  DiskScrubber scrubber_;
  std::unique_ptr<Disk> disk_;
  std::atomic<Disk*> open_disk_{nullptr};  ///< disk_, once it is open and the Store has begun to load it.
  DiskReader reader_;
  CallWatch writing_, scrubbing_, dropping_;

  std::atomic<bool> stopping_{false}, is_on_{false}, loading_{false}, saves_{false};
  mutable std::atomic<bool> is_stuck_said_{false};
  std::atomic<Duration::rep> behind_until_{0};
  std::atomic<std::uint64_t> loaded_blocks_{0}, outages_{0};
  std::atomic<std::uint64_t> drops_kept_{0}, drops_not_kept_{0};
  std::atomic<std::uint64_t> forgettable_{0};  ///< Drops up to this key are obsolete after the next flush, if not 0.
  struct WaitingDrop {
    DiskDrop drop;
    std::function<void(bool)> done;
  };
  std::mutex drop_mutex_;  ///< Guards the three members below.
  std::condition_variable drop_wake_;
  std::vector<WaitingDrop> drops_;
  bool takes_drops_ = true;
  struct DrainStats {
    std::uint64_t directory_count = 0;  ///< Leaving now.
    DiskTier::PlaceUse left, moved;
    std::uint64_t evicted_blocks = 0, lost_blocks = 0;
  };
  mutable std::mutex mutex_;  ///< Guards the four members below.
  std::condition_variable wake_;
  bool is_notified_ = false;
  DiskStats stats_;
  DrainStats drain_stats_;
  std::promise<std::string> accepted_;  ///< Why the disk was refused, or "".
  std::promise<void> written_;          ///< Opener, dropper and writer have ended.
  // Used by the writer only.
  std::vector<DiskPlace> places_{0}, leaving_;  ///< As last reported to the Store.
  struct Drain {
    LeavingDirectory from;
    DrainStats before;  ///< At the beginning.
    TimePoint said{};   ///< Time of the last progress line.
    std::optional<TimePoint> failing_since = std::nullopt;
  };
  std::optional<Drain> drain_;
  TimePoint drain_due_{};
  TimePoint stats_due_{};
  TimePoint flush_due_ = TimePoint::max();  ///< When unwritten erasures are due.
  std::thread opener_, writer_, dropper_;
};

}  // namespace kv
