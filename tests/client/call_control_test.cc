// A call that is given up, or is not to wait for a connection: on virtual time, against a node that does what the test
// wants.
#include "client/types/call_control.h"

#include <gtest/gtest.h>

#include "client/client.h"
#include "tests/client/fake_node.h"
#include "tests/fakes/virtual_clock.h"

namespace kv {
namespace {

class CallControlTest : public testing::Test {
 protected:
  CallControlTest() {
    node.clock = &clock;
    config.nodes.push_back({.endpoint = "sim://fake"});
    config.connections_per_node = 1;
    config.breaker_failures = 2;
    client = std::make_unique<Client>(loop.context().get_executor(), config, network, clock);
  }
  ~CallControlTest() override {
    client.reset();
    node.close_all();
    loop.drain();
  }
  void open() { space = loop.run(client->open(record, 5s)).value(); }
  static FakeNode::Handler silent(FrameType type) {
    return [type](FakeNode::Session&, const FrameReader::Frame& frame) { return frame.header.type == type; };
  }
  template <class T>
  struct Begun {
    std::optional<Result<T>> result;
  };
  template <class T>
  void begin(Begun<T>& begun, Async<T> call) {
    asio::co_spawn(loop.context(), std::move(call), [&begun](std::exception_ptr exception, Result<T> value) {
      if (exception) std::rethrow_exception(exception);
      begun.result.emplace(std::move(value));
    });
  }
  /// Lets what is ready run, without time passing.
  void settle() { loop.run_for(0s); }

  VirtualClock clock;
  SimNetwork network{clock, 1};
  Loop loop{&clock};
  FakeNode node{loop.context(), network, "fake"};
  NamespaceRecord record = test_record(100'000);
  std::vector<BlockHash> chain = test_chain(record, 4);
  ClientConfig config = repeatable_config();
  std::unique_ptr<Client> client;
  Space space{};
};

TEST_F(CallControlTest, ACancelledCallEndsAtOnceAndIsNoMarkAgainstTheNode) {
  open();
  for (const FrameType type : {FrameType::kGet, FrameType::kMatch, FrameType::kPut, FrameType::kTouch}) {
    node.handler = silent(type);
    for (int round = 0; round < 5; ++round) {  // more than breaker_failures
      Blocks memory(4, record.block_bytes());
      Cancellation cancellation;
      const CallControl control{.cancellation = &cancellation};
      Begun<GetResult> get;
      Begun<MatchResult> match;
      Begun<PutResult> put;
      Begun<std::size_t> touch;
      const GetOptions get_options{.deadline = 1h, .control = control};
      const MatchOptions match_options{.deadline = 1h, .control = control};
      const PutOptions put_options{.deadline = 1h, .control = control};
      if (type == FrameType::kGet) begin(get, client->get(space, chain, memory.to, get_options));
      if (type == FrameType::kMatch) begin(match, client->match(space, chain, match_options));
      if (type == FrameType::kPut) begin(put, client->put(space, chain, memory.from, put_options));
      if (type == FrameType::kTouch) begin(touch, client->touch(space, chain, 1h, control));
      loop.run_for(10ms);
      ASSERT_FALSE(get.result || match.result || put.result || touch.result);
      const TimePoint before = clock.now();
      cancellation.cancel();
      settle();
      EXPECT_EQ(clock.now(), before);
      if (type == FrameType::kGet) {
        EXPECT_EQ(get.result.value()->why, Errc::kCancelled);
      }
      if (type == FrameType::kMatch) {
        EXPECT_EQ(match.result.value()->why, Errc::kCancelled);
      }
      if (type == FrameType::kPut) {
        EXPECT_EQ(put.result.value()->why, Errc::kCancelled);
      }
      if (type == FrameType::kPut) {
        EXPECT_EQ(put.result.value()->refused, 4u);
      }
      if (type == FrameType::kTouch) {
        EXPECT_EQ(touch.result.value().error(), Errc::kCancelled);
      }
      cancellation.cancel();  // a second time, when it is over
    }
    EXPECT_FALSE(client->nodes()[0].breaker_open);
    EXPECT_EQ(client->nodes()[0].timeouts, 0u);
  }
}

TEST_F(CallControlTest, WhatHasLandedBeforeTheCancelCounts) {
  open();
  node.handler = [&](FakeNode::Session& session, const FrameReader::Frame& frame) {
    if (frame.header.type != FrameType::kGet) return false;
    session.part(frame.header, record, chain, 0, 2);
    return true;  // and no more
  };
  Blocks memory(4, record.block_bytes());
  Cancellation cancellation;
  Begun<GetResult> get;
  const GetOptions options{.deadline = 1h, .control = {.cancellation = &cancellation}};
  begin(get, client->get(space, chain, memory.to, options));
  loop.run_for(10ms);
  cancellation.cancel();
  settle();
  EXPECT_EQ(get.result.value()->block_count, 2u);
  EXPECT_EQ(get.result.value()->why, Errc::kCancelled);
  EXPECT_EQ(memory.right(chain), 2u);
}

/// Names in groups, and nodes that do not keep to it.
class GroupControlTest : public CallControlTest {
 protected:
  GroupControlTest() {
    record = NamespaceRecord::from_fields({{"model", "g"}, {"kind", "set"}, {"block_bytes_max", "1000"}}).value();
  }
  std::vector<std::uint32_t> groups = {3, 1};
  Blocks memory{4, 1000};
  MatchOptions match{.deadline = 1s, .group_counts = groups};
  GetOptions get{.deadline = 1s, .group_counts = groups};
  PutOptions put{.deadline = 1s, .group_counts = groups};
};

TEST_F(GroupControlTest, APartOfAGroupIsNoAnswer) {
  open();
  node.handler = [](FakeNode::Session& session, const FrameReader::Frame& frame) {
    if (frame.header.type == FrameType::kSetMatch) {
      const auto* request = read_table<wire::SetMatchRequest>(frame.table);
      EXPECT_TRUE(request != nullptr && request->group_counts() != nullptr && request->group_counts()->size() == 2);
      session.reply(frame.header, kFrameResponse, [](auto& builder) {
        const std::vector<std::uint8_t> held = {0b1011};
        const std::vector<std::uint32_t> lengths = {10, 10, 10};
        return wire::CreateSetMatchResponseDirect(builder, &held, nullptr, &lengths);
      });
      return true;
    }
    if (frame.header.type != FrameType::kSetPut) return false;
    session.reply(frame.header, kFrameResponse, [](auto& builder) {
      const std::vector<std::uint8_t> results = {1, 0, 1, 1};
      return wire::CreateSetPutResponseDirect(builder, &results, 1);
    });
    return true;
  };
  const SetMatchResult matched = loop.run(client->match_set(space, chain, match)).value();
  EXPECT_EQ(matched.held_count, 0u);
  EXPECT_TRUE(matched.why);
  loop.run_for(2s);  // the session has ended; the client waits before it connects again
  const SetPutResult stored = loop.run(client->put_set(space, chain, memory.from, put)).value();
  EXPECT_EQ(node.seen[FrameType::kSetPut], 1u);
  EXPECT_EQ(stored.stored, 0u);
  EXPECT_EQ(stored.refused, 4u);
  EXPECT_TRUE(stored.why);
}

TEST_F(GroupControlTest, OfAGroupWithADamagedBlockNothingCountsAsLanded) {
  open();
  node.handler = [&](FakeNode::Session& session, const FrameReader::Frame& frame) {
    if (frame.header.type != FrameType::kSetGet) return false;
    // Each in a part of its own; the checksum of the second block is wrong.
    for (std::uint32_t i = 0; i < 4; ++i) {
      std::vector<std::byte> block(1000);
      fill_block(chain[i], block);
      std::vector<std::uint64_t> sums(1);
      block_checksums(set_checksum_seed(record.id(), chain[i], 1000), block, sums);
      sums[0] += i == 1;
      const std::vector<std::uint32_t> blocks = {i}, lengths = {1000};
      session.reply(
          frame.header, kFrameResponse | kFrameMore,
          [&](auto& builder) { return wire::CreateSetGetPartDirect(builder, &blocks, &lengths, &sums); }, block);
    }
    session.reply(frame.header, kFrameResponse,
                  [](auto& builder) { return wire::CreateSetGetResponse(builder, /*block_count=*/4); });
    return true;
  };
  const SetGetResult got = loop.run(client->get_set(space, chain, memory.to, get)).value();
  EXPECT_EQ(got.landed_count, 1u);
  EXPECT_EQ(got.corrupt_count, 1u);
  EXPECT_EQ(got.why, Errc::kCorruptBlock);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(got.blocks[i].has_landed, i == 3) << i;
    EXPECT_EQ(got.blocks[i].why, i == 3 ? error_code() : make_error_code(Errc::kCorruptBlock)) << i;
  }
}

TEST_F(CallControlTest, ACallThatIsCancelledBeforeItBeginsAsksNobody) {
  open();
  Cancellation cancellation;
  cancellation.cancel();
  const MatchOptions options{.deadline = 1h, .control = {.cancellation = &cancellation}};
  EXPECT_EQ(loop.run(client->match(space, chain, options)).error(), Errc::kCancelled);
  EXPECT_EQ(node.seen[FrameType::kMatch], 0);
}

TEST_F(CallControlTest, AnAtOnceCallDoesNotWaitForTheConnectionThatIsBeingMade) {
  node.handler = silent(FrameType::kHello);  // as a node that hangs
  space = loop.run(client->open(record, 0us)).value();
  Begun<MatchResult> patient;
  const MatchOptions waits{.deadline = 1h};
  begin(patient, client->match(space, chain, waits));
  loop.run_for(1ms);
  EXPECT_FALSE(patient.result) << "it waits for the connection";
  const MatchOptions at_once{.deadline = 1h, .control = {.at_once = true}};
  const TimePoint before = clock.now();
  const MatchResult away = loop.run(client->match(space, chain, at_once)).value();
  EXPECT_EQ(away.block_count, 0u);
  EXPECT_EQ(away.why, Errc::kUnavailable);
  EXPECT_EQ(clock.now(), before) << "and does not stand behind one that does";
  EXPECT_EQ(node.sessions.size(), 1u) << "connecting goes on in the background";

  node.handler = [](FakeNode::Session& session, const FrameReader::Frame& frame) {
    if (frame.header.type == FrameType::kGet) session.get_response(frame.header, 0);
    return frame.header.type == FrameType::kGet;
  };
  loop.run_for(3s);  // the connect timeout, the back-off, the breaker
  Blocks memory(4, record.block_bytes());
  const GetOptions get{.deadline = 1h, .control = {.at_once = true}};
  EXPECT_EQ(loop.run(client->get(space, chain, memory.to, get))->why, Errc::kUnavailable) << "and begins to connect";
  loop.run_for(100ms);
  EXPECT_FALSE(loop.run(client->get(space, chain, memory.to, get))->why) << "a plain miss";
}

TEST_F(CallControlTest, ACallThatWaitedOnASessionThatEndsDoesNotWaitForTheNextOne) {
  node.handler = silent(FrameType::kOpen);
  space = loop.run(client->open(record, 0us)).value();
  loop.run_for(10ms);  // connected
  Begun<MatchResult> match;
  const MatchOptions at_once{.deadline = 1h, .control = {.at_once = true}};
  begin(match, client->match(space, chain, at_once));
  settle();
  ASSERT_FALSE(match.result) << "the namespace is being opened";
  node.refuses = true;
  const TimePoint before = clock.now();
  node.close_all();
  loop.run_until([&] { return match.result.has_value(); });
  EXPECT_EQ(match.result.value()->why, Errc::kUnavailable);
  EXPECT_LT(clock.now() - before, 20ms);
}

TEST_F(CallControlTest, OpeningManyNamespacesWithoutWaitingIsNoMarkAgainstTheNode) {
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(loop.run(client->open(test_record(4096, "m" + std::to_string(i)), 0us)));
  }
  EXPECT_FALSE(client->nodes()[0].breaker_open);
  EXPECT_EQ(client->nodes()[0].timeouts, 0u);
  loop.run_for(100ms);
  EXPECT_TRUE(client->nodes()[0].connected) << "the connection is made although nobody waits";
  space = loop.run(client->open(record, 0us)).value();
  loop.run_for(100ms);
  EXPECT_GE(node.seen[FrameType::kOpen], 1) << "on a session that is up the namespace is opened in advance";
}

}  // namespace
}  // namespace kv
