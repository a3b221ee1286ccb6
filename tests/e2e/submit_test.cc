// Calls that never block, on processes that stop, die and come back between the submit and the end.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <vector>

#include "tests/client/typed_calls.h"
#include "tests/e2e/node_process.h"
#include "tests/e2e/test_client.h"

namespace kv::e2e {
namespace {

constexpr std::size_t kSubmitBlockBytes = 1 << 20, kSubmitBlocks = 32;

class E2eSubmitTest : public testing::TestWithParam<Transport> {
 protected:
  void SetUp() override {
    if (const std::string why = lacks(GetParam()); !why.empty()) GTEST_SKIP() << why;
    ASSERT_EQ(client.put(chain).stored, kSubmitBlocks);
  }
  static Completion next(TypedQueue& queue) {
    Completion one;
    EXPECT_EQ(queue.reap({&one, 1}, 1, kDeadline).value(), 1u);
    return one;
  }
  /// Returns once it has stopped: a signal that was only sent leaves time for an answer.
  void stop() {
    node->signal(SIGSTOP);
    int status = 0;
    ASSERT_EQ(::waitpid(node->pid(), &status, WUNTRACED), node->pid());
    ASSERT_TRUE(WIFSTOPPED(status));
  }
  bool is_lent() const { return GetParam() == Transport::kShm || GetParam() == Transport::kVerbs; }

  TempDir directory;
  std::string socket = directory.path() + "/socket";
  std::unique_ptr<NodeProcess> node =
      std::make_unique<NodeProcess>(node_options(GetParam(), {"--capacity", "128MiB"}), socket);
  TestClient client{endpoint_of(*node, GetParam()), GetParam(), kSubmitBlockBytes, kSubmitBlocks};
  std::vector<BlockHash> chain = make_chain(1, kSubmitBlocks);
  std::vector<std::span<std::byte>> blocks = client.blocks(kSubmitBlocks);
};

INSTANTIATE_TEST_SUITE_P(Transports, E2eSubmitTest, testing::Values(Transport::kTcp, Transport::kUnix, Transport::kShm),
                         [](const auto& one) { return std::string(transport_name(one.param)); });

TEST_P(E2eSubmitTest, AGetFromAStoppedNodeIsCancelledAndItsMemoryIsQuarantinedUntilTheNodeGoesOn) {
  TypedQueue queue(*client);
  stop();
  const std::uint64_t calls = client->nodes()[0].calls;
  const auto get = queue.submit_get(client.space(), chain, blocks, {.deadline = 1h}).value();
  ASSERT_TRUE(eventually([&] { return client->nodes()[0].calls > calls; })) << "sent, else nothing is quarantined";
  Completion none;
  EXPECT_EQ(queue.reap({&none, 1}).value(), 0u);
  ASSERT_TRUE(queue.cancel(get));
  const Completion end = next(queue);
  EXPECT_EQ(end.error, Errc::kCancelled);
  EXPECT_LT(end.get.block_count, kSubmitBlocks);
  EXPECT_EQ(client->is_quarantined(client.memory()), is_lent());
  if (is_lent()) {
    ASSERT_TRUE(queue.submit_get(client.space(), chain, blocks, {.deadline = 1h}));
    EXPECT_EQ(next(queue).error, Errc::kQuarantined);
  }
  EXPECT_FALSE(client->nodes()[0].breaker_open);
  node->signal(SIGCONT);
  EXPECT_TRUE(eventually([&] { return !client->is_quarantined(client.memory()); }));
  ASSERT_TRUE(queue.submit_get(client.space(), chain, blocks, {.deadline = kDeadline}));
  EXPECT_EQ(next(queue).get.block_count, kSubmitBlocks);
  EXPECT_EQ(client.wrong_bytes(chain, kSubmitBlocks), 0u);
}

TEST_P(E2eSubmitTest, ADeadlineOnAStoppedNodeIsASmallerResult) {
  TypedQueue queue(*client);
  stop();
  ASSERT_TRUE(queue.submit_get(client.space(), chain, blocks, {.deadline = 200ms}, 1));
  ASSERT_TRUE(queue.submit_match(client.space(), chain, {.deadline = 200ms}, 2));
  for (int i = 0; i < 2; ++i) {
    const Completion end = next(queue);
    EXPECT_FALSE(end.error);
    EXPECT_EQ(end.tag == 1 ? end.get.why : end.match.why, asio::error::timed_out)
        << "call " << end.tag << ": " << end.get.block_count << " got, " << end.match.block_count << " found";
  }
  node->signal(SIGCONT);
}

TEST_P(E2eSubmitTest, QueueAndClientCloseWhileTheNodeIsStopped) {
  TypedClient other({.nodes = {{.endpoint = endpoint_of(*node, GetParam())}}});
  const Space space = other.open(client.record(), kDeadline).value();
  ASSERT_TRUE(other.wait_open(space, kDeadline));
  stop();
  const auto before = std::chrono::steady_clock::now();
  {
    TypedQueue closed_first(other);
    ASSERT_TRUE(closed_first.submit_match(space, chain, {.deadline = 1h}));
    const std::vector<std::span<const std::byte>> sources(blocks.begin(), blocks.end());
    ASSERT_TRUE(closed_first.submit_put(space, chain, sources, {.deadline = 1h}));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - before, 20s) << "no node is waited for";
  node->signal(SIGCONT);
}

TEST_P(E2eSubmitTest, CallsOnANodeThatIsKilledEndAndItsSuccessorIsFound) {
  TypedQueue queue(*client);
  for (std::uint64_t i = 0; i < 32; ++i) {
    ASSERT_TRUE(queue.submit_match(client.space(), chain, {.deadline = kDeadline}, i));
  }
  ASSERT_TRUE(queue.submit_get(client.space(), chain, blocks, {.deadline = kDeadline}, 99));
  node->signal(SIGKILL);
  std::vector<Completion> ended(33);
  ASSERT_EQ(queue.reap(ended, 33, 2 * kDeadline).value(), 33u);
  for (const Completion& one : ended) {
    EXPECT_FALSE(one.error) << one.error.message();
    const error_code why = one.tag == 99 ? one.get.why : one.match.why;
    EXPECT_TRUE(!why || why == Errc::kUnavailable || why == asio::error::timed_out) << why.message();
    if (one.tag == 99) {
      EXPECT_EQ(client.wrong_bytes(chain, one.get.block_count), 0u);
    }
  }
  node->wait();
  if (GetParam() == Transport::kTcp) return;  // its successor has another port
  node = std::make_unique<NodeProcess>(node_options(GetParam(), {"--capacity", "128MiB"}), socket);
  EXPECT_TRUE(eventually([&] {
    if (!queue.submit_match(client.space(), chain, {.deadline = 1h})) return false;
    const Completion end = next(queue);
    return !end.error && !end.match.why && end.match.block_count == 0;
  })) << "connected in the background, and empty";
}

}  // namespace
}  // namespace kv::e2e
