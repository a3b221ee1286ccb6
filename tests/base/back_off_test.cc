#include "base/back_off.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace kv {
namespace {

class BackOffTest : public testing::Test {
 protected:
  TimePoint now{Duration{1'000'000'000}};
  std::mt19937_64 random{1};
};

TEST_F(BackOffTest, PausesDoubleUpToTheLongest) {
  BackOff back_off({.min = 1s, .max = 5s});
  EXPECT_TRUE(back_off.is_due(now));
  for (const Duration pause : {1s, 2s, 4s, 5s, 5s}) {
    back_off.failed(now);
    EXPECT_EQ(back_off.pause(), pause);
    EXPECT_EQ(back_off.next(), now + pause);
    EXPECT_FALSE(back_off.is_due(now + pause - 1ns));
    now = back_off.next();
    EXPECT_TRUE(back_off.is_due(now));
  }
}

TEST_F(BackOffTest, FailuresWithinAPauseAreOne) {
  BackOff back_off({.min = 1s, .max = 5s});
  back_off.failed(now);
  back_off.failed(now + 999ms);
  EXPECT_EQ(back_off.pause(), 1s);
  EXPECT_EQ(back_off.next(), now + 1s);
}

TEST_F(BackOffTest, ASuccessMakesTheNextFailureAFirstOneAndKeepsAPauseThatHasBegun) {
  BackOff back_off({.min = 1s, .max = 5s});
  back_off.failed(now);
  back_off.failed(now += 1s);
  back_off.succeeded();
  EXPECT_FALSE(back_off.is_due(now + 1s));
  back_off.failed(now += 2s);
  EXPECT_EQ(back_off.pause(), 1s);
}

TEST_F(BackOffTest, WhatIsForgottenIsDueAtOnceAndFailsAsForTheFirstTime) {
  BackOff back_off({.min = 1s, .max = 5s});
  back_off.failed(now);
  back_off.failed(now += 1s);
  back_off.forget();
  EXPECT_TRUE(back_off.is_due(now));
  back_off.failed(now);
  EXPECT_EQ(back_off.next(), now + 1s);
}

TEST_F(BackOffTest, AFailureLongAfterTheLastIsAFirstOne) {
  BackOff back_off({.min = 1s, .max = 5s, .forget_after = 10s});
  back_off.failed(now);
  back_off.failed(now += 1s);
  ASSERT_EQ(back_off.pause(), 2s);
  now = back_off.next();
  back_off.failed(now += 9s);
  EXPECT_EQ(back_off.pause(), 4s);
  now = back_off.next();
  back_off.failed(now += 10s);
  EXPECT_EQ(back_off.pause(), 1s);
}

TEST_F(BackOffTest, JitterShortensAPauseByItsShareAtMost) {
  for (const double jitter : {0.0, 0.5, 1.0}) {
    Duration shortest = 1h, longest{};
    for (int i = 0; i < 1000; ++i) {
      BackOff back_off({.min = 1s, .max = 5s, .jitter = jitter});
      back_off.failed(now, random);
      const Duration pause = back_off.next() - now;
      shortest = std::min(shortest, pause);
      longest = std::max(longest, pause);
    }
    EXPECT_LE(longest, 1s);
    EXPECT_GE(shortest, std::chrono::duration_cast<Duration>(1s * (1 - jitter)));
    if (jitter > 0) {
      EXPECT_LT(shortest, std::chrono::duration_cast<Duration>(1s * (1 - 0.9 * jitter)));
      EXPECT_GT(longest, 990ms);
    } else {
      EXPECT_EQ(shortest, longest);
    }
  }
}

}  // namespace
}  // namespace kv
