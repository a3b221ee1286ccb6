#include "client/tools/ctl/node_counts.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <utility>

namespace kv {
namespace {

NodeStats counts(std::initializer_list<std::pair<std::string, double>> values) {
  NodeStats node;
  node.name = "n";
  node.values = values;
  return node;
}

TEST(NodeCountsTest, TheHitRateIsOfMatchesAndOfGetsOnlyWhereNobodyMatches) {
  const NodeStats gets = counts({{"get_hit_blocks", 6}, {"get_disk_blocks", 2}, {"get_miss_blocks", 2}});
  EXPECT_EQ(lookups_since_start(gets).found, 8);
  EXPECT_EQ(lookups_since_start(gets).asked, 10);
  NodeStats both = gets;
  both.values.insert(both.values.end(), {{"match_hit_blocks", 3}, {"match_disk_blocks", 1}, {"match_miss_blocks", 6}});
  EXPECT_EQ(lookups_since_start(both).found, 4);
  EXPECT_EQ(lookups_since_start(both).asked, 10);
  EXPECT_EQ(lookups_between(both, both).asked, 0);
  EXPECT_EQ(lookups_between(both, gets).asked, 0) << "after a restart counters begin anew";
}

}  // namespace
}  // namespace kv
