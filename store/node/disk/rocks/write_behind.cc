#include "store/node/disk/rocks/write_behind.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/assert.h"
#include "store/node/threads/thread_border.h"

namespace kv {
namespace {

using rocksdb::FSWritableFile;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

using Buffer = std::unique_ptr<char, decltype(&std::free)>;

Buffer allocate(std::size_t alignment, std::size_t bytes) {
  return {static_cast<char*>(std::aligned_alloc(alignment, bytes)), &std::free};
}

/// RocksDB's thread fills one buffer while the file's own thread writes the other. At most one write is under way, so
/// the file grows in order, and an error leaves it without gaps. Small files, below a full buffer, have no thread.
class WriteBehindFile final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  WriteBehindFile(std::unique_ptr<FSWritableFile> below, Buffer filling, Buffer other, std::size_t buffer_bytes)
      : FSWritableFileOwnerWrapper(std::move(below)),
        alignment_(target()->GetRequiredBufferAlignment()),
        buffer_bytes_(buffer_bytes),
        filling_(std::move(filling)),
        handed_over_(std::move(other)) {
    KV_ASSERT(buffer_bytes_ > 0 && buffer_bytes_ % alignment_ == 0);  // or settle() would pad beyond the buffer
  }

  ~WriteBehindFile() override { end_thread(); }

  IOStatus Append(const Slice& data, const IOOptions&, IODebugContext*) override {
    for (std::size_t taken = 0; taken < data.size();) {
      const std::size_t bytes = std::min(data.size() - taken, buffer_bytes_ - filled_bytes_);
      KV_ASSERT(filled_bytes_ + bytes <= buffer_bytes_);
      std::memcpy(filling_.get() + filled_bytes_, data.data() + taken, bytes);
      taken += bytes;
      filled_bytes_ += bytes;
      if (filled_bytes_ < buffer_bytes_) continue;
      if (IOStatus status = hand_over(); !status.ok()) return status;
    }
    return error();
  }
  IOStatus Append(const Slice& data, const IOOptions& options, const rocksdb::DataVerificationInfo&,
                  IODebugContext* dbg) override {
    return Append(data, options, dbg);
  }
  IOStatus PositionedAppend(const Slice&, std::uint64_t, const IOOptions&, IODebugContext*) override {
    return IOStatus::NotSupported("write behind: files only grow");
  }
  IOStatus PositionedAppend(const Slice&, std::uint64_t, const IOOptions&, const rocksdb::DataVerificationInfo&,
                            IODebugContext*) override {
    return IOStatus::NotSupported("write behind: files only grow");
  }
  IOStatus Truncate(std::uint64_t bytes, const IOOptions&, IODebugContext*) override {
    return bytes == size() ? error() : IOStatus::NotSupported("write behind: files only grow");
  }
  IOStatus Flush(const IOOptions&, IODebugContext*) override { return error(); }  // reads come only after Sync
  IOStatus RangeSync(std::uint64_t, std::uint64_t, const IOOptions&, IODebugContext*) override { return error(); }
  IOStatus Sync(const IOOptions& options, IODebugContext* dbg) override {
    IOStatus status = settle();
    return status.ok() ? keep(target()->Sync(options, dbg)) : status;
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* dbg) override {
    IOStatus status = settle();
    return status.ok() ? keep(target()->Fsync(options, dbg)) : status;
  }
  IOStatus Close(const IOOptions& options, IODebugContext* dbg) override {
    IOStatus status = settle();
    end_thread();
    IOStatus closed = target()->Close(options, dbg);
    return status.ok() ? closed : status;
  }

  bool use_direct_io() const override { return false; }
  bool IsSyncThreadSafe() const override { return false; }
  std::uint64_t GetFileSize(const IOOptions&, IODebugContext*) override { return size(); }

 private:
  std::uint64_t size() const { return offset_ + filled_bytes_; }

  IOStatus error() {
    const std::lock_guard lock(mutex_);
    return error_;
  }
  /// The first error is kept for good and returned by every later call: RocksDB then gives up the file.
  IOStatus keep(IOStatus status) {
    const std::lock_guard lock(mutex_);
    if (error_.ok()) error_ = status;
    return status;
  }

  /// Gives the full buffer to the thread, once the thread has written the one before.
  IOStatus hand_over() {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !is_writing_; });
      if (!error_.ok()) return error_;  // data behind a gap is worthless
      std::swap(filling_, handed_over_);
      handed_over_offset_ = offset_;
      is_writing_ = true;
    }
    offset_ += buffer_bytes_;
    filled_bytes_ = 0;
    if (!thread_.joinable()) {
      try {
        thread_ = std::thread([this] { write_handed_over(); });
      } catch (const std::system_error&) {  // the system is out of threads: write here, as without this class
        write_one();
        return error();
      }
    }
    changed_.notify_all();
    return {};
  }

  void write_handed_over() {
    for (std::unique_lock lock(mutex_);;) {
      changed_.wait(lock, [this] { return is_writing_ || is_ending_; });
      if (!is_writing_) return;
      lock.unlock();
      write_one();
      lock.lock();
    }
  }

  void write_one() {
    IOStatus status = IOStatus::IOError("an exception");
    within_border(NodeThread::kDisk, [&] {
      status = target()->PositionedAppend(Slice(handed_over_.get(), buffer_bytes_), handed_over_offset_, IOOptions(),
                                          nullptr);
    });
    const std::lock_guard lock(mutex_);
    KV_ASSERT(is_writing_);
    if (error_.ok()) error_ = std::move(status);
    is_writing_ = false;
    changed_.notify_all();
  }

  /// On return the file holds exactly the appended data. The buffer keeps its bytes: the next Append continues there.
  IOStatus settle() {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !is_writing_; });
      if (!error_.ok()) return error_;
    }
    if (settled_size_ == size()) return {};
    if (filled_bytes_ > 0) {
      const std::size_t padded_bytes = (filled_bytes_ + alignment_ - 1) / alignment_ * alignment_;
      KV_ASSERT(padded_bytes <= buffer_bytes_);
      std::memset(filling_.get() + filled_bytes_, 0, padded_bytes - filled_bytes_);
      IOStatus status = target()->PositionedAppend(Slice(filling_.get(), padded_bytes), offset_, IOOptions(), nullptr);
      if (status.ok()) status = target()->Truncate(size(), IOOptions(), nullptr);
      if (!status.ok()) return keep(std::move(status));
    }
    settled_size_ = size();
    return {};
  }

  /// Before closing or destroying the file: a write under way uses both file and buffer.
  void end_thread() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      is_ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  const std::size_t alignment_, buffer_bytes_;
  // Used by RocksDB's thread only.
  Buffer filling_;
  std::size_t filled_bytes_ = 0;
  std::uint64_t offset_ = 0;  // of filling_, in the file
  std::uint64_t settled_size_ = 0;
  std::thread thread_;

  // Guards the members below. While is_writing_, the buffer and its offset belong to the writing thread.
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_writing_ = false, is_ending_ = false;
  IOStatus error_;  // the first to occur
  Buffer handed_over_;
  std::uint64_t handed_over_offset_ = 0;
};

class WriteBehind final : public rocksdb::FileSystemWrapper {
 public:
  WriteBehind(std::shared_ptr<rocksdb::FileSystem> below, const WriteBehindConfig& config)
      : FileSystemWrapper(std::move(below)), config_(config) {}

  const char* Name() const override { return "kvstore-write-behind"; }

  IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                           std::unique_ptr<FSWritableFile>* file, IODebugContext* dbg) override {
    IOStatus status = target()->NewWritableFile(name, options, file, dbg);
    if (!status.ok() || !options.use_direct_writes) return status;
    const std::size_t alignment = (*file)->GetRequiredBufferAlignment();
    Buffer one = allocate(alignment, config_.buffer_bytes), other = allocate(alignment, config_.buffer_bytes);
    // Without memory for buffers the file is written as without this class.
    if (one && other)
      *file =
          std::make_unique<WriteBehindFile>(std::move(*file), std::move(one), std::move(other), config_.buffer_bytes);
    return status;
  }

 private:
  const WriteBehindConfig config_;
};

}  // namespace

std::shared_ptr<rocksdb::FileSystem> write_behind(std::shared_ptr<rocksdb::FileSystem> below,
                                                  const WriteBehindConfig& config) {
  return std::make_shared<WriteBehind>(std::move(below), config);
}

}  // namespace kv
