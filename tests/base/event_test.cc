#include "base/event.h"

#include <gtest/gtest.h>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <string>

namespace kv {
namespace {

class EventTest : public testing::Test {
 protected:
  asio::io_context io;
  Event event{io.get_executor()};
  std::string log;

  static asio::awaitable<void> waiter(Event& event, std::string& log, char name) {
    co_await event.wait();
    log += name;
  }
  void spawn(char name) { asio::co_spawn(io, waiter(event, log, name), asio::detached); }
  void run() {
    io.restart();
    io.poll();
  }
};

TEST_F(EventTest, SetWakesEveryWaiter) {
  spawn('a'), spawn('b');
  run();
  EXPECT_EQ(log, "");
  event.set();
  run();
  EXPECT_EQ(log, "ab");
}

TEST_F(EventTest, WaitForASetEventReturnsAtOnce) {
  event.set();
  spawn('a');
  run();
  EXPECT_EQ(log, "a");
  EXPECT_TRUE(event.is_set());
}

TEST_F(EventTest, ResetMakesTheNextWaiterWait) {
  event.set();
  event.reset();
  spawn('a');
  run();
  EXPECT_EQ(log, "");
  event.set();
  run();
  EXPECT_EQ(log, "a");
}

TEST_F(EventTest, CancellationEndsAWait) {
  asio::cancellation_signal stop;
  asio::co_spawn(io, waiter(event, log, 'a'), asio::bind_cancellation_slot(stop.slot(), asio::detached));
  run();
  stop.emit(asio::cancellation_type::terminal);
  run();
  EXPECT_FALSE(event.is_set());
  EXPECT_TRUE(io.stopped()) << "the waiter has ended";
}

}  // namespace
}  // namespace kv
