// store/node/disk/record_stream.h: Disk::load() in reverse: the caller pulls records, and a thread reads up to 8,192
// records ahead. Several disks are merged that way, newest record first.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "store/disk/disk.h"

namespace kv {

/// Thread safety: one thread uses it. The disk outlives it.
class RecordStream {
 public:
  explicit RecordStream(const Disk& disk);
  ~RecordStream();  ///< Aborts the load.

  /// The disk's namespaces. Waits for the first record or the end, since load() reports all namespaces before them.
  std::vector<std::pair<NamespaceId, std::string>> spaces();
  /// The next record, until pop(); nullptr at the end.
  const DiskRecord* peek();
  void pop();          ///< Requires that peek() returned a record.
  error_code error();  ///< The reason for an early end. Call after peek() returned nullptr.

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::vector<DiskRecord>> batches_;
  std::vector<std::pair<NamespaceId, std::string>> spaces_;
  bool is_over_ = false, is_unwanted_ = false;
  error_code error_;
  std::vector<DiskRecord> current_;  ///< The batch being pulled; used by the caller's thread only, like next_.
  std::size_t next_ = 0;
  std::thread thread_;
};

}  // namespace kv
