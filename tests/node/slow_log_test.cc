// The slow log: a ring, beside a model of it.
#include "store/node/log/slow_log.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <thread>

namespace kv {
namespace {

TEST(SlowLogTest, TheLatestAreKeptLatestFirst) {
  const auto seed = std::random_device{}();
  std::mt19937 random(seed);
  SCOPED_TRACE(seed);
  SlowLog log({.threshold = 10ms, .count_max = 5});
  std::deque<std::uint64_t> model;  // session numbers
  std::size_t count_max = 5;
  std::uint64_t count = 0;
  for (int step = 0; step < 5000; ++step) {
    const auto act = random() % 100;
    if (act < 90) {
      SlowRequest request;
      request.session = ++count;
      log.add(request);
      model.push_front(count);
    } else if (act < 95) {
      count_max = 1 + random() % 40;
      log.set({.threshold = 10ms, .count_max = count_max});
    } else {
      log.clear();
      model.clear();
    }
    if (model.size() > count_max) model.resize(count_max);
    const SlowLog::Told told = log.told();
    ASSERT_EQ(told.count, count);
    ASSERT_EQ(told.requests.size(), model.size());
    for (std::size_t i = 0; i < model.size(); ++i) {
      ASSERT_EQ(told.requests[i].session, model[i]);
      ASSERT_EQ(told.requests[i].number, model[i]) << "numbers go on";
    }
  }
}

TEST(SlowLogTest, WhatTakesAsLongAsTheThresholdIsSlow) {
  SlowLog log({.threshold = 10ms, .count_max = 5});
  EXPECT_FALSE(log.is_slow(10ms - 1ns));
  EXPECT_TRUE(log.is_slow(10ms));
  log.set({.threshold = 0s, .count_max = 5});
  EXPECT_FALSE(log.is_slow(1h)) << "off";
  EXPECT_EQ(log.told().threshold, Duration::zero());
}

TEST(SlowLogTest, TextsAreCut) {
  SlowLog log;
  SlowRequest request;
  request.model = request.tenant = request.identity = request.peer = std::string(100'000, 'x');
  log.add(request);
  const SlowRequest kept = log.told().requests.at(0);
  for (const std::string* const text : {&kept.model, &kept.tenant, &kept.identity, &kept.peer})
    EXPECT_EQ(text->size(), SlowLog::kTextMax);
}

TEST(SlowLogTest, ALineSaysWhereTheTimeWentAndCannotMoveACursor) {
  SlowRequest request{.took = 250ms, .type = FrameType::kGet, .block_count = 3};
  request.phases.disk = 200ms;
  request.model = "m\x1b[2J";
  request.trace = *TraceContext::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
  EXPECT_EQ(slow_request_text(request),
            "get took 0.250000 s (lock 0.000000, store 0.000000, room 0.000000, disk 0.200000, move 0.000000, client "
            "0.000000) blocks=3 bytes=0 model='m\\x1b[2J' "
            "traceparent=00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
}

TEST(SlowLogTest, ManyThreadsMayAddAndAsk) {
  SlowLog log({.threshold = 1ms, .count_max = 64});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&log] {
      for (int i = 0; i < 2000; ++i) {
        log.add({});
        if (i % 100 != 0) continue;
        EXPECT_LE(log.told().requests.size(), 64u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(log.told().count, 8000u);
  EXPECT_EQ(log.told().requests.size(), 64u);
}

}  // namespace
}  // namespace kv
