// What operators touch: metrics, health, configuration.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "tests/e2e/node_process.h"
#include "tests/e2e/raw_session.h"
#include "tests/e2e/test_client.h"

namespace kv::e2e {
namespace {

using testing::HasSubstr;

TEST(E2eAdminTest, MetricsAreValidPrometheusText) {
  const NodeProcess node({"--capacity", "16MiB"});
  const auto page = node.http_get("/metrics");
  ASSERT_EQ(page.status, 200);
  const std::regex sample(
      R"re(([a-zA-Z_:][a-zA-Z0-9_:]*)(\{([a-zA-Z_][a-zA-Z0-9_]*="([^"\\\n]|\\["\\n])*",?)*\})? (-?[0-9.e+-]+|[+-]Inf|NaN))re");
  const std::regex comment(R"(# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*) .+)");
  std::set<std::string> typed;
  std::istringstream lines(page.body);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, match, comment)) {
      if (match[1] == "TYPE") {
        EXPECT_TRUE(typed.insert(match[2]).second) << "two types: " << line;
      }
      continue;
    }
    ASSERT_TRUE(std::regex_match(line, match, sample)) << line;
    const std::string name = match[1];
    const std::string family = std::regex_replace(name, std::regex("_(bucket|sum|count)$"), "");
    EXPECT_TRUE(typed.contains(name) || typed.contains(family)) << "no type: " << line;
    EXPECT_TRUE(name.starts_with("kvstore_")) << line;
  }
  EXPECT_GT(typed.size(), 20u);
}

TEST(E2eAdminTest, EveryLineOfAJsonLogIsOneObjectWhateverAClientCallsItself) {
  const std::string forged = "x\",\"level\":\"critical\",\"message\":\"disk lost\"}\n{\"time\":\"\xff";
  NodeProcess node(
      {"--capacity", "16MiB", "--log-json", "true", "--log-level", "debug", "--node-id", "a\"\\\n\x1b\xff"});
  {
    RawSession session(node.tcp());
    flatbuffers::FlatBufferBuilder builder;
    builder.Finish(wire::CreateHelloRequestDirect(builder, kWireVersion, kWireVersion, forged.c_str()));
    ASSERT_TRUE(session.send_frame(FrameType::kHello, 1, builder));
    ASSERT_TRUE(session.read_answer());
    session.send_bytes(std::vector<std::byte>(64));  // no frame: the session ends, and the log says whose
    EXPECT_TRUE(session.is_closed());
  }
  EXPECT_TRUE(eventually([&] { return node.log().find("disk lost") != std::string::npos; }));
  node.signal(SIGTERM);
  EXPECT_EQ(node.wait(), 0);
  std::istringstream lines(node.log());
  int count = 0, naming_count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const auto parsed = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(parsed.is_object()) << line;
    EXPECT_EQ(parsed.size(), 4u) << line;
    EXPECT_NE(parsed.value("level", ""), "critical") << line;
    naming_count += parsed.value("message", "").find("disk lost") != std::string::npos;
  }
  EXPECT_GT(count, 3);
  EXPECT_GT(naming_count, 0) << "the line that names the client is there, in its field";
}

TEST(E2eAdminTest, MetricsCountWhatHappened) {
  const NodeProcess node({"--capacity-blocks", "32", "--capacity-block-bytes", "65536"});
  TestClient client(node.tcp(), Transport::kTcp, 65536, 24);
  const auto chain = make_chain(1, 20);
  EXPECT_EQ(node.metric("kvstore_capacity_bytes"), 32 * 65536);
  ASSERT_EQ(client.put(chain).stored, 20u);
  auto longer = chain;
  longer.resize(24);
  ASSERT_EQ(client.get(longer).block_count, 20u);
  ASSERT_EQ(client.put(chain).already_stored, 20u);
  EXPECT_EQ(node.metric("kvstore_stored_blocks_total"), 20);
  EXPECT_EQ(node.metric("kvstore_already_stored_blocks_total"), 20);
  EXPECT_EQ(node.metric("kvstore_get_hit_blocks_total"), 20);
  EXPECT_EQ(node.metric("kvstore_get_miss_blocks_total"), 4);
  EXPECT_EQ(node.metric("kvstore_bytes_out_total{path=\"inline\"}"), 20 * 65536);
  EXPECT_EQ(node.metric("kvstore_bytes_in_total{path=\"inline\"}"), 20 * 65536);
  EXPECT_EQ(node.metric("kvstore_blocks"), 20);
  ASSERT_EQ(client.put(make_chain(2, 24)).stored, 24u);
  EXPECT_EQ(node.metric("kvstore_evicted_blocks_total"), 12);
  EXPECT_EQ(node.metric("kvstore_allocated_bytes"), 32 * 65536);
  EXPECT_EQ(node.metric("kvstore_checksum_failures_total"), 0);
}

TEST(E2eAdminTest, HealthPagesAnswerAndOthersAreNotFound) {
  NodeProcess node({"--capacity", "16MiB"});
  EXPECT_EQ(node.http_get("/healthz").status, 200);
  EXPECT_EQ(node.http_get("/readyz").status, 200);
  EXPECT_EQ(node.http_get("/nothing-here").status, 404);
  node.signal(SIGINT);
  EXPECT_EQ(node.wait(), 0);
}

Finished check(const std::vector<std::string>& options, const std::vector<std::string>& environment = {}) {
  std::vector<std::string> arguments = {node_program(), "--check-config"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  return run_program(arguments, environment);
}

TEST(E2eConfigTest, CheckConfigSaysWhatWouldBeUsed) {
  const Finished defaults = check({});
  EXPECT_EQ(defaults.status, 0) << defaults.err;
  EXPECT_THAT(defaults.out, HasSubstr("tcp://127.0.0.1:7400"));
  const Finished given = check({"--capacity-blocks", "10000", "--capacity-block-bytes", "2MiB"});
  EXPECT_EQ(given.status, 0) << given.err;
  EXPECT_THAT(given.out, HasSubstr(std::to_string(10000ull << 21)));
}

TEST(E2eConfigTest, AFlagWinsOverTheEnvironmentAndThatOverTheFile) {
  const TempDir directory;
  const std::string file = directory.path() + "/node.toml";
  std::ofstream(file) << "node-id = \"from-file\"\ncapacity = \"64MiB\"\nthreads = 3\n";
  const Finished all = check({"--config", file, "--node-id", "from-flag"}, {"KVSTORE_NODE_CAPACITY=32MiB"});
  EXPECT_EQ(all.status, 0) << all.err;
  EXPECT_THAT(all.out, HasSubstr("from-flag"));
  EXPECT_THAT(all.out, HasSubstr(std::to_string(32 << 20)));
  EXPECT_THAT(all.out, HasSubstr("3 I/O threads"));
}

TEST(E2eConfigTest, MistakesAreNamedAndEndWithTwo) {
  const auto expect_refused = [](const std::vector<std::string>& options, const std::string& named) {
    const Finished finished = check(options);
    EXPECT_EQ(finished.status, 2) << named;
    EXPECT_THAT(finished.err, HasSubstr(named));
  };
  expect_refused({"--no-such-option"}, "--no-such-option");
  expect_refused({"--capacity", "lots"}, "capacity");
  expect_refused({"--listen", "carrier-pigeon://x"}, "carrier-pigeon://x");
  expect_refused({"--threads", "-1"}, "threads");
  expect_refused({"--capacity-blocks", "10", "--capacity-block-bytes", "1000"}, "capacity-block-bytes");
  expect_refused({"--config", "/no/such/file.toml"}, "/no/such/file.toml");
}

TEST(E2eConfigTest, AnAddressBeyondLoopbackIsRefusedUntilThereIsTls) {
  for (const std::string address : {"tcp://0.0.0.0:7400", "tcp://[::]:7400", "tcp://192.0.2.1:7400"}) {
    const Finished finished = check({"--listen", address});
    EXPECT_EQ(finished.status, 2) << address;
    EXPECT_THAT(finished.err, HasSubstr("TLS")) << address;
  }
  const Finished admin = check({"--admin", "0.0.0.0:7401"});
  EXPECT_EQ(admin.status, 2);
  EXPECT_THAT(admin.err, HasSubstr("loopback"));
}

}  // namespace
}  // namespace kv::e2e
