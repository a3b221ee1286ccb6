#include "store/node/threads/thread_border.h"

#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <stdexcept>

namespace kv {
namespace {

constexpr NodeThread kThread = NodeThread::kMover;

asio::awaitable<void> round_that_throws() {
  throw std::runtime_error("odd");
  co_return;
}
asio::awaitable<void> two_rounds(int* ended) {
  for (int i = 0; i < 2; ++i) {
    const bool is_through = co_await within_border(kThread, round_that_throws());
    EXPECT_FALSE(is_through);
    ++*ended;
  }
}

TEST(ThreadBorderTest, WhatIsThrownIsCountedAndGoesNoFurther) {
  const std::uint64_t before = thread_failure_count(kThread), of_others = thread_failure_count(NodeThread::kExchange);
  EXPECT_TRUE(within_border(kThread, [] {}));
  EXPECT_FALSE(within_border(kThread, [] { throw std::runtime_error("odd\n\x1b"); }));
  EXPECT_FALSE(within_border(kThread, [] { throw 7; }));
  EXPECT_EQ(thread_failure_count(kThread), before + 2);
  EXPECT_EQ(thread_failure_count(NodeThread::kExchange), of_others);
}

TEST(ThreadBorderTest, AThreadGoesOnWithItsNextHandlerAndACoroutineWithItsNextRound) {
  const std::uint64_t before = thread_failure_count(kThread);
  asio::io_context context{1};
  int ended = 0;
  bool is_next = false;
  asio::post(context, [] { throw std::runtime_error("odd"); });
  asio::co_spawn(context, two_rounds(&ended), BorderOf{kThread});
  asio::co_spawn(context, round_that_throws(), BorderOf{kThread});
  asio::post(context, [&is_next] { is_next = true; });
  run_within_border(kThread, context);
  EXPECT_TRUE(is_next);
  EXPECT_EQ(ended, 2);
  EXPECT_EQ(thread_failure_count(kThread), before + 4);
}

}  // namespace
}  // namespace kv
