// store/node/membership/move_board.h: state shared by the mover (store/node/mover/) and the sessions.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "store/node/metrics.h"

namespace kv {

/// Counters since start and gauges now. Thread safety: any thread.
struct MoveBoard {
  std::atomic<bool> is_here{false};       ///< The node has a mover.
  std::atomic<bool> drain_wanted{false};  ///< An operator asked for a drain (/drain), and did not cancel it.
  /// digest_of() the last cluster state for which this node has moved its blocks; 53 bits, for a double. Or 0.
  std::atomic<std::uint64_t> settled{0};
  std::atomic<std::uint64_t> moved_blocks{0}, moved_bytes{0}, failed_paths{0};
  std::atomic<std::uint64_t> remaining_paths{0};  ///< Of the present pass.
  std::atomic<std::uint64_t> copied_blocks{0}, copied_bytes{0}, failed_copies{0};

  /// Another member, and whether it answered this node's last request.
  struct Peer {
    std::string id;
    bool is_reached = false;
    std::string why;  ///< The reason, if known.
    /// One side does not accept the other's certificate: not a network problem.
    bool is_refused_by_tls() const { return !is_reached && why.find("tls: ") != std::string::npos; }
  };
  void set_peers(std::vector<Peer> peers) {
    const std::lock_guard lock(mutex_);
    peers_ = std::move(peers);
  }
  std::vector<Peer> peers() const {
    const std::lock_guard lock(mutex_);
    return peers_;
  }

  /// By reason: paths that could not be handed over in the last full pass, or since. The node still has them.
  using Unmoved = std::map<std::string, std::uint64_t>;
  static constexpr std::size_t kReasonsMax = 8;
  static void count(Unmoved& unmoved, std::string reason) {
    if (unmoved.size() >= kReasonsMax && !unmoved.contains(reason)) reason = "other reasons";
    ++unmoved[std::move(reason)];
  }
  void set_unmoved(Unmoved unmoved) {
    const std::lock_guard lock(mutex_);
    unmoved_ = std::move(unmoved);
  }
  Unmoved unmoved() const {
    const std::lock_guard lock(mutex_);
    return unmoved_;
  }

  std::vector<NodeMetrics::Value> stats() const {
    return {
        {"cluster_moved_blocks", moved_blocks, true, "Blocks that this node has handed to others"},
        {"cluster_moved_bytes", moved_bytes, true, "Bytes of these blocks"},
        {"cluster_move_failures", failed_paths, true, "Paths that could not be handed over, or not whole"},
        {"cluster_unmoved_paths", unmoved_count(), false, "Of the last hand-over: paths that could not be handed over"},
        {"cluster_move_remaining_paths", remaining_paths, false, "Paths that are still to be handed over"},
        {"cluster_copied_blocks", copied_blocks, true, "Blocks of which this node has made a second copy"},
        {"cluster_copied_bytes", copied_bytes, true, "Bytes of these blocks"},
        {"cluster_copy_failures", failed_copies, true, "Paths that could not be copied, or not whole"},
        {"cluster_drain_wanted", drain_wanted, false, "1: asked to hand over all that it owns"},
    };
  }

 private:
  std::uint64_t unmoved_count() const {
    std::uint64_t count = 0;
    for (const auto& [reason, paths] : unmoved()) count += paths;
    return count;
  }

  mutable std::mutex mutex_;
  std::vector<Peer> peers_;
  Unmoved unmoved_;
};

}  // namespace kv
