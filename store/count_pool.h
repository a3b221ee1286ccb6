// store/count_pool.h: what the nodes of a cluster have counted, put together.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "store/yield_counts.h"

namespace kv {

/// Nodes that learn apart disagree on what a chain is worth: each keeps parts that are of no use without the others'.
/// So each learns from what all have counted. A node tells only what it counted itself, so nothing is counted twice.
///   1. What another node tells is bounded (read_yield_counts), and no node weighs more than twice as much as the
///      lower median of all, this one's own counts among them; kUsesFree uses are always heard, so that a newcomer
///      learns at once. Of one class and age, where one node's uses in no time could pass for a rule, no node counts
///      for more than four times as much as the lower median.
///   2. A node that is not heard of any more stays counted, so that a partition changes little: in full for kFresh,
///      then half as much each kHalfLife, and from kGone on not at all.
///   3. Ages are in blocks, and nodes are offered more or fewer: each other node's are converted by how much both
///      clocks have gone on of late. Until that is known, by the sizes of their caches.
/// Of more nodes than kPeersMax the rest is left out. Thread safety: none. Memory: up to 150 KB a node with hints, 20
/// KB without. Cost: pool() up to a millisecond a node, with hints.
class CountPool {
 public:
  static constexpr std::size_t kPeersMax = 256;
  static constexpr double kUsesFree = 4096;
  static constexpr Duration kFresh = std::chrono::minutes(1), kHalfLife = std::chrono::minutes(15),
                            kGone = std::chrono::hours(1);

  /// The node has told this, when the own clock stood at `own_clock`.
  void hear(const std::string& peer, YieldCounts counts, std::uint64_t own_clock, TimePoint now);
  void keep_only(const std::vector<std::string>& peers);  ///< The others have left the cluster.
  /// What others have counted, in ages of `own`. nullptr: nobody has told anything.
  YieldTable::Pooled pool(const YieldCounts& own, TimePoint now);

  struct Peer {
    std::string name;
    double uses = 0;    ///< As it told.
    double weight = 0;  ///< Of them, at the last pool().
    Duration age{};     ///< Since it told.
  };
  std::vector<Peer> peers(TimePoint now) const;

 private:
  struct Heard {
    YieldCounts counts;
    double uses = 0, weight = 0;
    TimePoint at{};
    std::uint64_t peer_from = 0, own_from = 0, peer_clock = 0, own_clock = 0;  ///< Where both clocks stood.
  };
  /// What one other node brings into a pool.
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
