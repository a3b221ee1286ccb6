#include "store/tables/lease_table.h"

#include <gtest/gtest.h>

#include "store_fixture.h"

namespace kv {
namespace {

constexpr BlockId kBlockA{10}, kBlockB{11};

class LeaseTableTest : public testing::Test {
 protected:
  std::size_t expire() {
    return leases.expire(now, 1000, [&](BlockId block) { ended.push_back(block); });
  }

  LeaseTable leases{{.duration = 500ms, .count_max = 4, .count_per_session_max = 3}};
  TimePoint now{1s};
  std::vector<BlockId> ended;
};

TEST_F(LeaseTableTest, LeaseEndsAtItsEndAndNotOneTickBefore) {
  const LeaseId lease = leases.grant(kAlice, kBlockA, now).value();
  now += 500ms - Duration(1);
  EXPECT_EQ(expire(), 0u);
  now += Duration(1);
  EXPECT_EQ(expire(), 1u);
  EXPECT_EQ(ended, std::vector{kBlockA});
  EXPECT_EQ(leases.release(kAlice, lease).error(), Errc::kStaleLease);
  now += Duration(1);
  EXPECT_EQ(expire(), 0u);
  EXPECT_EQ(leases.check(), "");
}

TEST_F(LeaseTableTest, LeaseIsLiveUntilACallEndsIt) {
  const LeaseId lease = leases.grant(kAlice, kBlockA, now).value();
  now += 1h;
  EXPECT_EQ(leases.lease_count(), 1u);
  EXPECT_EQ(leases.release(kAlice, lease).value(), kBlockA);
  EXPECT_EQ(leases.lease_count(), 0u);
}

TEST_F(LeaseTableTest, LeasesEndInGrantOrder) {  // invariant 2
  ASSERT_TRUE(leases.grant(kAlice, kBlockA, now));
  now += 200ms;
  ASSERT_TRUE(leases.grant(kBob, kBlockB, now));
  now += 300ms;
  EXPECT_EQ(expire(), 1u);
  now += 200ms;
  EXPECT_EQ(expire(), 1u);
  EXPECT_EQ(ended, (std::vector{kBlockA, kBlockB}));
}

TEST_F(LeaseTableTest, GrantWithAnOlderNowKeepsTheOrderOfExpiry) {  // invariant 2
  ASSERT_TRUE(leases.grant(kAlice, kBlockA, now));
  ASSERT_TRUE(leases.grant(kAlice, kBlockB, now - 100ms));
  EXPECT_EQ(leases.check(), "");
  now += 450ms;
  EXPECT_EQ(expire(), 0u);
  now += 50ms;
  EXPECT_EQ(expire(), 2u);
}

TEST_F(LeaseTableTest, LeaseIsReleasedOnce) {  // invariant 1
  const LeaseId lease = leases.grant(kAlice, kBlockA, now).value();
  EXPECT_EQ(leases.release(kAlice, lease).value(), kBlockA);
  EXPECT_EQ(leases.release(kAlice, lease).error(), Errc::kStaleLease);
  now += 1h;
  EXPECT_EQ(expire(), 0u);
}

TEST_F(LeaseTableTest, LeaseOfAnotherSessionIsStale) {
  const LeaseId lease = leases.grant(kAlice, kBlockA, now).value();
  EXPECT_EQ(leases.release(kBob, lease).error(), Errc::kStaleLease);
  EXPECT_TRUE(leases.release(kAlice, lease));
}

TEST_F(LeaseTableTest, LeasesThatNeverWereAreStale) {
  EXPECT_EQ(leases.release(kAlice, LeaseId{}).error(), Errc::kStaleLease);
  EXPECT_EQ(leases.release(kAlice, LeaseId{~std::uint64_t{0}}).error(), Errc::kStaleLease);
  ASSERT_TRUE(leases.grant(kAlice, kBlockA, now));
  for (std::uint64_t id = 0; id < 100; ++id) EXPECT_FALSE(leases.release(kBob, LeaseId{id}));
}

TEST_F(LeaseTableTest, GrantFailsAtTheSessionsLimitAndEndsNothing) {  // invariant 3
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(leases.grant(kAlice, kBlockA, now));
  EXPECT_EQ(leases.grant(kAlice, kBlockA, now).error(), Errc::kBusy);
  EXPECT_EQ(leases.lease_count(kAlice), 3u);
  EXPECT_TRUE(leases.grant(kBob, kBlockA, now));
}

TEST_F(LeaseTableTest, GrantFailsAtTheNodesLimitUntilALeaseEnds) {  // invariant 3
  const LeaseId first = leases.grant(kAlice, kBlockA, now).value();
  ASSERT_TRUE(leases.grant(kAlice, kBlockA, now));
  ASSERT_TRUE(leases.grant(kBob, kBlockA, now));
  ASSERT_TRUE(leases.grant(kBob, kBlockA, now));
  EXPECT_EQ(leases.grant(SessionId{3}, kBlockA, now).error(), Errc::kBusy);
  ASSERT_TRUE(leases.release(kAlice, first));
  EXPECT_TRUE(leases.grant(SessionId{3}, kBlockA, now));
  EXPECT_EQ(leases.check(), "");
}

TEST_F(LeaseTableTest, IdsAreNeverReused) {
  LeaseId before{};
  for (int i = 0; i < 1000; ++i) {
    const LeaseId lease = leases.grant(kAlice, kBlockA, now).value();
    EXPECT_GT(lease, before);
    EXPECT_TRUE(leases.release(kAlice, lease));
    before = lease;
  }
}

TEST_F(LeaseTableTest, ManyLeasesEndInSlices) {
  for (int i = 0; i < 3; ++i) leases.grant(kAlice, kBlockA, now).value();
  const auto end = [&](BlockId block) { ended.push_back(block); };
  EXPECT_EQ(leases.end_session(kAlice, 1, end), 1u);
  EXPECT_EQ(leases.lease_count(kAlice), 2u);
  now += 1h;
  EXPECT_EQ(leases.expire(now, 1, end), 1u);
  EXPECT_EQ(leases.expire(now, 1, end), 1u);
  EXPECT_EQ(leases.expire(now, 1, end), 0u);
  EXPECT_EQ(ended.size(), 3u);
  EXPECT_EQ(leases.check(), "");
}

TEST_F(LeaseTableTest, EndOfASessionEndsItsLeasesAndNoOthers) {
  ASSERT_TRUE(leases.grant(kAlice, kBlockA, now));
  const LeaseId kept = leases.grant(kBob, kBlockB, now).value();
  ASSERT_TRUE(leases.grant(kAlice, kBlockA, now));
  leases.end_session(kAlice, 1000, [&](BlockId block) { ended.push_back(block); });
  EXPECT_EQ(ended, (std::vector{kBlockA, kBlockA}));
  EXPECT_EQ(leases.lease_count(kAlice), 0u);
  EXPECT_EQ(leases.check(), "");
  EXPECT_TRUE(leases.release(kBob, kept));
  leases.end_session(kAlice, 1000, [&](BlockId) { FAIL(); });
}

TEST_F(LeaseTableTest, VisitsEveryLiveLease) {
  ASSERT_TRUE(leases.grant(kAlice, kBlockA, now));
  const LeaseId gone = leases.grant(kAlice, kBlockA, now).value();
  ASSERT_TRUE(leases.grant(kBob, kBlockB, now));
  ASSERT_TRUE(leases.release(kAlice, gone));
  leases.for_each([&](BlockId block) { ended.push_back(block); });
  EXPECT_EQ(ended, (std::vector{kBlockA, kBlockB}));
}

}  // namespace
}  // namespace kv
