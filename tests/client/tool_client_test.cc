// The options by which kvstorectl and kvstore-bench make their client.
#include "client/tools/tool_client.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

namespace kv {
namespace {

/// As a command line; throws CLI::ParseError.
ClientConfig config_of(std::vector<std::string> arguments) {
  CLI::App app;
  ConnectionOptions options;
  add_node_options(app, options, /*with_transport=*/true);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants a vector
  app.parse(arguments);
  complete(options);
  return client_config(options, "test");
}

TEST(ToolClientTest, WhereAProgramIsAndHowManyReadsAreAskedTwiceAreTheClients) {
  const ClientConfig usual = config_of({"--endpoint=tcp://n1:7400"});
  EXPECT_EQ(usual.zone, "");
  EXPECT_EQ(usual.numa_nodes, "");
  EXPECT_EQ(usual.hedge_share, ClientConfig{}.hedge_share);
  const ClientConfig chosen = config_of({"-e", "tcp://n1:7400,tcp://n2:7400", "--zone", "north", "--hedge-share=0.5"});
  EXPECT_EQ(chosen.nodes.size(), 2u);
  EXPECT_EQ(chosen.zone, "north");
  EXPECT_EQ(chosen.hedge_share, 0.5);
  EXPECT_EQ(config_of({"--hedge-share=0"}).hedge_share, 0);
}

TEST(ToolClientTest, TheZoneMayComeFromTheEnvironment) {
  ASSERT_EQ(setenv("KVSTORE_ZONE", "south", 1), 0);
  EXPECT_EQ(config_of({}).zone, "south");
  EXPECT_EQ(config_of({"--zone=north"}).zone, "north");
  ASSERT_EQ(unsetenv("KVSTORE_ZONE"), 0);
}

TEST(ToolClientTest, AShareIsBetweenNoneAndAll) {
  for (const char* share : {"-0.1", "1.1", "x"})
    EXPECT_THROW(config_of({std::string("--hedge-share=") + share}), CLI::ParseError) << share;
}

}  // namespace
}  // namespace kv
