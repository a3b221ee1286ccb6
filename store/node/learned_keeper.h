// store/node/learned_keeper.h: what a node has learned of when blocks are used again, kept over a restart.
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
#include "base/result.h"
#include "store/node/locked_store.h"

namespace kv {

/// The directory where the file lies: the first of the disk tier's, which may be another by now. Thread safety: any.
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

/// A file beside the disk tier's: read at the start, written each period and at the end. A node that has none learns
/// anew, which takes it as long as its memory takes to be written a few times.
///   1. Only a thread of its own waits for the file. One that never answers holds up neither the node nor its end.
///   2. A file that is damaged, or of another format, changes nothing but a line of the log.
///   3. Nothing is written before the file was read, nor while little is known: what is there is worth more.
/// Thread safety: none; all calls from one thread.
class LearnedKeeper {
 public:
  struct File {
    std::function<std::string()> read;  ///< "": there is none.
    std::function<error_code(const std::string&)> write;
  };
  static constexpr double kUsesMin = 64;  ///< Fewer are little.

  /// Calls `file` from its own thread, once at a time, perhaps until after this is gone.
  LearnedKeeper(LockedStore& store, File file, Duration period = std::chrono::minutes(5));
  ~LearnedKeeper();

  /// Goes on with it; some microseconds. `may_write`: the file's directory is the node's.
  void tick(TimePoint now, bool may_write);
  /// Writes a last time. False: that was not done within `patience`, or failed.
  bool stop(bool may_write, std::chrono::milliseconds patience = std::chrono::seconds(2));

  bool is_read() const { return is_read_; }

 private:
  /// Shared with the thread, which may outlive this.
  struct Work {
    explicit Work(File given) : file(std::move(given)) {}
    const File file;
    std::mutex mutex;  ///< Of all below.
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
  error_code told_;  ///< Failure that the log has.
  const std::shared_ptr<Work> work_;
  std::thread thread_;
};

}  // namespace kv
