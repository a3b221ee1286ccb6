#include "base/clock.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <string>
#include <vector>

#include "tests/fakes/virtual_clock.h"

namespace kv {
namespace {

class VirtualClockTest : public testing::Test {
 protected:
  asio::io_context io;
  VirtualClock clock;
  std::string rung;

  std::unique_ptr<Alarm> alarm() { return clock.make_alarm(io.get_executor()); }
  std::function<void()> note(char c) {
    return [this, c] { rung += c; };
  }
  void run() {
    io.restart();
    io.poll();
  }
};

TEST_F(VirtualClockTest, AlarmsRingInOrderOfTimeThenOfArming) {
  const auto start = clock.now();
  const auto a = alarm(), b = alarm(), c = alarm(), d = alarm();
  a->arm(start + 20ms, note('a'));
  b->arm(start + 10ms, note('b'));
  c->arm(start + 20ms, note('c'));
  d->arm(start + 30ms, note('d'));
  EXPECT_EQ(clock.next_alarm(), start + 10ms);
  clock.advance_to(start + 20ms);
  EXPECT_EQ(rung, "") << "alarms ring from the executor, not from advance_to";
  run();
  EXPECT_EQ(rung, "bac");
  EXPECT_TRUE(clock.has_alarm());
  EXPECT_EQ(clock.now(), start + 20ms);
}

TEST_F(VirtualClockTest, AlarmRingsAtItsTimeAndNotOneTickBefore) {
  const auto a = alarm();
  const auto when = clock.now() + 5ms;
  a->arm(when, note('a'));
  clock.advance_to(when - Duration(1));
  run();
  EXPECT_EQ(rung, "");
  clock.advance(Duration(1));
  run();
  EXPECT_EQ(rung, "a");
  EXPECT_FALSE(clock.has_alarm());
}

TEST_F(VirtualClockTest, ArmingAgainReplacesTheEarlierTime) {
  const auto a = alarm();
  a->arm(clock.now() + 5ms, note('x'));
  a->arm(clock.now() + 10ms, note('a'));
  clock.advance(7ms);
  run();
  EXPECT_EQ(rung, "");
  clock.advance(7ms);
  run();
  EXPECT_EQ(rung, "a");
}

TEST_F(VirtualClockTest, QueuedRingIsTakenBackByDisarmRearmAndDestruction) {
  auto disarmed = alarm(), rearmed = alarm(), destroyed = alarm();
  disarmed->arm(clock.now() + 1ms, note('x'));
  rearmed->arm(clock.now() + 1ms, note('y'));
  destroyed->arm(clock.now() + 1ms, note('z'));
  clock.advance(1ms);  // all three are queued now
  disarmed->disarm();
  rearmed->arm(clock.now() + 1ms, note('b'));
  destroyed.reset();
  run();
  EXPECT_EQ(rung, "");
  clock.advance(1ms);
  run();
  EXPECT_EQ(rung, "b");
}

TEST_F(VirtualClockTest, AlarmSetInThePastRingsAtOnceAndTimeNeverGoesBack) {
  const auto a = alarm();
  const auto now = clock.now();
  a->arm(now - 1s, note('a'));
  clock.advance_to(clock.next_alarm());
  run();
  EXPECT_EQ(rung, "a");
  EXPECT_EQ(clock.now(), now);
}

TEST_F(VirtualClockTest, RingMayArmItsAlarmAgainOrDestroyIt) {
  auto a = alarm();
  a->arm(clock.now() + 1ms, [&] { a->arm(clock.now() + 1ms, [&] { a.reset(), rung += 'd'; }); });
  clock.advance(1ms), run();
  clock.advance(1ms), run();
  EXPECT_EQ(rung, "d");
  EXPECT_FALSE(clock.has_alarm());
}

// Real time: what is tested is that things happen and in which order, never how long they take.
class SteadyClockTest : public testing::Test {
 protected:
  asio::io_context io;
  SteadyClock clock;
  std::string rung;
};

TEST_F(SteadyClockTest, AlarmRingsNotBeforeItsTime) {
  const auto alarm = clock.make_alarm(io.get_executor());
  const auto when = clock.now() + 2ms;
  alarm->arm(when, [&] {
    EXPECT_GE(clock.now(), when);
    rung += 'a';
  });
  EXPECT_EQ(rung, "");
  io.run();
  EXPECT_EQ(rung, "a");
}

TEST_F(SteadyClockTest, RearmedDisarmedAndDestroyedAlarmsNeverRingForTheirEarlierTime) {
  auto rearmed = clock.make_alarm(io.get_executor());
  auto disarmed = clock.make_alarm(io.get_executor());
  auto destroyed = clock.make_alarm(io.get_executor());
  const auto now = clock.now();
  rearmed->arm(now, [&] { rung += 'x'; });
  disarmed->arm(now, [&] { rung += 'y'; });
  destroyed->arm(now, [&] { rung += 'z'; });
  // Runs before the timers are looked at, when their handlers may already be queued.
  asio::post(io, [&] {
    rearmed->arm(now + 1ms, [&] { rung += 'a'; });
    disarmed->disarm();
    destroyed.reset();
  });
  io.run();
  EXPECT_EQ(rung, "a");
}

TEST_F(SteadyClockTest, DisarmFreesWhatTheRingOwns) {
  const auto alarm = clock.make_alarm(io.get_executor());
  const auto owned = std::make_shared<int>(1);
  alarm->arm(clock.now() + 1h, [owned] {});
  EXPECT_EQ(owned.use_count(), 2);
  alarm->disarm();
  EXPECT_EQ(owned.use_count(), 1);
  io.run();
}

}  // namespace
}  // namespace kv
