// store/node/tenant_eraser.h: all that one tenant has here goes, from memory and from the files of the disk.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
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
///   1. One at a time.
///   2. What the tenant stores after its drop stays: take its rights away first.
///   3. An erasure that breaks off (the node stops, the disk fails) leaves nothing that was dropped to be found, and
///   can
///      be begun again.
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
  /// Begins to erase what the owner has, unless that is under way; and tells how far it is. The end of each erasure is
  /// told once: asked again after that, another begins. Errors: kBusy, another owner's is under way.
  Result<Progress> ask(const std::string& owner);

 private:
  void run(std::string owner);
  std::string erase(const std::string& owner);
  std::vector<SpaceId> spaces_of(const std::string& owner, std::uint64_t* block_count) const;
  bool keep(const std::vector<DiskDrop>& drops);
  template <class Change>
  void update(Change change) {
    const std::lock_guard lock(mutex_);
    change(progress_);
  }

  LockedStore& store_;
  Clock& clock_;
  Spill* const spill_;
  const ForgetContexts forget_contexts_;
  std::atomic<bool> stops_{false};
  std::mutex mutex_;  ///< Of the three below.
  Progress progress_;
  bool is_running_ = false, is_told_ = true;
  std::thread thread_;
};

}  // namespace kv
