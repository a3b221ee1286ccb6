// Text from elsewhere: one line of valid UTF-8 whatever it was.
#include "base/text/printable.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace kv {
namespace {

TEST(PrintableTest, PlainTextStaysAsItIs) {
  EXPECT_EQ(printable(""), "");
  EXPECT_EQ(printable("worker-7 'x' \"y\" {z}"), "worker-7 'x' \"y\" {z}");
  EXPECT_EQ(printable("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x90\x98"),
            "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x90\x98");
}

TEST(PrintableTest, WhatEndsALineOrMovesACursorIsEscaped) {
  EXPECT_EQ(printable("a\nb\r\tc"), "a\\nb\\r\\tc");
  EXPECT_EQ(printable(std::string_view("\0\x1b[2J\x7f", 6)), "\\x00\\x1b[2J\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "\\xc2\\x9b2J")
      << "U+009B begins a terminal's command too";
  EXPECT_EQ(printable("\xc2\xa0"), "\xc2\xa0") << "one above the last of them";
  EXPECT_EQ(printable("\xe2\x80\xa8\xe2\x80\xa9"), "\\xe2\\x80\\xa8\\xe2\\x80\\xa9")
      << "U+2028 and U+2029 separate lines";
}

TEST(PrintableTest, WhatIsUtf8IsKnown) {
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8("a\n\xc3\xa4\xf0\x9f\x98\x80"));
  EXPECT_FALSE(is_utf8("a\xff"));
  EXPECT_FALSE(is_utf8("\xc3"));
}

TEST(PrintableTest, BytesThatAreNoUtf8AreEscaped) {
  EXPECT_EQ(printable("\x80"), "\\x80");
  EXPECT_EQ(printable("\xc3"), "\\xc3") << "cut off";
  EXPECT_EQ(printable("\xc3(\xe2\x82"), "\\xc3(\\xe2\\x82");
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf") << "overlong";
  EXPECT_EQ(printable("\xe0\x9f\xbf"), "\\xe0\\x9f\\xbf") << "overlong";
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(printable("\xf4\x8f\xbf\xbf\xf4\x90\x80\x80"), "\xf4\x8f\xbf\xbf\\xf4\\x90\\x80\\x80")
      << "U+10FFFF and beyond";
  EXPECT_EQ(printable("\xff\xfe"), "\\xff\\xfe");
}

TEST(PrintableTest, EveryPairOfBytesGivesAnotherPrintableText) {
  std::set<std::string> all;
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string text = printable(std::string{static_cast<char>(first), static_cast<char>(second)});
      EXPECT_TRUE(all.insert(text).second) << text;
      EXPECT_EQ(text.find_first_of("\n\r\x1b\x7f"), std::string::npos);
      EXPECT_EQ(text.find('\0'), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace kv
