// store/node/locked_store.h: the one door to the Store. Decide inside, move bytes outside.
#pragma once

#include <chrono>
#include <mutex>
#include <utility>

#include "store/node/metrics.h"
#include "store/store.h"

namespace kv {

/// The Store behind its mutex, shared by all I/O threads. How long each caller waited for it and held it is observed.
/// Inside with(): no co_await, no I/O, no block copy, no unbounded loop.
class LockedStore {
 public:
  LockedStore(std::unique_ptr<Store> store, NodeMetrics& metrics) : store_(std::move(store)), metrics_(metrics) {}

  template <class Call>
  auto with(Call&& call) {
    using std::chrono::steady_clock;
    const auto asked = steady_clock::now();
    struct Observe {  // after the call, whatever it returns, and after the unlock
      NodeMetrics& metrics;
      steady_clock::time_point asked, locked{};
      ~Observe() { metrics.observe_lock(locked - asked, steady_clock::now() - locked); }
    } observe{metrics_, asked};
    const std::lock_guard lock(mutex_);
    observe.locked = steady_clock::now();
    return std::forward<Call>(call)(*store_);
  }

 private:
  std::mutex mutex_;
  std::unique_ptr<Store> store_;
  NodeMetrics& metrics_;
};

}  // namespace kv
