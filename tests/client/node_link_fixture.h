// tests/client/node_link_fixture.h: a client of a node that does what the test wants, on virtual time.
#pragma once

#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tests/client/fake_node.h"
#include "tests/fakes/virtual_clock.h"

namespace kv {

/// A client of one fake node.
class NodeLinkTest : public testing::Test {
 protected:
  NodeLinkTest() {
    node.clock = &clock;
    config.nodes.push_back({.endpoint = "sim://fake"});
    config.connections_per_node = 1;
    config.seed = 7;
    make_client();
  }
  ~NodeLinkTest() override {
    client.reset();
    node.close_all();
    loop.drain();
  }
  void start_anew() {
    client.reset();
    node.close_all();
    loop.run_for(1s);
  }
  /// It has opened nothing.
  void make_new_client() {
    client.reset();
    client = std::make_unique<Client>(loop.context().get_executor(), config, network, clock);
  }
  void make_client() {
    make_new_client();
    space = loop.run(client->open(record, 5s)).value();
  }
  GetResult get(Blocks& memory, std::chrono::microseconds deadline = 100ms) {
    const auto hashes = std::span(chain).first(memory.to.size());
    return loop.run(client->get(space, hashes, memory.to, {.deadline = deadline})).value();
  }
  /// How each of `count` gets at once ends.
  std::vector<error_code> ends_of_gets(std::size_t count) {
    Blocks memory(1, record.block_bytes());
    std::vector<error_code> ends;
    for (std::size_t i = 0; i < count; ++i) {
      asio::co_spawn(
          loop.context(),
          client->get(space, std::span(chain).first(1), memory.to, {.deadline = std::chrono::milliseconds(10)}),
          [&](std::exception_ptr, Result<GetResult> got) { ends.push_back(got ? got->why : got.error()); });
    }
    loop.run_until([&] { return ends.size() == count; });
    return ends;
  }
  /// The session that answers nothing gives way to one that does: after connect_timeout, for the reason given, and
  /// soon.
  void expect_replaced(const char* why_not_sooner) {
    Blocks memory(1, record.block_bytes());
    const TimePoint began = clock.now();
    std::size_t block_count = 0;
    while (block_count == 0 && clock.now() < began + 10s) {
      block_count = get(memory, 50ms).block_count;
      loop.run_for(50ms);
    }
    EXPECT_EQ(block_count, 1u);
    EXPECT_GE(clock.now(), began + config.connect_timeout) << why_not_sooner;
    EXPECT_LT(clock.now(), began + 2 * config.connect_timeout);
  }
  /// Answers gets as an honest node that holds `count` blocks of the chain.
  FakeNode::Handler honest(std::size_t count, bool is_inline = true) {
    return [this, count, is_inline](FakeNode::Session& session, const FrameReader::Frame& frame) {
      if (frame.header.type != FrameType::kGet) return false;
      if (count > 0) session.part(frame.header, record, chain, 0, count, is_inline);
      session.get_response(frame.header, count);
      return true;
    };
  }
  /// Counts requests under a handle that their session was not given, or without the namespace's check.
  FakeNode::Handler strict(FakeNode::Handler then) {
    return [this, then](FakeNode::Session& session, const FrameReader::Frame& frame) {
      const auto look = [&](const auto* request) {
        const bool is_right =
            session.handles.contains(request->space()) && request->namespace_check() == namespace_check(record.id());
        misused += is_right ? 0 : 1;
      };
      switch (frame.header.type) {
        case FrameType::kMatch: look(read_table<wire::MatchRequest>(frame.table)); break;
        case FrameType::kGet: look(read_table<wire::GetRequest>(frame.table)); break;
        case FrameType::kPut: look(read_table<wire::PutRequest>(frame.table)); break;
        case FrameType::kTouch:
        case FrameType::kDrop: look(read_table<wire::PrefixRequest>(frame.table)); break;
        default: break;
      }
      return then(session, frame);
    };
  }
  FakeNode::Handler on_get(std::function<void(FakeNode::Session&, const FrameHeader&)> answer) {
    return [answer](FakeNode::Session& session, const FrameReader::Frame& frame) {
      if (frame.header.type == FrameType::kGet) answer(session, frame.header);
      return frame.header.type == FrameType::kGet;
    };
  }

  VirtualClock clock;
  SimNetwork network{clock, 1};
  Loop loop{&clock};
  FakeNode node{loop.context(), network, "fake"};
  NamespaceRecord record = test_record(100'000);
  std::vector<BlockHash> chain = test_chain(record, 4);
  ClientConfig config = repeatable_config();
  std::unique_ptr<Client> client;
  Space space{};
  int misused = 0;  ///< By strict().
};

}  // namespace kv
