// Requests and answers as messages, on every provider.
#include "transport/verbs/verbs_messages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <random>

#include "tests/transport/verbs_world.h"
#include "transport/frames/frame_message.h"

namespace kv::verbs {
namespace {

using Message = std::vector<std::byte>;

struct End {
  End(VerbsWorld& verbs_world, const std::string& device, const MessagesOptions& options)
      : side(verbs_world, device), loop(verbs_world.io().get_executor(), std::move(side.queue)) {
    auto made = VerbsMessages::create(*side.domain, loop.queue(), options);
    if (!made) throw std::runtime_error(made.error().text);
    messages = std::move(*made);
    messages->attach(
        loop, verbs_world.clock(),
        [this](std::span<const std::byte> message) {
          came.emplace_back(message.begin(), message.end());
          if (on_message) on_message(came.back());
        },
        [this](error_code reason) { broken.push_back(reason); });
    asio::co_spawn(verbs_world.io(), loop.run(), asio::detached);
    psn = random_psn();
    address = address_of(side.attachment, messages->queue_pair().number(), psn);
  }
  void connect(const End& peer) {
    ASSERT_TRUE(messages->queue_pair().connect(peer.address, path_to(side.attachment, psn, peer.address)));
  }

  Side side;
  CompletionLoop loop;
  std::unique_ptr<VerbsMessages> messages;
  std::uint32_t psn = 0;
  QueuePairAddress address;
  std::vector<Message> came;
  std::vector<error_code> broken;
  std::function<void(const Message&)> on_message;
};

class VerbsMessagesTest : public testing::TestWithParam<std::string> {
 protected:
  explicit VerbsMessagesTest(const MessagesOptions& options = {.count = 4, .bytes_max = 1024})
      : world(VerbsWorld::make(GetParam())),
        node(*world, world->node_device(), options),
        client(*world, world->client_device(), options) {
    node.connect(client);
    client.connect(node);
  }
  ~VerbsMessagesTest() override { stop({&node, &client}); }
  /// Before they are destroyed: their loops' coroutines end.
  void stop(std::initializer_list<End*> ends) {
    for (End* each : ends) {
      each->messages.reset();
      each->loop.stop();
    }
    for (int i = 0; i < 3; ++i) world->wait_some();
  }
  template <class Condition>
  bool run_until(Condition done) {
    world->progressed();
    while (!done()) {
      if (!world->wait_some()) return done();
    }
    return true;
  }
  static Message text(std::size_t bytes, std::uint32_t seed) {
    std::mt19937_64 random(seed);
    Message message(bytes);
    for (std::byte& each : message) each = static_cast<std::byte>(random());
    return message;
  }

  std::unique_ptr<VerbsWorld> world;
  End node, client;
};

TEST_P(VerbsMessagesTest, EachRequestGetsItsAnswerInOrder) {
  node.on_message = [this](const Message& message) { EXPECT_TRUE(node.messages->send(message)); };
  std::vector<Message> sent;
  for (std::uint32_t i = 0; i < 300; ++i) {
    sent.push_back(text(1 + i * 37 % 1024, i));
    // As many as may be on their way, and one more when the oldest is answered.
    ASSERT_TRUE(run_until([&] { return client.came.size() + 4 > i; })) << i;
    ASSERT_TRUE(client.messages->send(sent.back())) << i;
  }
  ASSERT_TRUE(run_until([&] { return client.came.size() == sent.size(); })) << client.came.size();
  EXPECT_EQ(node.came, sent);
  EXPECT_EQ(client.came, sent);
  EXPECT_TRUE(node.broken.empty() && client.broken.empty());
}

TEST_P(VerbsMessagesTest, TooManyAndTooLongAreRefusedAndNothingBreaks) {
  EXPECT_EQ(client.messages->send(text(1025, 1)).error(), Errc::kTooLarge);
  for (std::uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(client.messages->send(text(1024, i)));
  EXPECT_EQ(client.messages->send(text(1, 9)).error(), Errc::kBusy);
  ASSERT_TRUE(run_until([&] { return node.came.size() == 4; }));
  EXPECT_EQ(node.came[3], text(1024, 3));
  ASSERT_TRUE(run_until([&] { return client.messages->send(text(1, 9)).has_value(); }));
  ASSERT_TRUE(run_until([&] { return node.came.size() == 5; }));
}

TEST_P(VerbsMessagesTest, APeerThatSendsMoreThanFitsBreaksItOnce) {
  MessagesOptions larger{.count = 4, .bytes_max = 4096};
  End rude(*world, world->client_device(), larger),
      victim(*world, world->node_device(), {.count = 4, .bytes_max = 512});
  rude.connect(victim);
  victim.connect(rude);
  ASSERT_TRUE(rude.messages->send(text(4096, 1)));
  ASSERT_TRUE(run_until([&] { return rude.broken.size() == 1 && victim.broken.size() == 1; }));
  EXPECT_TRUE(victim.came.empty());
  EXPECT_FALSE(victim.messages->has_room());
  EXPECT_EQ(victim.messages->send(text(1, 1)).error(), Errc::kUnavailable);
  for (int i = 0; i < 20; ++i) world->wait_some();
  EXPECT_EQ(victim.broken.size(), 1u) << "what is flushed says it no second time";
  stop({&rude, &victim});
}

/// As of a device that has lost track of what was posted.
TEST_P(VerbsMessagesTest, ACompletionOfWhatWasNeverPostedBreaksIt) {
  const Piece piece = client.side.piece(0, 8);
  const Request unknown{.opcode = Opcode::kSend, .pieces = std::span(&piece, 1)};
  ASSERT_TRUE(client.messages->queue_pair().post(std::span(&unknown, 1), /*id=*/0));
  ASSERT_TRUE(run_until([&] { return !client.broken.empty(); }));
  EXPECT_EQ(client.broken, std::vector<error_code>{make_error_code(Status::kGeneral)});
}

TEST_P(VerbsMessagesTest, AnEndThatGoesIsNoticedByTheOtherWhenItSends) {
  node.messages.reset();
  ASSERT_TRUE(client.messages->send(text(100, 1)));
  ASSERT_TRUE(run_until([&] { return !client.broken.empty(); }));
  EXPECT_EQ(client.broken.size(), 1u);
}

TEST_P(VerbsMessagesTest, ADeviceThatSaysNothingOfAMessageIsGivenUp) {
  if (world->fake() == nullptr) GTEST_SKIP() << "this device always says something";
  auto owner = std::make_shared<int>(0);
  const std::weak_ptr<const void> held = owner;
  world->fake()->kill(world->client_device());
  const TimePoint began = world->clock().now();
  ASSERT_TRUE(client.messages->send(text(100, 1), {}, std::move(owner)));
  ASSERT_TRUE(run_until([&] { return !client.broken.empty(); }));
  EXPECT_EQ(client.broken[0], make_error_code(asio::error::timed_out));
  EXPECT_EQ(world->clock().now() - began, MessagesOptions().timeout);
  EXPECT_FALSE(held.expired()) << "the device may still read it";
  client.messages.reset();
  EXPECT_TRUE(held.expired());
}

TEST_P(VerbsMessagesTest, OneMayBeDestroyedByWhatItTells) {
  node.on_message = [this](const Message&) { node.messages.reset(); };
  ASSERT_TRUE(client.messages->send(text(100, 1)));
  ASSERT_TRUE(run_until([&] { return node.came.size() == 1; }));
  EXPECT_EQ(node.messages, nullptr);
}

TEST_P(VerbsMessagesTest, FailEndsItWithoutAWord) {
  client.messages->fail();
  client.messages->fail();
  EXPECT_EQ(client.messages->send(text(1, 1)).error(), Errc::kUnavailable);
  for (int i = 0; i < 20; ++i) world->wait_some();
  EXPECT_TRUE(client.broken.empty());
}

INSTANTIATE_TEST_SUITE_P(Providers, VerbsMessagesTest, testing::ValuesIn(provider_names()),
                         [](const auto& each) { return each.param; });

TEST(FrameMessageTest, FramesComeOutAsTheyWentIn) {
  Message message;
  std::vector<Message> tables;
  for (std::size_t i = 0; i < 20; ++i) {
    tables.emplace_back(i * 3, static_cast<std::byte>(i));
    append_frame(message, {.type = FrameType::kMatch, .flags = kFrameResponse, .request_id = i}, tables.back());
  }
  std::span<const std::byte> rest = message;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const auto frame = take_frame(rest);
    ASSERT_TRUE(frame) << frame.error();
    EXPECT_EQ(frame->header.request_id, i);
    EXPECT_TRUE(std::ranges::equal(frame->table, tables[i]));
  }
  EXPECT_TRUE(rest.empty());
}

TEST(FrameMessageTest, ACutOrChangedMessageIsRefused) {
  const Message table(13, std::byte{5});
  Message whole;
  append_frame(whole, {.type = FrameType::kGet, .request_id = 7}, table);
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    std::span<const std::byte> cut = std::span(whole).first(bytes);
    EXPECT_FALSE(take_frame(cut)) << bytes;
  }
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      Message changed = whole;
      changed[i] ^= static_cast<std::byte>(1 << bit);
      std::span<const std::byte> rest = changed;
      EXPECT_FALSE(take_frame(rest)) << i << " " << bit;
    }
  }
}

}  // namespace
}  // namespace kv::verbs
