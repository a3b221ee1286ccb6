#include "client/tools/ctl/cluster/cluster_plan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "client/cluster/cluster_map.h"

namespace kv {
namespace {

double sent_sum(const std::vector<NodePlan>& plans) {
  double sum = 0;
  for (const NodePlan& plan : plans) sum += plan.sent_bytes;
  return sum;
}

TEST(ClusterPlanTest, OneOfFourEqualNodesThatLeavesIsSharedAmongTheRest) {
  std::vector<PlanNode> nodes;
  for (const char* id : {"a", "b", "c", "d"}) nodes.push_back({id, 1, 300, 1000});
  nodes[1].is_removed = true;
  const auto plans = plan_change(nodes);
  EXPECT_DOUBLE_EQ(plans[1].sent_bytes, 300);
  EXPECT_DOUBLE_EQ(plans[0].received_bytes, 100);
  EXPECT_DOUBLE_EQ(plans[0].held_after_bytes, 400);
  EXPECT_DOUBLE_EQ(plans[0].share_before, 0.25);
  EXPECT_DOUBLE_EQ(plans[0].share_after, 1.0 / 3);
  EXPECT_DOUBLE_EQ(plans[1].share_after, 0);
  EXPECT_DOUBLE_EQ(sent_sum(plans), 300) << "nothing else moves";
}

TEST(ClusterPlanTest, WhatHasNoRoomIsTold) {
  std::vector<PlanNode> nodes = {{"a", 1, 900, 1000}, {"b", 1, 900, 1000}};
  nodes[0].is_removed = true;
  const auto plans = plan_change(nodes);
  EXPECT_DOUBLE_EQ(plans[1].lost_bytes, 800);
  EXPECT_DOUBLE_EQ(plans[1].held_after_bytes, 1000);
}

/// Against the rule itself: each node holds what it owns, a byte an anchor.
TEST(ClusterPlanTest, IsWhatTheOwnerRuleDoes) {
  constexpr int kAnchors = 200'000;
  std::mt19937_64 random(7);
  for (int round = 0; round < 6; ++round) {
    std::vector<PlanNode> nodes;
    const std::size_t count = 3 + random() % 5;
    for (std::size_t i = 0; i < count; ++i) {
      PlanNode node;
      node.id = "n" + std::to_string(i);
      node.weight = 1 + static_cast<double>(random() % 4);
      node.capacity_bytes = 1e12;
      node.is_added = i > 0 && random() % 4 == 0;
      node.is_removed = i > 1 && !node.is_added && random() % 3 == 0;
      nodes.push_back(node);
    }
    std::vector<ClusterMap::Node> before, after;
    for (const PlanNode& node : nodes) {
      before.push_back({node.id, node.is_added ? 0 : node.weight});
      after.push_back({node.id, node.is_removed ? 0 : node.weight});
    }
    const ClusterMap from(before, 256), to(after, 256);
    std::vector<double> sent(count), received(count);
    for (int i = 0; i < kAnchors; ++i) {
      BlockHash anchor{};
      for (std::size_t word = 0; word < 4; ++word) {
        const std::uint64_t value = random();
        std::memcpy(anchor.bytes.data() + 8 * word, &value, sizeof value);
      }
      const std::size_t was = from.owner(anchor), is = to.owner(anchor);
      nodes[was].held_bytes += 1;
      if (was == is) continue;
      sent[was] += 1;
      received[is] += 1;
    }
    const auto plans = plan_change(nodes);
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_NEAR(plans[i].sent_bytes, sent[i], kAnchors * 0.005) << nodes[i].id << ", round " << round;
      EXPECT_NEAR(plans[i].received_bytes, received[i], kAnchors * 0.005) << nodes[i].id << ", round " << round;
    }
  }
}

}  // namespace
}  // namespace kv
