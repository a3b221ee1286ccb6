// store/node/store_guards.h: keep blocks and slots in place while their bytes move.
#pragma once

#include <span>
#include <utility>

#include "store/node/locked_store.h"
#include "store/store.h"

namespace kv {

/// Unpins at its end, under the store's lock. All transfers share it: the last, perhaps a slow device, unpins.
class PinnedPrefixGuard {
 public:
  PinnedPrefixGuard(LockedStore& store, PinnedPrefix prefix) : store_(store), prefix_(std::move(prefix)) {}
  ~PinnedPrefixGuard() {
    store_.with([this](Store& store) { store.unpin(prefix_); });
  }
  PinnedPrefixGuard(const PinnedPrefixGuard&) = delete;
  PinnedPrefixGuard& operator=(const PinnedPrefixGuard&) = delete;

  std::span<const PinnedBlock> blocks() const { return prefix_.blocks; }
  std::span<PinnedDiskBlock> on_disk() { return prefix_.on_disk; }  ///< A block's key changes when it has moved.

 private:
  LockedStore& store_;
  PinnedPrefix prefix_;
};

/// The same for a put's slots: they are freed, and the put ends, with the last transfer that fills them.
class PutGuard {
 public:
  PutGuard(LockedStore& store, PutId put) : store_(store), put_(put) {}
  ~PutGuard() {
    if (put_ != PutId{}) store_.with([this](Store& store) { store.end_put(put_); });
  }
  PutGuard(const PutGuard&) = delete;
  PutGuard& operator=(const PutGuard&) = delete;

 private:
  LockedStore& store_;
  const PutId put_;
};

}  // namespace kv
