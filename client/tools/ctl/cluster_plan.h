// client/tools/ctl/cluster_plan.h: what a change of a cluster's nodes would move, before anybody makes it.
#pragma once

#include <string>
#include <vector>

namespace kv {

/// A node as it is, or as it would be.
struct PlanNode {
  std::string id;
  double weight = 0;
  double held_bytes = 0, capacity_bytes = 0;
  bool is_added = false, is_removed = false;
};

/// By node, in the order given. Expected values: which blocks go where is decided by their hashes.
struct NodePlan {
  double share_before = 0, share_after = 0;  ///< Of all blocks; 0 to 1.
  double sent_bytes = 0, received_bytes = 0;
  double held_after_bytes = 0;
  double lost_bytes = 0;  ///< More than it has room for, the coldest first.
};

/// From weights alone, by the rule of ClusterMap: who owns a block is the first of a race in which node i arrives after
/// a time with rate weight_i (an exponential one, as -ln(u) / weight is). So a node that stays keeps what no added one
/// comes first for, W / (W + added); what a removed one had goes to the first of those who are there then. Taken for
/// granted: that each node holds what it owns. Requires that somebody owns something after the change.
std::vector<NodePlan> plan_change(const std::vector<PlanNode>& nodes);

}  // namespace kv
