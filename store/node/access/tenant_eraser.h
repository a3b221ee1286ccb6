// store/node/access/tenant_eraser.h: erases all blocks of one tenant, from memory and from the disk's files.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "store/node/disk_worker/disk_worker.h"
#include "store/node/locked_store.h"
#include "store/node/metrics.h"

namespace kv {

/// An *owner* is a result of NamespaceRecord::owner(): a tenant, or "share:NAME". Its namespaces under every secret are
/// dropped, as by kvstorectl drop --all; then files are rewritten until they hold none of its bytes, which may take as
/// long as reading and writing the whole disk. So an erasure is started, and then asked for its progress.
///
///     drop each -> the disk keeps the drops -> purge the files -> count blocks left
///
///   1. One at a time, in the order of the requests; each owner waits at most once. So an owner waits for one erasure
///      of each owner before it, however often those ask.
///   2. Blocks that the tenant stores after its drop stay: take its rights away first.
///   3. After an interrupted erasure (the node stops, the disk fails) dropped blocks stay so; start it again.
///   4. For an owner without blocks here since its last erasure, the files are left alone.
/// Thread safety: ask() from any thread. Works on its own thread, which the destructor joins.
class TenantEraser {
 public:
  /// Called after contexts were deleted, to remove them from the file kept for restarts. Returns "", or the error.
  using ForgetContexts = std::function<std::string()>;
  /// All outlive this. `disk_worker`: nullptr without a disk tier.
  TenantEraser(LockedStore& store, Clock& clock, DiskWorker* disk_worker, ForgetContexts forget_contexts = nullptr);
  ~TenantEraser();

  struct Progress {
    std::string owner;
    std::size_t waits_for = 0;  ///< Erasures before it, including the running one.
    bool is_done = false;
    std::string trouble;                       ///< The failure that ended it.
    std::uint64_t namespaces = 0, blocks = 0;  ///< Dropped.
    std::uint64_t drops_not_kept = 0;          ///< They would come back at the next start.
    bool has_disk = false;
    DiskPurge disk;
    std::uint64_t blocks_left = 0;  ///< At the end: stored since.
    TimePoint began{}, ended{};
    std::vector<NodeMetrics::Value> values(TimePoint now) const;
  };
  static constexpr std::size_t kWaitingMax = 256;
  /// Starts an erasure unless one of this owner is waiting or running, and returns its progress. The end of each
  /// erasure is reported once: asking again starts another. Errors: kBusy: kWaitingMax others wait.
  Result<Progress> ask(const std::string& owner);

 private:
  void run();
  std::string erase(const std::string& owner);
  bool has_nothing(const std::string& owner) const;
  std::vector<SpaceId> spaces_of(const std::string& owner, std::uint64_t* block_count) const;
  bool keep(const std::vector<DiskDrop>& drops);
  template <class Change>
  void update(Change change) {
    const std::lock_guard lock(mutex_);
    change(progress_.at(waiting_.front()));
  }

  LockedStore& store_;
  Clock& clock_;
  DiskWorker* const disk_worker_;
  const ForgetContexts forget_contexts_;
  std::atomic<bool> stops_{false};
  std::mutex mutex_;                          ///< Guards the members below, except `clean_`.
  std::deque<std::string> waiting_;           ///< Owners; the first one's erasure is running.
  std::map<std::string, Progress> progress_;  ///< Of these, and of erasures whose end is not yet reported.
  bool is_running_ = false;
  /// For each owner with no blocks left: how many namespaces the node had forgotten then. While that count is the same,
  /// none of the owner's namespaces has come and gone. For the eraser's thread only.
  std::map<std::string, std::uint64_t> clean_;
  std::thread thread_;
};

}  // namespace kv
