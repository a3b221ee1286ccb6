// Which kernel moves what: the widest accesses that the two layouts allow.
#include "gpu/device/device_plan.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>

#include "gpu/device/device_values.h"
#include "gpu/named_layouts.h"
#include "tests/gpu/matrix.h"

namespace kv {
namespace {

class DevicePlanTest : public testing::Test {
 protected:
  static std::vector<DevicePlan> plans(const TestCache& to, const TestCache& from, const Rows& rows, std::int64_t count,
                                       const Operation& operation = Operation()) {
    return make_device_plans(make_plan(to.bound(), rows, from.bound(), Rows::range(), count, operation).value());
  }
  static CacheShape shape(std::int64_t block_tokens = 16) {
    return {.block_count = 4, .block_tokens = block_tokens, .heads = 2, .key_size = 64};
  }
  const std::vector<std::int64_t> slots_ = std::vector<std::int64_t>(32, 0);
};

TEST_F(DevicePlanTest, RowLayoutsMoveInSixteenBytes) {
  for (const NamedMaker& maker : copy_layouts()) {
    const std::string name = maker.name;
    if (name == "L9 x-packed" || name == "tiled by four" || name.find("MLA") != std::string::npos) continue;
    SCOPED_TRACE(name);
    const TestCache cache(maker.make(shape()).value());
    const TestCache rows(dense_rows(cache.layout(), 32));
    const DevicePlan plan = plans(cache, rows, Rows::slots(slots_.data()), 32).at(0);
    for (int i = 0; i < plan.part_count; ++i) {
      EXPECT_EQ(plan.parts[i].body, DeviceBody::kWideCopy);
      EXPECT_EQ(plan.parts[i].vec_bytes, 16);
    }
  }
}

TEST_F(DevicePlanTest, PackedKeysMoveInVectorsAndTransposedValuesThroughTiles) {
  const TestCache cache(layouts::x_packed(shape()).value());
  const TestCache rows(dense_rows(cache.layout(), 32));
  const DevicePlan plan = plans(cache, rows, Rows::slots(slots_.data()), 32).at(0);
  EXPECT_EQ(plan.parts[0].body, DeviceBody::kWideCopy);
  EXPECT_EQ(plan.parts[1].body, DeviceBody::kTranspose);
  const TestCache fours(tiled_by_four(shape()).value());
  EXPECT_EQ(plans(fours, rows, Rows::slots(slots_.data()), 32).at(0).parts[0].body, DeviceBody::kTranspose);
  const TestCache odd(layouts::x_packed(shape(17)).value());
  const DevicePlan divided = plans(odd, rows, Rows::slots(slots_.data()), 32).at(0);
  EXPECT_EQ(divided.parts[0].body, DeviceBody::kCopy);  // 17 tokens a block: slots need a division
  EXPECT_EQ(divided.parts[0].vec_bytes, 16);
  EXPECT_EQ(divided.parts[1].body, DeviceBody::kTranspose);
}

TEST_F(DevicePlanTest, AccessesAreAsNarrowAsTheBasesAreMisaligned) {
  for (const int misalign : {2, 4, 8}) {
    const TestCache cache(layouts::nhd(shape()).value(), misalign);
    const TestCache rows(dense_rows(cache.layout(), 32));
    const DevicePlan plan = plans(cache, rows, Rows::slots(slots_.data()), 32).at(0);
    EXPECT_EQ(plan.parts[0].body, DeviceBody::kCopy);
    EXPECT_EQ(plan.parts[0].vec_bytes, misalign);
  }
}

TEST_F(DevicePlanTest, WholeBlocksBetweenEqualLayoutsAreBytes) {
  const TestCache cache(layouts::x_packed(shape()).value());
  const TestCache other(cache.layout());
  const std::vector<std::int64_t> blocks = {2, 0};
  const Rows rows = Rows::blocks(blocks.data(), 16);
  const auto plan =
      make_device_plans(make_plan(cache.bound(), rows, other.bound(), rows, 32, Operation()).value()).at(0);
  EXPECT_EQ(plan.row_count, 2);
  EXPECT_EQ(plan.to_slot_count, 4);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(plan.parts[i].body, DeviceBody::kWideCopy);
    EXPECT_EQ(plan.parts[i].part.values, 16 * 2 * 64 * 2);
  }
}

TEST_F(DevicePlanTest, LayersBeyondTheParametersRoomAreLaterLaunches) {
  CacheShape deep = shape();
  deep.layer_count = 300;  // 2 components on 2 sides: 1,200 pointers
  deep.key_size = 16;
  const TestCache cache(layouts::nhd(deep).value());
  const TestCache rows(dense_rows(cache.layout(), 1));
  const auto launches = plans(cache, rows, Rows::range(), 1);
  ASSERT_EQ(launches.size(), 2u);
  EXPECT_EQ(launches[0].layer_count, 256);
  EXPECT_EQ(launches[1].layer_count, 44);
  EXPECT_EQ(launches[1].to_base(43, 1), cache.bound().base(299, 1));
  EXPECT_EQ(launches[1].from_base(0, 0), rows.bound().base(256, 0));
  EXPECT_LE(sizeof(DevicePlan), 32764u);  // what a kernel takes as parameters
}

TEST_F(DevicePlanTest, ALaunchTakesItsOwnPartsInTheSmallParameter) {
  const TestCache cache(layouts::x_packed(shape()).value());
  const TestCache rows(dense_rows(cache.layout(), 32));
  const DevicePlan plan = plans(cache, rows, Rows::slots(slots_.data()), 32).at(0);
  EXPECT_LE(sizeof(SmallDevicePlan), 4096u);  // what every driver takes
  for (const DeviceBody body : {DeviceBody::kWideCopy, DeviceBody::kTranspose}) {
    ASSERT_TRUE(fits<SmallDevicePlan>(plan, body));
    const auto small = plan_of_body<SmallDevicePlan>(plan, body);
    ASSERT_EQ(small.part_count, 1);
    EXPECT_EQ(small.parts[0].body, body);
    EXPECT_EQ(small.row_count, plan.row_count);
    EXPECT_EQ(small.to_base(0, 1), plan.to_base(0, 1));
    EXPECT_EQ(small.from_base(0, 1), plan.from_base(0, 1));
  }
  CacheShape deep = shape();
  deep.layer_count = 37;  // 148 pointers
  const TestCache pages(layouts::nhd(deep).value());
  EXPECT_FALSE(fits<SmallDevicePlan>(plans(pages, pages, Rows::slots(slots_.data()), 32).at(0), DeviceBody::kWideCopy));
}

TEST(GridTest, ACapIsOnAllBlocksOfALaunch) {
  for (const std::int64_t cap : {1, 2, 63, 64, 2048, 65536}) {
    for (const std::int64_t rows : {1, 3, 1000, 1 << 20}) {
      for (const std::int64_t pairs : {1, 2, 160, 1024}) {
        for (const std::int64_t pieces : {1, 16, 4096}) {
          for (const bool has_common_work : {false, true}) {
            const GridShares grid = bounded_grid({rows, pairs, pieces}, has_common_work, cap);
            EXPECT_LE(grid.rows * grid.pairs * grid.pieces, cap) << rows << " " << pairs << " " << pieces;
            EXPECT_TRUE(grid.rows >= 1 && grid.rows <= rows && grid.pairs >= 1 && grid.pairs <= pairs);
            EXPECT_TRUE(grid.pieces >= 1 && grid.pieces <= pieces);
          }
        }
      }
    }
  }
  // A whole block each of 64 layers: few long rows are cut until processors have enough.
  EXPECT_EQ(bounded_grid({1, 64, 64}, false, 65536).pieces, 32);
  EXPECT_EQ(bounded_grid({64, 2, 1}, false, 65536).rows, 64);
}

TEST_F(DevicePlanTest, CastsOfTokensSideBySideGoThroughTilesToo) {
  CacheShape codes = shape();
  codes.element = Element::kE4M3;
  const TestCache cache(layouts::x_packed(codes).value());
  const TestCache rows(dense_rows(layouts::nhd(shape()).value(), 32));
  const Operation cast(Operation::Kind::kCast);
  for (const DevicePlan& plan : {plans(cache, rows, Rows::slots(slots_.data()), 32, cast).at(0),
                                 plans(rows, cache, Rows::slots(slots_.data()), 32, cast).at(0)}) {
    EXPECT_EQ(plan.parts[0].body, DeviceBody::kCast);  // K: tiles of 16 bytes, so a warp takes several rows
    EXPECT_EQ(plan.parts[0].span_shift, 2);
    EXPECT_EQ(plan.parts[0].row_shift, 3);
    EXPECT_EQ(plan.parts[1].body, DeviceBody::kTranspose);
    EXPECT_TRUE(plan.parts[1].has_wide_to);
    EXPECT_TRUE(plan.parts[1].has_wide_from);
  }
}

TEST_F(DevicePlanTest, RowsWithAScaleInsideMoveFourValuesAtATime) {
  CacheShape codes = shape();
  codes.element = Element::kInt8;
  const TestCache cache(layouts::inline_scales_nhd(codes).value());
  const TestCache rows(dense_rows(layouts::nhd(shape()).value(), 32));
  const auto down = plans(cache, rows, Rows::slots(slots_.data()), 32, Operation(Operation::Kind::kQuantise)).at(0);
  EXPECT_EQ(down.parts[0].vec_bytes, 4);
  const auto up = plans(rows, cache, Rows::slots(slots_.data()), 32, Operation(Operation::Kind::kDequantise)).at(0);
  EXPECT_EQ(up.parts[0].vec_bytes, 4);
}

TEST(DeviceValuesTest, FourBitNumbersAreThoseOfTheGeneralForm) {
  for (std::uint32_t code = 0; code < 16; ++code) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(device::decode_e2m1(code)),
              std::bit_cast<std::uint32_t>(decode_small(kE2M1Format, code)));
  }
  // Every sign, exponent and eight bits of mantissa, and the neighbours of each: ties have two bits.
  for (std::uint64_t high = 0; high < 0x100000000; high += 0x8000) {
    for (const std::uint32_t step : {0U, 1U, 0xFFFFFFFFU}) {
      const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(high) + step);
      ASSERT_EQ(device::encode_e2m1(value), encode_small(kE2M1Format, value)) << value;
    }
  }
}

TEST_F(DevicePlanTest, GroupsOfAScaleAreTakenByNeighboursOfOneWarp) {
  const std::array<std::array<std::int64_t, 2>, 8> lanes = {
      {{1, 1}, {8, 1}, {9, 2}, {16, 2}, {72, 8}, {128, 8}, {256, 16}, {4096, 32}}};
  for (const auto& [values, count] : lanes) EXPECT_EQ(quantise_lanes(values), count) << values;
  const TestCache codes(layouts::nvfp4(shape(), layouts::ScaleOrder::kLinear).value());
  const TestCache rows(dense_rows(layouts::nhd(shape()).value(), 32));
  Operation down(Operation::Kind::kQuantise), up(Operation::Kind::kDequantise);
  down.scale_rule = ScaleRule::kNvfp4;
  for (const DevicePlan& plan : plans(codes, rows, Rows::slots(slots_.data()), 32, down)) {
    EXPECT_EQ(plan.parts[0].body, DeviceBody::kQuantise);
    EXPECT_EQ(plan.parts[0].vec_bytes, 16);  // eight values: 16 bytes of bf16, 4 of pairs
  }
  for (const DevicePlan& plan : plans(rows, codes, Rows::slots(slots_.data()), 32, up)) {
    EXPECT_EQ(plan.parts[0].body, DeviceBody::kCast);
    EXPECT_EQ(plan.parts[0].vec_bytes, 16);
  }
}

}  // namespace
}  // namespace kv
