#include "client/tools/bench/trace/trace_hints.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "store/replay/policy_run.h"

namespace kv {
namespace {

TraceRequest request_at(std::uint64_t seconds, std::vector<std::uint64_t> ids) {
  return {.timestamp_ms = seconds * 1000, .input_length = ids.size() * 512, .output_length = 1, .hash_ids = ids};
}

using Hints = std::vector<ReuseHint>;

/// A session of three turns, 100 s and then 1,000 s apart; someone else who shares its first block; and a short one.
const std::vector<TraceRequest> kTrace = {request_at(0, {1, 2, 3}), request_at(10, {1, 8, 9}),
                                          request_at(20, {4}),      request_at(100, {1, 2, 3, 5, 6}),
                                          request_at(130, {4}),     request_at(1100, {1, 2, 3, 5, 7})};

TEST(TraceHintsTest, SayWhenTheLastBlockButOneComesAgain) {
  using enum ReuseHint;
  EXPECT_EQ(trace_hints(kTrace, HintKind::kNone, 0.5, 1), Hints(6, kNone));
  EXPECT_EQ(trace_hints(kTrace, HintKind::kFinal, 0, 1), (Hints{kNone, kFinal, kNone, kNone, kFinal, kFinal}));
  EXPECT_EQ(trace_hints(kTrace, HintKind::kSoon, 0, 1),
            (Hints{kWithin600s, kFinal, kWithin600s, kLater, kFinal, kFinal}));
  EXPECT_EQ(trace_hints(kTrace, HintKind::kWhen, 0, 1),
            (Hints{kWithin240s, kFinal, kWithin240s, kFinal, kFinal, kFinal}));
}

TEST(TraceHintsTest, AShareIsWrongAndEachOtherThingAsOften) {
  std::vector<TraceRequest> trace;
  for (std::uint64_t i = 0; i < 20'000; ++i) trace.push_back(request_at(i, {i}));  // each is final
  const Hints hints = trace_hints(trace, HintKind::kWhen, 0.2, 7);
  EXPECT_NEAR(static_cast<double>(std::ranges::count(hints, ReuseHint::kFinal)), 16'000, 300);
  for (const ReuseHint wrong :
       {ReuseHint::kWithin15s, ReuseHint::kWithin60s, ReuseHint::kWithin240s, ReuseHint::kWithin600s})
    EXPECT_NEAR(static_cast<double>(std::ranges::count(hints, wrong)), 1'000, 150);
  EXPECT_EQ(hints, trace_hints(trace, HintKind::kWhen, 0.2, 7));
  EXPECT_NE(hints, trace_hints(trace, HintKind::kWhen, 0.2, 8));
}

double hit_rate(const std::vector<TraceRequest>& requests, std::uint64_t capacity, const Hints& hints) {
  const BlockTrace trace(requests, {});
  std::atomic<std::uint64_t> done = 0;
  return run_policy(trace, {.policy = PolicyKind::kYield, .capacity = capacity, .hints = hints}, done).hit_rate();
}

/// Half of the requests come once more, and nothing but the hint tells them from the others.
TEST(TraceHintsTest, HintsFindMoreAndAConstantLieFindsAsMuchAsSilence) {
  std::vector<TraceRequest> requests;
  constexpr std::uint64_t kGap = 200;
  for (std::uint64_t i = 0; i < 6'000; ++i) {
    const auto ids = [](std::uint64_t first) {
      std::vector<std::uint64_t> of_request;
      for (std::uint64_t block = 0; block < 8; ++block) of_request.push_back(first * 8 + block);
      return of_request;
    };
    requests.push_back(request_at(i, ids(2 * i)));                              // never again
    if (i >= kGap) requests.push_back(request_at(i, ids(2 * (i - kGap) + 1)));  // now for the second time
    requests.push_back(request_at(i, ids(2 * i + 1)));
  }
  constexpr std::uint64_t kCapacity = 2'000;  // those that return would need 1,600
  const double silent = hit_rate(requests, kCapacity, {});
  const double told = hit_rate(requests, kCapacity, trace_hints(requests, HintKind::kFinal, 0, 1));
  EXPECT_GT(told, 1.3 * silent);
  // Not equal: once there are hints, more is learned at a time.
  EXPECT_NEAR(hit_rate(requests, kCapacity, Hints(requests.size(), ReuseHint::kWithin15s)), silent, 0.02);
}

TEST(TraceHintsTest, OnTheRealTraceHintsOfWhichAFifthIsWrongFindHalfOfWhatIsMissing) {
  const char* folder = std::getenv("KV_TRACES");
  if (folder == nullptr) GTEST_SKIP() << "KV_TRACES does not name a folder with conversation_trace.jsonl.gz";
  const std::vector<TraceRequest> requests = read_trace(std::string(folder) + "/conversation_trace.jsonl.gz", 0);
  EXPECT_GE(hit_rate(requests, 10'000, trace_hints(requests, HintKind::kSoon, 0.2, 0)), 0.289);
  EXPECT_GE(hit_rate(requests, 10'000, trace_hints(requests, HintKind::kWhen, 0.2, 0)), 0.305);
}

}  // namespace
}  // namespace kv
