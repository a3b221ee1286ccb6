#include "store/policy/hint_trust.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "store_fixture.h"

namespace kv {
namespace {

/// Tenants whose blocks wait for 1,000 others, and of which some are used then.
class HintTrustTest : public testing::Test {
 protected:
  struct Says {
    ReuseHint hint;
    double used;  ///< The share of the blocks that are used.
  };
  /// One request of the tenant's, with one block.
  void request(std::uint64_t tenant, Says says) {
    const std::uint8_t place = trust.hear(tenant, says.hint);
    trust.add_time(place, says.hint, 1000);
    if (std::bernoulli_distribution(says.used)(random)) trust.add_use(place, says.hint);
  }
  void requests(std::uint64_t tenant, const std::vector<Says>& says, int count = 500) {
    for (int i = 0; i < count; ++i)
      for (const Says& each : says) request(tenant, each);
    trust.learn();
  }
  bool believes(std::uint64_t tenant, ReuseHint hint) {
    const ReuseHint believed = trust.believed(trust.hear(tenant, hint), hint);
    EXPECT_TRUE(believed == hint || believed == ReuseHint::kNone);
    return believed == hint && hint != ReuseHint::kNone;
  }

  const std::uint64_t seed = test_seed();
  const testing::ScopedTrace trace{__FILE__, __LINE__, "KV_SEED=" + std::to_string(seed)};
  std::mt19937_64 random{seed};
  HintTrust trust;
};

TEST_F(HintTrustTest, WhatComesTrueIsBelieved) {
  EXPECT_FALSE(trust.has_heard());
  requests(1, {{ReuseHint::kFinal, 0.1}, {ReuseHint::kWithin60s, 0.8}, {ReuseHint::kNone, 0.4}});
  EXPECT_TRUE(trust.has_heard());
  EXPECT_TRUE(believes(1, ReuseHint::kFinal));
  EXPECT_TRUE(believes(1, ReuseHint::kWithin60s));
}

TEST_F(HintTrustTest, WhoeverAlwaysSaysTheSameHasSaidNothing) {
  requests(1, {{ReuseHint::kWithin60s, 0.5}}, 20);
  EXPECT_FALSE(believes(1, ReuseHint::kWithin60s)) << "before there is any proof";
  requests(1, {{ReuseHint::kWithin60s, 0.5}});
  EXPECT_FALSE(believes(1, ReuseHint::kWithin60s));
}

TEST_F(HintTrustTest, WhatDoesNotComeTrueIsNotBelieved) {
  requests(1, {{ReuseHint::kFinal, 0.5}, {ReuseHint::kWithin60s, 0.5}}, 10);
  EXPECT_TRUE(believes(1, ReuseHint::kFinal)) << "at first, whoever tells requests apart is believed";
  requests(1, {{ReuseHint::kFinal, 0.5}, {ReuseHint::kWithin60s, 0.5}}, 3000);
  EXPECT_FALSE(believes(1, ReuseHint::kFinal));
  EXPECT_FALSE(believes(1, ReuseHint::kWithin60s));
  requests(2, {{ReuseHint::kFinal, 0.9}, {ReuseHint::kWithin60s, 0.1}}, 3000);
  EXPECT_FALSE(believes(2, ReuseHint::kFinal)) << "the reverse of the truth would spoil what is learned from others";
  EXPECT_FALSE(believes(2, ReuseHint::kWithin60s));
}

TEST_F(HintTrustTest, EachTenantIsJudgedByItself) {
  requests(1, {{ReuseHint::kFinal, 0.05}, {ReuseHint::kWithin60s, 0.8}});
  requests(2, {{ReuseHint::kWithin60s, 0.3}});
  EXPECT_TRUE(believes(1, ReuseHint::kWithin60s));
  EXPECT_FALSE(believes(2, ReuseHint::kWithin60s));
}

TEST_F(HintTrustTest, WhoStopsTellingTheTruthIsNotBelievedForLong) {
  requests(1, {{ReuseHint::kFinal, 0.05}, {ReuseHint::kWithin60s, 0.8}});
  for (int i = 0; i < 10; ++i) {
    requests(1, {{ReuseHint::kFinal, 0.5}, {ReuseHint::kWithin60s, 0.5}});
    trust.forget(0.5);
  }
  requests(1, {{ReuseHint::kFinal, 0.5}, {ReuseHint::kWithin60s, 0.5}}, 3000);
  EXPECT_FALSE(believes(1, ReuseHint::kWithin60s));
}

TEST_F(HintTrustTest, CountsMayBeForgottenAndTrustStays) {
  requests(1, {{ReuseHint::kFinal, 0.05}, {ReuseHint::kWithin60s, 0.8}});
  trust.forget_counts();
  trust.learn();
  EXPECT_TRUE(believes(1, ReuseHint::kFinal));
}

TEST_F(HintTrustTest, AsManyTenantsAsThereIsRoomForAreKnownAndTheLatestOnes) {
  for (std::uint64_t tenant = 1; tenant <= 100; ++tenant)
    requests(tenant, {{ReuseHint::kFinal, 0.05}, {ReuseHint::kWithin60s, 0.8}}, 300);
  for (std::uint64_t tenant = 100; tenant > 100 - HintTrust::kTenants; --tenant) {
    EXPECT_TRUE(believes(tenant, ReuseHint::kFinal)) << tenant;
  }
  EXPECT_FALSE(believes(1, ReuseHint::kFinal)) << "it was forgotten, and has said one thing since";
}

}  // namespace
}  // namespace kv
