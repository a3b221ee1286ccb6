// Calls that never block: submitted from any thread, reaped from a queue. Against a real node over sockets.
#include "tests/client/typed_calls.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <map>
#include <random>
#include <semaphore>
#include <thread>

#include "base/event.h"
#include "tests/client/failing_allocations.h"
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
  std::unique_ptr<TypedClient> make_client(const Endpoint& at, std::size_t connections = 2) {
    ClientConfig config;
    config.nodes.push_back({.endpoint = at.to_string()});
    config.connections_per_node = connections;
    config.backoff_min = config.backoff_max = 1ms;
    return std::make_unique<TypedClient>(config);
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
  static Completion next(TypedQueue& queue) {
    Completion one;
    EXPECT_EQ(queue.reap({&one, 1}, 1, 10s).value(), 1u);
    return one;
  }

  TemporaryDirectory directory;
  Endpoint endpoint{Endpoint::Scheme::kUnix, directory.path() + "/node", ""};
  std::unique_ptr<SocketNode> node = make_node();
  std::unique_ptr<TypedClient> client = make_client(endpoint);
  NamespaceRecord record = test_record(kBlockBytes);
  Space space = client->open(record, 5s).value();
  std::vector<BlockHash> chain = test_chain(record, kBlocks);
  NamespaceRecord set_record =
      NamespaceRecord::from_fields({{"model", "m"}, {"kind", "set"}, {"block_bytes_max", std::to_string(kBlockBytes)}})
          .value();
};

TEST_F(CompletionQueueTest, EveryOperationEndsWithItsResultAndItsTag) {
  TypedQueue queue(*client);
  Blocks blocks(kBlocks, kBlockBytes);
  blocks.fill(chain);
  const auto put = queue.submit_put(space, chain, blocks.from, {.deadline = 5s}, 1).value();
  Completion end = next(queue);
  EXPECT_EQ(end.call, put);
  EXPECT_EQ(end.tag, 1u);
  EXPECT_EQ(end.op, Op::kPut);
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
  ASSERT_TRUE(queue.submit_retain(space, chain, 5s));
  EXPECT_EQ(next(queue).count, kBlocks);
  ASSERT_TRUE(queue.submit_unretain(space, chain, 5s));
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

TEST_F(CompletionQueueTest, CallsOfASetEndWithAResultForEachName) {
  const Space set = client->open(set_record, 5s).value();
  TypedQueue queue(*client);
  Blocks blocks(kBlocks, kBlockBytes);
  blocks.fill(chain);
  std::vector<std::span<const std::byte>> from;
  for (std::size_t i = 0; i + 1 < kBlocks; ++i) from.push_back(blocks.from[i].first(1 + i * 30'000));
  const std::span<const BlockHash> known = std::span(chain).first(kBlocks - 1);
  const auto put = queue.submit_put_set(set, known, from, {.deadline = 5s}, 1).value();
  Completion end = next(queue);
  EXPECT_EQ(end.call, put);
  EXPECT_EQ(end.op, Op::kPutSet);
  EXPECT_EQ(end.tag, 1u);
  ASSERT_TRUE(!end.error && end.sets);
  EXPECT_EQ(end.sets->put.stored, kBlocks - 1);
  EXPECT_EQ(end.sets->put.blocks, std::vector<SetPutBlock>(kBlocks - 1, SetPutBlock::kStored));

  ASSERT_TRUE(queue.submit_match_set(set, chain, {.deadline = 5s, .lease = true}, 2));
  end = next(queue);
  ASSERT_TRUE(end.sets);
  EXPECT_EQ(end.sets->match.held_count, kBlocks - 1);
  ASSERT_EQ(end.sets->match.held.size(), kBlocks);
  EXPECT_EQ(end.sets->match.held[0], Held::kInMemory);
  EXPECT_EQ(end.sets->match.held[kBlocks - 1], Held::kNowhere);
  EXPECT_EQ(end.sets->match.block_bytes[2], 60'001u);
  const Lease lease = end.sets->match.lease;
  ASSERT_NE(lease, Lease{});

  // Group counts are copied: the caller's list may go.
  auto counts = std::make_unique<std::vector<std::uint32_t>>(std::vector<std::uint32_t>{2, kBlocks - 2});
  ASSERT_TRUE(queue.submit_match_set(set, chain, {.deadline = 5s, .group_counts = *counts}, 9));
  counts.reset();
  end = next(queue);
  ASSERT_TRUE(end.sets);
  EXPECT_EQ(end.sets->match.held_count, 2u);
  ASSERT_TRUE(queue.submit_match_set(set, chain, {.deadline = 5s, .group_counts = std::vector{1u}}, 9));
  EXPECT_EQ(next(queue).error, Errc::kBadRequest);

  blocks.clear();
  blocks.to[1] = blocks.to[1].first(30'000);  // one byte too short
  ASSERT_TRUE(queue.submit_get_set(set, chain, blocks.to, {.deadline = 5s, .lease = lease}, 3));
  end = next(queue);
  ASSERT_TRUE(end.sets);
  EXPECT_EQ(end.sets->get.landed_count, kBlocks - 2);
  ASSERT_EQ(end.sets->get.blocks.size(), kBlocks);
  for (std::size_t i = 0; i < kBlocks; ++i) {
    const SetGetBlock& block = end.sets->get.blocks[i];
    EXPECT_EQ(block.has_landed, i != 1 && i + 1 < kBlocks) << i;
    EXPECT_EQ(block.why, i == 1 ? make_error_code(Errc::kTooLarge) : error_code()) << i;
    if (!block.has_landed) continue;
    std::vector<std::byte> expected(block.block_bytes);
    fill_block(chain[i], expected);
    // The generator's words are cut at the length, so a shorter block begins as a longer one.
    EXPECT_TRUE(std::ranges::equal(expected, blocks.to[i].first(block.block_bytes))) << i;
  }

  ASSERT_TRUE(queue.submit_get_set(space, chain, blocks.to, {.deadline = 5s}));
  end = next(queue);
  EXPECT_EQ(end.error, Errc::kUnsupported) << "a chain is no set";
  EXPECT_FALSE(end.sets);
  ASSERT_TRUE(queue.submit_match(set, chain, {.deadline = 5s}));
  EXPECT_EQ(next(queue).error, Errc::kUnsupported);
  EXPECT_EQ(queue.submit_put_set(set, chain, from, {.deadline = 5s}).error(), Errc::kBadRequest);
  EXPECT_EQ(queue.submit_get_set(set, known, blocks.to, {.deadline = 5s}).error(), Errc::kBadRequest);
  EXPECT_EQ(queue.calls_in_flight(), 0u);
  EXPECT_EQ(queue.bytes_in_flight(), 0u);
}

TEST_F(CompletionQueueTest, ALoadMovesOnlyWhatIsFoundAndOnlyIfItIsEnough) {
  store();
  TypedQueue queue(*client);
  const auto longer = test_chain(record, kBlocks + 4);
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
  TypedQueue queue(*client);
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
  TypedQueue queue(*client);
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
  TypedQueue queue(*client);
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
  TypedQueue queue(*client);
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

TEST_F(CompletionQueueTest, WhoHasNoRoomWaitsAndTakesNothing) {
  store();
  TypedQueue queue(*client);
  const CallId calls[] = {queue.submit_match(space, chain, {.deadline = 5s}).value(),
                          queue.submit_match(space, chain, {.deadline = 5s}).value()};
  EXPECT_EQ(queue.wait(calls, 2, 10s, {}).value(), 2u);
  EXPECT_EQ(queue.reap({}, 2, 10s).value(), 0u);
  EXPECT_TRUE(is_readable(queue.fd()));
  std::vector<Completion> ended(2);
  EXPECT_EQ(queue.reap(ended).value(), 2u);
}

TEST_F(CompletionQueueTest, CallsAndBytesInFlightAreBoundedUntilTheyAreReaped) {
  store();
  TypedQueue calls(*client, {.calls_max = 3});
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(calls.submit_match(space, chain, {.deadline = 5s}));
    EXPECT_EQ(calls.submit_match(space, chain, {.deadline = 5s}).error(), Errc::kBusy);
    std::vector<Completion> ended(3);
    EXPECT_EQ(calls.reap(ended, 1, 10s).value() > 0, true);
    EXPECT_TRUE(calls.submit_match(space, chain, {.deadline = 5s}));
    while (calls.calls_in_flight() > 0) ASSERT_TRUE(calls.reap(ended, 1, 10s));
  }

  TypedQueue bytes(*client, {.bytes_max = 2 * kBlocks * kBlockBytes});
  Blocks one(kBlocks, kBlockBytes), two(kBlocks, kBlockBytes);
  ASSERT_TRUE(bytes.submit_get(space, chain, one.to, {.deadline = 5s}));
  EXPECT_EQ(bytes.submit_get(space, chain, two.to, {.deadline = 5s}).error(), Errc::kBusy)
      << "both, and what is copied, are a little more than the bound";
  EXPECT_EQ(next(bytes).get.block_count, kBlocks);
  EXPECT_EQ(bytes.bytes_in_flight(), 0u);
  ASSERT_TRUE(bytes.submit_get(space, chain, two.to, {.deadline = 5s}));
  EXPECT_EQ(next(bytes).get.block_count, kBlocks);
  TypedQueue tiny(*client, {.bytes_max = kBlockBytes});
  EXPECT_EQ(tiny.submit_get(space, chain, one.to, {.deadline = 5s}).error(), Errc::kTooLarge);
  // Counts whose bytes wrap around to a few: nothing of the lists may be looked at.
  TypedQueue wide(*client, {.bytes_max = PTRDIFF_MAX});
  constexpr std::size_t kWraps = (std::size_t{1} << 59) + 1;
  const std::span<const BlockHash> many(chain.data(), kWraps);
  const std::span<const std::span<std::byte>> many_to(one.to.data(), kWraps);
  const std::span<const std::span<const std::byte>> many_from(one.from.data(), kWraps);
  for (TypedQueue* const queue : {&tiny, &wide}) {
    EXPECT_EQ(queue->submit_match(space, many, {.deadline = 5s}).error(), Errc::kTooLarge);
    EXPECT_EQ(queue->submit_touch(space, many, 5s).error(), Errc::kTooLarge);
    EXPECT_EQ(queue->submit_get(space, many, many_to, {.deadline = 5s}).error(), Errc::kTooLarge);
    EXPECT_EQ(queue->submit_put(space, many, many_from, {.deadline = 5s}).error(), Errc::kTooLarge);
    EXPECT_EQ(queue->submit_match_set(space, many, {.deadline = 5s}).error(), Errc::kTooLarge);
    EXPECT_EQ(queue->submit_get_set(space, many, many_to, {.deadline = 5s}).error(), Errc::kTooLarge);
    EXPECT_EQ(queue->submit_put_set(space, many, many_from, {.deadline = 5s}).error(), Errc::kTooLarge);
    EXPECT_EQ(queue->bytes_in_flight(), 0u);
  }
  EXPECT_THROW(TypedQueue(*client, {.calls_max = 0}), std::invalid_argument);
  EXPECT_THROW(TypedQueue(*client, {.bytes_max = 0}), std::invalid_argument);
}

// -- nodes that are away, hang, die and come back

/// Accepts connections, in the kernel, and never says a word.
class SilentListener {
 public:
  explicit SilentListener(const std::string& path) : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof address.sun_path, "%s", path.c_str());
    KV_ASSERT(::bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 && ::listen(fd_, 64) == 0);
  }
  ~SilentListener() { ::close(fd_); }

 private:
  const int fd_;
};

TEST_F(CompletionQueueTest, WhileTheNodeIsAwayEachCallIsAnsweredAtOnce) {
  const SilentListener hangs(directory.path() + "/hangs");
  for (const char* name : {"/nobody", "/hangs"}) {
    auto away = make_client({Endpoint::Scheme::kUnix, directory.path() + name, ""});
    TypedQueue queue(*away);
    ASSERT_TRUE(queue.submit_open(record, 0us));
    const Completion opened = next(queue);
    ASSERT_FALSE(opened.error) << "a worker starts while the store is away";
    Blocks blocks(kBlocks, kBlockBytes);
    const auto before = std::chrono::steady_clock::now();
    ASSERT_TRUE(queue.submit_match(opened.space, chain, {.deadline = 1h}));
    Completion end = next(queue);
    EXPECT_FALSE(end.error);
    EXPECT_EQ(end.match.why, Errc::kUnavailable);
    ASSERT_TRUE(queue.submit_load(opened.space, chain, blocks.to, {.deadline = 1h}));
    end = next(queue);
    EXPECT_EQ(end.get.block_count, 0u);
    EXPECT_EQ(end.get.why, Errc::kUnavailable);
    ASSERT_TRUE(queue.submit_put(opened.space, chain, blocks.from, {.deadline = 1h}));
    end = next(queue);
    EXPECT_EQ(end.put.refused, kBlocks);
    EXPECT_EQ(end.put.why, Errc::kUnavailable);
    ASSERT_TRUE(queue.submit_touch(opened.space, chain, 1h));
    EXPECT_EQ(next(queue).error, Errc::kUnavailable);
    EXPECT_LT(std::chrono::steady_clock::now() - before, 10s);
  }
}

TEST_F(CompletionQueueTest, LookupsFindTheStoreOnceItIsThere) {
  node.reset();
  TypedQueue queue(*client);
  ASSERT_TRUE(queue.submit_match(space, chain, {.deadline = 1h}));
  EXPECT_EQ(next(queue).match.why, Errc::kUnavailable);
  node = make_node();
  Completion end;
  const auto give_up_at = std::chrono::steady_clock::now() + 30s;
  do {
    ASSERT_TRUE(queue.submit_match(space, chain, {.deadline = 1h}));
    end = next(queue);
  } while (end.match.why && std::chrono::steady_clock::now() < give_up_at);
  EXPECT_FALSE(end.match.why) << end.match.why.message();
}

TEST_F(CompletionQueueTest, ACancelledCallEndsSoonAndThenItsMemoryIsTheCallers) {
  const SilentListener hangs(directory.path() + "/hangs");
  auto stuck = make_client({Endpoint::Scheme::kUnix, directory.path() + "/hangs", ""});
  const Space away = stuck->open(record, 0us).value();
  TypedQueue queue(*stuck, {.wait_while_away = true});
  auto blocks = std::make_unique<Blocks>(kBlocks, kBlockBytes);
  const auto get = queue.submit_get(away, chain, blocks->to, {.deadline = 1h}, 1).value();
  const auto match = queue.submit_match(away, chain, {.deadline = 1h}, 2).value();
  const auto open = queue.submit_wait_open(away, 1h, 3).value();
  const Space set = stuck->open(set_record, 0us).value();
  const auto get_set = queue.submit_get_set(set, chain, blocks->to, {.deadline = 1h}, 4).value();
  const auto put_set = queue.submit_put_set(set, chain, blocks->from, {.deadline = 1h}, 5).value();
  const auto match_set = queue.submit_match_set(set, chain, {.deadline = 1h}, 6).value();
  Completion none;
  EXPECT_EQ(queue.reap({&none, 1}, 1, 20ms).value(), 0u) << "they wait for the node";
  for (const CallId call : {get, match, open, get_set, put_set, match_set}) EXPECT_TRUE(queue.cancel(call));
  for (int i = 0; i < 6; ++i) {
    const Completion end = next(queue);
    EXPECT_EQ(end.error, Errc::kCancelled) << end.tag;
    if (end.tag == 4) {
      ASSERT_TRUE(end.sets && end.sets->get.blocks.size() == kBlocks);
      EXPECT_EQ(end.sets->get.blocks[0].why, Errc::kCancelled);
    }
    if (end.tag == 5) {
      ASSERT_TRUE(end.sets);
      EXPECT_EQ(end.sets->put.refused, kBlocks);
    }
  }
  blocks.reset();  // nothing names it any more
  EXPECT_EQ(queue.calls_in_flight(), 0u);
}

/// What a call waits for until it is cancelled. The I/O thread then waits in it until it may go on.
class HeldCancel final : public Cancellable {
 public:
  static Async<std::size_t> wait(HeldCancel& held, CallControl control) {
    Event cancelled(co_await asio::this_coro::executor);
    held.cancelled_ = &cancelled;
    control.cancellation->set_target(&held);
    while (!cancelled.is_set()) co_await cancelled.wait();
    control.cancellation->set_target(nullptr);
    co_return error_code(Errc::kCancelled);
  }
  std::binary_semaphore has_begun{0}, may_go_on{0};

 private:
  void cancel() override {
    has_begun.release();
    may_go_on.acquire();
    cancelled_->set();
  }
  Event* cancelled_ = nullptr;
};

TEST_F(CompletionQueueTest, AWishForACallThatHasEndedHidesNoneForTheNextInItsPlace) {
  TypedQueue queue(*client);
  HeldCancel first, second;
  second.may_go_on.release();
  const auto held = queue.submit_other([&](Client&, CallControl control) { return HeldCancel::wait(first, control); });
  ASSERT_TRUE(held);
  const auto over = queue.submit_touch(space, {}, 5s, 1);
  ASSERT_TRUE(over);
  while (!is_readable(queue.fd())) std::this_thread::yield();
  // Two wishes that the I/O thread takes at once, since it is held up meanwhile. The second is too late for its call.
  std::binary_semaphore is_held{0}, both_wished{0};
  ASSERT_TRUE(queue.submit_other(
      [&](Client& there, CallControl) {
        is_held.release();
        both_wished.acquire();
        return there.lend({}, 5s);
      },
      2));
  is_held.acquire();
  ASSERT_TRUE(queue.cancel(*held));
  ASSERT_TRUE(queue.cancel(*over));
  both_wished.release();
  first.has_begun.acquire();
  // It carries out the first one, and has yet to look at the second, while the place of that one is another call's.
  EXPECT_EQ(next(queue).tag, 1u);
  const auto newer =
      queue.submit_other([&](Client&, CallControl control) { return HeldCancel::wait(second, control); }, 3);
  ASSERT_TRUE(newer);
  EXPECT_TRUE(queue.cancel(*newer));
  first.may_go_on.release();
  std::array<Completion, 3> ended;
  ASSERT_EQ(queue.reap(ended, 3, 10s).value(), 3u) << "the last wish was lost";
  for (const Completion& one : ended) {
    EXPECT_EQ(one.error == Errc::kCancelled, one.tag != 2) << one.tag;
  }
}

TEST_F(CompletionQueueTest, ADeadlineCountsFromTheSubmitAndIsASmallerResult) {
  const SilentListener hangs(directory.path() + "/hangs");
  auto stuck = make_client({Endpoint::Scheme::kUnix, directory.path() + "/hangs", ""});
  const Space away = stuck->open(record, 0us).value();
  TypedQueue queue(*stuck, {.wait_while_away = true});
  ASSERT_TRUE(queue.submit_match(away, chain, {.deadline = 30ms}));
  Completion end = next(queue);
  EXPECT_FALSE(end.error);
  EXPECT_TRUE(end.match.why == asio::error::timed_out || end.match.why == Errc::kUnavailable)
      << end.match.why.message();
  // Late before it could begin: the I/O thread is held up until the deadline has passed.
  TypedQueue late(*client);
  const Space set = client->open(set_record, 0us).value();
  std::binary_semaphore is_past{0};
  ASSERT_TRUE(late.submit_other([&is_past](Client& there, CallControl) {
    is_past.acquire();
    return there.lend({}, 5s);
  }));
  ASSERT_TRUE(late.submit_match(space, chain, {.deadline = 10ms}, 7));
  const Blocks blocks(kBlocks, kBlockBytes);
  ASSERT_TRUE(late.submit_put(space, chain, blocks.from, {.deadline = 10ms}, 8));
  ASSERT_TRUE(late.submit_touch(space, chain, 10ms, 9));
  ASSERT_TRUE(late.submit_match_set(set, chain, {.deadline = 10ms}, 10));
  std::this_thread::sleep_for(11ms);
  is_past.release();
  for (int i = 0; i < 5; ++i) {
    end = next(late);
    if (end.tag == 10) {
      ASSERT_TRUE(end.sets && end.sets->match.held.size() == kBlocks);
      EXPECT_EQ(end.sets->match.why, asio::error::timed_out);
    }
    if (end.tag == 7) {
      EXPECT_EQ(end.match.why, asio::error::timed_out);
    }
    if (end.tag == 8) {
      EXPECT_EQ(end.put.why, asio::error::timed_out);
    }
    if (end.tag == 8) {
      EXPECT_EQ(end.put.refused, kBlocks);
    }
    if (end.tag == 9) {
      EXPECT_EQ(end.error, asio::error::timed_out);
    }
  }
  EXPECT_EQ(client->nodes()[0].timeouts, 0u) << "no node was late";
  EXPECT_EQ(late.submit_match(space, chain, {.deadline = 25h}).error(), Errc::kBadRequest);
}

TEST_F(CompletionQueueTest, CallsOnANodeThatDiesEndWithAReason) {
  store();
  TypedQueue queue(*client);
  std::vector<std::unique_ptr<Blocks>> memory;
  for (std::size_t i = 0; i < 16; ++i) {
    memory.push_back(std::make_unique<Blocks>(kBlocks, kBlockBytes));
    ASSERT_TRUE(queue.submit_get(space, chain, memory.back()->to, {.deadline = 20s}, i));
  }
  node.reset();
  std::vector<Completion> ended(16);
  ASSERT_EQ(queue.reap(ended, 16, 20s).value(), 16u);
  for (const Completion& one : ended) {
    EXPECT_FALSE(one.error);
    EXPECT_EQ(one.get.block_count < kBlocks, static_cast<bool>(one.get.why)) << one.get.why.message();
    if (one.get.block_count > 0) {
      EXPECT_GE(memory[one.tag]->right(chain), one.get.block_count);
    }
  }
  node = make_node();
  EXPECT_TRUE(client->wait_open(space, 20s));
  ASSERT_TRUE(queue.submit_match(space, chain, {.deadline = 20s}));
  EXPECT_FALSE(next(queue).error);
}

TEST_F(CompletionQueueTest, AReasonNamesTheNodeToThoseWhoWantIt) {
  TypedQueue told(*client, {.tells_reason = true}), untold(*client);
  for (TypedQueue* queue : {&told, &untold}) {
    ASSERT_TRUE(queue->submit_match(space, chain, {.deadline = 20s}));
    EXPECT_EQ(next(*queue).reason, "") << "nothing has failed";
  }
  node.reset();
  for (TypedQueue* queue : {&told, &untold}) {
    Completion end;
    do {  // the client may not have noticed
      ASSERT_TRUE(queue->submit_match(space, chain, {.deadline = 20s}));
      end = next(*queue);
    } while (!end.match.why);
    EXPECT_EQ(end.reason.find(endpoint.to_string()) != std::string::npos, queue == &told) << end.reason;
  }
  node = make_node();
}

// -- the end

TEST_F(CompletionQueueTest, AQueueIsClosedWithCallsInFlight) {
  store();
  for (int round = 0; round < 20; ++round) {
    std::vector<std::unique_ptr<Blocks>> memory;
    {
      TypedQueue queue(*client);
      for (int i = 0; i < 8; ++i) {
        memory.push_back(std::make_unique<Blocks>(kBlocks, kBlockBytes));
        ASSERT_TRUE(queue.submit_get(space, chain, memory.back()->to, {.deadline = 1h}));
      }
      if (round % 2 == 0) std::this_thread::yield();
    }
    memory.clear();  // nothing may write there any more
  }
  EXPECT_EQ(client->match(space, chain, {.deadline = 5s})->block_count, kBlocks) << "the client goes on";
}

TEST_F(CompletionQueueTest, WhatWasShutDownCanBeReaped) {
  const SilentListener hangs(directory.path() + "/hangs");
  auto stuck = make_client({Endpoint::Scheme::kUnix, directory.path() + "/hangs", ""});
  const Space away = stuck->open(record, 0us).value();
  TypedQueue queue(*stuck, {.wait_while_away = true});
  for (std::uint64_t i = 0; i < 40; ++i) ASSERT_TRUE(queue.submit_match(away, chain, {.deadline = 1h}, i));
  std::thread waits([&] {
    std::vector<Completion> ended(50);
    EXPECT_EQ(queue.reap(ended, 50, 20s).value(), 40u) << "woken, since no more can come";
    for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(ended[i].error, Errc::kCancelled);
  });
  queue.shutdown();
  waits.join();
  EXPECT_EQ(queue.submit_match(away, chain, {.deadline = 1h}).error(), Errc::kCancelled);
  queue.shutdown();
}

TEST_F(CompletionQueueTest, AQueueOutlivesItsClient) {
  store();
  Blocks blocks(kBlocks, kBlockBytes);
  TypedQueue queue(*client);
  TypedQueue idle(*client);
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(queue.submit_match(space, chain, {.deadline = 1h}));
  ASSERT_TRUE(queue.submit_get(space, chain, blocks.to, {.deadline = 1h}));
  client.reset();
  std::vector<Completion> ended(9);
  ASSERT_EQ(queue.reap(ended, 9, 10s).value(), 9u);
  for (const Completion& one : ended) EXPECT_TRUE(!one.error || one.error == Errc::kCancelled) << one.error.message();
  EXPECT_EQ(queue.submit_match(space, chain, {.deadline = 1h}).error(), Errc::kCancelled);
  EXPECT_EQ(queue.block_bytes(space), kBlockBytes);
}

TEST_F(CompletionQueueTest, AnInternalErrorEndsAllCallsAndRefusesMore) {
  const SilentListener hangs(directory.path() + "/hangs");
  auto stuck = make_client({Endpoint::Scheme::kUnix, directory.path() + "/hangs", ""});
  const Space away = stuck->open(record, 0us).value();
  auto queue = std::make_unique<TypedQueue>(*stuck, CompletionQueueOptions{.wait_while_away = true});
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(queue->submit_match(away, chain, {.deadline = 1h}));
  ASSERT_TRUE(queue->submit_other([](Client&, CallControl) -> Async<std::size_t> {
    throw std::logic_error("as a failed assertion");
    co_return std::size_t{0};
  }));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(next(*queue).error, Errc::kUnavailable);
  EXPECT_TRUE(queue->is_disabled());
  EXPECT_EQ(queue->submit_match(away, chain, {.deadline = 1h}).error(), Errc::kUnavailable);
  TypedQueue later(*stuck);
  EXPECT_TRUE(later.is_disabled());
  EXPECT_EQ(later.submit_match(away, chain, {.deadline = 1h}).error(), Errc::kUnavailable);
  queue.reset();
}

#if KV_ALLOCATIONS_FAIL
TEST_F(CompletionQueueTest, NoCallIsLostWhereTheIoThreadHasNoMemory) {
  store();
  constexpr std::size_t kCalls = 300;  // more than one look at the list takes without memory of its own
  for (long count = 0; count < 8; ++count) {
    SCOPED_TRACE(count);
    const auto failing = make_client(endpoint);
    const Space there = failing->open(record, 10s).value();
    TypedQueue queue(*failing, {.calls_max = kCalls + 1});
    std::binary_semaphore all_submitted{0};
    ASSERT_TRUE(queue.submit_other([&all_submitted, count](Client& failing_client, CallControl) {
      all_submitted.acquire();
      allocations_left = count;  // of the I/O thread, which runs this
      return failing_client.lend({}, 5s);
    }));
    for (std::size_t i = 0; i < kCalls; ++i) ASSERT_TRUE(queue.submit_touch(there, chain, 10s));
    all_submitted.release();
    std::vector<Completion> ended(kCalls + 1);
    EXPECT_EQ(queue.reap(ended, kCalls + 1, 20s).value(), kCalls + 1);
    EXPECT_EQ(queue.calls_in_flight(), 0u);
  }
}
#endif

TEST_F(CompletionQueueTest, AChildOfForkLeavesTheQueueToItsParent) {
  TypedQueue queue(*client);
  ASSERT_TRUE(queue.submit_match(space, chain, {.deadline = 5s}));
  while (!is_readable(queue.fd())) std::this_thread::yield();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(60);
    Completion one;
    const bool right = queue.is_forked() && queue.fd() == -1 && queue.reap({&one, 1}).error() == Errc::kForked &&
                       queue.submit_match(space, chain, {.deadline = 5s}).error() == Errc::kForked &&
                       queue.cancel(CallId{1}).error() == Errc::kForked;
    queue.shutdown();
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(is_readable(queue.fd()));
  EXPECT_FALSE(next(queue).error);
}

// -- many threads

/// Submits, cancels, reaps and waits from several threads, while the queue, and then its client, go away beneath them.
TEST_F(CompletionQueueTest, ManyThreadsSubmitCancelReapAndShutDown) {
  store();
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr std::size_t kThreads = 4, kCallsEach = 300;
  for (int round = 0; round < 6; ++round) {
    TypedQueue queue(*client, {.calls_max = 24});
    std::atomic<std::size_t> submitted{0}, reaped{0}, submitting{kThreads};
    std::atomic<std::uint64_t> last_call{0};
    const auto submit = [&](std::size_t number) {
      std::mt19937_64 random(seed + number + round * 100);
      const std::uint64_t ends[] = {64 << 10, kBlockBytes};
      Blocks memory(kBlocks, kBlockBytes);  // of this thread's gets: one at a time
      Completion own;
      for (std::size_t i = 0; i < kCallsEach; ++i) {
        Result<CallId> call = error_code(Errc::kBusy);
        switch (random() % 5) {
          case 0: {  // waits for it by name, for its memory's sake
            call = queue.submit_get(space, chain, memory.to, {.deadline = 10s, .segment_ends = ends}, number);
            if (!call) break;
            ++submitted;
            if (random() % 2 == 0) (void)queue.cancel(*call);
            while (true) {
              const CallId name = *call;
              const auto ended = queue.wait({&name, 1}, 1, 10s, {&own, 1});
              if (!ended) break;  // another thread has reaped it: it has ended
              if (*ended == 1) {
                ++reaped;
                break;
              }
            }
            continue;
          }
          case 1: call = queue.submit_match(space, chain, {.deadline = 10s, .lease = true}); break;
          case 2: call = queue.submit_touch(space, chain, 10s); break;
          case 3: call = queue.submit_load(space, {}, {}, {.deadline = 10s}); break;
          default: (void)queue.cancel(CallId{last_call.load()}); continue;
        }
        if (call) {
          ++submitted;
          last_call = static_cast<std::uint64_t>(*call);
        } else {
          EXPECT_TRUE(call.error() == Errc::kBusy || call.error() == Errc::kCancelled) << call.error().message();
        }
      }
      --submitting;
    };
    const auto reap = [&] {
      std::array<Completion, 7> ended;
      while (submitting > 0 || queue.calls_in_flight() > 0) {
        const std::size_t count = queue.reap(ended, 3, 1ms).value();
        for (std::size_t i = 0; i < count; ++i) reaped += ended[i].kind == Completion::Kind::kEnd;
      }
    };
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < kThreads; ++i) threads.emplace_back(submit, i);
    for (int i = 0; i < 2; ++i) threads.emplace_back(reap);
    if (round >= 2) {
      while (submitted < kCallsEach / 4 && submitting > 0) std::this_thread::yield();
      round % 2 == 0 ? queue.shutdown() : client.reset();
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(reaped, submitted) << "each call ends once";
    EXPECT_EQ(queue.calls_in_flight(), 0u);
    EXPECT_EQ(queue.bytes_in_flight(), 0u);
    EXPECT_FALSE(is_readable(queue.fd()));
    if (!client) {
      client = make_client(endpoint);
      space = client->open(record, 10s).value();
    }
  }
}

}  // namespace
}  // namespace kv
