#include "client/tools/node_stats.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace kv {
namespace {

using nlohmann::json;

NodeStats counts(const std::map<std::string, double>& values) { return {.name = "n", .said = {{"values", values}}}; }

TEST(NodeStatsTest, TheHitRateIsOfMatchesAndOfGetsOnlyWhereNobodyMatches) {
  const NodeStats none;
  const NodeStats gets = counts({{"get_hit_blocks", 6}, {"get_disk_blocks", 2}, {"get_miss_blocks", 2}});
  EXPECT_EQ(lookups_between(none, gets).found(), 8);
  EXPECT_EQ(lookups_between(none, gets).asked(), 10);
  NodeStats both = gets;
  both.said["values"].update({{"match_hit_blocks", 3}, {"match_disk_blocks", 1}, {"match_miss_blocks", 6}});
  EXPECT_EQ(lookups_between(none, both).found(), 4);
  EXPECT_EQ(lookups_between(none, both).asked(), 10);
  EXPECT_EQ(lookups_between(both, both).asked(), 0);
  EXPECT_EQ(lookups_between(both, gets).asked(), 0) << "after a restart counters begin anew";
}

/// Whatever a node says, a tool shows something.
TEST(NodeStatsTest, AMemberThatIsAbsentOrOfAnotherKindIsEmpty) {
  const json odd = {{"n", "7"}, {"t", 7}, {"l", {1, json::object({{"a", 1}}), "x"}}, {"v", {{"a", 1}, {"b", "2"}}}};
  EXPECT_EQ(number_in(odd, "n"), 0);
  EXPECT_EQ(number_in(odd, "absent", 3), 3);
  EXPECT_EQ(number_in(json("text"), "n", 3), 3);
  EXPECT_EQ(count_in(json{{"n", -1}}, "n"), 0u);
  EXPECT_EQ(count_in(json{{"n", 1e30}}, "n"), 0u);
  EXPECT_EQ(text_in(odd, "t"), "");
  EXPECT_EQ(rows_in(odd, "l").size(), 1u);
  EXPECT_TRUE(rows_in(odd, "n").empty());
  ASSERT_EQ(values_in(odd, "v").size(), 1u);
  EXPECT_TRUE(values_in(odd, "l").empty());
  EXPECT_EQ(parameter("a b", "1&2"), "a%20b=1%262");
}

}  // namespace
}  // namespace kv
