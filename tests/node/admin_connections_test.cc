#include "store/node/listen/admin_connections.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kv {
namespace {

class AdminConnectionsTest : public testing::Test {
 protected:
  AdminConnections connections{4};
  std::vector<std::string> ended;

  AdminConnections::Place enter(const std::string& peer, const std::string& name) {
    return connections.enter(peer, [this, name] { ended.push_back(name); });
  }
};

TEST_F(AdminConnectionsTest, ANewOneEndsTheOneOfTheLargestPeerThatDidNothingForLongest) {
  enter("crowd", "crowd 1");
  enter("prober", "prober");
  enter("crowd", "crowd 2");
  enter("crowd", "crowd 3");
  EXPECT_TRUE(ended.empty());
  enter("scraper", "scraper");
  EXPECT_EQ(ended, (std::vector<std::string>{"crowd 1"}));
  EXPECT_EQ(connections.size(), 4u);
  for (int i = 0; i < 100; ++i) enter("crowd", "more");
  EXPECT_EQ(connections.size(), 4u);
  for (const std::string& each : ended) EXPECT_NE(each, "prober");
  for (const std::string& each : ended) EXPECT_NE(each, "scraper");
}

TEST_F(AdminConnectionsTest, OneThatDidSomethingStaysBeforeThoseThatDidNot) {
  const auto first = enter("a", "first");
  enter("a", "second");
  connections.did_something(first);
  EXPECT_TRUE(connections.end_one());
  EXPECT_EQ(ended, (std::vector<std::string>{"second"}));
  EXPECT_TRUE(connections.end_one());
  EXPECT_EQ(ended.back(), "first");
}

TEST_F(AdminConnectionsTest, WhatWasEndedStillLeavesAndIsNotEndedTwice) {
  const auto only = enter("a", "only");
  EXPECT_TRUE(connections.end_one());
  EXPECT_FALSE(connections.end_one());
  EXPECT_EQ(connections.size(), 0u);
  connections.leave(only);
  const auto other = enter("a", "other");
  connections.leave(other);
  EXPECT_EQ(connections.size(), 0u);
  EXPECT_FALSE(connections.end_one());
  EXPECT_EQ(ended, (std::vector<std::string>{"only"}));
}

}  // namespace
}  // namespace kv
