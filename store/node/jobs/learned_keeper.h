// store/node/jobs/learned_keeper.h: keeps the learned use counts over a restart.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "store/node/locked_store.h"

namespace kv {

/// The directory of the file: the disk tier's first one, which may change. Thread safety: any.
class LearnedPlace {
 public:
  explicit LearnedPlace(std::string directory) : directory_(std::move(directory)) {}
  void set(const std::string& directory) {
    const std::lock_guard lock(mutex_);
    directory_ = directory;
  }
  std::string file() const {
    const std::lock_guard lock(mutex_);
    return directory_ + "/LEARNED";
  }

 private:
  mutable std::mutex mutex_;
  std::string directory_;
};

/// A file beside the disk tier's: read at the start, written each period and at the end. A node without one learns
/// anew, which takes as long as writing its memory a few times.
///   1. Only its own thread waits for the file. A file that never answers delays neither the node nor its end.
///   2. A damaged file, or one of another format, only causes a line of the log.
///   3. The file is not written before it was read, nor while few uses are counted: the old one is worth more.
/// Thread safety: none; all calls from one thread.
class LearnedKeeper {
 public:
  struct File {
    std::function<std::string()> read;  ///< "": no file.
    std::function<error_code(const std::string&)> write;
  };
  static constexpr double kUsesMin = 64;  ///< Fewer uses are too few to save.

  /// Calls `file` on its own thread, one call at a time, perhaps until after this is destroyed.
  LearnedKeeper(LockedStore& store, File file, Duration period = std::chrono::minutes(5));
  ~LearnedKeeper();

  /// Advances by some microseconds. `may_write`: the file's directory is the node's.
  void tick(TimePoint now, bool may_write);
  /// Writes a last time. False: it failed, or took longer than `patience`.
  bool stop(bool may_write, std::chrono::milliseconds patience = std::chrono::seconds(2));

  bool is_read() const { return is_read_; }

 private:
  /// Shared with the thread, which may outlive this.
  struct Work {
    explicit Work(File given) : file(std::move(given)) {}
    const File file;
    std::mutex mutex;  ///< Guards the members below.
    std::condition_variable changed;
    std::optional<std::string> was_read, to_write;
    bool is_writing = false, ends = false, has_ended = false;
    error_code failure;  ///< Of the last write.
  };
  static void work_at(Work& work);
  void take_over();
  bool hand_over();

  LockedStore& store_;
  const Duration period_;
  std::optional<TimePoint> due_;
  bool is_read_ = false;
  error_code told_;  ///< The failure last logged.
  const std::shared_ptr<Work> work_;
  std::thread thread_;
};

}  // namespace kv
