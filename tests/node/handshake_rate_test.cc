#include "store/node/listen/handshake_rate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>

#include "tests/transport/sim_world.h"

namespace kv {
namespace {

using Verdict = HandshakeRate::Verdict;

TEST(HandshakeRateTest, OneAddressHasHalf) {
  HandshakeRate rate(10);
  const TimePoint now{1h};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(rate.take("a", now), Verdict::kBegin);
  EXPECT_EQ(rate.take("a", now), Verdict::kTooManyOfPeer);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(rate.take("b", now), Verdict::kBegin);
  EXPECT_EQ(rate.take("c", now), Verdict::kTooMany);
  EXPECT_EQ(rate.take("a", now + 200ms), Verdict::kBegin) << "five a second";
  EXPECT_EQ(rate.take("a", now + 200ms), Verdict::kTooManyOfPeer);
  EXPECT_EQ(rate.take("c", now + 200ms), Verdict::kBegin);
  EXPECT_EQ(rate.take("c", now + 200ms), Verdict::kTooMany);
}

TEST(HandshakeRateTest, ASmallRateLetsOneBegin) {
  HandshakeRate rate(0.5);
  EXPECT_EQ(rate.take("a", TimePoint{1h}), Verdict::kBegin);
  EXPECT_EQ(rate.take("b", TimePoint{1h}), Verdict::kTooMany);
  EXPECT_EQ(rate.take("b", TimePoint{1h} + 2s), Verdict::kBegin);
}

TEST(HandshakeRateTest, WithoutABoundNobodyIsCounted) {
  HandshakeRate rate(2);
  EXPECT_EQ(rate.take("a", TimePoint{1h}), Verdict::kBegin);
  EXPECT_EQ(rate.take("a", TimePoint{1h}), Verdict::kTooManyOfPeer);
  rate.set(0);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(rate.take("a", TimePoint{1h}), Verdict::kBegin);
  EXPECT_EQ(rate.peer_count(), 0u);
}

/// What began, and when: all of it, forever.
class Begun {
 public:
  void add(TimePoint now) { times_.push_back(now); }
  /// Whether more than rate * t and a second's worth, one at the least, and `slack` began in some time t that ends now.
  bool is_over(double rate, TimePoint now, double slack) const {
    double count = 0;
    for (auto at = times_.rbegin(); at != times_.rend(); ++at) {
      count += 1;
      const double seconds = std::chrono::duration<double>(now - *at).count();
      if (count > rate * seconds + std::max(rate, 1.0) + slack) return true;
    }
    return false;
  }

 private:
  std::deque<TimePoint> times_;
};

TEST(HandshakeRateTest, RandomArrivalsBeginAsOftenAsTheRateAllowsAndNoOftener) {
  const std::uint64_t seed = seed_or(std::random_device{}());
  std::printf("KV_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 20; ++round) {
    const double rate = static_cast<double>(2 + random() % 40);
    HandshakeRate limited(rate);
    Begun all;
    std::map<std::string, Begun> peers;
    TimePoint now{1h};
    for (int i = 0; i < 600; ++i) {
      // Crowds, and now and then nobody for seconds.
      now += random() % 50 == 0 ? std::chrono::milliseconds(random() % 4000) : std::chrono::milliseconds(random() % 40);
      const std::string peer = "10.0.0." + std::to_string(random() % (random() % 4 == 0 ? 200 : 3));
      Begun all_then = all, peer_then = peers[peer];
      all_then.add(now);
      peer_then.add(now);
      const Verdict verdict = limited.take(peer, now);
      ASSERT_LE(limited.peer_count(), 3 * static_cast<std::size_t>(rate) + 3);
      // On the very edge of a bound sums of fractions may say either.
      constexpr double kEdge = 1e-6;
      std::set<Verdict> possible;
      if (peer_then.is_over(rate / 2, now, -kEdge)) possible.insert(Verdict::kTooManyOfPeer);
      if (!peer_then.is_over(rate / 2, now, kEdge)) {
        if (all_then.is_over(rate, now, -kEdge)) possible.insert(Verdict::kTooMany);
        if (!all_then.is_over(rate, now, kEdge)) possible.insert(Verdict::kBegin);
      }
      ASSERT_TRUE(possible.contains(verdict)) << "round " << round << ", arrival " << i << ", " << rate << " a second";
      if (verdict != Verdict::kBegin) continue;
      all = all_then;
      peers[peer] = peer_then;
    }
  }
}

}  // namespace
}  // namespace kv
