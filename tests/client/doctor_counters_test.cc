#include "client/tools/ctl/doctor/doctor.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/client/finding_of.h"

namespace kv {
namespace {

NodeStats node_that_says(const std::map<std::string, double>& values) {
  return {.name = "n", .said = {{"values", values}}};
}

Verdict verdict_in(const Findings& findings, const std::string& check) {
  const Finding* const found = finding_of(findings, check);
  EXPECT_TRUE(found) << check;
  return found == nullptr ? Verdict::kOk : found->verdict;
}

TEST(DoctorCountersTest, ANodeThatIsWellHasNothingToDo) {
  const Findings findings = check_counters(node_that_says({{"disk_is_on", 1},
                                                           {"disk_blocks", 100},
                                                           {"evicted_blocks", 1000},
                                                           {"lost_unspilled_blocks", 10},
                                                           {"checksum_failures", 0}}));
  ASSERT_EQ(findings.size(), 2u);
  for (const Finding& each : findings) {
    EXPECT_EQ(each.verdict, Verdict::kOk) << each.check;
    EXPECT_EQ(each.advice, "");
  }
}

TEST(DoctorCountersTest, ANodeWithoutADiskIsNotBlamedForOne) {
  EXPECT_TRUE(check_counters(node_that_says({{"evicted_blocks", 1000}})).empty());
  NodeStats silent = node_that_says({{"disk_is_on", 0}});
  silent.error = Errc::kUnavailable;
  EXPECT_TRUE(check_counters(silent).empty()) << "that it does not answer is reported as that";
}

TEST(DoctorCountersTest, ADiskThatIsOffOrInPartIsAWarningAndOneThatOpensANote) {
  EXPECT_EQ(verdict_in(check_counters(node_that_says({{"disk_is_on", 0}})), "disk of n"), Verdict::kWarning);
  EXPECT_EQ(verdict_in(check_counters(node_that_says({{"disk_is_on", 0}, {"disk_is_loading", 1}})), "disk of n"),
            Verdict::kNote);
  EXPECT_EQ(
      verdict_in(check_counters(node_that_says({{"disk_is_on", 1}, {"disk_directories_left_out", 1}})), "disk of n"),
      Verdict::kWarning);
  EXPECT_EQ(verdict_in(check_counters(node_that_says({{"disk_is_on", 1}, {"disk_outages", 2}})), "disk of n"),
            Verdict::kNote);
}

TEST(DoctorCountersTest, EachLossIsAWarning) {
  const std::pair<const char*, const char*> losses[] = {
      {"lost_blocks", "damage on the disk of n"},        {"disk_scrub_damaged_blocks", "damage on the disk of n"},
      {"disk_read_failures", "damage on the disk of n"}, {"lost_unspilled_blocks", "unwritten blocks of n"},
      {"disk_read_refusals", "reads of the disk of n"},  {"disk_drops_not_kept", "drops of n"},
      {"checksum_failures", "checksums of n"},           {"put_conflict_blocks", "conflicting puts of n"},
      {"sessions_refused", "connections of n"}};
  for (const auto& [name, check] : losses) {
    const Findings findings = check_counters(node_that_says({{"disk_is_on", 1}, {name, 1}}));
    EXPECT_EQ(verdict_in(findings, check), Verdict::kWarning) << name;
    EXPECT_NE(finding_of(findings, check)->advice, "") << name;
  }
}

}  // namespace
}  // namespace kv
