// Namespaces on sessions: without a node, and with nodes that come back as somebody else or mix them up.
#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <memory>
#include <span>
#include <vector>

#include "tests/client/node_link_fixture.h"

namespace kv {
namespace {

TEST_F(NodeLinkTest, ANodeThatCameBackAsAnotherIsOpenedAgain) {
  node.handler = honest(1);
  Blocks memory(1, record.block_bytes());
  EXPECT_EQ(get(memory).block_count, 1u);
  EXPECT_EQ(node.seen[FrameType::kOpen], 1);
  node.node_id = "fake#2";
  node.close_all();
  loop.run_for(1s);
  EXPECT_EQ(get(memory).block_count, 1u);
  EXPECT_EQ(node.seen[FrameType::kOpen], 2);
  EXPECT_EQ(client->nodes()[0].node_id, "fake#2");
}

TEST_F(NodeLinkTest, ANamespaceIsOpenedWithoutANodeAndServesOnceOneIsThere) {
  config.connect_timeout = 1s;
  node.refuses = true;
  make_new_client();
  const TimePoint before = clock.now();
  space = loop.run(client->open(record, 30s)).value();
  EXPECT_LT(clock.now(), before + 1s) << "nobody can be reached: nothing is waited for";
  EXPECT_EQ(client->block_bytes(space), record.block_bytes());
  Blocks memory(1, record.block_bytes());
  EXPECT_EQ(get(memory).why, Errc::kUnavailable);
  const TimePoint known = clock.now();
  EXPECT_EQ(get(memory).why, Errc::kUnavailable);
  EXPECT_EQ(clock.now(), known) << "at once when the node is known to be away";
  EXPECT_EQ(loop.run(client->wait_open(space, 100ms)).error(), Errc::kUnavailable);

  node.refuses = false;
  node.handler = honest(1);
  loop.run_for(6s);  // back-off, breaker
  EXPECT_TRUE(loop.run(client->wait_open(space, 1s)));
  EXPECT_EQ(get(memory).block_count, 1u);
}

TEST_F(NodeLinkTest, ANamespaceIsOpenedAtOnceBesideANodeThatDoesNotAnswer) {
  network.freeze("fake");
  make_new_client();
  const TimePoint before = clock.now();
  EXPECT_TRUE(loop.run(client->open(record, 0us)));
  EXPECT_EQ(clock.now(), before);
  space = loop.run(client->open(record, 20ms)).value();
  EXPECT_EQ(clock.now(), before + 20ms);
  Blocks memory(1, record.block_bytes());
  EXPECT_EQ(get(memory, 10ms).why, asio::error::timed_out);
  EXPECT_EQ(clock.now(), before + 30ms);
  EXPECT_EQ(loop.run(client->wait_open(space, 10ms)).error(), asio::error::timed_out);
}

TEST_F(NodeLinkTest, ANodeThatRefusesTheRecordSaysSoToOpenOrIfItComesLaterToEachCall) {
  const auto refuse = [](FakeNode::Session& s, const FrameReader::Frame& frame) {
    if (frame.header.type == FrameType::kOpen) s.error(frame.header, Errc::kMismatch);
    return frame.header.type == FrameType::kOpen;
  };
  node.refuses = true;
  make_new_client();
  space = loop.run(client->open(record, 0us)).value();
  node.refuses = false;
  node.handler = refuse;
  loop.run_for(6s);
  Blocks memory(1, record.block_bytes());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(get(memory).why, Errc::kMismatch) << i;
  EXPECT_EQ(client->nodes()[0].last_error_text, "open: as the test wants");
  EXPECT_EQ(loop.run(client->open(record, 1s)).error(), Errc::kMismatch);
  node.handler = nullptr;
  EXPECT_TRUE(loop.run(client->open(record, 1s)));
}

TEST_F(NodeLinkTest, ANodeThatCameBackUnderTheSameNameIsOpenedAgain) {
  node.handler = strict(honest(1));
  Blocks memory(1, record.block_bytes());
  EXPECT_EQ(get(memory).block_count, 1u);
  for (std::uint8_t life = 2; life < 5; ++life) {
    node.instance.assign(kInstanceBytes, life);
    node.close_all();
    loop.run_for(1s);
    EXPECT_EQ(get(memory).block_count, 1u);
    EXPECT_EQ(node.seen[FrameType::kOpen], life);
  }
  EXPECT_EQ(misused, 0);
}

TEST_F(NodeLinkTest, AHandleIsUsedOnlyOnTheSessionThatGaveIt) {
  config.connections_per_node = 4;
  start_anew();
  node.handler = strict([answer = honest(1)](FakeNode::Session& s, const FrameReader::Frame& frame) {
    const FrameHeader& to = frame.header;
    if (to.type == FrameType::kMatch) {
      s.reply(to, kFrameResponse, [](auto& builder) { return wire::CreateMatchResponse(builder, 1); });
    } else if (to.type == FrameType::kTouch || to.type == FrameType::kDrop) {
      s.reply(to, kFrameResponse, [](auto& builder) { return wire::CreateCountResponse(builder, 1); });
    } else {
      return answer(s, frame);
    }
    return true;
  });
  make_new_client();
  for (int i = 0; i < 3; ++i) {  // three namespaces, asked about on all sessions at once
    record = test_record(100'000 + 1000 * i);
    chain = test_chain(record, 4);
    space = loop.run(client->open(record, 5s)).value();
    Blocks memory(1, record.block_bytes());
    for (int j = 0; j < 8; ++j) EXPECT_EQ(get(memory).block_count, 1u);
    for (int j = 0; j < 8; ++j) {
      asio::co_spawn(loop.context(), client->match(space, chain, {.deadline = 100ms}), asio::detached);
      asio::co_spawn(loop.context(), client->touch(space, chain, 100ms), asio::detached);
      asio::co_spawn(loop.context(), client->drop(space, chain, 100ms), asio::detached);
    }
    loop.run_for(1s);
  }
  EXPECT_EQ(misused, 0);
  EXPECT_EQ(node.sessions.size(), 4u);
  for (const auto& session : node.sessions) EXPECT_EQ(session->handles.size(), 3u) << "opened once on each";
}

TEST_F(NodeLinkTest, ASessionOfAnEarlierLifeIsLeftAsSoonAsALaterOneIsMet) {
  config.connections_per_node = 2;
  start_anew();
  bool is_refusing = true;  // the second session, at first
  node.handler = [&, answer = strict(honest(1))](FakeNode::Session& s, const FrameReader::Frame& frame) {
    if (frame.header.type == FrameType::kHello && &s != node.sessions[0].get()) {
      if (is_refusing) {
        s.stream->close();
        return true;
      }
      node.instance.assign(kInstanceBytes, 2);
    }
    return answer(s, frame);
  };
  make_client();
  Blocks memory(1, record.block_bytes());
  EXPECT_EQ(get(memory).block_count, 1u);
  is_refusing = false;  // the successor listens, while the first process still serves
  const std::shared_ptr<FakeNode::Session> first = node.sessions[0];
  for (int i = 0; i < 10; ++i) {
    loop.run_for(1s);
    EXPECT_EQ(get(memory).block_count, 1u);
  }
  std::byte byte;
  const asio::mutable_buffer buffer(&byte, 1);
  const auto left = first->stream->try_read(std::span(&buffer, 1));
  EXPECT_FALSE(left);
  EXPECT_NE(left.error(), asio::error::would_block) << "the client has left it";
  EXPECT_EQ(misused, 0);
}

TEST_F(NodeLinkTest, AnAnswerAboutAnotherNamespaceIsAMismatch) {
  NamespaceRecord other = test_record(100'000, "other");
  bool is_other = true;
  node.handler = [&, answer = strict(honest(1))](FakeNode::Session& s, const FrameReader::Frame& frame) {
    if (frame.header.type != FrameType::kOpen || !is_other) return answer(s, frame);
    const NamespaceId id = other.id();
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(id.bytes.data());
    const std::vector<std::uint8_t> name(bytes, bytes + id.bytes.size());
    s.reply(frame.header, kFrameResponse,
            [&](auto& builder) { return wire::CreateOpenResponseDirect(builder, 1, other.block_bytes(), &name); });
    return true;
  };
  make_new_client();
  const auto opened = loop.run(client->open(record, 1s));
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error(), Errc::kMismatch);
  is_other = false;
  space = loop.run(client->open(record, 1s)).value();
  Blocks memory(1, record.block_bytes());
  EXPECT_EQ(get(memory).block_count, 1u);
}

TEST_F(NodeLinkTest, AMismatchIsToldAndTheNextCallOpensAgain) {
  bool is_mixed_up = false;
  node.handler = [&, answer = strict(honest(1))](FakeNode::Session& s, const FrameReader::Frame& frame) {
    if (frame.header.type != FrameType::kGet || !is_mixed_up) return answer(s, frame);
    s.error(frame.header, Errc::kMismatch);
    return true;
  };
  make_client();
  Blocks memory(1, record.block_bytes());
  EXPECT_EQ(get(memory).block_count, 1u);
  is_mixed_up = true;
  EXPECT_EQ(get(memory).why, Errc::kMismatch);
  EXPECT_EQ(node.seen[FrameType::kGet], 2) << "not tried again behind the caller's back";
  is_mixed_up = false;
  const int opened = node.seen[FrameType::kOpen];
  EXPECT_EQ(get(memory).block_count, 1u);
  EXPECT_EQ(node.seen[FrameType::kOpen], opened + 1);
}

TEST_F(NodeLinkTest, AForgottenNamespaceIsOpenedAgainOnce) {
  int refused = 0;
  node.handler = [&, answer = honest(1)](FakeNode::Session& s, const FrameReader::Frame& frame) {
    if (frame.header.type == FrameType::kGet && refused-- > 0) {
      s.error(frame.header, Errc::kNoNamespace);
      return true;
    }
    return answer(s, frame);
  };
  Blocks memory(1, record.block_bytes());
  refused = 1;
  EXPECT_EQ(get(memory).block_count, 1u);
  EXPECT_EQ(node.seen[FrameType::kOpen], 2);
  refused = 2;
  EXPECT_EQ(get(memory).why, Errc::kNoNamespace);
}

}  // namespace
}  // namespace kv
