// Small requests by SEND between a client and real sessions, and what breaks them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/client/said.h"
#include "tests/client/verbs_path.h"

namespace kv {
namespace {

using verbs::Status;

/// Of a client whose small requests go by SEND: blocks of 40 KB, since those go right before the answer.
class MessagePathTest : public VerbsPathTest {
 protected:
  static constexpr std::size_t kSmallBytes = 40'000, kSmallCount = 6;

  MessagePathTest() { restart(); }
  void restart() {
    small_space = loop.run(client->open(small_record, 5s)).value();
    own = client->allocate(kSmallCount * kSmallBytes).value();
    EXPECT_EQ(loop.run(client->lend(own, 5s)).value(), 1u);
    small.emplace(own, kSmallCount, kSmallBytes);
    small->fill(names);
    const PutResult put = loop.run(client->put(small_space, names, small->from, {.deadline = 5s})).value();
    EXPECT_EQ(put.stored + put.already_stored, kSmallCount) << put.why.message();
  }
  GetResult get_small(std::chrono::microseconds deadline = 5s) {
    small->clear();
    const GetResult got = loop.run(client->get(small_space, names, small->to, {.deadline = deadline})).value();
    EXPECT_GE(small->right(names), got.block_count) << "a block that is not what it says";
    EXPECT_EQ(got.corrupt_count, 0u);
    return got;
  }
  double messages() {
    const auto stats = loop.run(client->ask({.path = "/stats.json"}, 5s)).value();
    return said(stats[0]).at("values").value("rdma_messages", -1.0);
  }
  std::size_t match() { return loop.run(client->match(small_space, names, {.deadline = 5s}))->block_count; }

  const NamespaceRecord small_record = test_record(kSmallBytes, "small");
  const std::vector<BlockHash> names = test_chain(small_record, kSmallCount);
  Space small_space{};
  std::span<std::byte> own;
  std::optional<Blocks> small;
};

TEST_F(MessagePathTest, SmallRequestsGoBySendAndTheirBlocksWithTheAnswer) {
  const double before = messages();
  EXPECT_EQ(match(), kSmallCount);
  EXPECT_EQ(messages(), before + 1);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(get_small().block_count, kSmallCount);
  EXPECT_EQ(messages(), before + 101);
  EXPECT_EQ(*loop.run(client->touch(small_space, names, 5s)), kSmallCount);
  EXPECT_EQ(messages(), before + 102);
}

TEST_F(MessagePathTest, ALargeGetKeepsItsMarksAndAClientMayDoWithout) {
  put_all();
  const double before = messages();
  EXPECT_EQ(get().block_count, kCount);
  EXPECT_EQ(messages(), before) << "its parts are told of one by one";
  config.rdma_messages = 0;
  restart_client();
  restart();
  EXPECT_EQ(get_small().block_count, kSmallCount);
  EXPECT_EQ(match(), kSmallCount);
  EXPECT_EQ(messages(), before);
  EXPECT_EQ(transport(), "sim+verbs");
}

TEST_F(MessagePathTest, BlocksGoByAnotherLaneWhereThatOfMessagesHasNoKey) {
  client.reset();
  loop.run_for(20s);
  verbs.set_registered_bytes_max("fake2", 300'000);  // enough for messages, which are on it, and no more
  restart_client();
  restart();
  const double before = messages();
  EXPECT_EQ(match(), kSmallCount);
  EXPECT_EQ(messages(), before + 1);
  for (int i = 0; i < 10; ++i) ASSERT_EQ(get_small().block_count, kSmallCount);
  EXPECT_EQ(client->nodes()[0].rdma_lanes, 2u) << "none broke";
  EXPECT_EQ(client->nodes()[0].reconnects, 0u);
}

TEST_F(MessagePathTest, MoreAtOnceThanAgreedGoThroughTheSocket) {
  const double before = messages();
  std::size_t ended = 0;
  std::vector<MatchResult> results(100);
  for (MatchResult& to : results) {
    asio::co_spawn(loop.context(), client->match(small_space, names, {.deadline = 5s}),
                   [&](std::exception_ptr thrown, Result<MatchResult> result) {
                     if (thrown) std::rethrow_exception(thrown);
                     ++ended;
                     if (result) to = *result;
                   });
  }
  loop.run_until([&] { return ended == results.size(); });
  for (const MatchResult& each : results) EXPECT_EQ(each.block_count, kSmallCount) << each.why.message();
  EXPECT_GE(messages(), before + 16);
  EXPECT_LT(messages(), before + 100);
}

/// By the node's device, under the block; and by the client's, under the request.
class BrokenMessageTest : public MessagePathTest, public testing::WithParamInterface<std::tuple<const char*, int>> {};

TEST_P(BrokenMessageTest, CostsTheSessionAndTheNextOneIsServed) {
  const auto [device, status] = GetParam();
  EXPECT_EQ(get_small().block_count, kSmallCount);
  verbs.fail_next(device, static_cast<Status>(status));
  const GetResult got = get_small();
  EXPECT_LT(got.block_count, kSmallCount);
  EXPECT_EQ(got.why, make_error_code(Errc::kUnavailable)) << got.why.message();
  EXPECT_FALSE(client->is_quarantined(own)) << "its queue pairs are gone";
  std::memset(own.data(), 0x5A, own.size());
  loop.run_for(20s);
  EXPECT_TRUE(std::ranges::all_of(own, [](std::byte byte) { return byte == std::byte{0x5A}; }))
      << "written after it was given back";
  EXPECT_EQ(client->nodes()[0].reconnects, 0u);
  EXPECT_EQ(get_small().block_count, kSmallCount) << "on a new session";
  EXPECT_EQ(client->nodes()[0].reconnects, 1u);
  loop.run_for(20s);
  EXPECT_EQ(loop.run(client->lend(own, 5s)).value(), 1u);
  loop.run_for(20s);
  get_small();
  loop.run_for(1s);
  const double before = messages();
  EXPECT_EQ(get_small().block_count, kSmallCount);
  EXPECT_EQ(messages(), before + 1) << "it is tried again after a pause";
  verbs.fail_next(device, static_cast<Status>(status));
  EXPECT_LT(get_small().block_count, kSmallCount);
  loop.run_for(200ms);  // until it connects again
  EXPECT_EQ(loop.run(client->lend(own, 500ms)).value(), 1u);
  const double at_pause = messages();
  EXPECT_EQ(get_small().block_count, kSmallCount);
  EXPECT_EQ(messages(), at_pause) << "and not before, whichever side noticed";
  EXPECT_FALSE(client->nodes()[0].breaker_open);
  EXPECT_EQ(node->check(), "");
}

INSTANTIATE_TEST_SUITE_P(Statuses, BrokenMessageTest,
                         testing::Combine(testing::Values("fake0", "fake2"),
                                          testing::Range(1, static_cast<int>(verbs::kStatusCount))),
                         [](const auto& each) {
                           std::string name = std::string(std::get<0>(each.param)) + "_";
                           name += verbs::name_of(static_cast<Status>(std::get<1>(each.param)));
                           std::ranges::replace_if(
                               name, [](char c) { return !std::isalnum(c) && c != '_'; }, '_');
                           return name;
                         });

TEST_F(MessagePathTest, ALinkThatIsCutCostsOneDeadlineAndThenTheSocketServes) {
  verbs.set_link("fake0", false);
  verbs.set_link("fake1", false);
  const GetResult late = get_small(50ms);
  EXPECT_EQ(late.why, make_error_code(asio::error::timed_out));
  EXPECT_EQ(match(), kSmallCount) << "at once, through the socket";
  loop.run_until([&] { return !client->is_quarantined(own); });
  std::memset(own.data(), 0x5A, own.size());
  loop.run_for(20s);
  EXPECT_TRUE(std::ranges::all_of(own, [](std::byte byte) { return byte == std::byte{0x5A}; }));
  EXPECT_EQ(get_small().block_count, kSmallCount) << "through the socket";
  verbs.set_link("fake0", true);
  verbs.set_link("fake1", true);
  loop.run_for(60s);
  loop.run(client->lend(own, 5s)).value();
  loop.run_for(5s);
  get_small();
  const double before = messages();
  EXPECT_EQ(get_small().block_count, kSmallCount);
  EXPECT_EQ(messages(), before + 1);
}

TEST_F(MessagePathTest, ALaneThatAlwaysBreaksCostsFewSessions) {
  std::size_t failed = 0;
  for (int i = 0; i < 600; ++i) {                      // a minute
    verbs.fail_next("fake2", Status::kRetryExceeded);  // the client's side sends requests only
    failed += get_small(50ms).block_count < kSmallCount;
    loop.run_for(100ms);
  }
  EXPECT_GE(failed, 2u);
  EXPECT_LE(failed, 12u);
  EXPECT_LE(client->nodes()[0].reconnects, 12u);
}

TEST_F(MessagePathTest, ANodeKilledMidwayWritesNothingLater) {
  for (int round = 0; round < 10; ++round) {
    bool is_over = false;
    small->clear();
    asio::co_spawn(loop.context(), client->get(small_space, names, small->to, {.deadline = 5s}),
                   [&](std::exception_ptr, Result<GetResult>) { is_over = true; });
    run_into_transfer(static_cast<std::uint64_t>(2 * round));
    node->kill();
    loop.run_until([&] { return is_over; });
    EXPECT_FALSE(client->is_quarantined(own));
    std::memset(own.data(), 0x5A, own.size());
    loop.run_for(20s);
    EXPECT_TRUE(std::ranges::all_of(own, [](std::byte byte) { return byte == std::byte{0x5A}; })) << round;
    restart_node();
    restart_client();
    restart();
  }
}

TEST_F(MessagePathTest, RandomFaultsNeverDeliverAWrongByte) {
  verbs.set_fault_probability(0.005);
  std::size_t short_gets = 0;
  for (int i = 0; i < 400; ++i) {
    short_gets += get_small(20ms).block_count < kSmallCount;
    loop.run_until([&] { return !client->is_quarantined(own); });
    loop.run_for(50ms);
    if (i % 20 == 0) loop.run_for(70s);  // or few would go by SEND
  }
  EXPECT_GT(short_gets, 0u);
  verbs.set_fault_probability(0);
  loop.run_for(70s);
  EXPECT_EQ(node->check(), "");
  EXPECT_EQ(node->stats().pinned_count, 0u);
  EXPECT_EQ(get_small().block_count, kSmallCount);
}

}  // namespace
}  // namespace kv
