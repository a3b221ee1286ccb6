// When a client gives up a session or a node that fails, and when it tries again.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "tests/client/node_link_fixture.h"

namespace kv {
namespace {

TEST_F(NodeLinkTest, TheBreakerOpensAfterEnoughFailuresAndOneProbeClosesIt) {
  config.breaker_failures = 3;
  config.breaker_open = 500ms;
  config.connect_timeout = 10s;  // no session is given up for its silence here
  make_client();
  Blocks memory(1, record.block_bytes());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(get(memory, 10ms).why, asio::error::timed_out) << i;
  EXPECT_TRUE(client->nodes()[0].breaker_open);
  const int asked = node.seen[FrameType::kGet];
  const TimePoint opened = clock.now();
  EXPECT_EQ(get(memory, 10ms).why, Errc::kUnavailable);
  EXPECT_EQ(clock.now(), opened) << "at once";
  EXPECT_EQ(node.seen[FrameType::kGet], asked);

  loop.run_for(500ms - 1ns);
  EXPECT_EQ(get(memory, 10ms).why, Errc::kUnavailable) << "one tick before";
  loop.run_for(1ns);
  EXPECT_EQ(get(memory, 10ms).why, asio::error::timed_out) << "the probe fails";
  EXPECT_EQ(get(memory, 10ms).why, Errc::kUnavailable) << "open again";
  loop.run_for(500ms);
  node.handler = honest(1);
  EXPECT_EQ(get(memory, 10ms).block_count, 1u);
  EXPECT_FALSE(client->nodes()[0].breaker_open);
}

TEST_F(NodeLinkTest, OnlyOneCallProbes) {
  config.breaker_failures = 1;
  config.connect_timeout = 10s;
  make_client();
  Blocks memory(1, record.block_bytes());
  EXPECT_EQ(get(memory, 10ms).why, asio::error::timed_out);
  loop.run_for(2s);
  const auto ends = ends_of_gets(3);
  EXPECT_EQ(std::count(ends.begin(), ends.end(), make_error_code(Errc::kUnavailable)), 2);
}

TEST_F(NodeLinkTest, ReconnectsBackOffUpToTheMaximum) {
  config.breaker_failures = 1'000'000;
  make_client();
  node.close_all();
  node.refuses = true;
  node.accepted.clear();
  Blocks memory(1, record.block_bytes());
  const TimePoint began = clock.now();
  while (clock.now() < began + 120s) {
    EXPECT_EQ(get(memory, 10ms).why, Errc::kUnavailable);
    loop.run_for(1ms);
  }
  // With full jitter the mean wait at the maximum is half of backoff_max = 5 s: about 48 attempts in 120 s, plus the
  // first.
  EXPECT_GT(node.accepted.size(), 24u);
  EXPECT_LT(node.accepted.size(), 100u);
  for (std::size_t i = 1; i < node.accepted.size(); ++i) {
    EXPECT_LT(node.accepted[i] - node.accepted[i - 1], 5s + 20ms);
  }
  node.refuses = false;
  loop.run_for(5s);
  node.handler = honest(1);
  EXPECT_EQ(get(memory).block_count, 1u);
}

TEST_F(NodeLinkTest, ASessionThatIsSilentForTooLongIsReplaced) {
  config.breaker_failures = 1'000'000;
  make_client();
  FakeNode::Session* const deaf = node.sessions.back().get();
  node.handler = [&, answer = honest(1)](FakeNode::Session& s, const FrameReader::Frame& frame) {
    return &s == deaf || answer(s, frame);
  };
  expect_replaced("not at the first missed deadline");
}

/// A length that was damaged on its way: the frame would be complete once as many bytes have come, and all answers that
/// come meanwhile are taken for parts of it.
TEST_F(NodeLinkTest, ASessionWhoseFrameNeverEndsIsReplacedThoughBytesCome) {
  config.breaker_failures = 1'000'000;
  make_client();
  FakeNode::Session* const damaged = node.sessions.back().get();
  bool is_cut = false;
  node.handler = [&, answer = honest(1)](FakeNode::Session& s, const FrameReader::Frame& frame) {
    if (&s != damaged) return answer(s, frame);
    if (std::exchange(is_cut, true)) {  // a few bytes for each request: the frame would be complete after thousands
      s.error(frame.header, Errc::kBusy);
      return true;
    }
    std::array<std::byte, kFrameHeaderBytes> header{};
    const std::vector<std::byte> table(1 << 20);
    encode_frame_header({.type = frame.header.type, .flags = kFrameResponse, .request_id = frame.header.request_id},
                        table, header);
    const asio::const_buffer bytes(header.data(), header.size());
    EXPECT_EQ(s.stream->try_write(std::span(&bytes, 1)).value(), header.size());
    return true;
  };
  expect_replaced("a table may be large, and the network slow");
}

}  // namespace
}  // namespace kv
