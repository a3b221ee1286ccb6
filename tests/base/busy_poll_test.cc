#include "base/busy_poll.h"

#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <mutex>
#include <thread>
#include <vector>

namespace kv {
namespace {

TEST(BusyPollTest, RunsWhatIsReadyWaitsForWhatIsNotAndEndsWithTheContext) {
  for (const Duration spin : {Duration(0us), Duration(20us), Duration(10s)}) {
    asio::io_context context;
    BusyPoll poll(spin);
    int ran = 0;
    asio::post(context, [&] { ++ran; });
    EXPECT_EQ(poll.run_some(context), 1u);
    EXPECT_EQ(ran, 1);
    EXPECT_EQ(poll.run_some(context), 0u) << "no work is left: it must not spin to its limit";
    EXPECT_TRUE(context.stopped());

    context.restart();
    auto work = asio::make_work_guard(context);
    std::thread later([&] {
      std::this_thread::sleep_for(2ms);  // longer than the short spin: one waits asleep, one awake
      asio::post(context, [&] { ++ran; });
    });
    EXPECT_EQ(poll.run_some(context), 1u);
    EXPECT_EQ(ran, 2);
    later.join();
    context.stop();
    EXPECT_EQ(poll.run_some(context), 0u);
  }
}

TEST(LockSpinningTest, OneAtATimeWhateverTheWait) {
  std::mutex mutex;
  int count = 0;
  std::atomic<bool> met_a_holder{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        if (!lock_spinning(mutex)) met_a_holder = true;
        const std::lock_guard lock(mutex, std::adopt_lock);
        ++count;
        if (i % 500 == 0) std::this_thread::sleep_for(100us);  // far longer than the spin: the others must sleep
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 8000);
  EXPECT_TRUE(met_a_holder);
}

}  // namespace
}  // namespace kv
