#include "client/tools/ctl/cluster/cluster_plan.h"

#include <algorithm>

#include "base/assert.h"

namespace kv {

std::vector<NodePlan> plan_change(const std::vector<PlanNode>& nodes) {
  double before = 0, added = 0, stayed = 0;  // weights
  for (const PlanNode& node : nodes) {
    if (node.is_added) {
      added += node.weight;
    } else {
      before += node.weight;
      stayed += node.is_removed ? 0 : node.weight;
    }
  }
  const double after = stayed + added;
  KV_ASSERT(after > 0);
  std::vector<NodePlan> plans(nodes.size());
  // Bytes that leave `from` go to their possible receivers by weight.
  const auto share_out = [&](std::size_t from, double bytes, bool to_all, double weight) {
    if (bytes <= 0 || weight <= 0) return;
    plans[from].sent_bytes += bytes;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (!nodes[i].is_removed && (to_all || nodes[i].is_added))
        plans[i].received_bytes += bytes * nodes[i].weight / weight;
    }
  };
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const PlanNode& node = nodes[i];
    if (!node.is_added && before > 0) plans[i].share_before = node.weight / before;
    if (!node.is_removed) plans[i].share_after = node.weight / after;
    if (node.is_added || before <= 0) continue;
    const double taken = node.held_bytes * added / (before + added);  // the share for which an added node comes first
    share_out(i, taken, /*to_all=*/false, added);
    if (node.is_removed) share_out(i, node.held_bytes - taken, /*to_all=*/true, after);
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].is_removed) continue;
    const double held = nodes[i].held_bytes - plans[i].sent_bytes + plans[i].received_bytes;
    plans[i].held_after_bytes = std::min(held, nodes[i].capacity_bytes);
    plans[i].lost_bytes = held - plans[i].held_after_bytes;
  }
  return plans;
}

}  // namespace kv
