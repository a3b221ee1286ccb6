#include "store/node/session/core/session_table.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "store/node/log/log_limit.h"

namespace kv {
namespace {

class SessionTableTest : public testing::Test {
 protected:
  using Seat = std::shared_ptr<SessionTable::Seat>;
  Seat take(SessionTable& table, const std::string& peer) {
    const auto seat = table.admit(peer, now);
    if (!seat) {
      why = seat.error();
      return nullptr;
    }
    (*seat)->set_greeted();
    table.set_end(*seat, [this, peer] { ended.push_back(peer); });
    return *seat;
  }
  TimePoint now{1000s};
  SessionTable::Refusal why{};
  std::vector<std::string> ended;
};

TEST_F(SessionTableTest, OnePeerAloneGetsItsShareAndNeverTheLast) {  // invariant 2
  SessionTable table({.count_max = 4096, .peer_share_max = 0.75});
  std::vector<Seat> seats;
  while (const Seat seat = take(table, "a")) seats.push_back(seat);
  EXPECT_EQ(seats.size(), 3072u);
  EXPECT_EQ(why, SessionTable::Refusal::kPeer);
  const Seat b = take(table, "b");
  EXPECT_TRUE(b);
  EXPECT_FALSE(take(table, "a")) << "b took one of the free ones";
  table.leave(seats.back());
  EXPECT_TRUE(take(table, "a"));
}

TEST_F(SessionTableTest, EachPeerThatTakesAllItGetsLeavesAQuarterOfWhatWasFree) {  // invariant 2
  SessionTable table({.count_max = 4096});
  std::vector<Seat> seats;
  for (const std::size_t left : {1024u, 256u, 64u, 16u, 4u}) {
    while (const Seat seat = take(table, std::to_string(left))) seats.push_back(seat);
    EXPECT_EQ(table.size(), 4096 - left);
  }
  EXPECT_TRUE(take(table, "newcomer"));
}

TEST_F(SessionTableTest, WithTheWholeShareOnePeerFillsTheTable) {
  SessionTable table({.count_max = 3, .peer_share_max = 1});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(take(table, "a"));
  EXPECT_FALSE(take(table, "a"));
  EXPECT_EQ(why, SessionTable::Refusal::kFull);
}

TEST_F(SessionTableTest, TheLongestIdleMakesRoomFromTheLeastTimeOn) {  // invariant 3
  SessionTable table({.count_max = 3, .peer_share_max = 1, .idle_min = 60s});
  const Seat a = take(table, "a"), b = take(table, "b"), c = take(table, "c");
  a->set_busy();
  b->set_idle(now + 1s);
  c->set_idle(now);
  now += 60s - Duration(1);
  EXPECT_FALSE(take(table, "d"));
  now += Duration(1);
  const Seat d = take(table, "d");
  EXPECT_TRUE(d);
  EXPECT_EQ(ended, (std::vector<std::string>{"c"}));
  EXPECT_FALSE(take(table, "e")) << "b is idle for 59 s";
  EXPECT_EQ(table.size(), 3u) << "c does not count any more";
  table.leave(c);
  EXPECT_EQ(table.size(), 3u);
}

TEST_F(SessionTableTest, APeerAtItsShareEndsOnlyItsOwn) {
  SessionTable table({.count_max = 8, .peer_share_max = 0.5});
  const Seat other = take(table, "other");
  std::vector<Seat> own;
  while (const Seat seat = take(table, "own")) own.push_back(seat);
  EXPECT_EQ(why, SessionTable::Refusal::kPeer);
  for (const Seat& seat : own) seat->set_busy();
  now += 1h;
  EXPECT_FALSE(take(table, "own")) << "the other's is idle, and none of its own";
  own[1]->set_idle(now - 2min);
  EXPECT_TRUE(take(table, "own"));
  EXPECT_EQ(ended, (std::vector<std::string>{"own"}));
}

TEST_F(SessionTableTest, OneThatWentToWorkAgainStays) {
  SessionTable table({.count_max = 1, .peer_share_max = 1});
  const Seat a = take(table, "a");
  a->set_idle(now);
  now += 1h;
  const Seat b = take(table, "b");
  ASSERT_TRUE(b);
  a->set_busy();
  table.stay(a);
  EXPECT_EQ(table.size(), 2u) << "one more than allowed, until it goes";
  table.leave(a);
  table.leave(b);
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(table.peer_size("a"), 0u);
}

TEST_F(SessionTableTest, ASilentConnectionMakesRoomSoonerThanOneThatSaidHello) {
  SessionTable table({.count_max = 1, .peer_share_max = 1, .idle_min = 60s, .hello_min = 1s});
  const Seat silent = *table.admit("a", now);
  table.set_end(silent, [this] { ended.push_back("a"); });
  now += 1s;
  EXPECT_TRUE(take(table, "b"));
  EXPECT_EQ(ended.size(), 1u);
}

TEST(LogLimitTest, AFloodOfOneKindIsCountedAndHidesNoOther) {
  LogLimit limit;
  TimePoint now{5s};
  std::uint64_t suppressed = 99;
  for (std::uint32_t i = 0; i < LogLimit::kLinesPerSecond; ++i) {
    EXPECT_TRUE(limit.admit(LogKind::kBadFrame, now, &suppressed));
    EXPECT_EQ(suppressed, 0u);
  }
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(limit.admit(LogKind::kBadFrame, now + 999ms, &suppressed));
  EXPECT_TRUE(limit.admit(LogKind::kLane, now, &suppressed));
  EXPECT_TRUE(limit.admit(LogKind::kBadFrame, now + 1s, &suppressed));
  EXPECT_EQ(suppressed, 1000u);
  EXPECT_EQ(limit.suppressed_count(), 1000u);
}

}  // namespace
}  // namespace kv
