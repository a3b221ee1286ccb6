#include "gpu/paging/packed_mask.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace kv {
namespace {

using testing::ElementsAre;

class PackedMaskTest : public testing::Test {
 protected:
  const std::vector<std::int32_t> queries = {2, 1}, keys = {3, 5};
  const MaskShape shape{queries, keys};
  std::vector<std::uint8_t> packed = {9, 9};
};

TEST_F(PackedMaskTest, CausalQueriesAreTheLastTokensOfTheirRequest) {
  std::vector<std::int32_t> bits(3), bytes(3);
  EXPECT_EQ(packed_mask_bytes(shape).value(), 2u);
  ASSERT_TRUE(pack_masks(packed, shape, {}, bits, bytes));
  EXPECT_THAT(packed, ElementsAre(0x3B, 0x1F));  // 110 111, 11111
  EXPECT_THAT(bits, ElementsAre(0, 6, 11));
  EXPECT_THAT(bytes, ElementsAre(0, 1, 2));
}

TEST_F(PackedMaskTest, AnyByteButZeroIsASetBit) {
  ASSERT_TRUE(pack_masks(packed, shape, std::vector<std::uint8_t>{1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 1}, {}, {}));
  EXPECT_THAT(packed, ElementsAre(0x11, 0x10));
}

TEST_F(PackedMaskTest, AMaskOrAResultOfAnotherSizeIsRefused) {
  std::vector<std::uint8_t> mask(10), small(1);
  std::vector<std::int32_t> two(2);
  EXPECT_EQ(pack_masks(packed, shape, mask, {}, {}).error(), Errc::kBadRequest);
  EXPECT_EQ(pack_masks(small, shape, {}, {}, {}).error(), Errc::kBadRequest);
  EXPECT_EQ(pack_masks(packed, shape, {}, two, {}).error(), Errc::kBadRequest);
  EXPECT_EQ(pack_masks(packed, shape, {}, {}, two).error(), Errc::kBadRequest);
  EXPECT_THAT(packed, ElementsAre(9, 9));
}

TEST_F(PackedMaskTest, CountsThatAreNoneOrPassAKernelsIntegersAreRefused) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  const std::vector<std::int32_t> negative = {2, -1}, one = {2}, most = {kMost, 0}, huge = {kMost, kMost};
  EXPECT_EQ(packed_mask_bytes({negative, keys}).error(), Errc::kBadRequest);
  EXPECT_EQ(packed_mask_bytes({keys, negative}).error(), Errc::kBadRequest);
  EXPECT_EQ(packed_mask_bytes({one, keys}).error(), Errc::kBadRequest);
  EXPECT_EQ(packed_mask_bytes({most, std::vector<std::int32_t>{1, 1}}).value(), std::size_t{1} << 28);
  EXPECT_EQ(packed_mask_bytes({huge, huge}).error(), Errc::kTooLarge);
  EXPECT_EQ(packed_mask_bytes({most, std::vector<std::int32_t>{2, 0}}).error(), Errc::kTooLarge);
}

TEST_F(PackedMaskTest, ABatchWithoutRequestsHasNoBytes) {
  std::vector<std::int32_t> bits = {7};
  EXPECT_EQ(packed_mask_bytes({}).value(), 0u);
  ASSERT_TRUE(pack_masks({}, {}, {}, bits, {}));
  EXPECT_THAT(bits, ElementsAre(0));
}

}  // namespace
}  // namespace kv
