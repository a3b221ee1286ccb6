// Where a node's blocks lie is judged by what it tells, and what it does not tell is no finding.
#include "client/tools/ctl/doctor/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kv {
namespace {

using testing::HasSubstr;

/// As a node on a machine with several nodes tells it, among others.
std::string metrics_of(int nodes, int chosen, double largest, double misplaced) {
  return "# HELP kvstore_numa_nodes NUMA nodes\n# TYPE kvstore_numa_nodes gauge\nkvstore_numa_nodes " +
         std::to_string(nodes) + "\nkvstore_blocks 3\nkvstore_arena_numa_nodes " + std::to_string(chosen) +
         "\nkvstore_arena_numa_largest_ratio " + std::to_string(largest) + "\nkvstore_arena_numa_misplaced_ratio " +
         std::to_string(misplaced) + "\n";
}

Finding numa_finding(const std::string& metrics) {
  const Findings findings = check_numa(metrics);
  EXPECT_EQ(findings.size(), 1u);
  return findings.empty() ? Finding{} : findings.front();
}

TEST(DoctorNumaTest, AMachineWithOneNodeIsFineAndAnOlderNodeIsNoFinding) {
  EXPECT_EQ(numa_finding("kvstore_numa_nodes 1\n").verdict, Verdict::kOk);
  EXPECT_TRUE(check_numa("kvstore_blocks 3\n").empty());
  EXPECT_TRUE(check_numa("").empty());
  EXPECT_TRUE(check_numa("kvstore_numa_nodes").empty()) << "cut off";
}

TEST(DoctorNumaTest, EvenlySpreadIsFine) {
  EXPECT_EQ(numa_finding(metrics_of(2, 2, 0.51, 0)).verdict, Verdict::kOk);
  EXPECT_EQ(numa_finding(metrics_of(4, 1, 1, 0)).verdict, Verdict::kOk) << "one node was asked for, and has all of it";
}

TEST(DoctorNumaTest, ANodeThatWasFullIsAWarningWithTheFigures) {
  const Finding elsewhere = numa_finding(metrics_of(2, 1, 0.8, 0.2));
  EXPECT_EQ(elsewhere.verdict, Verdict::kWarning);
  EXPECT_THAT(elsewhere.found, HasSubstr("20 % where they should not"));
  const Finding uneven = numa_finding(metrics_of(2, 2, 0.9, 0));
  EXPECT_EQ(uneven.verdict, Verdict::kWarning);
  EXPECT_THAT(uneven.found, HasSubstr("90 % lie on one node"));
}

TEST(DoctorNumaTest, WhatTheKernelTookOrMayNotBeLookedAtIsANote) {
  EXPECT_EQ(numa_finding(metrics_of(2, 0, 0.98, 0)).verdict, Verdict::kNote);
  EXPECT_EQ(numa_finding("kvstore_numa_nodes 2\nkvstore_arena_numa_nodes 2\n").verdict, Verdict::kNote);
}

}  // namespace
}  // namespace kv
