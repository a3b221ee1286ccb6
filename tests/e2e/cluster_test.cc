// Real nodes that a real etcd knows, and clients that were told of one of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/e2e/etcd_process.h"
#include "tests/e2e/test_client.h"

namespace kv::e2e {
namespace {

using nlohmann::json;

constexpr std::size_t kBlockBytes = 4096, kBlocks = 600;

class E2eClusterTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = EtcdProcesses::lacks(); !why.empty()) GTEST_SKIP() << why;
  }

  std::unique_ptr<NodeProcess> start_node(const EtcdProcesses& etcd, const std::string& id,
                                          std::vector<std::string> options = {}) {
    const std::vector<std::string> more = etcd.node_options();
    options.insert(options.end(), more.begin(), more.end());
    if (std::ranges::find(options, "--etcd-lease-seconds") == options.end()) {
      options.insert(options.end(), {"--etcd-lease-seconds", "2"});
    }
    for (const char* each : {"--capacity", "64MiB", "--threads", "1", "--cluster-extent-blocks", "16", "--node-id"}) {
      options.emplace_back(each);
    }
    options.push_back(id);
    return std::make_unique<NodeProcess>(options);
  }
  void start_nodes(const EtcdProcesses& etcd, std::size_t count = 3) {
    for (std::size_t i = 0; i < count; ++i) nodes.push_back(start_node(etcd, "n" + std::to_string(i)));
    wait_for_members(count);
  }
  static bool is_ready(const NodeProcess& node) { return node.http_get("/readyz").status == 200; }
  /// Until all nodes that run know that there are so many, all serving.
  void wait_for_members(std::size_t count) {
    for (const auto& node : nodes) {
      if (node == nullptr) continue;
      const auto knows = [&](const char* metric) { return node->metric(metric) == static_cast<double>(count); };
      EXPECT_TRUE(eventually([&] {
        return knows("kvstore_cluster_members") && knows("kvstore_cluster_members_serving");
      })) << node->log();
    }
  }
  static json ask(const NodeProcess& node, const char* command) {
    const Finished finished = run_program({ctl_program(), "cluster", command, "--json", "-e", node.tcp()});
    json answer = json::parse(finished.out, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(answer.is_object()) << finished.err;
    return answer;
  }
  /// Puts new chains and gets them again. Returns how many of their blocks were there.
  std::size_t work(TestClient& client, std::uint64_t first_seed, std::size_t rounds = 1) {
    std::size_t found = 0;
    for (std::size_t round = 0; round < rounds; ++round) {
      const auto chain = make_chain(first_seed + round, kBlocks);
      const PutResult put = client.put(chain);
      EXPECT_EQ(put.stored + put.already_stored + put.refused, kBlocks);
      const GetResult got = client.get(chain);
      EXPECT_EQ(client.wrong_bytes(chain, got.block_count), 0u);
      found += got.block_count;
    }
    return found;
  }
  static Finished ctl(const NodeProcess& node, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {ctl_program(), "cluster"});
    arguments.insert(arguments.end(), {"-e", node.tcp()});
    return run_program(arguments);
  }
  static std::string state_of(const NodeProcess& node, const std::string& id) {
    const json map = ask(node, "map");
    for (const json& each : map["nodes"]) {
      if (each["id"] == id) return each["state"];
    }
    return "gone";
  }
  void put_chains(TestClient& client, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      chains.push_back(make_chain(5000 + i, kBlocks));
      EXPECT_EQ(client.put(chains.back()).refused, 0u);
    }
  }
  /// Blocks of these that are not found. Matches are counted, and few chains that are asked for again and again would
  /// be hot, and lie elsewhere: so a match of another chain each time tells of a later map, and these are got.
  std::size_t missing(TestClient& client) {
    EXPECT_TRUE(client->match(client.space(), make_chain(last_seed++, kBlocks), {.deadline = kDeadline}));
    std::size_t count = 0;
    for (const auto& chain : chains) {
      const GetResult got = client.get(chain);
      EXPECT_EQ(client.wrong_bytes(chain, got.block_count), 0u);
      count += chain.size() - got.block_count;
    }
    return count;
  }
  /// Once the client has heard of the last change.
  bool finds_all(TestClient& client) {
    return eventually([&] { return missing(client) == 0; });
  }

  std::vector<std::unique_ptr<NodeProcess>> nodes;
  std::vector<std::vector<BlockHash>> chains;
  std::uint64_t last_seed = 1'000'000;
};

TEST_F(E2eClusterTest, NodesFindOneAnotherAndOneAddressIsEnoughForAClient) {
  const EtcdProcesses etcd;
  start_nodes(etcd);
  for (const auto& node : nodes) EXPECT_TRUE(is_ready(*node));
  TestClient client(nodes[0]->unix_socket(), Transport::kUnix, kBlockBytes, kBlocks);
  EXPECT_EQ(work(client, 1), kBlocks);
  double held = 0;
  for (const auto& node : nodes) {
    EXPECT_GT(node->metric("kvstore_blocks"), 0);
    held += node->metric("kvstore_blocks");
  }
  EXPECT_EQ(held, kBlocks);
  // Another client, told of another node, finds it all.
  TestClient other(nodes[2]->tcp(), Transport::kTcp, kBlockBytes, kBlocks);
  EXPECT_EQ(other.get(make_chain(1, kBlocks)).block_count, kBlocks);

  const json status = ask(*nodes[1], "status");
  EXPECT_TRUE(status["agreed"]);
  ASSERT_EQ(status["nodes"].size(), 3u);
  EXPECT_EQ(status["nodes"][2]["id"], "n2");
  EXPECT_TRUE(status["nodes"][2]["answers"]);
  EXPECT_EQ(ask(*nodes[1], "map")["extent_blocks"], 16);
  EXPECT_EQ(run_program({ctl_program(), "cluster", "status", "-e", nodes[0]->tcp()}).status, 0);

  const Finished plan = ctl(*nodes[0], {"plan", "--add", "n3", "--remove", "n1", "--json"});
  ASSERT_EQ(plan.status, 0) << plan.err;
  const json planned = json::parse(plan.out);
  ASSERT_EQ(planned["nodes"].size(), 4u);
  EXPECT_GT(planned["nodes"][1]["sent_bytes"], 0);
  EXPECT_EQ(planned["nodes"][1]["share_after"], 0);
  EXPECT_GT(planned["nodes"][3]["received_bytes"], 0);
  EXPECT_EQ(planned["lost_bytes"], 0);
  const Finished none = ctl(*nodes[0], {"plan", "--remove", "n9"});
  EXPECT_NE(none.status, 0);
  EXPECT_NE(none.err.find("no node 'n9'"), std::string::npos) << none.err;
}

/// Without any option: nodes of one etcd learn together when blocks are used again.
TEST_F(E2eClusterTest, NodesLearnTogether) {
  const EtcdProcesses etcd;
  for (const char* id : {"n0", "n1", "n2"}) nodes.push_back(start_node(etcd, id, {"--exchange-seconds", "1"}));
  wait_for_members(3);
  TestClient client(nodes[0]->unix_socket(), Transport::kUnix, kBlockBytes, kBlocks);
  work(client, 8);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(finds_all(client));
  for (const auto& node : nodes) {
    EXPECT_TRUE(eventually([&] { return node->metric("kvstore_exchange_nodes") == 2; })) << node->log();
    EXPECT_TRUE(eventually([&] { return node->metric("kvstore_exchange_nodes_counted") == 2; })) << node->log();
  }
}

TEST_F(E2eClusterTest, EachNodeInTurnIsKilledUnderLoadAndNoCallFails) {
  const EtcdProcesses etcd;
  start_nodes(etcd);
  TestClient client(nodes[0]->tcp(), Transport::kTcp, kBlockBytes, kBlocks);
  EXPECT_EQ(work(client, 1), kBlocks);
  for (std::size_t victim = 0; victim < 3; ++victim) {
    nodes[victim]->signal(SIGKILL);
    nodes[victim]->wait();
    nodes[victim].reset();
    work(client, 100 * (victim + 1), 5);  // whatever is found: no call throws, no byte is wrong
    wait_for_members(2);
    // The map has changed; the client hears of it with an answer, and then all that is put is found.
    EXPECT_TRUE(eventually([&, seed = 1000 * (victim + 1)]() mutable { return work(client, seed++) == kBlocks; }));
    nodes[victim] = start_node(etcd, "n" + std::to_string(victim));
    wait_for_members(3);
    EXPECT_TRUE(eventually([&, seed = 2000 * (victim + 1)]() mutable { return work(client, seed++) == kBlocks; }));
  }
}

// Reads turn to the second copy when the first is dead. The lease is long: no map tells of the death.
TEST_F(E2eClusterTest, WhatWasAskedForAgainIsFoundThoughItsNodeIsKilledAndNoMapSaysSo) {
  const EtcdProcesses etcd;
  for (const char* id : {"n0", "n1", "n2"}) {
    nodes.push_back(start_node(etcd, id, {"--copy-uses", "2", "--etcd-lease-seconds", "300"}));
  }
  wait_for_members(3);
  TestClient client(nodes[0]->tcp(), Transport::kTcp, kBlockBytes, kBlocks);
  put_chains(client, 4);
  ASSERT_EQ(missing(client), 0u) << "asked for again";
  EXPECT_TRUE(eventually([&] {
    double copied = 0;
    for (const auto& node : nodes) copied += node->metric("kvstore_cluster_copied_blocks_total");
    return copied == 4 * kBlocks;
  }));
  nodes[1]->signal(SIGKILL);
  nodes[1]->wait();
  nodes[1].reset();
  EXPECT_TRUE(finds_all(client)) << "once the client knows that it does not answer";
  EXPECT_EQ(ask(*nodes[0], "map")["nodes"].size(), 3u) << "for all that the map says, it is there";
  work(client, 1);
  EXPECT_EQ(work(client, 1), kBlocks) << "what is put meanwhile is found";
}

TEST_F(E2eClusterTest, WhatANodeThatStandsStillOwnsIsReadFromItsSecondNode) {
  const EtcdProcesses etcd;
  for (const char* id : {"n0", "n1", "n2"}) {
    nodes.push_back(start_node(etcd, id, {"--copy-uses", "2", "--etcd-lease-seconds", "300"}));
  }
  wait_for_members(3);
  ClientConfig config;
  config.breaker_failures = 1'000'000;  // it is late, and nobody says that it is dead
  config.hedge_share = 1;
  TestClient client(nodes[0]->tcp(), Transport::kTcp, kBlockBytes, kBlocks, config);
  put_chains(client, 4);
  ASSERT_EQ(missing(client), 0u) << "asked for again";
  EXPECT_TRUE(eventually([&] {
    double copied = 0;
    for (const auto& node : nodes) copied += node->metric("kvstore_cluster_copied_blocks_total");
    return copied == 4 * kBlocks;
  }));
  nodes[1]->signal(SIGSTOP);
  const auto began = std::chrono::steady_clock::now();
  for (const auto& chain : chains) {
    // No more than so many parts at once are asked for again (Hedger::kBurst).
    const auto some = std::span(chain).first(kBlocks / 5);
    const GetResult got = client.get(some);
    EXPECT_EQ(got.block_count, some.size()) << got.why.message();
    EXPECT_EQ(client.wrong_bytes(some, got.block_count), 0u);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - began, kDeadline / 2);
  nodes[1]->signal(SIGCONT);
  std::uint64_t hedges = 0, wins = 0;
  for (const NodeStatus& node : client->nodes()) {
    hedges += node.hedges;
    wins += node.hedge_wins;
  }
  EXPECT_GT(wins, 0u);
  EXPECT_LE(wins, hedges);
}

TEST_F(E2eClusterTest, ToolsShowWhatIsHotAndThatAllIsWell) {
  const EtcdProcesses etcd;
  start_nodes(etcd);
  TestClient client(nodes[0]->tcp(), Transport::kTcp, kBlockBytes, kBlocks);
  const auto root = make_chain(7, 20);
  for (std::uint64_t i = 0; i < 400; ++i) {
    auto chain = root;
    const auto more = make_chain(100 + i, 5);
    chain.insert(chain.end(), more.begin(), more.end());
    EXPECT_TRUE(client->match(client.space(), chain, {.deadline = kDeadline}));
  }
  const json hot = ask(*nodes[2], "hot");
  EXPECT_EQ(hot["nodes"].size(), 3u);
  ASSERT_EQ(hot["beginnings"].size(), 1u) << hot.dump();
  EXPECT_EQ(hot["beginnings"][0]["blocks"], 20);
  EXPECT_EQ(hot["beginnings"][0]["hot"], true);
  EXPECT_GT(hot["beginnings"][0]["share"], 0.5);
  const Finished table = ctl(*nodes[0], {"hot"});
  EXPECT_EQ(table.status, 0);
  EXPECT_NE(table.out.find("of matches"), std::string::npos);

  const auto findings = [&] {
    const Finished finished =
        run_program({ctl_program(), "doctor", "--json", "--admin", "none", "-e", nodes[1]->tcp()});
    return json::parse(finished.out, nullptr, /*allow_exceptions=*/false);
  };
  const auto verdict_of = [](const json& found, const std::string& check) -> std::string {
    for (const json& each : found["findings"]) {
      if (each["check"] == check) return each["verdict"];
    }
    return "";
  };
  EXPECT_TRUE(eventually([&] { return verdict_of(findings(), "node to node") == "ok"; })) << "asked every ten seconds";
  const json well = findings();
  for (const char* check : {"reach n0", "reach n1", "reach n2", "maps", "clocks", "settings"})
    EXPECT_EQ(verdict_of(well, check), "ok") << check << well.dump(1);
  nodes.push_back(start_node(etcd, "n3", {"--copy-uses", "3", "--etcd-lease-seconds", "30"}));
  wait_for_members(4);
  const json unequal = findings();
  EXPECT_EQ(verdict_of(unequal, "copy-uses"), "warning");
  EXPECT_EQ(verdict_of(unequal, "etcd-lease-seconds"), "warning");
}

TEST_F(E2eClusterTest, ANodeThatIsAskedToStopSaysSoFirstAndIsOffTheMapAtOnce) {
  const EtcdProcesses etcd;
  const std::vector<std::string> options = {"--etcd-prefix", "/other"};
  for (const char* id : {"n0", "n1"}) nodes.push_back(start_node(etcd, id, options));
  nodes.push_back(
      start_node(etcd, "n2", {"--etcd-prefix", "/other", "--etcd-lease-seconds", "300"}));  // no lease's end
  wait_for_members(3);
  nodes[2]->signal(SIGTERM);
  EXPECT_EQ(nodes[2]->wait(), 0);
  nodes[2].reset();
  wait_for_members(2);
  EXPECT_EQ(ask(*nodes[0], "map")["nodes"].size(), 2u);
}

// Losing etcd changes nothing for traffic.
TEST_F(E2eClusterTest, EtcdIsKilledAndComesBackAndNobodyWhoServesNotices) {
  EtcdProcesses etcd;
  start_nodes(etcd);
  TestClient client(nodes[0]->tcp(), Transport::kTcp, kBlockBytes, kBlocks);
  EXPECT_EQ(work(client, 1), kBlocks);
  const double epoch = nodes[0]->metric("kvstore_cluster_epoch");
  etcd.kill();
  for (const auto& node : nodes) {
    EXPECT_TRUE(eventually([&] { return node->metric("kvstore_cluster_etcd_is_reachable") == 0; }));
  }
  std::this_thread::sleep_for(std::chrono::seconds(4));  // longer than a lease
  EXPECT_EQ(work(client, 2, 5), 5 * kBlocks);
  TestClient newcomer(nodes[1]->tcp(), Transport::kTcp, kBlockBytes, kBlocks);
  EXPECT_EQ(newcomer.get(make_chain(1, kBlocks)).block_count, kBlocks) << "it has the map from a node";
  for (const auto& node : nodes) {
    EXPECT_TRUE(is_ready(*node));
    EXPECT_EQ(node->metric("kvstore_cluster_epoch"), epoch);
  }
  etcd.start();
  for (const auto& node : nodes) {
    EXPECT_TRUE(eventually([&] { return node->metric("kvstore_cluster_etcd_is_reachable") == 1; })) << node->log();
  }
  wait_for_members(3);
  EXPECT_EQ(work(client, 100, 3), 3 * kBlocks);
}

/// Out of space, etcd answers reads, renews leases and ends them, and refuses everything else.
TEST_F(E2eClusterTest, AFullEtcdIsReadOnAndTold) {
  if (::access("/usr/bin/etcdctl", X_OK) != 0) GTEST_SKIP() << "/usr/bin/etcdctl is not here (package etcd-client)";
  const EtcdProcesses etcd(1, {"--quota-backend-bytes", "4194304"});
  start_nodes(etcd);
  TestClient client(nodes[0]->tcp(), Transport::kTcp, kBlockBytes, kBlocks);
  put_chains(client, 10);
  const double held = nodes[1]->metric("kvstore_blocks");
  ASSERT_GT(held, 0);
  const std::string put = "head -c 1000000 /dev/zero | tr '\\0' x | ETCDCTL_API=3 /usr/bin/etcdctl --endpoints " +
                          etcd.url() + " put filler";
  int puts = 0;
  while (run_program({"/bin/sh", "-c", put}).status == 0) ASSERT_LT(++puts, 20) << "etcd has no bound";

  const Finished drained = ctl(*nodes[0], {"drain", "n1", "--wait-seconds", "3"});
  EXPECT_EQ(drained.status, 1) << drained.out;
  EXPECT_THAT(drained.err, testing::HasSubstr("etcd answers and refuses its changes")) << nodes[1]->log();
  EXPECT_EQ(nodes[1]->metric("kvstore_cluster_etcd_is_writable"), 0);
  EXPECT_EQ(nodes[1]->metric("kvstore_cluster_etcd_is_reachable"), 1);
  EXPECT_THAT(ctl(*nodes[0], {"status"}).out, testing::HasSubstr("n1: etcd answers and refuses its changes"));
  EXPECT_TRUE(nodes[1]->logs("etcd refuses this node's changes: ")) << nodes[1]->log();

  nodes[1]->signal(SIGTERM);
  EXPECT_EQ(nodes[1]->wait(), 0);
  EXPECT_THAT(nodes[1]->log(), testing::Not(testing::HasSubstr("leaving without having handed over all")));
  nodes[1].reset();
  wait_for_members(2);
  EXPECT_TRUE(finds_all(client)) << "what it held is with the others, who have read on that it is gone";
}

TEST_F(E2eClusterTest, ANodeStartsWithoutEtcdAndJoinsWhenThereIsOne) {
  EtcdProcesses etcd(1, {}, /*starts=*/false);
  nodes.push_back(start_node(etcd, "n0"));
  EXPECT_FALSE(is_ready(*nodes[0]));
  EXPECT_NE(run_program({ctl_program(), "cluster", "map", "-e", nodes[0]->tcp()}).err.find("no cluster"),
            std::string::npos);
  TestClient client(nodes[0]->tcp(), Transport::kTcp, kBlockBytes, kBlocks);
  EXPECT_EQ(work(client, 1), kBlocks) << "it serves whoever comes";
  etcd.start();
  EXPECT_TRUE(eventually([&] { return is_ready(*nodes[0]); })) << nodes[0]->log();
}

TEST_F(E2eClusterTest, OfThreeMembersOfEtcdOneMayDieAndTheRestOfThemMayToo) {
  EtcdProcesses etcd(3);
  start_nodes(etcd, 2);
  TestClient client(nodes[0]->tcp(), Transport::kTcp, kBlockBytes, kBlocks);
  EXPECT_EQ(work(client, 1), kBlocks);
  for (std::size_t member = 0; member < 3; ++member) {  // the leader is among them
    etcd.kill(member);
    std::this_thread::sleep_for(std::chrono::seconds(1));
    nodes.push_back(start_node(etcd, "later" + std::to_string(member)));
    wait_for_members(3);
    nodes.back()->signal(SIGKILL);
    nodes.back()->wait();
    nodes.pop_back();
    wait_for_members(2);
    etcd.start(member);
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  etcd.kill(0);
  etcd.kill(1);  // the third has no quorum: no lease is kept, and none ends
  std::this_thread::sleep_for(std::chrono::seconds(5));
  EXPECT_EQ(nodes[0]->metric("kvstore_cluster_members"), 2);
  EXPECT_GT(work(client, 2), 0u);
  etcd.start(0);
  etcd.start(1);
  for (const auto& node : nodes) {
    EXPECT_TRUE(eventually([&] { return node->metric("kvstore_cluster_etcd_is_reachable") == 1; })) << node->log();
  }
  wait_for_members(2);
}

// A paused node that comes back after its lease has ended joins anew.
TEST_F(E2eClusterTest, ANodeThatStoodStillJoinsAnew) {
  const EtcdProcesses etcd;
  start_nodes(etcd, 2);
  nodes[1]->signal(SIGSTOP);
  EXPECT_TRUE(eventually([&] { return nodes[0]->metric("kvstore_cluster_members") == 1; }));
  nodes[1]->signal(SIGCONT);
  wait_for_members(2);
  EXPECT_GE(nodes[1]->metric("kvstore_cluster_joins_total"), 2);
  EXPECT_TRUE(eventually([&] { return is_ready(*nodes[1]); }));
}

TEST_F(E2eClusterTest, OfTwoNodesWithOneIdTheLaterOneIsTheMember) {
  const EtcdProcesses etcd;
  start_nodes(etcd, 1);
  const auto twin = start_node(etcd, "n0");
  EXPECT_TRUE(eventually([&] { return nodes[0]->metric("kvstore_cluster_is_replaced") == 1; }));
  EXPECT_FALSE(is_ready(*nodes[0]));
  EXPECT_TRUE(eventually([&] { return is_ready(*twin); }));
  EXPECT_TRUE(nodes[0]->logs("another process has node-id n0")) << nodes[0]->log();
}

// Nodes hand over what they have before they leave, and are given it when they are back.
TEST_F(E2eClusterTest, AllNodesAreRestartedOneByOneUnderLoadAndWhatTheyHeldIsFound) {
  const EtcdProcesses etcd;
  start_nodes(etcd);
  TestClient client(nodes[0]->tcp(), Transport::kTcp, kBlockBytes, kBlocks);
  put_chains(client, 10);
  for (std::size_t i = 0; i < 3; ++i) {
    nodes[i]->signal(SIGTERM);
    work(client, 10 * (i + 1), 2);
    EXPECT_EQ(nodes[i]->wait(), 0);
    EXPECT_TRUE(finds_all(client)) << "n" << i << " is away: " << nodes[i]->log();
    nodes[i] = start_node(etcd, "n" + std::to_string(i));
    work(client, 10 * (i + 1) + 5, 2);
    wait_for_members(3);
    EXPECT_TRUE(finds_all(client)) << "n" << i << " is back";
    EXPECT_GT(nodes[i]->metric("kvstore_blocks"), 0) << "it has been given its own";
  }
  EXPECT_TRUE(
      eventually([&, seed = 1000]() mutable { return work(client, static_cast<std::uint64_t>(seed++)) == kBlocks; }));
}

TEST_F(E2eClusterTest, ANodeIsDrainedByHandAndServesAgainAndNothingIsMissed) {
  const EtcdProcesses etcd;
  start_nodes(etcd);
  TestClient client(nodes[0]->tcp(), Transport::kTcp, kBlockBytes, kBlocks);
  put_chains(client, 10);
  const double held = nodes[1]->metric("kvstore_blocks");
  ASSERT_GT(held, 0);
  const Finished drained = ctl(*nodes[0], {"drain", "n1"});
  EXPECT_EQ(drained.status, 0) << drained.out << drained.err;
  EXPECT_EQ(state_of(*nodes[0], "n1"), "draining");
  EXPECT_FALSE(is_ready(*nodes[1]));
  EXPECT_GE(nodes[1]->metric("kvstore_cluster_moved_blocks_total"), held);
  EXPECT_EQ(missing(client), 0u);
  const Finished back = ctl(*nodes[0], {"undrain", "n1"});
  EXPECT_EQ(back.status, 0) << back.out << back.err;
  wait_for_members(3);
  EXPECT_TRUE(is_ready(*nodes[1]));
  EXPECT_EQ(missing(client), 0u);
  ASSERT_EQ(ctl(*nodes[0], {"drain", "n1"}).status, 0);
  nodes[1]->signal(SIGKILL);
  nodes[1]->wait();
  nodes[1].reset();
  EXPECT_TRUE(finds_all(client)) << "nothing depends on it any more";
  const Finished unknown = ctl(*nodes[0], {"drain", "n7"});
  EXPECT_EQ(unknown.status, 1);
  EXPECT_NE(unknown.err.find("no node 'n7' in the cluster, which has: n0"), std::string::npos) << unknown.err;
}

// As in Kubernetes, whose preStop hook runs it: "done" must not be told where nothing was.
TEST_F(E2eClusterTest, ADrainThatCannotHandOverSaysWhyAndEndsWithOneUntilItCan) {
  const EtcdProcesses etcd;
  const TempDir folder;
  const std::string policy = folder.path() + "/policy.toml";
  const auto let_in = [&](const std::string& roles) {
    std::ofstream(policy + ".new") << "[all]\nmatch = [\"loopback\"]\nroles = [" << roles << "]\n";
    std::filesystem::rename(policy + ".new", policy);
  };
  let_in("\"reader\", \"operator\"");  // so n0 takes nothing from anybody
  nodes.push_back(start_node(etcd, "n0", {"--policy-file", policy}));
  nodes.push_back(start_node(etcd, "n1"));
  wait_for_members(2);
  TestClient client(nodes[1]->tcp(), Transport::kTcp, kBlockBytes, kBlocks);
  for (std::uint64_t seed = 1; seed <= 5; ++seed) client.put(make_chain(seed, kBlocks));
  ASSERT_GT(nodes[1]->metric("kvstore_blocks"), 0);
  const Finished drained = ctl(*nodes[1], {"drain", "n1"});
  EXPECT_EQ(drained.status, 1) << drained.out;
  EXPECT_NE(drained.err.find("n1 could not hand over"), std::string::npos) << drained.err;
  EXPECT_NE(drained.err.find("permission denied"), std::string::npos) << drained.err;
  EXPECT_EQ(state_of(*nodes[1], "n1"), "draining") << "it waits for nobody for ever";
  EXPECT_GT(nodes[1]->metric("kvstore_cluster_unmoved_paths"), 0);
  EXPECT_GT(nodes[1]->metric("kvstore_cluster_move_failures_total"), 0);
  EXPECT_TRUE(nodes[1]->logs("could not be handed over to their next owners")) << nodes[1]->log();
  const Finished doctor = run_program({ctl_program(), "doctor", "--admin", "none", "-e", nodes[1]->tcp()});
  EXPECT_NE(doctor.out.find("hand-over of n1"), std::string::npos) << doctor.out;
  const Finished status = ctl(*nodes[1], {"status"});
  EXPECT_NE(status.out.find("n1 could not hand over"), std::string::npos) << status.out;
  const Finished last = ctl(*nodes[1], {"drain", "n0"});
  EXPECT_EQ(last.status, 1) << last.out;
  EXPECT_NE(last.err.find("no other node serves"), std::string::npos) << last.err;

  // It serves again, and n1 can give it nothing of what is its own; n1 may find that out after the first answer.
  Finished undrained;
  EXPECT_TRUE(eventually([&] { return (undrained = ctl(*nodes[1], {"undrain", "n0"})).status == 1; }));
  EXPECT_NE(undrained.err.find("n1 could not hand over"), std::string::npos) << undrained.err;
  EXPECT_EQ(ctl(*nodes[1], {"undrain", "n1"}).status, 0);
  let_in("\"reader\", \"writer\", \"operator\", \"node\"");
  // The node takes the file up by itself.
  EXPECT_TRUE(eventually([&] {
    return ctl(*nodes[1], {"drain", "n1"}).status == 0 || (ctl(*nodes[1], {"undrain", "n1"}), false);
  })) << nodes[1]->log();
  EXPECT_EQ(nodes[1]->metric("kvstore_cluster_unmoved_paths"), 0);
}

TEST_F(E2eClusterTest, ANodeThatIsAddedIsGivenItsShareBeforeItServesAndNothingIsMissed) {
  const EtcdProcesses etcd;
  start_nodes(etcd);
  TestClient client(nodes[0]->tcp(), Transport::kTcp, kBlockBytes, kBlocks);
  put_chains(client, 10);
  nodes.push_back(start_node(etcd, "n3"));
  EXPECT_TRUE(eventually([&] {
    EXPECT_EQ(missing(client), 0u);
    return nodes[0]->metric("kvstore_cluster_members_serving") == 4;
  })) << nodes[3]->log();
  wait_for_members(4);
  EXPECT_EQ(missing(client), 0u);
  EXPECT_GT(nodes[3]->metric("kvstore_blocks"), 0.1 * 10 * kBlocks);
  double moved = 0;
  for (const auto& node : nodes) moved += node->metric("kvstore_cluster_moved_blocks_total");
  EXPECT_GE(moved, nodes[3]->metric("kvstore_blocks"));
}

TEST_F(E2eClusterTest, ANodeThatMayHandNothingOverLeavesAtOnceAndIsNotDrained) {
  const EtcdProcesses etcd;
  for (const char* id : {"n0", "n1"}) nodes.push_back(start_node(etcd, id, {"--move-rate", "0"}));
  wait_for_members(2);
  const Finished drained = ctl(*nodes[0], {"drain", "n1"});
  EXPECT_EQ(drained.status, 1);
  EXPECT_NE(drained.err.find("hands nothing over"), std::string::npos) << drained.err;
  nodes[1]->signal(SIGTERM);
  EXPECT_EQ(nodes[1]->wait(), 0);
  EXPECT_EQ(nodes[1]->log().find("handed over"), std::string::npos);
}

/// TLS with a certificate of a CA of the test's own, and users, as etcd has them.
TEST_F(E2eClusterTest, EtcdMayAskForTlsAndAUser) {
  const TempDir keys;
  const auto path = [&](const char* name) { return keys.path() + "/" + name; };
  const auto openssl = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "/usr/bin/openssl");
    const Finished finished = run_program(arguments);
    ASSERT_EQ(finished.status, 0) << finished.err;
  };
  openssl({"req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
           "/CN=test", "-keyout", path("ca.key"), "-out", path("ca.pem")});
  openssl({"req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=etcd", "-keyout",
           path("etcd.key"), "-out", path("etcd.csr")});
  std::ofstream(path("names")) << "subjectAltName=IP:127.0.0.1\n";
  openssl({"x509", "-req", "-in", path("etcd.csr"), "-CA", path("ca.pem"), "-CAkey", path("ca.key"), "-CAcreateserial",
           "-days", "2", "-extfile", path("names"), "-out", path("etcd.pem")});
  const EtcdProcesses etcd(1, {"--cert-file", path("etcd.pem"), "--key-file", path("etcd.key")});
  const auto etcdctl = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"/usr/bin/etcdctl", "--endpoints", etcd.url(), "--cacert", path("ca.pem")});
    const Finished finished = run_program(arguments, {"ETCDCTL_API=3"});
    ASSERT_EQ(finished.status, 0) << finished.err << finished.out;
  };
  if (::access("/usr/bin/etcdctl", X_OK) != 0) GTEST_SKIP() << "/usr/bin/etcdctl is not here (package etcd-client)";
  etcdctl({"user", "add", "root:secret"});
  etcdctl({"user", "add", "node:pass word"});
  etcdctl({"role", "add", "kvstore"});
  etcdctl({"role", "grant-permission", "kvstore", "readwrite", "--prefix=true", "/kvstore/"});
  etcdctl({"user", "grant-role", "root", "root"});
  etcdctl({"user", "grant-role", "node", "kvstore"});
  etcdctl({"auth", "enable"});
  std::ofstream(path("password")) << "pass word\n";
  std::ofstream(path("wrong")) << "password\n";

  nodes.push_back(start_node(
      etcd, "n0", {"--etcd-ca", path("ca.pem"), "--etcd-user", "node", "--etcd-password-file", path("password")}));
  EXPECT_TRUE(eventually([&] { return is_ready(*nodes[0]); })) << nodes[0]->log();
  const auto stranger = start_node(
      etcd, "n1", {"--etcd-ca", path("ca.pem"), "--etcd-user", "node", "--etcd-password-file", path("wrong")});
  EXPECT_TRUE(eventually([&] { return stranger->log().find("user 'node' is refused") != std::string::npos; }))
      << stranger->log();
  const auto trusting_nobody =
      start_node(etcd, "n2", {"--etcd-user", "node", "--etcd-password-file", path("password")});
  EXPECT_TRUE(eventually([&] { return trusting_nobody->log().find("TLS: ") != std::string::npos; }))
      << trusting_nobody->log();
  EXPECT_EQ(nodes[0]->metric("kvstore_cluster_members"), 1);
}

}  // namespace
}  // namespace kv::e2e
