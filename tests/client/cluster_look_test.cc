#include "client/tools/ctl/cluster/cluster_look.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/client/finding_of.h"

namespace kv {
namespace {

/// Three nodes that say the same, and are well.
std::vector<MemberWord> well() {
  std::vector<MemberWord> words;
  for (const char* id : {"a", "b", "c"}) {
    MemberWord word{id, true, {}, 1000};
    word.values = {{"cluster_epoch", 7},
                   {"cluster_digest", 12345},
                   {"wall_seconds", 1000.01},
                   {"cluster_lease_left_seconds", 8},
                   {"setting/etcd-lease-seconds", 10},
                   {"setting/copy-uses", 2},
                   {"setting/version", 1'002'003},
                   {"hot_blocks", 32}};
    word.hot.push_back({{"blocks", 32},
                        {"share", 0.4},
                        {"is_hot", true},
                        {"last", "000000abcdef"},
                        {"namespace", "000000123456"},
                        {"version", 99}});
    for (const char* other : {"a", "b", "c"}) {
      if (other != std::string(id)) word.values[std::string("cluster_node/") + other + "/reached"] = 1;
    }
    words.push_back(std::move(word));
  }
  return words;
}

Verdict worst(const Findings& findings) {
  Verdict worst = Verdict::kOk;
  for (const Finding& each : findings) worst = std::max(worst, each.verdict);
  return worst;
}

TEST(ClusterLookTest, AClusterThatIsWellHasNothingToDo) {
  const Findings findings = check_cluster(well());
  EXPECT_EQ(worst(findings), Verdict::kOk);
  for (const Finding& each : findings) EXPECT_EQ(each.advice, "") << each.check;
  for (const char* check : {"maps", "node to node", "clocks", "settings", "hot sets"})
    EXPECT_TRUE(finding_of(findings, check)) << check;
}

TEST(ClusterLookTest, EachThingThatIsWrongIsNamedWithItsNodes) {
  auto words = well();
  words[1].values["wall_seconds"] = 1003;
  words[2].values["cluster_digest"] = 54321;
  words[2].values["cluster_epoch"] = 6;
  words[0].values["cluster_node/c/reached"] = 0;
  words[1].values["cluster_lease_left_seconds"] = 2.5;
  words[2].values["setting/copy-uses"] = 0;
  words[0].values["setting/version"] = 1'003'000;
  words[1].hot[0]["is_hot"] = false;
  const Findings findings = check_cluster(words);
  EXPECT_EQ(finding_of(findings, "clocks")->verdict, Verdict::kWarning);
  EXPECT_NE(finding_of(findings, "clocks")->found.find("b is 3.0 s ahead of"), std::string::npos);
  EXPECT_EQ(finding_of(findings, "maps")->verdict, Verdict::kWarning);
  EXPECT_NE(finding_of(findings, "maps")->found.find("c: 6"), std::string::npos);
  EXPECT_EQ(finding_of(findings, "node to node")->verdict, Verdict::kFailed);
  EXPECT_EQ(finding_of(findings, "node to node")->found, "not reached: a -> c");
  EXPECT_EQ(finding_of(findings, "lease of b")->verdict, Verdict::kWarning);
  EXPECT_EQ(finding_of(findings, "lease of a"), nullptr);
  EXPECT_EQ(finding_of(findings, "copy-uses")->verdict, Verdict::kWarning);
  EXPECT_EQ(finding_of(findings, "copy-uses")->found, "c: 0; a, b: 2");
  EXPECT_EQ(finding_of(findings, "versions")->verdict, Verdict::kNote);
  EXPECT_EQ(finding_of(findings, "versions")->found, "b, c: 1.2.3; a: 1.3.0");
  EXPECT_EQ(finding_of(findings, "hot sets")->verdict, Verdict::kNote);
}

TEST(ClusterLookTest, WhatANodeCouldNotHandOverIsAWarningWithItsReasons) {
  auto words = well();
  EXPECT_EQ(finding_of(check_cluster(words), "hand-overs"), nullptr) << "nodes that do not tell";
  for (auto& word : words) word.values["cluster_unmoved_paths"] = 0;
  EXPECT_EQ(finding_of(check_cluster(words), "hand-overs")->verdict, Verdict::kOk);
  words[1].values["cluster_unmoved_paths"] = 13;
  words[1].values["cluster_unmoved/node unavailable"] = 12;
  words[1].values["cluster_unmoved/out of memory"] = 1;
  words[2].values["cluster_copy_failures"] = 3;
  const Findings findings = check_cluster(words);
  ASSERT_TRUE(finding_of(findings, "hand-over of b"));
  EXPECT_EQ(finding_of(findings, "hand-over of b")->verdict, Verdict::kWarning);
  EXPECT_EQ(finding_of(findings, "hand-over of b")->found,
            "not handed over: 12 paths (node unavailable), 1 path (out of memory)");
  EXPECT_EQ(finding_of(findings, "hand-overs"), nullptr);
  EXPECT_EQ(finding_of(findings, "second copies of c")->verdict, Verdict::kNote);
}

TEST(ClusterLookTest, NodesThatRefuseOneAnothersCertificatesAreNoFirewall) {
  auto words = well();
  words[0].values["cluster_node/c/reached"] = 0;
  words[0].values["cluster_node/c/refused_by_tls"] = 1;
  const Findings findings = check_cluster(words);
  EXPECT_EQ(finding_of(findings, "node to node")->found, "not reached: a -> c (TLS)");
  EXPECT_NE(finding_of(findings, "node to node")->advice.find("tls-allowed-name"), std::string::npos);
  EXPECT_EQ(finding_of(findings, "node to node")->advice.find("firewall"), std::string::npos);
}

TEST(ClusterLookTest, ALeaseThatHasEndedIsAFailure) {
  auto words = well();
  words[0].values["cluster_lease_left_seconds"] = -1;
  EXPECT_EQ(finding_of(check_cluster(words), "lease of a")->verdict, Verdict::kFailed);
}

TEST(ClusterLookTest, ANodeThatDoesNotAnswerIsNotBlamedOnItsPairs) {
  auto words = well();
  words[2] = {"c", false, {}, 1000};
  words[0].values["cluster_node/c/reached"] = words[1].values["cluster_node/c/reached"] = 0;
  const Findings findings = check_cluster(words);
  EXPECT_EQ(finding_of(findings, "node to node")->verdict, Verdict::kOk);
  EXPECT_EQ(finding_of(findings, "maps")->verdict, Verdict::kOk);
}

TEST(ClusterLookTest, NodesThatSayNothingAreOfAnEarlierVersion) {
  EXPECT_EQ(worst(check_cluster({{"a", true, {}, 1000}, {"b", true, {}, 1000}})), Verdict::kOk);
  EXPECT_EQ(worst(check_cluster({})), Verdict::kOk);
}

TEST(ClusterLookTest, HotBeginningsAreLaidSideBySideTheMostUsedFirst) {
  auto words = well();
  words[1].hot[0]["share"] = 0.5;
  words[1].hot.push_back({{"blocks", 3},
                          {"share", 0.006},
                          {"is_hot", false},
                          {"last", "000000000005"},
                          {"namespace", "000000000006"},
                          {"version", 0}});
  const auto list = hot_beginnings(words);
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].block_count, 32u);
  EXPECT_EQ(list[0].words.size(), 3u);
  EXPECT_DOUBLE_EQ(list[0].share(), 0.5);
  EXPECT_TRUE(list[0].is_hot);
  EXPECT_EQ(list[0].words[2].version, 99u);
  EXPECT_FALSE(list[1].is_hot);
  EXPECT_EQ(list[1].words[0].node, "b");
}

}  // namespace
}  // namespace kv
