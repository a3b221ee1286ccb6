// store/node/jobs/context_keeper.h: the named contexts of a node, kept over a restart.
#pragma once

#include <atomic>
#include <chrono>
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
#include "base/result.h"
#include "store/contexts/context_file.h"
#include "store/node/locked_store.h"
#include "store/node/metrics.h"

namespace kv {

/// A file beside the disk tier's: read at the start, written soon after a change and at the end.
///   1. Only its own thread waits for the file. A file that never answers delays neither the node nor its end.
///   2. An unusable file costs the contexts in it and a line of the log; it is kept aside.
///   3. The file is not written before it was read.
///   4. A later write is newer and has later times, even if the wall clock was set back.
///   5. A start with a wrong clock lets all contexts live (ContextFile::is_clock_doubted); the log and a metric report
///   it.
/// A file that comes late, from a disk that hung at the start, loses against contexts made meanwhile.
/// Thread safety: all calls from any thread, except the destructor: from one.
class ContextKeeper {
 public:
  /// As in store/node/disk/files/kept_file.h.
  struct File {
    struct Found {
      std::size_t place = 0;
      Result<std::string, Failure> text;
    };
    std::function<std::vector<Found>()> read;
    std::function<error_code(const std::string&)> write;
    std::function<void(std::size_t place)> set_aside;
    std::function<error_code()> forget_aside;
  };
  /// Pauses before a write: after an order (create, extend, delete, an end), after a use, and for the figures of unused
  /// contexts. A large file is written less often: 8 MiB a second at most for orders, 64 KiB a second for uses.
  static constexpr Duration kOrderPause = std::chrono::seconds(1), kUsePause = std::chrono::seconds(10),
                            kFigurePause = std::chrono::minutes(5);
  static constexpr std::uint64_t kOrderBytesPerSecond = 8 << 20, kUseBytesPerSecond = 64 << 10;

  /// Calls `file` on its own thread, one call at a time, perhaps until after this is destroyed. `wall_us`: since 1970.
  ContextKeeper(LockedStore& store, Clock& clock, File file, std::function<std::uint64_t()> wall_us);
  ~ContextKeeper();

  /// Waits until the file was read and its contexts are back. False: that takes longer; tick() continues it.
  bool start(std::chrono::milliseconds patience = std::chrono::seconds(2));
  /// Advances, mostly within microseconds. `may_write`: the file's directory is the node's.
  void tick(bool may_write);
  /// Writes the present contexts, and waits. Returns "", or the error.
  std::string write_now(std::chrono::milliseconds patience);
  /// Like write_now(), and removes files kept aside. For after contexts were deleted for good.
  std::string forget(std::chrono::milliseconds patience);
  /// Writes a last time. False: it failed, or took longer than `patience`.
  bool stop(bool may_write, std::chrono::milliseconds patience = std::chrono::seconds(5));

  std::vector<NodeMetrics::Value> stats() const;

 private:
  struct ReadBack {
    std::vector<KeptContext> contexts;
    std::vector<std::string> trouble;
    std::uint64_t written_us = 0;
    bool has_file = false, is_clock_doubted = false;
  };
  struct Job {
    std::vector<KeptContext> contexts;
    ClockPair now;
    bool forgets_aside = false;
  };
  /// Shared with the thread, which may outlive this.
  struct Work {
    Work(File given, const ClockPair& pair) : file(std::move(given)), began(pair) {}
    const File file;
    const ClockPair began;
    std::mutex mutex;  ///< Guards the members below.
    std::condition_variable changed;
    std::unique_ptr<ReadBack> was_read;
    bool is_read = false;
    std::unique_ptr<Job> job;
    std::uint64_t jobs_given = 0, jobs_done = 0;  ///< A replaced job counts as done.
    bool ends = false, has_ended = false;
    std::vector<std::size_t> to_set_aside;  ///< At the first write: until then the directory may be another node's.
    error_code failure;                     ///< Of the last job.
    std::uint64_t bytes = 0, writes = 0, failures = 0;
  };
  static void work_at(Work& work);
  static ReadBack read_back(Work& work);
  std::uint64_t wall_us() const;
  void take_over();                             ///< Requires mutex_, as does hand_over().
  std::uint64_t hand_over(bool forgets_aside);  ///< The job's number.
  std::string write(bool forgets_aside, std::chrono::milliseconds patience);
  std::string wait_for(std::uint64_t job, std::chrono::milliseconds patience);

  LockedStore& store_;
  Clock& clock_;
  const std::function<std::uint64_t()> wall_us_;
  std::mutex mutex_;  ///< Guards the members below, except the atomics; held while contexts are copied.
  bool has_taken_over_ = false, is_dirty_ = false;
  ContextDesk::Changes written_;
  TimePoint order_due_{}, use_due_{}, figures_due_{};
  ClockPair least_;  ///< Lower bound of the wall clock, if it was set back a little.
  std::atomic<bool> is_clock_doubted_{false};
  error_code told_;  ///< The failure last logged.
  std::atomic<std::uint64_t> back_{0}, ended_{0}, refused_{0}, damaged_{0};
  const std::shared_ptr<Work> work_;
  std::thread thread_;
};

}  // namespace kv
