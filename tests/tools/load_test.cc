#include "client/tools/bench/loads/load.h"

#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <map>

#include "client/tools/bench/loads/generate.h"
#include "store/replay/block_trace.h"
#include "tests/tools/made_requests.h"

namespace kv {
namespace {

/// FNV-1a.
std::uint64_t hash_of(const std::vector<TraceRequest>& requests) {
  std::uint64_t hash = 0xCBF29CE484222325;
  for (const TraceRequest& request : requests)
    for (const char c : trace_line(request)) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return hash;
}

class LoadTest : public testing::TestWithParam<std::size_t> {
 protected:
  LoadKind kind() const { return static_cast<LoadKind>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Kinds, LoadTest, testing::Range(std::size_t{0}, std::size(kLoadNames)), [](const auto& param) {
  std::string name(kLoadNames[param.param]);
  std::erase(name, '-');
  return name;
});

TEST_P(LoadTest, RequestsArriveInOrderAndAreAsLongAsTheirBlocksSay) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    const auto requests = make_requests(kind(), 3000, seed);
    ASSERT_EQ(requests.size(), 3000u);
    std::uint64_t before = 0;
    for (const TraceRequest& request : requests) {
      ASSERT_GE(request.timestamp_ms, before);
      before = request.timestamp_ms;
      ASSERT_GT(request.input_length, 0u);
      ASSERT_GT(request.output_length, 0u);
      ASSERT_EQ(request.hash_ids.size(), (request.input_length + 511) / 512);
    }
    EXPECT_GT(before, 60'000u) << "3,000 requests in a minute are no load of this kind";
  }
}

TEST_P(LoadTest, EachIdHasOneParentAndOneDepth) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    std::map<std::uint64_t, std::pair<std::uint64_t, std::size_t>> places;
    for (const TraceRequest& request : make_requests(kind(), 3000, seed)) {
      for (std::size_t i = 0; i < request.hash_ids.size(); ++i) {
        const std::pair place{i == 0 ? ~std::uint64_t{0} : request.hash_ids[i - 1], i};
        ASSERT_EQ(places.try_emplace(request.hash_ids[i], place).first->second, place);
      }
    }
  }
}

TEST_P(LoadTest, ATraceReadBackIsTheLoad) {
  const std::string path = testing::TempDir() + "load_test_" + std::string(kLoadNames[GetParam()]) + ".jsonl";
  const auto requests = make_requests(kind(), 200, 9);
  {
    std::ofstream file(path);
    for (const TraceRequest& request : requests) file << trace_line(request);
  }
  const auto read = read_trace(path, 0);
  std::remove(path.c_str());
  EXPECT_EQ(hash_of(read), hash_of(requests));
  EXPECT_EQ(read.size(), requests.size());
}

TEST_P(LoadTest, ALoadIsTheSameOnEveryMachine) {
  // What documents say of a load holds for these bytes. Who changes them on purpose measures again.
  constexpr std::array<std::uint64_t, std::size(kLoadNames)> golden = {
      10480912854562476101u, 2913757795750560466u,  10102592891923483176u, 11605513386802250730u, 15890193251994266543u,
      2518622443401301133u,  18276863572566166573u, 3221285888173953078u,  7605178016828021622u};
  EXPECT_EQ(hash_of(make_requests(kind(), 2000, 1)), golden[GetParam()]) << kLoadNames[GetParam()];
  EXPECT_NE(hash_of(make_requests(kind(), 2000, 2)), golden[GetParam()]);
}

TEST(LoadTextTest, ALineIsAsInRecordedTraces) {
  EXPECT_EQ(trace_line({.timestamp_ms = 27'482, .input_length = 600, .output_length = 52, .hash_ids = {46, 47}}),
            "{\"timestamp\": 27482, \"input_length\": 600, \"output_length\": 52, \"hash_ids\": [46, 47]}\n");
}

TEST(LoadRateTest, SessionsBeginMoreOftenAndAreAsSlowAsEver) {
  const auto end_of = [](std::uint64_t rate) {
    Load load(LoadKind::kOneShot, 3000, 1, rate);
    std::uint64_t last = 0;
    while (const auto request = load.next()) last = request->timestamp_ms;
    return last;
  };
  EXPECT_NEAR(static_cast<double>(end_of(1)) / static_cast<double>(end_of(10)), 10, 0.5);
}

TEST(LoadPhasesTest, AgentsComeAfterChats) {
  const auto requests = make_requests(LoadKind::kPhases, 8000, 1);
  const auto mean_blocks = [&](std::size_t begin, std::size_t end) {
    std::size_t blocks = 0;
    for (std::size_t i = begin; i < end; ++i) blocks += requests[i].hash_ids.size();
    return static_cast<double>(blocks) / static_cast<double>(end - begin);
  };
  EXPECT_GT(mean_blocks(3000, 4000), 1.5 * mean_blocks(0, 2000)) << "agents read more than chats do";
}

TEST(LoadRandomTest, DistributionsHaveTheirMeansAndMedians) {
  LoadRandom random(5);
  constexpr int kCount = 200'000;
  double exponential = 0;
  int below_median = 0, below_sigma = 0, rank_0 = 0, rank_9 = 0, yes = 0;
  for (int i = 0; i < kCount; ++i) {
    exponential += static_cast<double>(random.exponential(1000)) + 0.5;
    const std::uint64_t lognormal = random.lognormal(100'000, 100);
    below_median += lognormal < 100'000;
    below_sigma += lognormal < 271'828;
    const std::uint64_t rank = random.rank(9);
    ASSERT_LE(rank, 9u);
    rank_0 += rank == 0;
    rank_9 += rank == 9;
    yes += random.chance(30);
    const std::uint64_t between = random.between(3, 5);
    ASSERT_TRUE(between >= 3 && between <= 5);
  }
  EXPECT_NEAR(exponential / kCount, 1000, 15);
  EXPECT_NEAR(below_median / double{kCount}, 0.5, 0.01);
  EXPECT_NEAR(below_sigma / double{kCount}, 0.841, 0.01);
  EXPECT_NEAR(rank_0 / double{kCount}, 0.5, 0.01);
  EXPECT_NEAR(rank_9 / double{kCount}, 0.1, 0.01);
  EXPECT_NEAR(yes / double{kCount}, 0.3, 0.01);
}

}  // namespace
}  // namespace kv
