// Real nodes of a static list that learn together, as an operator sees them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "tests/e2e/node_process.h"
#include "tests/e2e/test_client.h"

namespace kv::e2e {
namespace {

class E2eExchangeTest : public testing::Test {
 protected:
  std::string socket(int i) const { return directory.path() + "/n" + std::to_string(i) + ".sock"; }
  void start(int count) {
    std::vector<std::string> options = {"--capacity",         "16MiB", "--threads", "1",
                                        "--exchange-seconds", "1",     "--node-id", ""};
    for (int i = 0; i < count; ++i) options.insert(options.end(), {"--peer", "unix://" + socket(i)});
    for (int i = 0; i < count; ++i) {
      options[7] = "n" + std::to_string(i);
      nodes.push_back(std::make_unique<NodeProcess>(options, socket(i)));
    }
  }

  TempDir directory;
  std::vector<std::unique_ptr<NodeProcess>> nodes;
};

TEST_F(E2eExchangeTest, NodesOfAListHearOneAnotherAndOneThatIsGoneIsMissed) {
  start(3);
  for (const auto& node : nodes) {
    EXPECT_TRUE(eventually([&] { return node->metric("kvstore_exchange_nodes") == 2; })) << node->log();
  }
  // They have counted: chains that are asked for again.
  const Finished replay = run_program({bench_program(), "chat", "--endpoint",
                                       "unix://" + socket(0) + ",unix://" + socket(1) + ",unix://" + socket(2),
                                       "--block-bytes", "4096", "--turns", "8"});
  EXPECT_EQ(replay.status, 0) << replay.err;
  for (const auto& node : nodes) {
    EXPECT_TRUE(eventually([&] { return node->metric("kvstore_exchange_nodes_counted") == 2; })) << node->log();
    EXPECT_EQ(node->metric("kvstore_exchange_refusals_total"), 0);
  }
  const Finished status = run_program({ctl_program(), "status", "-e", nodes[0]->unix_socket()});
  EXPECT_THAT(status.out, testing::HasSubstr("unix://" + socket(1)));
  nodes[2]->signal(9);
  nodes[2]->wait();
  EXPECT_TRUE(eventually([&] { return nodes[0]->metric("kvstore_exchange_failures_total") > 0; }));
  EXPECT_TRUE(eventually([&] { return nodes[0]->metric("kvstore_exchange_oldest_seconds") > 1.5; }));
  EXPECT_EQ(nodes[0]->metric("kvstore_exchange_nodes_counted"), 2) << "what it told still counts";
}

}  // namespace
}  // namespace kv::e2e
