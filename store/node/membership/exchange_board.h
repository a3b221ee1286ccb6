// store/node/membership/exchange_board.h: state shared by the exchange (exchange.h) and the sessions.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "store/node/metrics.h"
#include "store/policy/combined_counts.h"

namespace kv {

/// This node's published counts, and the peers whose counts it has. Thread safety: any thread.
class ExchangeBoard {
 public:
  /// In the form of write_yield_counts(). Never nullptr; empty: no counts, since this node does not exchange.
  std::shared_ptr<const std::string> told() const {
    const std::lock_guard lock(mutex_);
    return told_;
  }
  void tell(std::string counts) {
    auto made = std::make_shared<const std::string>(std::move(counts));
    const std::lock_guard lock(mutex_);
    told_ = std::move(made);
    is_here_ = true;
  }
  struct Round {
    std::size_t asked = 0, failed = 0, refused = 0;  ///< Numbers of other nodes.
    double own_uses = 0;
    std::vector<CombinedCounts::Peer> peers;
  };
  void set(Round round, TimePoint now) {
    const std::lock_guard lock(mutex_);
    round_ = std::move(round);
    at_ = now;
    failures_ += round_.failed;
    refusals_ += round_.refused;
  }
  std::vector<CombinedCounts::Peer> peers(TimePoint now) const {
    const std::lock_guard lock(mutex_);
    std::vector<CombinedCounts::Peer> peers = round_.peers;
    for (CombinedCounts::Peer& peer : peers) peer.age += now - at_;
    return peers;
  }
  std::vector<NodeMetrics::Value> stats(TimePoint now) const {
    const std::vector<CombinedCounts::Peer> known = peers(now);
    const std::lock_guard lock(mutex_);
    if (!is_here_) return {};
    double oldest = 0, others = 0, counted = 0;
    for (const CombinedCounts::Peer& peer : known) {
      if (peer.weight <= 0) continue;
      ++counted;
      others += peer.uses * peer.weight;
      oldest = std::max(oldest, std::chrono::duration<double>(peer.age).count());
    }
    const double all = others + round_.own_uses;
    return {
        {"exchange_nodes", round_.asked, false, "Other nodes that are asked for what they have learned"},
        {"exchange_nodes_counted", counted, false, "Of these: whose counts this node learns from"},
        {"exchange_oldest_seconds", oldest, false,
         "Since that one of them told its counts which was heard longest ago"},
        {"exchange_others_share", all > 0 ? others / all : 0, false, "Of the uses learned from: that others counted"},
        {"exchange_failures", failures_, true, "Nodes that did not answer, each time they were asked"},
        {"exchange_refusals", refusals_, true, "Answers of nodes that were no counts, or out of bounds"},
    };
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const std::string> told_ = std::make_shared<const std::string>();
  bool is_here_ = false;
  Round round_;
  TimePoint at_{};
  std::uint64_t failures_ = 0, refusals_ = 0;
};

}  // namespace kv
