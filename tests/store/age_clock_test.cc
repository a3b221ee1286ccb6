#include "store/policy/age_clock.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "store_fixture.h"

namespace kv {
namespace {

TEST(AgeClockTest, SaysHowManyBlocksCameSince) {
  AgeClock clock;
  clock.set_span(100'000);
  EXPECT_EQ(clock.used_at(Tick{5}), 0u);
  std::mt19937_64 random(3);
  std::map<std::uint64_t, std::uint64_t> exact;
  std::uint64_t tick = 1000;
  for (int i = 0; i < 50'000; ++i) {
    tick += 1 + random() % 1000;
    clock.advance(random() % 5, Tick{tick});
    exact[tick] = clock.count();
  }
  for (const auto& [at, count] : exact) {
    if (clock.count() - count > 90'000) continue;
    EXPECT_NEAR(static_cast<double>(clock.used_at(Tick{at})), static_cast<double>(count), 30) << at;
  }
  EXPECT_LE(clock.memory_bytes(), AgeClock::kMarksMax * 16);
}

TEST(AgeClockTest, AnswersAsASearchThroughAllMarksWould) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  AgeClock clock;
  clock.set_span(3 * AgeClock::kMarksMax);
  std::deque<std::pair<std::uint64_t, std::uint64_t>> marks;  // tick, count
  std::uint64_t tick = 1000, count = 0, asked = 1000;
  for (int i = 0; i < 40'000; ++i) {
    if (random() % 20 != 0) tick += random() % 100;
    const std::uint64_t blocks = random() % 6;
    clock.advance(blocks, Tick{tick});
    count += blocks;
    if (marks.empty() || (count - marks.back().second >= 3 && tick > marks.back().first))
      marks.emplace_back(tick, count);
    if (marks.size() > AgeClock::kMarksMax) marks.pop_front();
    // Near what was asked before, or anywhere.
    asked = random() % 3 == 0 ? random() % (tick + 200) : asked + random() % 60;
    std::uint64_t expected = marks.front().second;
    for (std::size_t k = 0; i % 50 == 0 && k < marks.size() && marks[k].first <= asked; ++k) {
      expected = marks[k].second;
      if (k + 1 == marks.size()) break;
      const double part =
          static_cast<double>(asked - marks[k].first) / static_cast<double>(marks[k + 1].first - marks[k].first);
      expected += static_cast<std::uint64_t>(part * static_cast<double>(marks[k + 1].second - marks[k].second));
    }
    const std::uint64_t answer = clock.used_at(Tick{asked});
    if (i % 50 == 0) {
      ASSERT_EQ(answer, expected) << i << " " << asked;
    }
  }
}

}  // namespace
}  // namespace kv
