// client/tools/ctl/cluster/cluster_plan.h: the moves that a change of a cluster's nodes would cause.
#pragma once

#include <string>
#include <vector>

namespace kv {

/// A present or planned node.
struct PlanNode {
  std::string id;
  double weight = 0;
  double held_bytes = 0, capacity_bytes = 0;
  bool is_added = false, is_removed = false;
};

/// By node, in the given order. Expected values: hashes decide each block's place.
struct NodePlan {
  double share_before = 0, share_after = 0;  ///< Of all blocks; 0 to 1.
  double sent_bytes = 0, received_bytes = 0;
  double held_after_bytes = 0;
  double lost_bytes = 0;  ///< Beyond its capacity, the coldest first.
};

/// From weights alone, by the rule of ClusterMap: a block's owner is the first in a race in which node i arrives after
/// an exponential time of rate weight_i (as -ln(u) / weight is). So a remaining node keeps the blocks for which it
/// precedes all added ones, W / (W + added); a removed node's blocks go to the first of the nodes after the change.
/// Assumes that each node holds the blocks it owns. Requires an owner after the change.
std::vector<NodePlan> plan_change(const std::vector<PlanNode>& nodes);

}  // namespace kv
