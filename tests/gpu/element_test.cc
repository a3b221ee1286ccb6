#include "gpu/element.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace kv {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Format {
  Element element;
  std::uint32_t code_count;
};
constexpr Format kFormats[] = {{Element::kInt8, 256},
                               {Element::kE4M3, 256},
                               {Element::kE5M2, 256},
                               {Element::kFp16, 65536},
                               {Element::kBf16, 65536}};

TEST(ElementTest, EveryCodeSurvivesDecodingAndEncoding) {
  for (const auto& [element, code_count] : kFormats) {
    for (std::uint32_t code = 0; code < code_count; ++code) {
      const float value = decode_element(element, code);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(decode_element(element, encode_element(element, value))));
      } else if (element == Element::kE5M2 && std::isinf(value)) {
        EXPECT_EQ(encode_element(element, value) & 0x7F, 0x7B);  // read if an engine wrote it, never written by us
      } else {
        ASSERT_EQ(encode_element(element, value), code) << element_name(element) << " value " << value;
      }
    }
  }
}

TEST(ElementTest, RoundsToTheNearestCodeAndTiesToTheEvenOne) {
  for (const auto& [element, code_count] : kFormats) {
    if (element == Element::kInt8) continue;
    for (std::uint32_t code = 0; code + 1 < code_count / 2; ++code) {  // positive codes are in order of value
      const float low = decode_element(element, code);
      const float high = decode_element(element, code + 1);
      if (!std::isfinite(low) || !std::isfinite(high)) break;
      const float middle = static_cast<float>((static_cast<double>(low) + high) / 2);
      const std::uint32_t even = (code & 1) == 0 ? code : code + 1;
      ASSERT_EQ(encode_element(element, middle), even)
          << element_name(element) << " between " << low << " and " << high;
      ASSERT_EQ(encode_element(element, std::nextafter(middle, low)), code);
      ASSERT_EQ(encode_element(element, std::nextafter(middle, high)), code + 1);
      ASSERT_EQ(encode_element(element, -middle), even | (code_count / 2));
    }
  }
}

TEST(ElementTest, GoldenValuesOfTheEightBitFormats) {
  EXPECT_EQ(encode_element(Element::kE4M3, 3.3F / 0.5F), 0x4D);
  EXPECT_EQ(decode_element(Element::kE4M3, 0x4D) * 0.5F, 3.25F);
  EXPECT_EQ(encode_element(Element::kE5M2, 3.3F / 0.5F), 0x47);
  EXPECT_EQ(decode_element(Element::kE5M2, 0x47) * 0.5F, 3.5F);
  EXPECT_EQ(encode_element(Element::kE4M3, 500.0F), 0x7E);
  EXPECT_EQ(decode_element(Element::kE4M3, 0x7E), 448.0F);
  EXPECT_EQ(encode_element(Element::kE4M3, 1.0625F), 0x38);
  EXPECT_EQ(encode_element(Element::kE4M3, 1.1875F), 0x3A);
  EXPECT_EQ(encode_element(Element::kE4M3, 0.0009F), 0x00);
  EXPECT_EQ(encode_element(Element::kE5M2, 0.0009F), 0x13);
  EXPECT_EQ(encode_element(Element::kInt8, 63.5F), 64);
  EXPECT_EQ(encode_element(Element::kInt8, -200.0F), 0x80);
}

TEST(ElementTest, InfinitySaturatesInEightBitsAndStaysInSixteen) {
  EXPECT_EQ(encode_element(Element::kE4M3, kInfinity), 0x7E);
  EXPECT_EQ(encode_element(Element::kE4M3, -kInfinity), 0xFE);
  EXPECT_EQ(encode_element(Element::kE5M2, kInfinity), 0x7B);
  EXPECT_EQ(encode_element(Element::kInt8, kInfinity), 0x7F);
  EXPECT_EQ(encode_element(Element::kFp16, kInfinity), 0x7C00);
  EXPECT_EQ(encode_element(Element::kFp16, 65520.0F), 0x7C00);  // half a step above the largest
  EXPECT_EQ(encode_element(Element::kFp16, std::nextafter(65520.0F, 0.0F)), 0x7BFF);
  EXPECT_EQ(encode_element(Element::kBf16, -kInfinity), 0xFF80);
}

TEST(ElementTest, NanStaysNanWhereTheFormatHasOne) {
  for (const Element element : {Element::kE4M3, Element::kE5M2, Element::kFp16, Element::kBf16, Element::kFp32}) {
    EXPECT_TRUE(std::isnan(decode_element(element, encode_element(element, kNan)))) << element_name(element);
  }
  EXPECT_EQ(encode_element(Element::kInt8, kNan), 0);
}

TEST(ElementTest, FourBitTiesGoToTheEvenCode) {
  const std::vector<float> values = {0, .5F, 1, 1.5F, 2, 3, 4, 6};
  for (std::uint32_t code = 0; code < 8; ++code) EXPECT_EQ(decode_small(kE2M1Format, code), values[code]);
  const std::vector<std::pair<float, std::uint32_t>> ties = {{.25F, 0}, {.75F, 2}, {1.25F, 2}, {1.75F, 4},
                                                             {2.5F, 4}, {3.5F, 6}, {5.0F, 6},  {99.0F, 7}};
  for (const auto& [value, code] : ties) {
    EXPECT_EQ(encode_small(kE2M1Format, value), code) << value;
    EXPECT_EQ(encode_small(kE2M1Format, -value), code | 8) << value;
  }
}

}  // namespace
}  // namespace kv
