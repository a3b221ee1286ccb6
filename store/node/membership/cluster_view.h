// store/node/membership/cluster_view.h: who belongs to the cluster, as this node last heard.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace kv {

struct Member {
  /// The value travels; append only. A draining member gets no new blocks: clients place nothing on it.
  enum class State : std::uint8_t { kServing = 0, kDraining = 1 };
  std::string id;                      ///< The same in every life of the node.
  std::string instance;                ///< Of this life: 32 hexadecimal digits.
  std::vector<std::string> endpoints;  ///< As clients reach it: tcp://HOST:PORT, unix://PATH.
  double weight = 1.0;                 ///< Its share of the blocks, in proportion.
  std::string zone, version;           ///< For people, and for clients that choose among equals.
  State state = State::kServing;
  /// What it is about, besides: old clients and nodes know the state alone. The value travels; append only.
  enum class Phase : std::uint8_t {
    kNone = 0,
    kJoining = 1,  ///< State kDraining: others give it what will be its own.
    kLeaving = 2,  ///< State kServing: it hands over what it still owns.
  };
  Phase phase = Phase::kNone;
  /// Whether it owns blocks once everyone is where they are going.
  bool will_own() const { return phase == Phase::kNone ? state == State::kServing : phase == Phase::kJoining; }

  friend bool operator==(const Member&, const Member&) = default;
};

/// Immutable. Of two views of one cluster the one with the larger epoch is later; views of one epoch are equal.
struct ClusterView {
  std::uint64_t epoch = 0;          ///< 0: there is no cluster, or nothing is known of it yet.
  std::uint32_t extent_blocks = 0;  ///< Of the owner rule, the same for all clients.
  std::vector<Member> members;      ///< By id.
};

/// Where membership leaves its view for the sessions. Thread safety: any thread. Cost of epoch(): one load.
class ClusterBoard {
 public:
  std::uint64_t epoch() const { return epoch_.load(std::memory_order_relaxed); }
  /// Never nullptr. Its epoch is epoch() or later.
  std::shared_ptr<const ClusterView> view() const {
    const std::lock_guard lock(mutex_);
    return view_;
  }
  void set(ClusterView view) {
    auto made = std::make_shared<const ClusterView>(std::move(view));
    const std::uint64_t epoch = made->epoch;
    {
      const std::lock_guard lock(mutex_);
      view_ = std::move(made);
    }
    epoch_.store(epoch, std::memory_order_relaxed);  // after the view: who is told of an epoch finds it
  }
  /// This node's lease runs until then, if it is not kept before.
  void set_lease_end(TimePoint end) { lease_end_.store(end.time_since_epoch().count(), std::memory_order_relaxed); }
  /// How long it runs still. None: there is none.
  std::optional<Duration> lease_left(TimePoint now) const {
    const Duration end(lease_end_.load(std::memory_order_relaxed));
    return end == Duration::zero() ? std::nullopt : std::optional(end - now.time_since_epoch());
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const ClusterView> view_ = std::make_shared<const ClusterView>();
  std::atomic<std::uint64_t> epoch_{0};
  std::atomic<Duration::rep> lease_end_{0};
};

}  // namespace kv
