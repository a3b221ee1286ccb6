// Requests that come by SEND, from clients that know frames and no rules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/node/lanes_world.h"
#include "transport/frames/frame_message.h"
#include "transport/verbs/verbs_messages.h"

namespace kv {
namespace {

using testing::HasSubstr;
using verbs::MessagesOptions;
using verbs::VerbsMessages;

class SessionMessageTest : public SessionLanesTest {
 protected:
  static constexpr std::uint32_t kMessageLane = 4;

  explicit SessionMessageTest(const verbs::FakeOptions& options = {.device_count = 3}) : SessionLanesTest(options) {}

  /// The node says so in the stream, and closes it.
  static void expect_ended(RawClient& client, const std::string& why) {
    const auto last = client.next();
    ASSERT_TRUE(last && last->is_error());
    EXPECT_THAT(last->message(), HasSubstr(why));
    EXPECT_TRUE(client.ended());
  }

  /// The client's end of a lane for messages, and what came over it.
  struct RawMessages {
    RawMessages(RawSide& given, SimWorld& sim, const MessagesOptions& options)
        : side(given),
          world(sim),
          loop(world.io.get_executor(), side.devices[0].device->create_completion_queue(256).value()) {
      messages = VerbsMessages::create(*side.devices[0].domain, loop.queue(), options).value();
      messages->attach(
          loop, world.clock,
          [this](std::span<const std::byte> message) { came.emplace_back(message.begin(), message.end()); },
          [this](error_code) { is_broken = true; });
      asio::co_spawn(world.io, loop.run(), asio::detached);
      psn = verbs::random_psn();
      end = address_of(side.devices[0].attach().value(), messages->queue_pair().number(), psn);
    }
    ~RawMessages() {
      messages.reset();
      loop.stop();
      world.run_for(1ms);  // its coroutine ends
    }
    RawSide& side;
    SimWorld& world;
    verbs::CompletionLoop loop;
    std::unique_ptr<VerbsMessages> messages;
    std::uint32_t psn = 0;
    verbs::QueuePairAddress end;
    std::vector<Bytes> came;
    bool is_broken = false;
  };
  std::unique_ptr<RawMessages> connect_messages(RawClient& client, RawSide& side, std::uint32_t count = 8) {
    auto made = std::make_unique<RawMessages>(
        side, world, MessagesOptions{.count = 64, .bytes_max = 16 << 10, .remote = {.remote_write = true}});
    const Answer answer = client.ask(FrameType::kVerbsConnect, 90, offer({{kMessageLane, made->end, count}}));
    const auto* const lane = (*answer.as<wire::VerbsConnectResponse>().lanes())[0];
    EXPECT_EQ(lane->messages(), std::min(count, 16u));
    const auto peer = verbs::decode(lane->end()).value();
    EXPECT_TRUE(made->messages->queue_pair().connect(peer, path_to(side.devices[0].attach().value(), made->psn, peer)));
    return made;
  }

  template <class Build>
  static Bytes message(FrameType type, std::uint64_t id, Build build, std::uint16_t flags = 0) {
    const Bytes frame = frame_bytes(type, id, build, {}, flags);
    Bytes padded = frame;
    padded.resize(message_frame_bytes(frame.size() - kFrameHeaderBytes));
    return padded;
  }
  std::vector<Answer> answers(RawMessages& to) {
    world.run_until([&] { return !to.came.empty() || to.is_broken; }, 100s);
    if (to.came.empty()) return {};
    const Bytes first = to.came.front();
    to.came.erase(to.came.begin());
    std::vector<Answer> all;
    for (std::span<const std::byte> rest = first; !rest.empty();) {
      const auto frame = take_frame(rest);
      if (!frame) throw std::runtime_error(frame.error().text);
      all.push_back({frame->header, Bytes(frame->table.begin(), frame->table.end()), {}});
    }
    return all;
  }
  template <class Build>
  std::vector<Answer> ask_by_message(RawMessages& to, FrameType type, std::uint64_t id, Build build) {
    EXPECT_TRUE(to.messages->send(message(type, id, build)));
    return answers(to);
  }
  /// One block of `names`, into the start of the region.
  auto get_one(std::uint32_t region, std::size_t which = 0, std::uint32_t lanes = 3) {
    return [=, this, wanted = wire_hashes(std::span(names).first(which + 1))](FlatBufferBuilder& b) {
      const std::vector<std::uint64_t> offsets(which + 1, 0);
      return wire::CreateGetRequestDirect(b, space, &wanted, 0, region, &offsets, nullptr, 2, 0, lanes, check());
    };
  }
};

TEST_F(SessionMessageTest, AMatchIsAnsweredByMessageAndNotByTheStream) {
  const auto client = greet();
  put(*client, names);
  RawSide side(fake, kBytes);
  const auto lane = connect_messages(*client, side);
  for (std::uint64_t id = 100; id < 200; ++id) {
    const auto got = ask_by_message(*lane, FrameType::kMatch, id, match_request(names));
    ASSERT_EQ(got.size(), 1u);
    EXPECT_EQ(got[0].header.request_id, id);
    EXPECT_EQ(got[0].header.type, FrameType::kMatch);
    EXPECT_EQ(got[0].as<wire::MatchResponse>().host_blocks(), kBlocks);
  }
  EXPECT_FALSE(client->next(1s)) << "an answer by the stream as well";
  EXPECT_EQ(rdma->counters().messages, 100u);
}

TEST_F(SessionMessageTest, AGetTakesItsBlockAlongWithItsAnswer) {
  const auto client = greet();
  put(*client, names);
  RawSide side(fake, kBytes);
  const std::uint32_t region = set_up(*client, side);
  const auto lane = connect_messages(*client, side);
  EXPECT_TRUE(lane->messages->send(message(FrameType::kGet, 100, get_one(region))));
  world.run_until([&] { return !lane->came.empty(); }, 100s);
  const Bytes expected = block(names[0]);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), side.memory.begin())) << "when its answer comes";
  const auto got = answers(*lane);
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[0].as<wire::GetPart>().block_count(), 1u);
  EXPECT_EQ(got[0].as<wire::GetPart>().checksums()->size(), 3u);
  EXPECT_EQ(got[1].as<wire::GetResponse>().block_count(), 1u);
  EXPECT_EQ(metric("kvstore_bytes_out_total{path=\"verbs\"}"), kBlockBytes);
  world.run_for(1s);
  EXPECT_EQ(stats().pinned_count, 0u);
}

TEST_F(SessionMessageTest, WhatDoesNotFitIsAnsweredByTheStream) {
  const auto client = greet();
  put(*client, names);
  RawSide side(fake, kBytes);
  const std::uint32_t region = set_up(*client, side);
  const auto lane = connect_messages(*client, side);
  // Inline, and with nothing in the region: the bytes are the stream's.
  EXPECT_TRUE(lane->messages->send(message(FrameType::kGet, 100, get_request(names))));
  Answer answer = client->answer();
  EXPECT_EQ(answer.payload, blocks(names));
  EXPECT_TRUE(client->answer().is_last());
  EXPECT_TRUE(lane->messages->send(message(FrameType::kGet, 101, get_over(region, /*lanes=*/0xF0))));
  answer = client->answer();
  EXPECT_EQ(answer.payload.size(), kBytes);
  EXPECT_TRUE(client->answer().is_last());
  // Over the lanes for blocks, and told by message in one piece.
  EXPECT_TRUE(lane->messages->send(message(FrameType::kGet, 102, get_over(region, 3))));
  const auto got = answers(*lane);
  ASSERT_GE(got.size(), 2u);
  EXPECT_EQ(got.back().as<wire::GetResponse>().block_count(), kBlocks);
  EXPECT_EQ(side.memory, expected_memory());
}

TEST_F(SessionMessageTest, AnErrorComesByMessageAndCostsNothing) {
  const auto client = greet();
  RawSide side(fake, kBytes);
  const auto lane = connect_messages(*client, side);
  auto got = ask_by_message(*lane, FrameType::kGet, 100, get_one(77));
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].error(), Errc::kNoRegion);
  got = ask_by_message(*lane, FrameType::kMatch, 101,
                       [](FlatBufferBuilder& b) { return wire::CreateMatchRequestDirect(b, 999); });
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].error(), Errc::kNoNamespace);
  node->draining = true;
  got = ask_by_message(*lane, FrameType::kMatch, 102, match_request(names));
  node->draining = false;
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].error(), Errc::kDraining);
}

TEST_F(SessionMessageTest, AMessageThatBreaksTheRulesEndsItsSessionAndNoOther) {
  const auto with = [&](Bytes bytes) { return [=](RawMessages& to) { EXPECT_TRUE(to.messages->send(bytes)); }; };
  const auto ping_frame = ping();
  Bytes two = message(FrameType::kMatch, 100, match_request(names));
  const Bytes more = message(FrameType::kMatch, 101, match_request(names));
  two.insert(two.end(), more.begin(), more.end());
  Bytes bad_sum = message(FrameType::kMatch, 100, match_request(names));
  bad_sum[40] ^= std::byte{1};
  Bytes cut = message(FrameType::kMatch, 100, match_request(names));
  cut.resize(cut.size() - 8);
  Bytes payload = frame_bytes(FrameType::kGet, 100, get_request(names), Bytes(8));
  const std::vector<std::pair<std::string, std::function<void(RawMessages&)>>> cases = {
      {"ends within a frame header", with(Bytes(31))},
      {"magic", with(Bytes(64, std::byte{7}))},
      {"bytes after the request", with(two)},
      {"checksum", with(bad_sum)},
      {"table_bytes", with(cut)},
      {"payload_bytes", with(payload)},
      {"ping: goes by the stream only", with(message(FrameType::kPing, 100, ping_frame))},
      {"region_add: goes by the stream only", with(message(FrameType::kRegionAdd, 100, region_add(4096)))},
      {"put: goes by the stream only", with(message(FrameType::kPut, 100, put_request(names)))},
      {"hello: goes by the stream only", with(message(FrameType::kHello, 100, hello_request()))},
      {"flags: 1", with(message(FrameType::kMatch, 100, match_request(names), kFrameResponse))},
  };
  for (const auto& [text, send] : cases) {
    SCOPED_TRACE(text);
    const auto client = greet();
    RawSide side(fake, kBytes);
    const auto lane = connect_messages(*client, side);
    send(*lane);
    expect_ended(*client, text);
    expect_others_served();
  }
}

TEST_F(SessionMessageTest, MoreRequestsThanAgreedEndTheSession) {
  const auto client = greet();
  put(*client, names);
  RawSide side(fake, kBytes);
  const std::uint32_t region = set_up(*client, side);
  const auto lane = connect_messages(*client, side);
  // Each takes a while: its blocks go over the other lanes first.
  for (std::uint64_t id = 100; id < 150; ++id)
    (void)lane->messages->send(message(FrameType::kGet, id, get_over(region, 3)));
  expect_ended(*client, "requests without an answer: 9, at most 8");
  expect_others_served();
}

TEST_F(SessionMessageTest, AnIdThatIsInUseEndsTheSession) {
  const auto client = greet();
  put(*client, names);
  RawSide side(fake, kBytes);
  const std::uint32_t region = set_up(*client, side);
  const auto lane = connect_messages(*client, side);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(lane->messages->send(message(FrameType::kGet, 100, get_over(region, 3))));
  expect_ended(*client, "no id twice");
}

TEST_F(SessionMessageTest, AWrongKeyEndsTheSessionAndReachesNobody) {
  const auto client = greet(), other = greet();
  put(*client, names);
  RawSide side(fake, kBytes), others(fake, kBytes);
  set_up(*client, side);
  set_up(*other, others);
  const auto lane = connect_messages(*client, side);
  const Answer lent =
      client->ask(FrameType::kRegionAdd, 52, lend_slices(kBytes, {{others.address(), kBytes, {others.rkey()}}}));
  EXPECT_TRUE(
      ask_by_message(*lane, FrameType::kGet, 100, get_one(lent.as<wire::RegionResponse>().region(), 0, 1)).empty());
  EXPECT_TRUE(client->ended());
  EXPECT_TRUE(std::ranges::all_of(others.memory, [](std::byte byte) { return byte == std::byte{0}; }));
  EXPECT_GE(rdma->counters().lanes_broken, 1u);
  expect_others_served();
}

TEST_F(SessionMessageTest, OffersForMessagesAreCheckedNamingTheField) {
  const auto client = greet();
  RawSide side(fake, kBytes);
  const auto refused = [&](std::uint32_t lane, std::uint32_t count) {
    const Answer answer = client->ask(FrameType::kVerbsConnect, 50, offer({{lane, side.make_pair(), count}}));
    EXPECT_TRUE(answer.is_error());
    return answer.is_error() ? answer.message() : "";
  };
  EXPECT_THAT(refused(0, 1), HasSubstr("lanes[0].messages: 1"));
  EXPECT_THAT(refused(kMessageLane, 0), HasSubstr("lanes[0].messages: 0"));
  EXPECT_THAT(refused(kMessageLane, 65), HasSubstr("lanes[0].messages: 65, at most 64"));
}

TEST_F(SessionMessageTest, ANodeWithoutMessagesSaysSoAndTakesNone) {
  verbs_thread->stop();
  open_verbs({.message_count_max = 0});
  const auto client = connect();
  const Answer hello = client->ask(FrameType::kHello, 1, hello_request());
  EXPECT_GT(hello.as<wire::HelloResponse>().lanes_max(), 0u);
  EXPECT_FALSE(hello.as<wire::HelloResponse>().messages());
  RawSide side(fake, kBytes);
  const Answer answer = client->ask(FrameType::kVerbsConnect, 50, offer({{kMessageLane, side.make_pair(), 8}}));
  ASSERT_TRUE(answer.is_error());
  EXPECT_THAT(answer.message(), HasSubstr("lane: 4, at most 3"));
}

class SlowMessageTest : public SessionMessageTest {
 protected:
  SlowMessageTest() : SessionMessageTest({.device_count = 3, .delay_min = 1ms, .delay_max = 5ms}) {}
};

TEST_F(SlowMessageTest, SlotsStayPinnedAndTheRegionLentUntilTheDeviceHasSentThem) {
  const auto client = greet(), other = greet();
  put(*client, names);
  RawSide side(fake, kBytes);
  const std::uint32_t region = set_up(*client, side);
  const auto lane = connect_messages(*client, side);
  EXPECT_TRUE(lane->messages->send(message(FrameType::kGet, 100, get_one(region))));
  world.run_until([&] { return stats().pinned_count > 0; }, 1s);
  ASSERT_GT(stats().pinned_count, 0u);
  client->send(FrameType::kRegionRemove, 70, region_remove(region));
  put(*other, chain(200, 32));  // all the memory there is
  const auto got = answers(*lane);
  ASSERT_EQ(got.size(), 2u);
  const Bytes expected = block(names[0]);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), side.memory.begin()))
      << "its slot was used again while the device read it";
  EXPECT_EQ(client->answer().header.request_id, 70u);
  EXPECT_EQ(stats().pinned_count, 0u);
}

TEST_F(SlowMessageTest, ASessionThatEndsMidwayFreesItsSlots) {
  for (int round = 0; round < 20; ++round) {
    const auto client = greet();
    put(*client, names);
    RawSide side(fake, kBytes);
    const std::uint32_t region = set_up(*client, side);
    const auto lane = connect_messages(*client, side);
    EXPECT_TRUE(lane->messages->send(message(FrameType::kGet, 100, get_one(region))));
    world.run_for(round * 500us);
    client->close();
    world.run_for(10s);
    EXPECT_EQ(session_count, 0u);
    EXPECT_EQ(stats().pinned_count, 0u);
  }
}

TEST_F(SessionMessageTest, WhatIsNearlyRightHarmsNobody) {
  const std::uint64_t seed = seed_or(6);
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  auto client = greet();
  put(*client, names);
  RawSide side(fake, kBytes);
  auto lane = connect_messages(*client, side);
  const Bytes seeds[] = {message(FrameType::kMatch, 7, match_request(names, true)),
                         message(FrameType::kGet, 7, get_one(1)), message(FrameType::kTouch, 7, prefix_request(names))};
  for (int round = 0; round < 2000; ++round) {
    Bytes frame = seeds[random() % std::size(seeds)];
    mangle(frame, 10'000 + static_cast<std::uint64_t>(round), random);
    if (random() % 50 == 0) frame[random() % frame.size()] ^= std::byte{1};
    (void)lane->messages->send(frame);
    world.run_for(1ms);
    if (!lane->is_broken && !client->ended(0s)) continue;
    client = greet();
    lane = connect_messages(*client, side);
  }
  client->close();
  expect_others_served();
}

}  // namespace
}  // namespace kv
