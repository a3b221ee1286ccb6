// store/node/disk/record_stream.h: what Disk::load() pushes, to be pulled: a thread reads ahead, a bounded distance.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "store/disk.h"

namespace kv {

/// Thread safety: one thread uses it. The disk must outlive it.
class RecordStream {
 public:
  explicit RecordStream(const Disk& disk);
  ~RecordStream();  ///< Ends the load where it is.

  /// Those of the disk. Waits for the first record or the end: load() names them before.
  std::vector<std::pair<NamespaceId, std::string>> spaces();
  /// The next record, which stays the next until pop(); nullptr at the end.
  const DiskRecord* peek();
  void pop() { ++next_; }
  error_code error();  ///< Why the end came early. Call after peek() returned nullptr.

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::vector<DiskRecord>> batches_;
  std::vector<std::pair<NamespaceId, std::string>> spaces_;
  bool is_over_ = false, is_unwanted_ = false;
  error_code error_;
  std::vector<DiskRecord> current_;  // of the user
  std::size_t next_ = 0;
  std::thread thread_;
};

}  // namespace kv
