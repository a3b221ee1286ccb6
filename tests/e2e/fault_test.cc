// Processes that die, stop and come back in the middle of a transfer. A call ends by its deadline with what it has.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/e2e/node_process.h"
#include "tests/e2e/test_client.h"

namespace kv::e2e {
namespace {

constexpr std::size_t kFaultBlockBytes = 1 << 20, kFaultBlocks = 64;

bool is_known_reason(const error_code& why) {
  return why == asio::error::timed_out || why == Errc::kUnavailable || why == Errc::kDraining;
}

class E2eFaultTest : public testing::TestWithParam<Transport> {
 protected:
  void SetUp() override {
    if (const std::string why = lacks(GetParam()); !why.empty()) GTEST_SKIP() << why;
  }
  static std::vector<std::string> options(std::vector<std::string> more) {
    return node_options(GetParam(), std::move(more));
  }
  std::string endpoint(const NodeProcess& node) const { return endpoint_of(node, GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Transports, E2eFaultTest,
                         testing::Values(Transport::kTcp, Transport::kUnix, Transport::kShm, Transport::kVerbs),
                         [](const auto& one) { return std::string(transport_name(one.param)); });

/// Gets again and again in a thread of its own until a get falls short, so that a fault hits one in its middle.
class GetLoop {
 public:
  GetLoop(TestClient& client, std::vector<BlockHash> chain, std::chrono::microseconds deadline)
      : thread_([this, &client, chain = std::move(chain), deadline] {
          do {
            last_ = client.get(chain, deadline);
            wrong_bytes_ += client.wrong_bytes(chain, last_.block_count);
            ++rounds_;
          } while (last_.block_count == chain.size());
        }) {}
  bool wait_for_rounds(int count) {
    return eventually([&] { return rounds_ >= count; });
  }
  GetResult finish() {
    thread_.join();
    return last_;
  }
  std::size_t wrong_bytes() const { return wrong_bytes_; }

 private:
  std::atomic<int> rounds_ = 0;
  std::size_t wrong_bytes_ = 0;
  GetResult last_;
  std::thread thread_;
};

TEST_P(E2eFaultTest, AGetFromANodeKilledMidwayEndsWithAReason) {
  NodeProcess node(options({"--capacity", "128MiB"}));
  TestClient client(endpoint(node), GetParam(), kFaultBlockBytes, kFaultBlocks);
  const auto chain = make_chain(1, kFaultBlocks);
  ASSERT_EQ(client.put(chain).stored, kFaultBlocks);
  GetLoop loop(client, chain, kDeadline);
  ASSERT_TRUE(loop.wait_for_rounds(2));
  node.signal(SIGKILL);
  EXPECT_EQ(node.wait(), 128 + SIGKILL);
  const GetResult got = loop.finish();
  EXPECT_LT(got.block_count, kFaultBlocks);
  EXPECT_TRUE(is_known_reason(got.why)) << got.why.message();
  EXPECT_EQ(loop.wrong_bytes(), 0u);
}

TEST_P(E2eFaultTest, APutToANodeKilledMidwayEndsWithAReason) {
  NodeProcess node(options({"--capacity", "128MiB"}));
  TestClient client(endpoint(node), GetParam(), kFaultBlockBytes, kFaultBlocks);
  std::atomic<int> rounds = 0;
  PutResult last;
  std::thread writer([&] {
    do {
      last = client.put(make_chain(static_cast<std::uint64_t>(rounds) + 10, kFaultBlocks));
      ++rounds;
    } while (last.stored == kFaultBlocks);
  });
  EXPECT_TRUE(eventually([&] { return rounds >= 2; }));
  node.signal(SIGKILL);
  node.wait();
  writer.join();
  EXPECT_TRUE(is_known_reason(last.why)) << last.why.message();
  EXPECT_EQ(last.stored + last.already_stored + last.refused, kFaultBlocks);
}

TEST_P(E2eFaultTest, AStoppedNodeCostsADeadlineAndHealsWhenItGoesOn) {
  NodeProcess node(options({"--capacity", "128MiB"}));
  TestClient client(endpoint(node), GetParam(), kFaultBlockBytes, kFaultBlocks);
  const auto chain = make_chain(1, kFaultBlocks);
  ASSERT_EQ(client.put(chain).stored, kFaultBlocks);
  {
    GetLoop loop(client, chain, 500ms);
    ASSERT_TRUE(loop.wait_for_rounds(1));
    node.signal(SIGSTOP);
    const GetResult got = loop.finish();
    EXPECT_LT(got.block_count, kFaultBlocks);
    EXPECT_TRUE(is_known_reason(got.why)) << got.why.message();
    EXPECT_EQ(loop.wrong_bytes(), 0u);
  }
  if (GetParam() == Transport::kShm || GetParam() == Transport::kVerbs) {
    // The node may still write there once it goes on: until it has said so, nobody else may use that memory. (On a very
    // slow machine the loop ended before the node was stopped: then this get is the one that finds it so.)
    if (!client->is_quarantined(client.memory())) {
      EXPECT_LT(client.get(chain, 500ms).block_count, kFaultBlocks);
    }
    EXPECT_TRUE(client->is_quarantined(client.memory()));
    const auto targets = client.blocks(kFaultBlocks);
    const auto refused = client->get(client.space(), chain, targets, {.deadline = 100ms});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error(), Errc::kQuarantined);
  }
  node.signal(SIGCONT);
  EXPECT_TRUE(eventually([&] { return !client->is_quarantined(client.memory()); }));
  EXPECT_TRUE(eventually([&] { return client.get(chain).block_count == kFaultBlocks; }));
  EXPECT_EQ(client.wrong_bytes(chain, kFaultBlocks), 0u);
}

TEST_P(E2eFaultTest, AClientFindsANodeThatCameBackEmpty) {
  const TempDir directory;
  const std::string socket = directory.path() + "/socket";
  const std::string tcp = "tcp://127.0.0.1:" + free_ports(1)[0];
  auto node = std::make_unique<NodeProcess>(options({"--capacity", "128MiB", "--listen", tcp}), socket);
  const bool is_local = GetParam() == Transport::kUnix || GetParam() == Transport::kShm;
  TestClient client(is_local ? endpoint(*node) : tcp, GetParam(), kFaultBlockBytes, 8);
  const auto chain = make_chain(1, 8);
  ASSERT_EQ(client.put(chain).stored, 8u);
  node->signal(SIGKILL);
  node->wait();
  EXPECT_EQ(client.get(chain, 200ms).block_count, 0u);
  node = std::make_unique<NodeProcess>(options({"--capacity", "128MiB", "--listen", tcp}), socket);
  EXPECT_TRUE(eventually([&] { return client.put(chain, 1s).stored == 8; }));
  EXPECT_EQ(client.get(chain).block_count, 8u);
  EXPECT_EQ(client.wrong_bytes(chain, 8), 0u);
}

TEST_P(E2eFaultTest, SigtermDrainsAndExitsZero) {
  NodeProcess node(options({"--capacity", "128MiB"}));
  TestClient client(endpoint(node), GetParam(), kFaultBlockBytes, kFaultBlocks);
  const auto chain = make_chain(1, kFaultBlocks);
  ASSERT_EQ(client.put(chain).stored, kFaultBlocks);
  GetLoop loop(client, chain, kDeadline);
  ASSERT_TRUE(loop.wait_for_rounds(2));
  node.signal(SIGTERM);
  EXPECT_EQ(node.wait(), 0) << node.log();
  const GetResult got = loop.finish();
  EXPECT_LT(got.block_count, kFaultBlocks);
  EXPECT_TRUE(is_known_reason(got.why)) << got.why.message();
  EXPECT_EQ(loop.wrong_bytes(), 0u);
}

TEST_P(E2eFaultTest, AClientKilledMidPutLeavesNothingIncoming) {
  const NodeProcess node(options({"--capacity", "256MiB"}));
  const std::string bench = bench_program(), url = endpoint(node), transport = transport_name(GetParam());
  const pid_t writer = ::fork();
  if (writer == 0) {
    ::execl(bench.c_str(), bench.c_str(), "run", "--op", "put", "--duration", "1h", "--memory", "64MiB", "--endpoint",
            url.c_str(), "--transport", transport.c_str(), "--concurrency", "2", nullptr);
    ::_exit(127);
  }
  ASSERT_GT(writer, 0);
  EXPECT_TRUE(eventually([&] { return node.metric("kvstore_stored_blocks_total") > 32; }));
  ::kill(writer, SIGKILL);
  ::waitpid(writer, nullptr, 0);
  EXPECT_TRUE(eventually([&] { return node.metric("kvstore_sessions") == 0; }));
  EXPECT_EQ(node.metric("kvstore_incoming_blocks"), 0);
  EXPECT_EQ(node.metric("kvstore_allocated_bytes"), node.metric("kvstore_blocks") * (2 << 20));
}

}  // namespace
}  // namespace kv::e2e
