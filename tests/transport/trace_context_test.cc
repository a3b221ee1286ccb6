#include "transport/trace_context.h"

#include <gtest/gtest.h>

#include <random>

namespace kv {
namespace {

const std::string kText = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(TraceContextTest, ATraceparentIsReadAndWritten) {
  const auto context = TraceContext::parse(kText);
  ASSERT_TRUE(context);
  EXPECT_TRUE(context->is_set());
  EXPECT_EQ(context->flags, 1);
  EXPECT_EQ(context->text(), kText);
  EXPECT_EQ(TraceContext::from_bytes(context->bytes().data()), *context);
  EXPECT_FALSE(TraceContext().is_set());
  EXPECT_EQ(TraceContext().text(), "");
}

TEST(TraceContextTest, OfALaterVersionWhatIsKnownIsRead) {
  EXPECT_EQ(TraceContext::parse("cc" + kText.substr(2))->text(), kText);
  EXPECT_EQ(TraceContext::parse("cc" + kText.substr(2) + "-what-the-future-brings")->text(), kText);
  EXPECT_FALSE(TraceContext::parse("cc" + kText.substr(2) + "x"));
  EXPECT_FALSE(TraceContext::parse("ff" + kText.substr(2)));
}

TEST(TraceContextTest, AnythingElseIsNone) {
  EXPECT_FALSE(TraceContext::parse(""));
  EXPECT_FALSE(TraceContext::parse(kText.substr(0, 54)));
  EXPECT_FALSE(TraceContext::parse(kText + "-01"));
  EXPECT_FALSE(TraceContext::parse(kText + std::string(100'000, '0')));
  EXPECT_FALSE(TraceContext::parse("00-00000000000000000000000000000000-00f067aa0ba902b7-01"));
  EXPECT_FALSE(TraceContext::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01"));
  EXPECT_FALSE(TraceContext::parse("00-4BF92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
  for (std::size_t i = 0; i < kText.size(); ++i) {
    for (const char wrong : {'g', 'A', '-', ' ', '\n', '\0', '\xff'}) {
      std::string text = kText;
      if (text[i] == wrong) continue;
      text[i] = wrong;
      EXPECT_FALSE(TraceContext::parse(text)) << i;
    }
  }
}

}  // namespace
}  // namespace kv
