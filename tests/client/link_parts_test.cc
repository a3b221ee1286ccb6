// The parts of a link that have rules of their own: its breaker, its requests, how long it is silent, what a hello
// says.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "client/link/breaker.h"
#include "client/link/call.h"
#include "client/link/lifeline.h"
#include "client/link/link_terms.h"
#include "client/link/session/link_requests.h"
#include "client/link/session/silence_watch.h"

namespace kv {
namespace {

class NoCall final : public Call {
 private:
  error_code send(CallSession&) override { return {}; }
  std::string on_last(const FrameReader::Frame&) override { return {}; }
};

TEST(LifelineTest, AGuardedCallbackRunsOnlyWhileItsOwnerLives) {
  auto lifeline = std::make_optional<Lifeline>();
  int ran = 0;
  const std::function<void(int)> callback = lifeline->guard([&ran](int by) { ran += by; });
  callback(2);
  EXPECT_EQ(ran, 2);
  lifeline.reset();
  callback(2);
  EXPECT_EQ(ran, 2);
}

TEST(BreakerTest, OpensAtTheLimitAndAdmitsOneProbeAfterItsTime) {
  Breaker breaker(/*failures_max=*/2, /*open_for=*/1s);
  NoCall first, second;
  TimePoint now{};
  breaker.failed(now);
  EXPECT_FALSE(breaker.is_open());
  EXPECT_TRUE(breaker.admits(first, now));
  breaker.failed(now);
  EXPECT_TRUE(breaker.is_open());
  now += 1s;
  EXPECT_FALSE(breaker.admits(first, now - 1ns));
  EXPECT_TRUE(breaker.admits(first, now));
  EXPECT_FALSE(breaker.admits(second, now)) << "one probe at a time";
  breaker.let_go(second);
  EXPECT_FALSE(breaker.admits(second, now)) << "that was not the probe";
  breaker.let_go(first);
  EXPECT_TRUE(breaker.admits(second, now));
  breaker.let_go(second);
  breaker.failed(now);
  EXPECT_FALSE(breaker.admits(first, now + 1s - 1ns)) << "a failed probe costs the whole time again";
  breaker.succeeded();
  EXPECT_TRUE(breaker.admits(first, now));
}

TEST(SilenceWatchTest, IsSilentWhenNoByteCameBetweenTwoLooks) {
  SilenceWatch silence;
  const TimePoint now{};
  silence.begin(now, 100);
  EXPECT_FALSE(silence.look(now + 1s - 1ns, 100, 1s));
  EXPECT_TRUE(silence.look(now + 1s, 100, 1s));
  EXPECT_FALSE(silence.look(now + 2s, 101, 1s)) << "a byte came";
  EXPECT_FALSE(silence.look(now + 3s - 1ns, 101, 1s));
  EXPECT_TRUE(silence.look(now + 3s, 101, 1s));
}

class LinkRequestsTest : public testing::Test {
 protected:
  LentMemory memory{1 << 20};
  LinkRequests requests{memory};
  NoCall call;
  std::array<std::byte, 64> bytes{};
};

TEST_F(LinkRequestsTest, AnIdIsNeverUsedTwice) {  // invariant 1
  const std::uint64_t first = requests.take(FrameType::kGet, &call, 10);
  ASSERT_NE(requests.find(first), nullptr);
  requests.free(*requests.find(first));
  EXPECT_EQ(requests.find(first), nullptr);
  const std::uint64_t second = requests.take(FrameType::kGet, &call, 10);
  EXPECT_NE(second, first);
  EXPECT_EQ(requests.find(first), nullptr);
  EXPECT_EQ(requests.find(~std::uint64_t{0}), nullptr);
}

TEST_F(LinkRequestsTest, CountsWhatIsUnderWay) {  // invariant 2
  const std::uint64_t waited = requests.take(FrameType::kGet, &call, 10);
  const std::uint64_t forgotten = requests.take(FrameType::kRelease, nullptr, 5);
  EXPECT_EQ(requests.in_flight(), 2u);
  EXPECT_EQ(requests.call_count(), 1u);
  EXPECT_EQ(requests.load_bytes(), 15u);
  requests.let_go(*requests.find(waited));
  EXPECT_EQ(requests.in_flight(), 2u) << "the node still owes an answer";
  EXPECT_EQ(requests.call_count(), 0u);
  requests.free(*requests.find(forgotten));
  requests.free(*requests.find(waited));
  EXPECT_EQ(requests.in_flight(), 0u);
  EXPECT_EQ(requests.load_bytes(), 0u);
}

TEST_F(LinkRequestsTest, AQuarantineEndsWithTheLastFrameOfItsRequest) {  // invariant 3
  const std::uint64_t id = requests.take(FrameType::kGet, &call, 10);
  requests.abandon(*requests.find(id), {std::span<const std::byte>(bytes)});
  EXPECT_TRUE(memory.is_quarantined(bytes));
  EXPECT_EQ(requests.quarantine_count(), 1u);
  requests.free(*requests.find(id));
  EXPECT_FALSE(memory.is_quarantined(bytes));
  EXPECT_EQ(requests.quarantine_count(), 0u);
}

TEST_F(LinkRequestsTest, AQuarantineOutlivesATableThatNobodyEmptied) {  // invariant 3
  {
    LinkRequests others(memory);
    const std::uint64_t id = others.take(FrameType::kGet, &call, 10);
    others.abandon(*others.find(id), {std::span<const std::byte>(bytes)});
  }
  EXPECT_TRUE(memory.is_quarantined(bytes));
}

TEST_F(LinkRequestsTest, MessagesAreLateFromAMissedDeadlineUntilOneComesOrNoneIsAwaited) {
  const std::uint64_t late = requests.take(FrameType::kMatch, &call, 10);
  requests.went_by_send(*requests.find(late));
  EXPECT_EQ(requests.message_count(), 1u);
  requests.abandon(*requests.find(late), {});
  EXPECT_TRUE(requests.messages_are_late());
  requests.message_came();
  EXPECT_FALSE(requests.messages_are_late());

  const std::uint64_t next = requests.take(FrameType::kMatch, &call, 10);
  requests.went_by_send(*requests.find(next));
  requests.abandon(*requests.find(next), {});
  requests.free(*requests.find(next));
  EXPECT_TRUE(requests.messages_are_late()) << "the first one has no answer yet";
  requests.free(*requests.find(late));
  EXPECT_FALSE(requests.messages_are_late()) << "nothing would come that tells otherwise";
}

/// A good hello, or with one thing wrong.
std::string read_hello_of(std::uint8_t version, const char* node_id, std::size_t instance_bytes,
                          std::uint32_t requests_max, LinkTerms* terms) {
  flatbuffers::FlatBufferBuilder builder;
  const auto id = builder.CreateString(node_id);
  const auto instance = builder.CreateVector(std::vector<std::uint8_t>(instance_bytes, 7));
  wire::HelloResponseBuilder hello(builder);
  hello.add_version(version);
  hello.add_node_id(id);
  hello.add_instance(instance);
  hello.add_table_bytes_max(1 << 20);
  hello.add_chain_blocks_max(4096);
  hello.add_requests_max(requests_max);
  hello.add_lanes_max(100);
  builder.Finish(hello.Finish());
  return read_hello(std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize())), terms);
}

TEST(LinkTermsTest, AGoodHelloIsTakenWithinTheLimitsOfTheWire) {
  LinkTerms terms, later;
  EXPECT_EQ(read_hello_of(kWireVersion, "node", kInstanceBytes, 1 << 30, &terms), "");
  EXPECT_EQ(terms.node_id, "node");
  EXPECT_TRUE(terms.is_agreed);
  EXPECT_EQ(terms.requests_max, 0xFFFFu);
  EXPECT_EQ(terms.lanes_max, 32u) << "as many as a lane set has bits";
  EXPECT_FALSE(terms.has_messages);
  EXPECT_EQ(read_hello_of(kWireVersion, "node", kInstanceBytes, 8, &later), "");
  EXPECT_TRUE(later.is_same_life(terms));
  later.instance[0] = std::byte{1};
  EXPECT_FALSE(later.is_same_life(terms));
}

TEST(LinkTermsTest, AHelloThatLeavesSomethingOutIsNoHello) {
  LinkTerms terms;
  EXPECT_NE(read_hello_of(0, "node", kInstanceBytes, 8, &terms), "");
  EXPECT_NE(read_hello_of(kWireVersion + 1, "node", kInstanceBytes, 8, &terms), "");
  EXPECT_NE(read_hello_of(kWireVersion, "", kInstanceBytes, 8, &terms), "");
  EXPECT_NE(read_hello_of(kWireVersion, "node", kInstanceBytes - 1, 8, &terms), "");
  EXPECT_NE(read_hello_of(kWireVersion, "node", kInstanceBytes, 0, &terms), "");
  const std::array<std::byte, 8> garbage{};
  EXPECT_NE(read_hello(garbage, &terms), "");
}

}  // namespace
}  // namespace kv
