// store/node/membership/cluster_view.h: the cluster's members, as last read by this node.
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
  /// The value travels; append only. Clients stop placing blocks on a draining member.
  enum class State : std::uint8_t { kServing = 0, kDraining = 1 };
  std::string id;                      ///< The same over restarts of the node.
  std::string instance;                ///< Of the present run: 32 hexadecimal digits.
  std::vector<std::string> endpoints;  ///< For clients: tcp://HOST:PORT, unix://PATH.
  double weight = 1.0;                 ///< Its share of the blocks, in proportion.
  std::string zone, version;           ///< For people, and for clients that choose among equals.
  State state = State::kServing;
  /// Progress of a change, unknown to old clients and nodes, which use the state only. The value travels; append only.
  enum class Phase : std::uint8_t {
    kNone = 0,
    kJoining = 1,  ///< State kDraining: others hand it its future blocks.
    kLeaving = 2,  ///< State kServing: it hands over its blocks.
  };
  Phase phase = Phase::kNone;
  /// Whether it owns blocks once all changes are done.
  bool will_own() const { return phase == Phase::kNone ? state == State::kServing : phase == Phase::kJoining; }

  friend bool operator==(const Member&, const Member&) = default;
};

/// Immutable. Of two views of a cluster the one with the larger epoch is later; views of one epoch are equal.
struct ClusterView {
  std::uint64_t epoch = 0;          ///< 0: without a cluster, or before the first read.
  std::uint32_t extent_blocks = 0;  ///< For the owner rule, the same for all clients.
  std::vector<Member> members;      ///< By id.
};

/// Carries membership's view to the sessions. Thread safety: any thread. Cost of epoch(): one load.
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
    epoch_.store(epoch, std::memory_order_relaxed);  // after the view: a reader of an epoch finds its view
  }
  /// Whether etcd takes this node's changes. If not, other nodes do not learn that it leaves.
  void set_writable(bool is_writable) { is_writable_.store(is_writable, std::memory_order_relaxed); }
  bool is_writable() const { return is_writable_.load(std::memory_order_relaxed); }
  /// This node's lease runs until `end` unless renewed.
  void set_lease_end(TimePoint end) { lease_end_.store(end.time_since_epoch().count(), std::memory_order_relaxed); }
  /// The lease's remaining time; nullopt: no lease.
  std::optional<Duration> lease_left(TimePoint now) const {
    const Duration end(lease_end_.load(std::memory_order_relaxed));
    return end == Duration::zero() ? std::nullopt : std::optional(end - now.time_since_epoch());
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const ClusterView> view_ = std::make_shared<const ClusterView>();
  std::atomic<std::uint64_t> epoch_{0};
  std::atomic<Duration::rep> lease_end_{0};
  std::atomic<bool> is_writable_{true};
};

}  // namespace kv
