// store/node/spill/spill_driver.h: the threads that wait for the disk, so that nobody else does.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "store/disk.h"
#include "store/node/disk/call_watch.h"
#include "store/node/locked_store.h"
#include "store/node/spill/spill.h"
#include "store/node/spill/spill_reader.h"
#include "store/node/spill/spill_scrubber.h"

namespace kv {

struct SpillDriverConfig {
  std::size_t read_threads = 4;
  /// Written at a time, and pinned meanwhile: at most an eighth of the memory, so that a disk that hangs leaves the
  /// rest to puts.
  std::uint64_t batch_bytes = 8 << 20;
  std::uint64_t write_bytes_per_second = 0;         ///< 0: as fast as the disk takes it.
  std::uint64_t scrub_bytes_per_second = 16 << 20;  ///< Read and verified while nobody reads; 0: never.
  std::uint64_t read_queue_bytes_max = 512 << 20;   ///< Being read, or read and not delivered; more is refused.
  Duration retry_after = 5s;                        ///< How long the disk is left alone after it failed.
  std::size_t drop_queue_max = 65'536;  ///< Drops that wait to be kept; of more it is said that they are not.
  Duration stuck_after = 2s;     ///< A call that takes longer makes the disk count as stuck: nobody reads from it then.
  Duration give_up_after = 30s;  ///< stop() leaves a disk alone that finishes nothing for so long.
};

/// Carries out what Store wants of the disk. One thread opens it, loads its index and scrubs, one writes, one keeps
/// drops (all that have come while the disk kept the last ones, in one go), some read. A disk that fails, be it to
/// open, is left alone for a while and then tried again; meanwhile blocks are evicted without being spilled. Thread
/// safety: start() and stop() from one thread; the others from any.
class SpillDriver final : public Spill {
 public:
  SpillDriver(LockedStore& store, OpenDisk open, Clock& clock, const SpillDriverConfig& config);
  ~SpillDriver() override;  ///< stop(false) if that was not done. Waits for the disk however long it takes.

  /// Starts the threads. Waits up to `patience` for the disk to be accepted; returns why it was *refused* for a reason
  /// that only the operator can remove (another node has it, it is something else's, permissions), or "".
  std::string start(Duration patience = 1s);
  /// Ends the threads. `save`: writes what is in memory first. False: the disk does not answer. What waits for it still
  /// does, so end the process without destroying this.
  bool stop(bool save);

  void notify() override;
  bool keeps_up() const override {
    return is_on_ && !is_stuck() && clock_.now() >= TimePoint(Duration(behind_until_.load()));
  }
  void fell_behind(Duration pause) override { behind_until_ = (clock_.now() + pause).time_since_epoch().count(); }
  bool can_read() const override { return open_disk_ != nullptr && !stopping_ && !is_stuck(); }
  void read(DiskKey key, std::uint64_t seed, std::size_t block_bytes, std::weak_ptr<const void> waiter,
            ReadDone done) override;
  std::chrono::microseconds estimate_read(std::uint64_t bytes) const override { return reader_.estimate(bytes); }
  void keep_drop(const DiskDrop& drop, std::function<void(bool)> done) override;
  std::vector<NodeMetrics::Value> stats() const override;
  std::string trouble() const;  ///< Why the disk is off, or empty.

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
  void keep_stats();
  DiskStats last_stats() const;
  std::uint64_t finished_calls() const;
  void failed(const char* what, error_code error);
  void set_trouble(std::string trouble);
  bool is_stuck() const;

  LockedStore& store_;
  const OpenDisk open_;
  Clock& clock_;
  const SpillDriverConfig config_;
  SpillScrubber scrubber_;
  std::unique_ptr<Disk> disk_;
  std::atomic<Disk*> open_disk_{nullptr};  ///< disk_ once it is open and the index is ready for it.
  SpillReader reader_;
  CallWatch writing_, scrubbing_, dropping_;

  std::atomic<bool> stopping_{false}, is_on_{false}, loading_{false}, saves_{false};
  mutable std::atomic<bool> is_stuck_said_{false};
  std::atomic<Duration::rep> behind_until_{0};
  std::atomic<std::uint64_t> loaded_blocks_{0}, outages_{0};
  std::atomic<std::uint64_t> drops_kept_{0}, drops_not_kept_{0};
  std::atomic<std::uint64_t> forgettable_{0};  ///< Drops up to this key concern nothing, once all is flushed. 0: none.
  struct WaitingDrop {
    DiskDrop drop;
    std::function<void(bool)> done;
  };
  std::mutex drop_mutex_;  ///< Of the three below.
  std::condition_variable drop_wake_;
  std::vector<WaitingDrop> drops_;
  bool takes_drops_ = true;
  mutable std::mutex mutex_;  ///< Of the three below.
  std::condition_variable wake_;
  bool is_notified_ = false;
  std::string trouble_;
  DiskStats stats_;
  std::promise<std::string> accepted_;  ///< Why not, or "".
  std::promise<void> written_;          ///< Opener and writer have ended.
  std::vector<DiskPlace> places_{0};    ///< As the store knows them; this and the next two of the writer alone.
  TimePoint stats_due_{};
  TimePoint flush_due_ = TimePoint::max();  ///< Erasures are not written out yet.
  std::thread opener_, writer_, dropper_;
};

}  // namespace kv
