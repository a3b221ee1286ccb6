// Calls that never block: submitted from any thread, reaped from a queue. Against a real node over sockets.
#include "client/completion_queue.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <thread>

#include "tests/client/real_nodes.h"

namespace kv {
namespace {

constexpr std::size_t kBlockBytes = 256 << 10;
constexpr std::size_t kBlocks = 8;

bool is_readable(int fd) {
  pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&one, 1, 0) == 1;
}

class CompletionQueueTest : public testing::Test {
 protected:
  std::unique_ptr<BlockingClient> make_client(const Endpoint& at, std::size_t connections = 2) {
    ClientConfig config;
    config.nodes.push_back({.endpoint = at.to_string()});
    config.connections_per_node = connections;
    config.backoff_min = config.backoff_max = 1ms;
    return std::make_unique<BlockingClient>(config);
  }
  std::unique_ptr<SocketNode> make_node() { return std::make_unique<SocketNode>(small_store(), "node", endpoint); }
  Endpoint nobody() const { return {Endpoint::Scheme::kUnix, directory.path() + "/nobody", ""}; }
  /// Stores the chain.
  void store() {
    Blocks blocks(kBlocks, kBlockBytes);
    blocks.fill(chain);
    ASSERT_EQ(client->put(space, chain, blocks.from, {.deadline = 5s})->stored, kBlocks);
  }
  /// One completion, which must come.
  static Completion next(CompletionQueue& queue) {
    Completion one;
    EXPECT_EQ(queue.reap({&one, 1}, 1, 10s).value(), 1u);
    return one;
  }

  TemporaryDirectory directory;
  Endpoint endpoint{Endpoint::Scheme::kUnix, directory.path() + "/node", ""};
  std::unique_ptr<SocketNode> node = make_node();
  std::unique_ptr<BlockingClient> client = make_client(endpoint);
  NamespaceRecord record = test_record(kBlockBytes);
  Space space = client->open(record, 5s).value();
  std::vector<BlockHash> chain = test_chain(record, kBlocks);
};

TEST_F(CompletionQueueTest, EveryVerbEndsWithItsResultAndItsTag) {
  CompletionQueue queue(*client);
  Blocks blocks(kBlocks, kBlockBytes);
  blocks.fill(chain);
  const auto put = queue.submit_put(space, chain, blocks.from, {.deadline = 5s}, 1).value();
  Completion end = next(queue);
  EXPECT_EQ(end.call, put);
  EXPECT_EQ(end.tag, 1u);
  EXPECT_EQ(end.verb, Verb::kPut);
  EXPECT_EQ(end.kind, Completion::Kind::kEnd);
  EXPECT_FALSE(end.error);
  EXPECT_EQ(end.put.stored, kBlocks);

  ASSERT_TRUE(queue.submit_match(space, chain, {.deadline = 5s, .lease = true}, 2));
  end = next(queue);
  EXPECT_EQ(end.tag, 2u);
  EXPECT_EQ(end.match.block_count, kBlocks);
  ASSERT_NE(end.match.lease, Lease{});
  blocks.clear();
  ASSERT_TRUE(queue.submit_get(space, chain, blocks.to, {.deadline = 5s, .lease = end.match.lease}, 3));
  end = next(queue);
  EXPECT_EQ(end.get.block_count, kBlocks);
  EXPECT_EQ(blocks.right(chain), kBlocks);

  ASSERT_TRUE(queue.submit_touch(space, chain, 5s));
  EXPECT_EQ(next(queue).count, kBlocks);
  ASSERT_TRUE(queue.submit_pin(space, chain, 5s));
  EXPECT_EQ(next(queue).count, kBlocks);
  ASSERT_TRUE(queue.submit_unpin(space, chain, 5s));
  EXPECT_EQ(next(queue).count, kBlocks);
  ASSERT_TRUE(queue.submit_drop(space, chain, 5s));
  EXPECT_EQ(next(queue).drop.block_count, 1u);
  ASSERT_TRUE(queue.submit_release(Lease{77}));
  EXPECT_FALSE(next(queue).error);
  ASSERT_TRUE(queue.submit_wait_open(space, 5s));
  EXPECT_FALSE(next(queue).error);
  ASSERT_TRUE(queue.submit_open(test_record(4096, "other"), 5s));
  end = next(queue);
  EXPECT_FALSE(end.error);
  EXPECT_EQ(client->block_bytes(end.space), 4096u);
  const auto lent = client->allocate(kBlockBytes).value();
  ASSERT_TRUE(queue.submit_lend(lent, 5s));
  EXPECT_EQ(next(queue).count, 2u);
  std::vector<std::byte> device(4096);
  ASSERT_TRUE(client->add_device_memory({.bytes = device}));
  ASSERT_TRUE(queue.submit_remove_device_memory(device, 5s));
  EXPECT_FALSE(next(queue).error);
  ASSERT_TRUE(queue.submit_other([](Client& there, CallControl) { return there.lend({}, 5s); }));
  EXPECT_EQ(next(queue).error, Errc::kBadRequest);
  EXPECT_EQ(queue.calls_in_flight(), 0u);
  EXPECT_EQ(queue.bytes_in_flight(), 0u);
}

TEST_F(CompletionQueueTest, ALoadMovesOnlyWhatIsFoundAndOnlyIfItIsEnough) {
  store();
  CompletionQueue queue(*client);
  const auto longer = [&] {
    auto both = test_chain(record, kBlocks + 4);
    return both;
  }();
  ASSERT_TRUE(std::equal(chain.begin(), chain.end(), longer.begin()));
  Blocks blocks(longer.size(), kBlockBytes);
  blocks.clear();
  ASSERT_TRUE(queue.submit_load(space, longer, blocks.to, {.deadline = 5s, .block_count_min = kBlocks + 1}));
  Completion end = next(queue);
  EXPECT_FALSE(end.error);
  EXPECT_EQ(end.match.block_count, kBlocks);
  EXPECT_EQ(end.get.block_count, 0u);
  EXPECT_EQ(blocks.memory[0], std::byte{0xEE}) << "too few: none is moved";

  ASSERT_TRUE(
      queue.submit_load(space, longer, blocks.to, {.deadline = 5s, .block_count_min = kBlocks, .tell_match = true}, 9));
  end = next(queue);
  EXPECT_EQ(end.kind, Completion::Kind::kMatched);
  EXPECT_EQ(end.tag, 9u);
  EXPECT_EQ(end.match.block_count, kBlocks);
  end = next(queue);
  EXPECT_EQ(end.kind, Completion::Kind::kEnd);
  EXPECT_EQ(end.get.block_count, kBlocks);
  EXPECT_EQ(end.match.block_count, kBlocks);
  EXPECT_EQ(blocks.right(longer), kBlocks);
  EXPECT_EQ(node->stats().lease_count, 0u) << "the leases of both are over";
}

TEST_F(CompletionQueueTest, SegmentsComeInOrderBeforeTheEnd) {
  store();
  CompletionQueue queue(*client);
  Blocks blocks(kBlocks, kBlockBytes);
  const std::uint64_t ends[] = {64 << 10, 128 << 10, kBlockBytes};
  for (const bool load : {false, true}) {
    const auto call = load ? queue.submit_load(space, chain, blocks.to, {.deadline = 5s, .segment_ends = ends})
                           : queue.submit_get(space, chain, blocks.to, {.deadline = 5s, .segment_ends = ends});
    for (std::size_t segment = 0; segment < 3; ++segment) {
      const Completion mark = next(queue);
      EXPECT_EQ(mark.call, *call);
      EXPECT_EQ(mark.kind, Completion::Kind::kSegment);
      EXPECT_EQ(mark.segment, segment);
      EXPECT_EQ(mark.get.block_count, kBlocks);
    }
    EXPECT_EQ(next(queue).kind, Completion::Kind::kEnd);
  }
}

TEST_F(CompletionQueueTest, TheEventDescriptorIsReadableExactlyWhileCompletionsWait) {
  store();
  CompletionQueue queue(*client);
  EXPECT_FALSE(is_readable(queue.fd()));
  const int epoll = ::epoll_create1(0);
  epoll_event event{.events = EPOLLIN, .data = {}};
  ASSERT_EQ(::epoll_ctl(epoll, EPOLL_CTL_ADD, queue.fd(), &event), 0);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(queue.submit_match(space, chain, {.deadline = 5s}));
  while (queue.calls_in_flight() > 0) {
    ASSERT_EQ(::epoll_wait(epoll, &event, 1, 10'000), 1);
    Completion one;
    ASSERT_EQ(queue.reap({&one, 1}).value(), 1u) << "readable, so something is there";
  }
  EXPECT_FALSE(is_readable(queue.fd()));
  Completion none;
  EXPECT_EQ(queue.reap({&none, 1}).value(), 0u);
  ::close(epoll);
}

TEST_F(CompletionQueueTest, OneReapTakesManyAndWaitsForAsManyAsAsked) {
  store();
  CompletionQueue queue(*client);
  constexpr std::size_t kCalls = 50;
  for (std::size_t i = 0; i < kCalls; ++i) ASSERT_TRUE(queue.submit_match(space, chain, {.deadline = 5s}, i));
  std::vector<Completion> ended(kCalls + 5);
  EXPECT_EQ(queue.reap(ended, SIZE_MAX, 10s).value(), kCalls) << "all there can be: nothing is in flight any more";
  std::map<std::uint64_t, int> tags;
  for (std::size_t i = 0; i < kCalls; ++i) ++tags[ended[i].tag];
  EXPECT_EQ(tags.size(), kCalls);
  EXPECT_EQ(queue.reap(ended, 1, 10s).value(), 0u) << "nothing is in flight: nobody waits for what cannot come";
}

TEST_F(CompletionQueueTest, NamedCallsAreWaitedFor) {
  store();
  CompletionQueue queue(*client);
  std::vector<CallId> calls;
  for (std::uint64_t i = 0; i < 4; ++i) calls.push_back(queue.submit_match(space, chain, {.deadline = 5s}, i).value());
  std::vector<Completion> ended(4);
  EXPECT_EQ(queue.wait(std::span(calls).subspan(2, 1), 1, 10s, ended).value(), 1u);
  EXPECT_EQ(ended[0].tag, 2u);
  EXPECT_EQ(queue.wait(calls, 1, 10s, ended).error(), Errc::kNotFound) << "one of them was reaped";
  calls.erase(calls.begin() + 2);
  EXPECT_EQ(queue.wait(calls, 3, 10s, ended).value(), 3u);
  EXPECT_EQ(ended[2].tag, 3u);
  EXPECT_EQ(queue.wait(calls, 4, 10s, ended).error(), Errc::kBadRequest);
  EXPECT_EQ(queue.wait({}, 0, 10s, ended).value(), 0u);
  const CallId never[] = {CallId{12345678}, CallId{0}};
  EXPECT_EQ(queue.wait(never, 1, 10s, ended).error(), Errc::kNotFound);
  EXPECT_EQ(queue.cancel(calls[0]).error(), Errc::kNotFound);
  EXPECT_FALSE(is_readable(queue.fd()));
}

TEST_F(CompletionQueueTest, CallsAndBytesInFlightAreBoundedUntilTheyAreReaped) {
  store();
  CompletionQueue calls(*client, {.calls_max = 3});
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(calls.submit_match(space, chain, {.deadline = 5s}));
    EXPECT_EQ(calls.submit_match(space, chain, {.deadline = 5s}).error(), Errc::kBusy);
    std::vector<Completion> ended(3);
    EXPECT_EQ(calls.reap(ended, 1, 10s).value() > 0, true);
    EXPECT_TRUE(calls.submit_match(space, chain, {.deadline = 5s}));
    while (calls.calls_in_flight() > 0) ASSERT_TRUE(calls.reap(ended, 1, 10s));
  }

  CompletionQueue bytes(*client, {.bytes_max = 2 * kBlocks * kBlockBytes});
  Blocks one(kBlocks, kBlockBytes), two(kBlocks, kBlockBytes);
  ASSERT_TRUE(bytes.submit_get(space, chain, one.to, {.deadline = 5s}));
  EXPECT_EQ(bytes.submit_get(space, chain, two.to, {.deadline = 5s}).error(), Errc::kBusy)
      << "both, and what is copied, are a little more than the bound";
  EXPECT_EQ(next(bytes).get.block_count, kBlocks);
  EXPECT_EQ(bytes.bytes_in_flight(), 0u);
  ASSERT_TRUE(bytes.submit_get(space, chain, two.to, {.deadline = 5s}));
  EXPECT_EQ(next(bytes).get.block_count, kBlocks);
  CompletionQueue tiny(*client, {.bytes_max = kBlockBytes});
  EXPECT_EQ(tiny.submit_get(space, chain, one.to, {.deadline = 5s}).error(), Errc::kTooLarge);
  EXPECT_THROW(CompletionQueue(*client, {.calls_max = 0}), std::invalid_argument);
  EXPECT_THROW(CompletionQueue(*client, {.bytes_max = 0}), std::invalid_argument);
}

}  // namespace
}  // namespace kv
