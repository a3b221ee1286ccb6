// store/node/tenant_eraser.h: all that one tenant has here goes, from memory and from the files of the disk.
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
#include "store/node/locked_store.h"
#include "store/node/metrics.h"
#include "store/node/spill/spill.h"

namespace kv {

/// An *owner* is what NamespaceRecord::owner() says: a tenant, or "share:NAME". Its namespaces of every secret are
/// dropped, as kvstorectl drop --all drops one; then files are rewritten until none has a byte of theirs, which may
/// take as long as reading and writing the whole disk. So an erasure is begun, and then asked how far it is.
///
///     drop each -> the disk keeps the drops -> purge the files -> count what is left
///
///   1. One at a time, in the order in which they were asked for; each owner waits once. So an owner waits for one
///      erasure of each of those before it, however often these ask.
///   2. What the tenant stores after its drop stays: take its rights away first.
///   3. An erasure that breaks off (the node stops, the disk fails) leaves nothing that was dropped to be found, and
///   can
///      be begun again.
///   4. Of an owner that has had nothing here since its last erasure, nothing is done: no file is written.
/// Thread safety: ask() from any thread. Works on a thread of its own, whose end the destructor waits for.
class TenantEraser {
 public:
  /// Contexts were deleted: has them gone from wherever they are kept for a restart. Empty, or why they are not.
  using ForgetContexts = std::function<std::string()>;
  /// All outlive this. `spill`: nullptr without a disk tier.
  TenantEraser(LockedStore& store, Clock& clock, Spill* spill, ForgetContexts forget_contexts = nullptr);
  ~TenantEraser();

  struct Progress {
    std::string owner;
    std::size_t waits_for = 0;  ///< Erasures before it, the one under way included.
    bool is_done = false;
    std::string trouble;                       ///< Why it is not; then it is over as well.
    std::uint64_t namespaces = 0, blocks = 0;  ///< Dropped.
    std::uint64_t drops_not_kept = 0;          ///< These would come back with the next start.
    bool has_disk = false;
    DiskPurge disk;
    std::uint64_t blocks_left = 0;  ///< At the end: stored since.
    TimePoint began{}, ended{};
    std::vector<NodeMetrics::Value> values(TimePoint now) const;
  };
  static constexpr std::size_t kWaitingMax = 256;
  /// Has it begin to erase what the owner has, unless that is under way; and tells how far it is. The end of each
  /// erasure is told once: asked again after that, another begins. Errors: kBusy, kWaitingMax others wait.
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
  Spill* const spill_;
  const ForgetContexts forget_contexts_;
  std::atomic<bool> stops_{false};
  std::mutex mutex_;                          ///< Of what is below, but for `clean_`.
  std::deque<std::string> waiting_;           ///< Owners. The first one's is under way.
  std::map<std::string, Progress> progress_;  ///< Of these, and of those whose end was not told.
  bool is_running_ = false;
  /// How many namespaces the node had forgotten when nothing was left of an owner: while these are as many, none of its
  /// namespaces has come and gone. Of the thread.
  std::map<std::string, std::uint64_t> clean_;
  std::thread thread_;
};

}  // namespace kv
