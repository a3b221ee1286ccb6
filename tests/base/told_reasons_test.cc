#include "base/text/told_reasons.h"

#include <gtest/gtest.h>

namespace kv {
namespace {

TEST(ToldReasonsTest, EachReasonIsNewOnceUntilTheFailureIsOver) {
  ToldReasons told;
  EXPECT_FALSE(told.clear()) << "there was no failure";
  EXPECT_TRUE(told.is_new("away"));
  EXPECT_FALSE(told.is_new("away"));
  EXPECT_TRUE(told.is_new("out of space")) << "not the first reason alone";
  EXPECT_FALSE(told.is_new("away"));
  EXPECT_TRUE(told.clear());
  EXPECT_TRUE(told.is_new("away"));
}

TEST(ToldReasonsTest, ReasonsThatDifferEachTimeFillNoLog) {
  ToldReasons told;
  int count = 0;
  for (int i = 0; i < 1000; ++i) count += told.is_new("port " + std::to_string(i));
  EXPECT_EQ(count, 16);
}

}  // namespace
}  // namespace kv
