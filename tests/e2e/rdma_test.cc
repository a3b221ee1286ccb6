// RDMA of the real programs: what they say without it, a link that is cut and comes back, the real trace. What needs
// devices runs where KV_VERBS_TEST_DEVICES names them: in the virtual machine of tests/rdma_vm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/e2e/node_process.h"
#include "tests/e2e/test_client.h"

namespace kv::e2e {
namespace {

using nlohmann::json;
using std::chrono::steady_clock;
using testing::HasSubstr;
using testing::Not;

constexpr std::size_t kRdmaBlockBytes = 1 << 20, kRdmaBlocks = 32;

double seconds_since(steady_clock::time_point then) {
  return std::chrono::duration<double>(steady_clock::now() - then).count();
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++count;
  return count;
}

TEST(E2eRdmaTest, NoProgramNeedsLibibverbsToStart) {
  for (const std::string& program : {node_program(), ctl_program(), bench_program()}) {
    const Finished libraries = run_program({"/usr/bin/ldd", program});
    EXPECT_EQ(libraries.status, 0) << libraries.err;
    EXPECT_THAT(libraries.out, Not(HasSubstr("ibverbs"))) << program;
  }
}

TEST(E2eRdmaTest, WithoutTheModuleANodeSaysSoOnceAndServesEverythingElse) {
  const std::vector<std::string> without = {"KV_VERBS_MODULE=/nowhere/libkvstore_verbs.so"};
  const NodeProcess node({"--capacity", "64MiB"}, "", without);
  for (const Transport transport : {Transport::kTcp, Transport::kShm}) {
    TestClient client(endpoint_of(node, transport), transport, kRdmaBlockBytes, 4);
    const auto chain = make_chain(static_cast<std::uint64_t>(transport), 4);
    EXPECT_EQ(client.put(chain).stored, 4u);
    EXPECT_EQ(client.get(chain).block_count, 4u);
    EXPECT_EQ(client.wrong_bytes(chain, 4), 0u);
  }
  EXPECT_EQ(count_of(node.log(), "rdma: not available"), 1u) << node.log();
  EXPECT_TRUE(node.logs("/nowhere/libkvstore_verbs.so")) << node.log();
  const Finished bench = run_program(
      {bench_program(), "run", "--transport", "verbs", "--endpoint", node.tcp(), "--duration", "1s"}, without);
  EXPECT_EQ(bench.status, 1);
  EXPECT_THAT(bench.err, HasSubstr("no RDMA: the node offers no RDMA"));
}

TEST(E2eRdmaTest, ANodeThatIsToHaveRdmaDoesNotStartWithout) {
  const Finished refused = run_program(
      {node_program(), "--rdma", "on", "--capacity", "16MiB", "--admin", "none", "--listen", "tcp://127.0.0.1:0"},
      {"KV_VERBS_MODULE=/nowhere/libkvstore_verbs.so"});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, HasSubstr("rdma: on, but"));
  EXPECT_THAT(refused.err, HasSubstr("/nowhere/libkvstore_verbs.so"));
}

class E2eRdmaDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = lacks(Transport::kVerbs); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_F(E2eRdmaDeviceTest, SeveralLanesCarryATransferAndToolsTellOfThem) {
  const NodeProcess node(node_options(Transport::kVerbs, {"--capacity", "128MiB", "--rdma-slice-bytes", "5MiB"}));
  ClientConfig config;
  config.rdma_lanes = 3;
  TestClient client(endpoint_of(node, Transport::kVerbs), Transport::kVerbs, kRdmaBlockBytes, kRdmaBlocks, config);
  const auto chain = make_chain(1, kRdmaBlocks);
  ASSERT_EQ(client.put(chain).stored, kRdmaBlocks);
  ASSERT_EQ(client.get(chain).block_count, kRdmaBlocks);
  EXPECT_EQ(client.wrong_bytes(chain, kRdmaBlocks), 0u);
  EXPECT_EQ(client->nodes()[0].peer_transport, "tcp+verbs");
  EXPECT_EQ(node.metric("kvstore_rdma_lanes"), static_cast<double>(client->nodes()[0].rdma_lanes));
  EXPECT_GE(node.metric("kvstore_rdma_lanes"), 3);
  EXPECT_EQ(node.metric("kvstore_rdma_lanes_broken_total"), 0);
  const Finished status = run_program({ctl_program(), "status", "--endpoint", node.tcp()});
  EXPECT_THAT(status.out, HasSubstr("RDMA"));
}

TEST_F(E2eRdmaDeviceTest, SmallRequestsGoBySend) {
  constexpr std::size_t kSmallBytes = 16 << 10, kSmallCount = 8;
  const NodeProcess node(node_options(Transport::kVerbs, {"--capacity", "128MiB"}));
  TestClient client(endpoint_of(node, Transport::kVerbs), Transport::kVerbs, kSmallBytes, kSmallCount);
  const auto chain = make_chain(1, kSmallCount);
  ASSERT_EQ(client.put(chain).stored, kSmallCount);
  const double before = node.metric("kvstore_rdma_messages_total");
  for (int i = 0; i < 500; ++i) {
    std::fill(client.memory().begin(), client.memory().end(), std::byte{0});
    ASSERT_EQ(client.get(chain).block_count, kSmallCount);
    ASSERT_EQ(client.wrong_bytes(chain, kSmallCount), 0u);
  }
  EXPECT_GE(node.metric("kvstore_rdma_messages_total"), before + 500);
}

/// KV_VERBS_TEST_LATE names a device that is not there, and KV_VERBS_TEST_LATE_ADD is the command that brings it.
TEST_F(E2eRdmaDeviceTest, ANamedDeviceThatComesLaterIsUsed) {
  const char* const name = std::getenv("KV_VERBS_TEST_LATE");
  const char* const command = std::getenv("KV_VERBS_TEST_LATE_ADD");
  if (name == nullptr || command == nullptr) GTEST_SKIP() << "KV_VERBS_TEST_LATE names no device that can be added";
  const NodeProcess node(node_options(Transport::kVerbs, {"--capacity", "64MiB", "--rdma-device", name}));
  EXPECT_EQ(node.metric("kvstore_rdma_devices"), 1) << node.log();
  EXPECT_EQ(node.metric("kvstore_rdma_devices_left_out"), 1);
  EXPECT_TRUE(node.logs(std::string(name) + ", no such device")) << node.log();
  ASSERT_EQ(run_program({"/bin/sh", "-c", command}).status, 0) << command;
  EXPECT_TRUE(eventually([&] { return node.metric("kvstore_rdma_devices") == 2; })) << node.log();
  EXPECT_EQ(node.metric("kvstore_rdma_devices_left_out"), 0);
}

TEST_F(E2eRdmaDeviceTest, TheFirstRequestsOfTheRealTraceHitAsOverTcp) {
  const char* const folder = std::getenv("KV_TRACES");
  if (folder == nullptr) GTEST_SKIP() << "KV_TRACES does not name a folder with conversation_trace.jsonl.gz";
  const char* const chosen = std::getenv("KV_RDMA_TRACE_REQUESTS");
  std::vector<json> replays;
  for (const Transport transport : {Transport::kTcp, Transport::kVerbs}) {
    const NodeProcess node(node_options(
        transport, {"--eviction-policy", "lru", "--capacity-blocks", "10000", "--capacity-block-bytes", "4096"}));
    std::vector<std::string> command = {bench_program(),
                                        "replay",
                                        "--trace",
                                        std::string(folder) + "/conversation_trace.jsonl.gz",
                                        "--limit-requests",
                                        chosen == nullptr ? "1000" : chosen,
                                        "--json"};
    const auto options = tool_options(node, transport);
    command.insert(command.end(), options.begin(), options.end());
    const Finished finished = run_program(command);
    replays.push_back(json::parse(finished.out, nullptr, /*allow_exceptions=*/false));
    ASSERT_FALSE(replays.back().is_discarded()) << finished.err;
    EXPECT_EQ(replays.back()["wrong_bytes"], 0);
    std::printf("%s: %s\n", transport_name(transport), replays.back().dump().c_str());
  }
  EXPECT_GT(replays[1]["hits"], 0);
  EXPECT_EQ(replays[0]["hits"], replays[1]["hits"]);
  EXPECT_EQ(replays[0]["stored"], replays[1]["stored"]);
}

/// The interface whose link the test may cut: KV_VERBS_TEST_LINK, the client's.
class E2eRdmaLinkTest : public E2eRdmaDeviceTest {
 protected:
  void SetUp() override {
    E2eRdmaDeviceTest::SetUp();
    if (IsSkipped()) return;
    const char* const name = std::getenv("KV_VERBS_TEST_LINK");
    if (name == nullptr) GTEST_SKIP() << "KV_VERBS_TEST_LINK names no interface to cut";
    link_ = name;
    node_ = std::make_unique<NodeProcess>(node_options(Transport::kVerbs, {"--capacity", "128MiB"}));
    client_ = std::make_unique<TestClient>(endpoint_of(*node_, Transport::kVerbs), Transport::kVerbs, kRdmaBlockBytes,
                                           kRdmaBlocks);
    ASSERT_EQ(client_->put(chain_).stored, kRdmaBlocks);
  }
  void TearDown() override {
    if (!link_.empty()) set_link(true);
  }
  void set_link(bool is_up) {
    ASSERT_EQ(run_program({"/usr/sbin/ip", "link", "set", link_, is_up ? "up" : "down"}).status, 0);
    if (is_up) restore_routes();
  }
  /// Taking the link down took its routes along: the two ends of one link in one machine need them to meet outside.
  static void restore_routes() {
    const char* const command = std::getenv("KV_VERBS_TEST_ROUTES");
    if (command == nullptr) return;
    EXPECT_EQ(run_program({"/bin/sh", "-c", command}).status, 0) << command;
  }

  std::string link_;
  std::unique_ptr<NodeProcess> node_;
  std::unique_ptr<TestClient> client_;
  const std::vector<BlockHash> chain_ = make_chain(1, kRdmaBlocks);
};

TEST_F(E2eRdmaLinkTest, ACutLinkCostsADeadlineAndHealsByItself) {
  TestClient& client = *client_;
  std::thread cutter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    set_link(false);
  });
  // A busy machine makes gets late before the link is cut too. So a short get alone says little: the lane must break.
  bool was_short = false;
  bool is_broken = false;
  const auto began = steady_clock::now();
  while (!(was_short && is_broken) && seconds_since(began) < 60) {
    if (client.get(chain_, 300ms).block_count < kRdmaBlocks) {
      was_short = true;
      const auto ended = steady_clock::now();
      EXPECT_TRUE(eventually([&] { return !client->is_quarantined(client.memory()); }));
      std::printf("noticed, and the memory given back, %.2f s after the call's end\n", seconds_since(ended));
    }
    is_broken = node_->metric("kvstore_rdma_lanes_broken_total") >= 1;
  }
  cutter.join();
  EXPECT_TRUE(was_short);

  // From here on nothing may land.
  std::fill(client.memory().begin(), client.memory().end(), std::byte{0x5A});
  set_link(true);
  const auto until = steady_clock::now() + std::chrono::seconds(5);
  while (steady_clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_TRUE(std::ranges::all_of(client.memory(), [](std::byte byte) { return byte == std::byte{0x5A}; }))
      << "written after it was given back";
  EXPECT_GE(node_->metric("kvstore_rdma_lanes_broken_total"), 1);

  EXPECT_TRUE(eventually([&] { return client.get(chain_).block_count == kRdmaBlocks; }));
  EXPECT_EQ(client.wrong_bytes(chain_, kRdmaBlocks), 0u);
  ASSERT_TRUE(client.wait_for_rdma()) << "lanes are made anew";
  const double before = node_->metric("kvstore_bytes_out_total{path=\"verbs\"}");
  EXPECT_EQ(client.get(chain_).block_count, kRdmaBlocks);
  EXPECT_GE(node_->metric("kvstore_bytes_out_total{path=\"verbs\"}"), before + kRdmaBlocks * kRdmaBlockBytes);
}

TEST_F(E2eRdmaLinkTest, ANodeThatStartsBeforeItsLinkHasRdmaOnceThatIsUp) {
  set_link(false);
  std::vector<std::string> options = node_options(Transport::kVerbs, {"--capacity", "128MiB"});
  std::ranges::replace(options, std::string("on"), std::string("auto"));
  const NodeProcess early(options);
  EXPECT_EQ(count_of(early.log(), "rdma: not available"), 1u) << early.log();
  {
    TestClient through_the_socket(early.tcp(), Transport::kTcp, kRdmaBlockBytes, kRdmaBlocks);
    EXPECT_EQ(through_the_socket.put(chain_).stored, kRdmaBlocks);
  }
  set_link(true);
  ASSERT_TRUE(eventually([&] { return early.log().find("rdma: device=") != std::string::npos; })) << early.log();
  TestClient client(endpoint_of(early, Transport::kVerbs), Transport::kVerbs, kRdmaBlockBytes, kRdmaBlocks);
  EXPECT_EQ(client.get(chain_).block_count, kRdmaBlocks);
  EXPECT_EQ(client.wrong_bytes(chain_, kRdmaBlocks), 0u);
  EXPECT_GE(early.metric("kvstore_bytes_out_total{path=\"verbs\"}"), kRdmaBlocks * kRdmaBlockBytes);
}

TEST_F(E2eRdmaLinkTest, AnInterruptionShorterThanTheDevicesPatienceIsNotNoticed) {
  TestClient& client = *client_;
  std::thread cutter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    set_link(false);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    set_link(true);
  });
  const GetResult got = client.get(chain_);
  cutter.join();
  EXPECT_EQ(got.block_count, kRdmaBlocks) << got.why.message();
  EXPECT_EQ(client.wrong_bytes(chain_, got.block_count), 0u);
}

}  // namespace
}  // namespace kv::e2e
