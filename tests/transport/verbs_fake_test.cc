// What FakeVerbs does on request, beyond what every provider does: faults, links, delays.
#include "tests/fakes/verbs_fake.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <cerrno>
#include <optional>
#include <set>
#include <stdexcept>

#include "tests/transport/verbs_world.h"
#include "transport/stream.h"
#include "transport/verbs/completion_loop.h"
#include "transport/verbs/verbs_devices.h"

namespace kv::verbs {
namespace {

class FakeVerbsTest : public testing::Test {
 protected:
  Request write(const Piece& piece) const {
    return {.pieces = std::span(&piece, 1), .remote_address = client.address(), .rkey = client.region->rkey()};
  }
  std::vector<Completion> post_and_collect(Link& link, const Piece& piece, std::size_t count = 1) {
    const Request request = write(piece);
    EXPECT_TRUE(link.a->post(std::span(&request, 1), 1));
    return world->collect(*node.queue, count);
  }

  std::unique_ptr<VerbsWorld> world = VerbsWorld::make("fake", {.packet_bytes_max = 1000});
  FakeVerbs& fake = *world->fake();
  Side node{*world, "fake0"}, client{*world, "fake1"};
};

TEST_F(FakeVerbsTest, FailsARequestWithEachStatus) {
  const Piece piece = node.piece(0, 5000);
  for (int status = 1; status < kStatusCount; ++status) {
    Link link(node, client, {}, kOpen);
    fake.fail_next("fake0", static_cast<Status>(status));
    const auto got = post_and_collect(link, piece);
    ASSERT_EQ(got.size(), 1u);
    EXPECT_EQ(got[0].status, static_cast<Status>(status));
    EXPECT_EQ(link.a->state(), QueuePair::State::kError);
    const bool is_about_peer = status >= 9 && status <= 11;
    EXPECT_EQ(link.b->state(), is_about_peer ? QueuePair::State::kError : QueuePair::State::kReady);
    EXPECT_NE(make_error_code(got[0].status).message(), "");
  }
}

TEST_F(FakeVerbsTest, ATransferIsSplitAndMayFailInItsMiddle) {
  std::fill(node.memory.begin(), node.memory.end(), std::byte{7});
  Link link(node, client, {}, kOpen);
  const std::uint64_t before = fake.packet_count();
  const Piece piece = node.piece(0, 50000);
  EXPECT_EQ(post_and_collect(link, piece).at(0).status, Status::kSuccess);
  EXPECT_GE(fake.packet_count() - before, 50u);
  std::fill(client.memory.begin(), client.memory.end(), std::byte{0});
  fake.set_fault_probability(0.05);
  EXPECT_NE(post_and_collect(link, piece).at(0).status, Status::kSuccess);
  const auto landed = std::count(client.memory.begin(), client.memory.end(), std::byte{7});
  EXPECT_GT(landed, 0);
  EXPECT_LT(landed, 50000);
}

TEST_F(FakeVerbsTest, CompletionsOfTwoQueuePairsOvertakeEachOther) {
  Link first(node, client, {}, kOpen), second(node, client, {}, kOpen);
  const Piece piece = node.piece(0, 8);
  const Request request = write(piece);
  std::set<std::vector<std::uint64_t>> orders;
  for (int round = 0; round < 50; ++round) {
    ASSERT_TRUE(first.a->post(std::span(&request, 1), 1));
    ASSERT_TRUE(first.a->post(std::span(&request, 1), 2));
    ASSERT_TRUE(second.a->post(std::span(&request, 1), 3));
    std::vector<std::uint64_t> order;
    for (const Completion& each : world->collect(*node.queue, 3)) order.push_back(each.id);
    ASSERT_EQ(order.size(), 3u);
    EXPECT_LT(std::find(order.begin(), order.end(), 1), std::find(order.begin(), order.end(), 2));
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 3u);
}

TEST_F(FakeVerbsTest, ALinkThatComesBackInTimeLosesNothing) {
  std::fill(node.memory.begin(), node.memory.end(), std::byte{7});
  Link link(node, client, {}, kOpen);
  const Piece piece = node.piece(0, 50000);
  const Request request = write(piece);
  ASSERT_TRUE(link.a->post(std::span(&request, 1), 1));
  for (int i = 0; i < 20; ++i) world->wait_some();
  fake.set_link("fake1", false);
  for (int i = 0; i < 3; ++i) world->wait_some();
  EXPECT_FALSE(client.device->query()->ports[0].is_active);
  EXPECT_LT(std::count(client.memory.begin(), client.memory.end(), std::byte{7}), 50000);
  fake.set_link("fake1", true);
  const auto got = world->collect(*node.queue, 1);
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].status, Status::kSuccess);
  EXPECT_EQ(std::count(client.memory.begin(), client.memory.end(), std::byte{7}), 50000);
}

TEST_F(FakeVerbsTest, ALinkThatStaysDownExceedsTheRetries) {
  for (const char* const device : {"fake0", "fake1"}) {
    Link link(node, client, {}, kOpen);
    fake.set_link(device, false);
    EXPECT_EQ(post_and_collect(link, node.piece(0, 100)).at(0).status, Status::kRetryExceeded);
    fake.set_link(device, true);
  }
}

TEST_F(FakeVerbsTest, AKilledPeerExceedsTheRetriesAndSaysNothing) {
  Link link(node, client, {}, kOpen);
  fake.kill("fake1");
  EXPECT_EQ(post_and_collect(link, node.piece(0, 100)).at(0).status, Status::kRetryExceeded);
  EXPECT_TRUE(world->collect(*client.queue, 1).empty());
}

TEST_F(FakeVerbsTest, ADeviceThatIsRemovedTellsNothingButThatAndTakesNothingMore) {
  Link link(node, client, {}, kOpen);
  const Request request = write(node.piece(0, 100));
  const Piece piece = node.piece(0, 100);
  Request posted = request;
  posted.pieces = std::span(&piece, 1);
  ASSERT_TRUE(link.a->post(std::span(&posted, 1), 1));
  fake.remove_device("fake0");
  EXPECT_TRUE(world->collect(*node.queue, 1).empty());
  EXPECT_EQ(node.queue->take_events().error().value(), ENODEV);
  EXPECT_EQ(node.device->query().error().value(), ENODEV);
  EXPECT_FALSE(node.domain->register_memory(node.memory, Side::kAll));
  EXPECT_FALSE(node.domain->create_queue_pair(*node.queue, {}));
  EXPECT_EQ(fake.device_names(), std::vector<std::string>{"fake1"});
  EXPECT_FALSE(fake.open("fake0"));
  fake.return_device("fake0");
  EXPECT_TRUE(fake.open("fake0").value()->query());
  EXPECT_EQ(node.device->query().error().value(), ENODEV) << "what was opened before is of no use";
}

TEST_F(FakeVerbsTest, APacketOnItsWayLandsUnlessThePeerEndsItsQueuePair) {
  for (const bool peer_ends : {false, true}) {
    std::fill(node.memory.begin(), node.memory.end(), std::byte{7});
    std::size_t landed_late = 0;
    for (int round = 0; round < 50; ++round) {
      std::fill(client.memory.begin(), client.memory.end(), std::byte{0});
      Link link(node, client, {}, kOpen);
      const Piece piece = node.piece(0, 60000);
      const Request request = write(piece);
      ASSERT_TRUE(link.a->post(std::span(&request, 1), 1));
      for (int i = 0; i < round; ++i) world->wait_some();
      ASSERT_TRUE(link.a->fail());
      if (peer_ends) {
        ASSERT_TRUE(link.b->fail());
      }
      const auto before = std::count(client.memory.begin(), client.memory.end(), std::byte{7});
      while (world->wait_some()) {
      }
      if (std::count(client.memory.begin(), client.memory.end(), std::byte{7}) != before) ++landed_late;
      ASSERT_EQ(world->collect(*node.queue, 1).size(), 1u);
    }
    EXPECT_EQ(landed_late > 0, !peer_ends) << landed_late;
  }
}

TEST_F(FakeVerbsTest, RegisteredBytesAreLimitedAsByMemlock) {
  const auto tight = VerbsWorld::make("fake", {.registered_bytes_max = 8192});
  Side side(*tight, "fake0", 4096);
  std::vector<std::byte> more(4097);
  const Failure failure = side.domain->register_memory(more, Side::kAll).error();
  EXPECT_EQ(failure.code.value(), ENOMEM);
  EXPECT_EQ(failure.text, "bytes: 4097, the memlock limit leaves 4096");
  EXPECT_TRUE(side.domain->register_memory(std::span(more).first(4096), Side::kAll));
}

TEST_F(FakeVerbsTest, AllThatAreNamedAreOpenedAndOfOthersTheFirstFour) {
  const auto many = VerbsWorld::make("fake", {.device_count = 6});
  EXPECT_EQ(open_devices(*many->fake(), {})->devices.size(), 4u);
  const std::vector<std::string> names = {"fake5", "fake4", "fake3", "fake2", "fake1"};
  const auto named = open_devices(*many->fake(), {.names = names}).value().devices;
  ASSERT_EQ(named.size(), 5u);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(named[i].wish.device, names[i]);
}

/// As of a device that was pulled out: readable for ever, and nothing to take.
class DeadQueue final : public CompletionQueue {
 public:
  std::size_t poll(std::span<Completion>) override {
    if (++poll_count_ == 100) throw std::runtime_error("it spins");
    return 0;
  }
  Result<void> arm() override { return {}; }
  int descriptor() const override { return event_.get(); }
  Result<void> take_events() override { return error_code(EIO, boost::system::system_category()); }

 private:
  int poll_count_ = 0;
  Descriptor event_{::eventfd(1, EFD_NONBLOCK)};
};

TEST_F(FakeVerbsTest, ALoopEndsWithItsDevice) {
  SimWorld real;
  CompletionLoop loop(real.io.get_executor(), std::make_unique<DeadQueue>());
  std::optional<Result<void>> ended;
  asio::co_spawn(real.io, loop.run(), [&](std::exception_ptr, Result<void> result) { ended = result; });
  real.io.run_for(60s);
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->error().value(), EIO);
}

TEST_F(FakeVerbsTest, ARunIsTheSameForItsSeed) {
  const auto run = [](std::uint64_t seed) {
    const auto again = VerbsWorld::make("fake", {.seed = seed, .fault_probability = 0.01});
    Side a(*again, "fake0"), b(*again, "fake1");
    std::vector<int> statuses;
    for (int round = 0; round < 100; ++round) {
      Link link(a, b, {}, kOpen);
      const Piece piece = a.piece(0, 60000);
      const Request request{.pieces = std::span(&piece, 1), .remote_address = b.address(), .rkey = b.region->rkey()};
      EXPECT_TRUE(link.a->post(std::span(&request, 1), 1));
      statuses.push_back(static_cast<int>(again->collect(*a.queue, 1).at(0).status));
    }
    return std::pair(statuses, again->fake()->packet_count());
  };
  EXPECT_EQ(run(5), run(5));
  EXPECT_NE(run(5), run(6));
}

}  // namespace
}  // namespace kv::verbs
