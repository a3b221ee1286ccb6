#include "base/busy_poll.h"

#include <gtest/gtest.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

namespace kv {
namespace {

TEST(BusyPollTest, RunsWhatIsReadyWaitsForWhatIsNotAndEndsWithTheContext) {
  for (const Duration spin : {Duration(0us), Duration(20us), Duration(10s)}) {
    asio::io_context context;
    BusyPoll poll(context, spin);
    int ran = 0;
    asio::post(context, [&] { ++ran; });
    EXPECT_EQ(poll.run_some(), 1u);
    EXPECT_EQ(ran, 1);
    EXPECT_EQ(poll.run_some(), 0u) << "no work is left: it must not spin to its limit";
    EXPECT_TRUE(context.stopped());

    context.restart();
    auto work = asio::make_work_guard(context);
    std::thread later([&] {
      std::this_thread::sleep_for(2ms);  // longer than the short spin: one waits asleep, one awake
      asio::post(context, [&] { ++ran; });
    });
    EXPECT_EQ(poll.run_some(), 1u);
    EXPECT_EQ(ran, 2);
    later.join();
    context.stop();
    EXPECT_EQ(poll.run_some(), 0u);
  }
}

/// What happened to a wait.
struct Fate {
  int looks = 0, completions = 0, hand_overs = 0, destructions = 0;
  bool is_over = false;
  Duration look_time{};
  std::function<void()> then = [] {};
};

class FakeWait final : public SpinWait {
 public:
  FakeWait(asio::io_context& context, Fate& fate) : work_(asio::make_work_guard(context)), fate_(fate) {}
  ~FakeWait() override { ++fate_.destructions; }
  bool is_over() override {
    ++fate_.looks;
    if (fate_.look_time > 0us) std::this_thread::sleep_for(fate_.look_time);
    return fate_.is_over;
  }
  void complete(error_code) override {
    ++fate_.completions;
    fate_.then();
  }
  void leave_to_reactor() override {
    ++fate_.hand_overs;
    asio::post(work_.get_executor(), [] {});  // the reactor finds it at once
  }

 private:
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  Fate& fate_;
};

class SpinWatchTest : public testing::Test {
 protected:
  asio::io_context context;
  SpinWatch& watch = asio::use_service<SpinWatch>(context);

  void add(Fate& fate) { watch.add(std::make_unique<FakeWait>(context, fate), &fate); }
};

TEST_F(SpinWatchTest, HasRoomOnlyWhileAThreadSpins) {
  EXPECT_FALSE(watch.has_room());
  {
    BusyPoll sleeps(context, 0us);
    EXPECT_FALSE(watch.has_room());
  }
  {
    BusyPoll poll(context, 1us);
    EXPECT_TRUE(watch.has_room());
  }
  EXPECT_FALSE(watch.has_room());
}

TEST_F(SpinWatchTest, AllGetTheirTurnThoughOneIsAlwaysOver) {
  std::vector<Fate> fates(4);
  BusyPoll poll(context, 10s);
  for (Fate& fate : fates) {
    fate.is_over = true;
    fate.then = [&] { add(fate); };
    add(fate);
  }
  EXPECT_FALSE(watch.has_room());
  for (int i = 0; i < 12; ++i) EXPECT_EQ(poll.run_some(), 1u);
  for (Fate& fate : fates) EXPECT_EQ(fate.completions, 3) << fate.looks;
}

TEST_F(SpinWatchTest, TheReactorHasThemBeforeTheThreadSleeps) {
  Fate slept;
  slept.look_time = 100us;                  // so that the spin ends before the wait has had all of its looks
  asio::steady_timer at_end(context, 10s);  // else a thread that forgot its wait sleeps for ever
  at_end.async_wait([](error_code) {});
  BusyPoll poll(context, 1ms);
  add(slept);
  EXPECT_EQ(poll.run_some(), 1u);
  EXPECT_EQ(slept.hand_overs, 1);
  EXPECT_GT(slept.looks, 0);
  EXPECT_EQ(slept.completions, 0);
}

TEST_F(SpinWatchTest, TheReactorHasThemWhenTheThreadStopsSpinning) {
  Fate stopped;
  {
    BusyPoll poll(context, 10s);
    add(stopped);
    EXPECT_FALSE(poll.poll_one());
    EXPECT_EQ(stopped.hand_overs, 0);
  }
  EXPECT_EQ(stopped.hand_overs, 1);
  EXPECT_EQ(stopped.completions, 0);
}

TEST_F(SpinWatchTest, ASilentWaitIsTheReactorsAfterAWhile) {
  Fate silent;
  BusyPoll poll(context, 10s);
  add(silent);
  while (silent.hand_overs == 0) EXPECT_FALSE(poll.poll_one());
  EXPECT_GT(silent.looks, 1);
  EXPECT_TRUE(watch.is_empty());
}

TEST(SpinWatchEndTest, AfterAnExceptionWaitsGoWithTheContext) {
  Fate fate;
  {
    asio::io_context context;
    try {
      BusyPoll poll(context, 10s);
      asio::use_service<SpinWatch>(context).add(std::make_unique<FakeWait>(context, fate), &fate);
      asio::post(context, [] { throw std::runtime_error("a bug"); });
      while (poll.poll_one()) {
      }
      ADD_FAILURE() << "exceptions of handlers pass through";
    } catch (const std::runtime_error&) {
    }
    EXPECT_EQ(fate.destructions, 0);
  }
  EXPECT_EQ(fate.destructions, 1);
  EXPECT_EQ(fate.completions + fate.hand_overs, 0);
}

/// Taken by somebody for so many looks.
struct TakenMutex {
  int looks_until_free;
  int looks = 0, sleeps = 0;
  bool try_lock() { return ++looks > looks_until_free; }
  void lock() { ++sleeps; }
};

TEST(LockSpinningTest, SleepsOnlyWhereTheLockIsNotFreeSoon) {
  TakenMutex is_free{0}, soon{10}, late{1'000'000};
  EXPECT_TRUE(lock_spinning(is_free));
  EXPECT_FALSE(lock_spinning(soon));
  EXPECT_FALSE(lock_spinning(late));
  EXPECT_EQ(is_free.looks, 1);
  EXPECT_EQ(soon.looks, 11);
  EXPECT_EQ(is_free.sleeps + soon.sleeps, 0);
  EXPECT_EQ(late.sleeps, 1);
  EXPECT_GT(late.looks, 10);
}

TEST(LockSpinningTest, OneAtATimeWhateverTheWait) {
  std::mutex mutex;
  int count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        lock_spinning(mutex);
        const std::lock_guard lock(mutex, std::adopt_lock);
        ++count;
        if (i % 500 == 0) std::this_thread::sleep_for(100us);  // far longer than the spin: the others must sleep
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 8000);
}

}  // namespace
}  // namespace kv
