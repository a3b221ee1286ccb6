// store/node/locked_store.h: the only access to the Store. Decide inside, move bytes outside.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <utility>

#include "base/assert.h"
#include "base/busy_poll.h"
#include "store/node/log/request_phases.h"
#include "store/node/metrics.h"
#include "store/store.h"

namespace kv {

/// The Store behind its mutex, shared by all I/O threads. A metric shows how long callers waited for it and held it.
///   1. Inside with(): no co_await, no I/O, no block copy, no unbounded loop: all other callers wait meanwhile.
/// Thread safety: any thread.
class LockedStore {
 public:
  LockedStore(std::unique_ptr<Store> store, NodeMetrics& metrics) : store_(std::move(store)), metrics_(metrics) {
    KV_ASSERT(store_ != nullptr);
  }

  template <class Call>
  auto with(Call&& call) {
    return with(nullptr, std::forward<Call>(call));
  }
  /// The same, adding the times to `phases`, which may be nullptr and outlives the call.
  template <class Call>
  auto with(RequestPhases* phases, Call&& call) {
    using std::chrono::steady_clock;
    const auto asked = steady_clock::now();
    struct Observe {  // made before the lock, so that it is destroyed, and counts, after the unlock
      NodeMetrics& metrics;
      RequestPhases* phases;
      steady_clock::time_point asked, locked{};
      ~Observe() {
        const auto waited = locked - asked, held = steady_clock::now() - locked;
        metrics.observe_lock(waited, held);
        if (phases == nullptr) return;
        phases->lock += waited;
        phases->store += held;
      }
    } observe{metrics_, phases, asked};
    const bool was_free = lock_spinning(mutex_);
    const std::lock_guard lock(mutex_, std::adopt_lock);
    observe.locked = was_free ? asked : steady_clock::now();  // mostly free, which saves a clock call
    return std::forward<Call>(call)(*store_);
  }

 private:
  std::mutex mutex_;
  std::unique_ptr<Store> store_;
  NodeMetrics& metrics_;
};

}  // namespace kv
