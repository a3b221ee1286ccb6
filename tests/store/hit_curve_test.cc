#include "store/curve/hit_curve.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <list>
#include <random>
#include <unordered_map>
#include <vector>

#include "store/policy/yield_policy.h"
#include "store_fixture.h"

namespace kv {
namespace {

constexpr TimePoint kStart{std::chrono::seconds(1)};

// -- the order of use

TEST(UseOrderTest, TellsTheWeightOfAllThatWasUsedLater) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  constexpr std::uint16_t kEntries = 100;
  UseOrder order(kEntries);
  std::deque<std::pair<std::uint16_t, std::uint32_t>> model;  // the latest first
  for (int i = 0; i < 30'000; ++i) {
    const auto entry = static_cast<std::uint16_t>(random() % (i % 3 == 0 ? kEntries : kEntries / 4));
    const auto weight = static_cast<std::uint32_t>(random() % 50);
    const auto found = std::ranges::find(model, entry, &std::pair<std::uint16_t, std::uint32_t>::first);
    ASSERT_EQ(order.has(entry), found != model.end()) << i;
    if (found != model.end()) {
      std::uint64_t newer = 0;
      for (auto at = model.begin(); at != found; ++at) newer += at->second;
      ASSERT_EQ(order.newer(entry), newer) << i;
    }
    if (found != model.end() && random() % 4 == 0) {
      order.set_weight(entry, weight);
      found->second = weight;
    } else if (found != model.end() && random() % 8 == 0) {
      order.remove(entry);
      model.erase(found);
    } else {
      order.use(entry, weight);
      if (found != model.end()) model.erase(found);
      model.emplace_front(entry, weight);
    }
    ASSERT_EQ(order.oldest(), model.empty() ? UseOrder::kNone : model.back().first) << i;
  }
}

// -- heavy blocks

TEST(HeavyBlocksTest, FindsWhatMoreThanOneRequestIn400BeginsWith) {
  std::mt19937_64 random(5);
  HeavyBlocks heavy;
  std::size_t common = 0, rare = 0;
  for (int i = 0; i < 20'000; ++i) {
    // A third of all requests begins with the same 700 blocks, one in 2000 with 50 others.
    const bool is_common = i % 3 == 0, is_rare = !is_common && i % 2000 == 1;
    const std::size_t shared = is_common ? 700 : is_rare ? 50 : 0;
    const std::uint64_t own = random();
    const std::size_t found = heavy.ask(
        1000, [&](std::size_t at) { return mix(at < shared ? at + (is_common ? 1'000'000 : 2'000'000) : own + at); });
    if (i < 2000) continue;
    EXPECT_LE(found, shared) << i;
    if (is_common) common += found == 700;
    if (is_rare) rare += found > 0;
  }
  EXPECT_GE(common, 5990u);
  EXPECT_EQ(rare, 0u);
}

/// Where the last request's ended is only a guess of where the next one's do.
TEST(HeavyBlocksTest, FindsAsManyAsASearchFinds) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  HeavyBlocks heavy;
  std::size_t some = 0;
  for (int i = 0; i < 20'000; ++i) {
    // Prompts that share their first blocks and part later, and requests that end within them.
    const std::uint64_t prompt = random() % 4, parts_at = 10 + random() % 3 * 20, own = random();
    const std::size_t shared = 60 + 20 * prompt, count = random() % 200;
    const auto name = [&](std::size_t at) {
      return mix(at < std::min(parts_at, shared) ? at + 1'000'000
                 : at < shared                   ? (prompt * 1000 + parts_at) * 1000 + at
                                                 : own + at);
    };
    const std::size_t wanted = heavy.count_leading(count, name);
    ASSERT_EQ(heavy.ask(count, name), wanted) << i;
    some += wanted > 0 && wanted < count;
  }
  EXPECT_GT(some, 5000u);
}

// -- the curve

/// Sessions that grow, and come back at random; each request is a chain.
class Sessions {
 public:
  Sessions(std::uint64_t seed, std::size_t count, std::size_t shared) : random_(seed), shared_(shared) {
    sessions_.resize(count);
    for (Session& each : sessions_) start(each);
  }
  std::vector<BlockHash> next() {
    // Of sessions used lately the more, as people are.
    Session& session = sessions_[std::min(random_() % sessions_.size(), random_() % sessions_.size())];
    session.length += 1 + random_() % 6;
    if (session.length > 24 + shared_) start(session);
    std::vector<BlockHash> hashes;
    for (std::size_t i = 0; i < session.length; ++i)
      hashes.push_back(hash_of(i < shared_ ? i : session.name * 1000 + i));
    return hashes;
  }

 private:
  struct Session {
    std::uint64_t name = 0;
    std::size_t length = 0;
  };
  void start(Session& session) { session = {++names_, 1 + random_() % 8 + shared_}; }

  std::mt19937_64 random_;
  std::size_t shared_;
  std::vector<Session> sessions_;
  std::uint64_t names_ = 1;
};

/// LRU, leaf ends first: a list in which a request's blocks come to the front last to first. Hits of one capacity.
class ExactLru {
 public:
  explicit ExactLru(std::size_t capacity) : capacity_(capacity) {}
  std::size_t ask(const std::vector<BlockHash>& hashes) {
    std::size_t hits = 0;
    while (hits < hashes.size() && here_.contains(short_hash(hashes[hits]))) ++hits;
    for (std::size_t i = hashes.size(); i-- > 0;) {
      const std::uint64_t name = short_hash(hashes[i]);
      if (const auto at = here_.find(name); at != here_.end()) newest_first_.erase(at->second);
      newest_first_.push_front(name);
      here_[name] = newest_first_.begin();
    }
    for (; here_.size() > capacity_; newest_first_.pop_back()) here_.erase(newest_first_.back());
    return hits;
  }

 private:
  std::size_t capacity_;
  std::list<std::uint64_t> newest_first_;
  std::unordered_map<std::uint64_t, std::list<std::uint64_t>::iterator> here_;
};

void ask(HitCurve& curve, EvictionPolicy& policy, const std::vector<BlockHash>& hashes, TimePoint now = kStart) {
  const EvictionPolicy::Request request{TreeId{0}, hashes, 0, 16};
  curve.asked(request, 0, policy.asked(request), policy.clock(), now);
  curve.offered(request, policy.offered(request, {}, Tick{policy.clock() + 1}), policy.clock());
  for (int i = 0; i < 40; ++i) {
    policy.learn();
    curve.learn(policy);
  }
}

/// With every block in the sample there is nothing to estimate.
TEST(HitCurveTest, OfAllBlocksLruIsLruToTheBlock) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  const auto policy = make_policy(PolicyKind::kLru, 1);
  HitCurve curve({.is_on = true, .one_in = 1, .block_count_max = 20'000}, seed, false, false);
  curve.set_capacity(1024, 0);
  Sessions sessions(seed, 300, 0);
  std::vector<ExactLru> exact;
  const std::vector<std::size_t> capacities = {64, 256, 512, 1024, 2048, 4096};
  for (const std::size_t capacity : capacities) exact.emplace_back(capacity);
  std::vector<std::size_t> hits(capacities.size(), 0);
  std::size_t asked = 0;
  for (int i = 0; i < 3000; ++i) {
    const auto hashes = sessions.next();
    ask(curve, *policy, hashes);
    asked += hashes.size();
    for (std::size_t k = 0; k < exact.size(); ++k) hits[k] += exact[k].ask(hashes);
  }
  ASSERT_TRUE(curve.check());
  EXPECT_EQ(curve.report().dropped_requests, 0u);
  EXPECT_EQ(curve.report().asked_blocks, static_cast<double>(asked));
  const std::vector<HitCurve::Point> points = curve.report().points;
  ASSERT_EQ(points.size() + 1, exact.size());
  for (std::size_t k = 1; k < exact.size(); ++k) {
    const HitCurve::Point& point = points[k - 1];
    ASSERT_EQ(point.block_count, capacities[k]);
    const double rate = static_cast<double>(hits[k]) / static_cast<double>(asked);
    EXPECT_NEAR(point.lru.hit_rate, rate, 1e-9) << capacities[k];
  }
  EXPECT_LT(hits.front() * 2, hits.back()) << "else the capacities tell nothing";
}

/// A session looks for the sample's blocks before it asks for the lock; or did so when the sample was another one.
TEST(HitCurveTest, WhoLookedBeforeCountsTheSame) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto policy = make_policy(PolicyKind::kLru, 1);
  const HitCurveConfig config{.is_on = true, .one_in = 0, .block_count_max = 300};
  HitCurve one(config, seed, false, false), other(config, seed, false, false);
  Sessions sessions(seed, 500, 30);
  SampledNames sampled;
  std::size_t fitting = 0;
  for (int i = 0; i < 4000; ++i) {
    const auto hashes = sessions.next();
    sampled.set({policy->sample(), other.sample()});
    sampled.look(hashes);
    if (i % 500 == 0) {
      const std::uint64_t capacity = std::uint64_t{100} << (i / 500);
      one.set_capacity(capacity, 0);
      other.set_capacity(capacity, 0);
    }
    fitting += sampled.find(SampledNames::kCurve, other.sample(), hashes) != nullptr;
    EvictionPolicy::Request request{TreeId{0}, hashes, random() % (hashes.size() + 1), 16};
    one.asked(request, 0, 0, policy->clock(), kStart);
    request.sampled = &sampled;
    other.asked(request, 0, 0, policy->clock(), kStart);
    for (HitCurve* each : {&one, &other})
      while (each->learn(*policy)) {
      }
  }
  EXPECT_GT(fitting, 3900u);
  EXPECT_LT(fitting, 4000u);
  ASSERT_TRUE(one.check() && other.check());
  const auto a = one.report(), b = other.report();
  ASSERT_EQ(a.points.size(), b.points.size());
  EXPECT_EQ(a.sampled_blocks, b.sampled_blocks);
  EXPECT_GT(a.sampled_blocks, 100);
  for (std::size_t i = 0; i < a.points.size(); ++i) {
    EXPECT_EQ(a.points[i].lru.hit_rate, b.points[i].lru.hit_rate) << i;
    EXPECT_EQ(a.points[i].lru.error, b.points[i].lru.error) << i;
  }
}

/// Evicts by age, and counts it as the yield policy does.
class ByAge final : public EvictionPolicy {
 public:
  std::string_view name() const override { return "age"; }
  LeafQueues queues() const override { return {}; }
  void set_capacity(std::uint64_t) override {}
  std::uint16_t asked(const Request&, std::size_t*) override { return 0; }
  std::uint16_t offered(const Request& request, Usage, Tick) override {
    clock_ += request.hashes.size();
    return 0;
  }
  void left(TreeId, const BlockHash&, Usage) override {}
  double worth(std::uint32_t, std::uint64_t age) const override { return -static_cast<double>(age); }
  std::uint64_t next_step(std::uint64_t age) const override { return age + 1; }
  std::uint32_t version() const override { return 0; }
  bool refuses() const override { return false; }
  std::uint64_t clock() const override { return clock_; }
  std::uint64_t used_at(Tick) const override { return 0; }
  bool learn() override { return false; }
  std::size_t memory_bytes() const override { return 0; }

 private:
  std::uint64_t clock_ = 0;
};

/// The small caches ask the policy. One that goes by age makes LRU of them, but for how they choose a victim.
TEST(HitCurveTest, SmallCachesOfAPolicyThatGoesByAgeHitAsLru) {
  ByAge policy;
  HitCurve curve({.is_on = true, .one_in = 1, .block_count_max = 20'000}, 3, true, true);
  curve.set_capacity(1024, 3072);
  Sessions sessions(7, 300, 0);
  for (int i = 0; i < 4000; ++i) ask(curve, policy, sessions.next());
  ASSERT_TRUE(curve.check());
  const auto report = curve.report();
  ASSERT_EQ(report.points.size(), 8u);
  EXPECT_EQ(report.points[2].block_count, 1024u);
  EXPECT_TRUE(report.points[2].is_now);
  EXPECT_EQ(report.points[7].block_count, 8192u);
  for (const auto& point : report.points)
    EXPECT_NEAR(point.policy.hit_rate, point.lru.hit_rate, 0.03) << point.block_count;
}

/// Half of all references are to a prompt of 24 blocks, of which a sample of one in 40 has none, or one, or two.
TEST(HitCurveTest, WhatMostRequestsBeginWithIsCountedApart) {
  const auto policy = make_policy(PolicyKind::kLru, 1);
  std::size_t within = 0;
  constexpr std::size_t kSeeds = 8;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    HitCurve curve({.is_on = true, .one_in = 40, .block_count_max = 8192}, seed, false, false);
    curve.set_capacity(2048, 0);
    Sessions sessions(11, 2000, 24);
    ExactLru exact(2048);
    std::size_t hits = 0, asked = 0;
    for (int i = 0; i < 20'000; ++i) {
      const auto hashes = sessions.next();
      ask(curve, *policy, hashes);
      hits += exact.ask(hashes);
      asked += hashes.size();
    }
    const double rate = static_cast<double>(hits) / static_cast<double>(asked);
    const HitCurve::Point point = curve.report().points.at(2);
    ASSERT_EQ(point.block_count, 2048u);
    const HitCurve::Estimate estimate = point.lru;
    EXPECT_NEAR(estimate.hit_rate, rate, 0.04) << seed;
    within += std::abs(estimate.hit_rate - rate) <= estimate.error;
  }
  EXPECT_GE(within, kSeeds - 1);
}

TEST(HitCurveTest, ARequestIsCountedAsAWholeOrNotAtAll) {
  const auto policy = make_policy(PolicyKind::kLru, 1);
  HitCurve curve({.is_on = true, .one_in = 1, .block_count_max = 20'000}, 3, true, false);
  curve.set_capacity(1024, 0);
  double asked = 0;
  std::uint64_t dropped = 0;
  for (std::uint64_t i = 0; i < 200; ++i) {
    const auto hashes = chain(i, 100);
    const EvictionPolicy::Request request{TreeId{0}, hashes, 60, 16};
    curve.asked(request, 50, 0, 0, kStart);
    if (curve.report().dropped_requests == dropped) asked += 100;
    dropped = curve.report().dropped_requests;
  }
  for (int i = 0; i < 10'000; ++i) curve.learn(*policy);
  const auto report = curve.report();
  EXPECT_GT(dropped, 100u);
  EXPECT_GT(asked, 1000);
  EXPECT_EQ(report.asked_blocks, asked);
  EXPECT_EQ(report.sampled_blocks, asked);
  EXPECT_DOUBLE_EQ(report.memory_hit_rate, 0.5);
  EXPECT_DOUBLE_EQ(report.hit_rate, 0.6);
  const auto after = chain(1000, 100);
  curve.asked({TreeId{0}, after, 0, 16}, 0, 0, 0, kStart);
  EXPECT_EQ(curve.report().asked_blocks, asked + 100) << "once there is room again, requests count again";
}

TEST(HitCurveTest, WhatWasCountedAgesByAnHour) {
  const auto policy = make_policy(PolicyKind::kLru, 1);
  HitCurve curve({.is_on = true, .one_in = 1, .block_count_max = 1000}, 3, false, false);
  curve.set_capacity(256, 0);
  ask(curve, *policy, chain(1, 100), kStart);
  ask(curve, *policy, chain(1, 100), kStart + std::chrono::hours(1) - std::chrono::minutes(1));
  const double before = curve.report().asked_blocks;
  EXPECT_NEAR(before, 200, 52);
  curve.asked({TreeId{0}, chain(1, 10), 0, 16}, 0, 0, 0, kStart + std::chrono::hours(2) - std::chrono::minutes(1));
  EXPECT_NEAR(curve.report().asked_blocks, before / 2 + 10, 1e-6);
}

/// Chains and sets, capacities that come and go, a queue that is not always looked at.
TEST(HitCurveTest, HoldsItsInvariantsWhateverComes) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 4; ++round) {
    YieldPolicy policy(seed);
    policy.set_capacity(512);
    HitCurve curve({.is_on = true, .one_in = round == 0 ? 0u : 3u, .block_count_max = 300}, seed, true, round % 2 != 0);
    curve.set_capacity(512, 1000);
    Sessions sessions(random(), 60, round);
    for (int i = 0; i < 2500; ++i) {
      const auto hashes = sessions.next();
      const bool is_set = random() % 5 == 0;
      const std::size_t found = random() % (hashes.size() + 1);
      const EvictionPolicy::Request request{TreeId{static_cast<std::uint32_t>(is_set)}, hashes, found, 16, is_set};
      const TimePoint now = kStart + std::chrono::seconds(i);
      if (random() % 8 != 0) curve.asked(request, random() % (found + 1), policy.asked(request), policy.clock(), now);
      if (random() % 2 != 0)
        curve.offered(request, policy.offered(request, {}, Tick{static_cast<std::uint64_t>(i) + 1}), policy.clock());
      for (std::uint64_t k = random() % 4; k > 0; --k) {
        policy.learn();
        curve.learn(policy);
      }
      if (random() % 200 == 0) curve.set_capacity(16 << random() % 8, random() % 5000);
      if (i % 50 == 0) {
        ASSERT_TRUE(curve.check()) << round << " " << i;
      }
    }
    for (const auto& point : curve.report().points) {
      EXPECT_GE(point.lru.hit_rate, 0);
      EXPECT_LE(point.lru.hit_rate, 1);
      EXPECT_GE(point.policy.hit_rate, 0);
      EXPECT_LE(point.policy.hit_rate, 1);
    }
  }
}

TEST(HitCurveTest, WithTheYieldPolicyItNeedsLessThanFourMebibytesBesideTheBlocks) {
  for (const std::uint64_t blocks : {10'000, 20'000, 100'000, 3'000'000, 6'000'000}) {
    const bool has_disk = blocks % 20'000 == 0;
    YieldPolicy policy(1);
    policy.set_capacity(blocks);
    HitCurve curve({.is_on = true}, 1, true, has_disk);
    curve.set_capacity(blocks, 4 * blocks);
    for (std::uint64_t i = 0; i < 600; ++i) {
      const auto hashes = chain(i, 1000);
      const EvictionPolicy::Request request{TreeId{0}, hashes, 0, 16};
      curve.asked(request, 0, policy.asked(request), policy.clock(), kStart);
      curve.offered(request, policy.offered(request, {}, Tick{i + 1}), policy.clock());
      for (int k = 0; k < 100; ++k) {
        policy.learn();
        curve.learn(policy);
      }
    }
    EXPECT_LE(curve.memory_bytes(), has_disk ? 1300u << 10 : 1u << 20);
    EXPECT_LE(policy.memory_bytes() + sizeof(Usage) * blocks + curve.memory_bytes(), 16 * blocks + (4u << 20))
        << blocks << ": " << policy.memory_bytes() << " and " << curve.memory_bytes();
  }
}

}  // namespace
}  // namespace kv
