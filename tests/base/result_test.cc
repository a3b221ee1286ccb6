#include "base/result.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <set>
#include <string>

#include "base/assert.h"

namespace kv {
namespace {

Result<int> half(int n) {
  if (n % 2) return Errc::kBadRequest;
  return n / 2;
}

TEST(ResultTest, HoldsAValueOrAnError) {
  ASSERT_TRUE(half(4));
  EXPECT_EQ(*half(4), 2);
  ASSERT_FALSE(half(3));
  EXPECT_EQ(half(3).error(), Errc::kBadRequest);
}

TEST(ResultTest, ErrorsOfAsioAndErrnoAreTheSameType) {
  const Result<void> late(asio::error::timed_out);
  EXPECT_EQ(late.error(), asio::error::timed_out);
  errno = ENOSPC;
  const Result<int> full = last_errno();
  EXPECT_EQ(full.error(), boost::system::errc::no_space_on_device);
}

TEST(ResultTest, EveryErrorHasItsOwnMessage) {
  std::set<std::string> messages;
  for (int value = 1; value <= 14; ++value) messages.insert(make_error_code(static_cast<Errc>(value)).message());
  EXPECT_EQ(messages.size(), 14u);
  EXPECT_EQ(make_error_code(static_cast<Errc>(99)).message(), "unknown kvstore error 99");
}

// Wire values: a peer of another version reads them.
TEST(ResultTest, ErrorNumbersNeverChange) {
  EXPECT_EQ(static_cast<int>(Errc::kOutOfMemory), 1);
  EXPECT_EQ(static_cast<int>(Errc::kCorruptBlock), 3);
  EXPECT_EQ(static_cast<int>(Errc::kMismatch), 8);
  EXPECT_EQ(static_cast<int>(Errc::kDraining), 14);
}

TEST(AssertTest, FailedAssertionThrowsInsideAClientAndAbortsInADaemon) {
  set_assert_policy(AssertPolicy::kThrow);
  EXPECT_THROW(KV_ASSERT(1 + 1 == 3), std::logic_error);
  set_assert_policy(AssertPolicy::kAbort);
  EXPECT_DEATH(KV_ASSERT(1 + 1 == 3), "1 \\+ 1 == 3");
  KV_ASSERT(1 + 1 == 2);
}

}  // namespace
}  // namespace kv
