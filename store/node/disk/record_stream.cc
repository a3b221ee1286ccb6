#include "store/node/disk/record_stream.h"

#include "base/assert.h"
#include "store/node/threads/thread_border.h"

namespace kv {
namespace {

constexpr std::size_t kBatchRecords = 512;  ///< A lock and a wake-up for each batch, not for each record.
constexpr std::size_t kBatchesMax = 16;

}  // namespace

/// load() pushes records, but a merge of several disks must pull them: the thread converts one into the other. It reads
/// ahead by a bounded number of batches, so a slow merge does not fill memory with the records of the fastest disk.
RecordStream::RecordStream(const Disk& disk) {
  thread_ = std::thread([this, &disk] {
    std::vector<DiskRecord> batch;
    const auto hand_over = [&] {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return is_unwanted_ || batches_.size() < kBatchesMax; });
      if (!batch.empty()) batches_.push_back(std::exchange(batch, {}));
      changed_.notify_all();
      return !is_unwanted_;
    };
    error_code error = Errc::kDiskFailed;
    within_border(NodeThread::kDisk, [&] {
      error = disk.load(
          [&](const NamespaceId& id, const std::string& record) {
            const std::lock_guard lock(mutex_);
            spaces_.emplace_back(id, record);
          },
          [&](const DiskRecord& record) {
            batch.push_back(record);
            return batch.size() < kBatchRecords || hand_over();
          });
      hand_over();
    });
    const std::lock_guard lock(mutex_);
    error_ = error;
    is_over_ = true;
    changed_.notify_all();
  });
}

RecordStream::~RecordStream() {
  // The load sees the flag at the end of its batch at the latest, or is already waiting for room.
  {
    const std::lock_guard lock(mutex_);
    is_unwanted_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

std::vector<std::pair<NamespaceId, std::string>> RecordStream::spaces() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return is_over_ || !batches_.empty(); });
  return spaces_;
}

const DiskRecord* RecordStream::peek() {
  if (next_ == current_.size()) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_over_ || !batches_.empty(); });
    if (batches_.empty()) return nullptr;
    KV_ASSERT(!batches_.front().empty());
    current_ = std::move(batches_.front());
    batches_.pop_front();
    next_ = 0;
    changed_.notify_all();
  }
  return &current_[next_];
}

void RecordStream::pop() {
  KV_ASSERT(next_ < current_.size());
  ++next_;
}

error_code RecordStream::error() {
  const std::lock_guard lock(mutex_);
  return error_;
}

}  // namespace kv
