// store/policy/combined_counts.h: combines the counts of a cluster's nodes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "store/policy/yield_counts.h"

namespace kv {

/// Nodes that learn apart would disagree on the worth of a chain, and keep parts that are useless without the others'.
/// So each learns from the counts of all. A node reports only its own counts, so each use is counted once.
///   1. Reported counts are bounded (read_yield_counts), and a node weighs at most twice as much as the lower median of
///      all, this node's own counts included; kUsesFree uses always count, so that a newcomer learns at once. In one
///      class and age, where one node's uses in almost no time could pass for a rule, it counts at most four times that
///      median.
///   2. The counts of a silent node remain, so that a partition changes little: in full for kFresh, then halved each
///      kHalfLife, and dropped after kGone.
///   3. Ages are in blocks, and nodes are offered more or fewer: each other node's ages are converted by the recent
///      progress of both clocks. Until that is known, by the sizes of their caches.
/// At most kPeersMax nodes count. Not thread-safe. Memory: up to 150 KB a node with hints, 20 KB without. Cost:
/// combine() up to a millisecond a node, with hints.
class CombinedCounts {
 public:
  static constexpr std::size_t kPeersMax = 256;
  static constexpr double kUsesFree = 4096;
  static constexpr Duration kFresh = std::chrono::minutes(1), kHalfLife = std::chrono::minutes(15),
                            kGone = std::chrono::hours(1);

  /// Records a node's report, received when the own clock stood at `own_clock`.
  void hear(const std::string& peer, YieldCounts counts, std::uint64_t own_clock, TimePoint now);
  void keep_only(const std::vector<std::string>& peers);  ///< The other nodes have left the cluster.
  /// Other nodes' counts, in ages of `own`. nullptr without reports.
  YieldTable::Combined combine(const YieldCounts& own, TimePoint now);

  struct Peer {
    std::string name;
    double uses = 0;
    double weight = 0;  ///< At the last combine().
    Duration age{};     ///< Of the last report.
  };
  std::vector<Peer> peers(TimePoint now) const;

 private:
  struct Heard {
    YieldCounts counts;
    double uses = 0, weight = 0;
    TimePoint at{};
    std::uint64_t peer_from = 0, own_from = 0, peer_clock = 0, own_clock = 0;  ///< The positions of both clocks.
  };
  /// One other node's contribution.
  struct Share {
    const YieldCounts* counts;
    double weight, blocks;
    bool is_known;
  };
  void weigh(const YieldCounts& own, TimePoint now);
  static void add_bounded(YieldTable::Counts& sum, const std::vector<YieldTable::Counts>& parts,
                          const std::vector<Share>& shares, const YieldTable::Counts* own);
  static double blocks_here(const Heard& heard, const YieldCounts& own);
  std::map<std::string, Heard> heard_;
};

}  // namespace kv
