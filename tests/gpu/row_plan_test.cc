#include "gpu/plans/row_plan.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "gpu/rows.h"

namespace kv {
namespace {

using Ints = std::vector<std::int32_t>;
using Longs = std::vector<std::int64_t>;

TEST(RowPlanTest, AppendedEntriesFindTheirPages) {
  const Ints indptr = {0, 2, 3}, indices = {7, 2, 5};
  Ints batch(3), positions(3);
  ASSERT_TRUE(plan_append_positions(batch, positions, Ints{0, 2, 3}, Ints{5, 3}));
  EXPECT_EQ(batch, (Ints{0, 0, 1}));
  EXPECT_EQ(positions, (Ints{3, 4, 2}));
  Longs slots(3);
  ASSERT_TRUE(plan_append_rows(slots, {indptr, indices}, 4, batch, positions));
  EXPECT_EQ(slots, (Longs{31, 8, 22}));
}

TEST(RowPlanTest, AppendedRowsAreTheLastOfTheirRequestAndPaddingHasNone) {
  Ints batch(12), positions(12);
  ASSERT_TRUE(plan_append_positions(batch, positions, Ints{0, 1, 3, 6, 10}, Ints{5, 5, 5, 5}));
  EXPECT_EQ(batch, (Ints{0, 1, 1, 2, 2, 2, 3, 3, 3, 3, -1, -1}));
  EXPECT_EQ(positions, (Ints{4, 3, 4, 2, 3, 4, 1, 2, 3, 4, 0, 0}));
  Longs slots(12);
  ASSERT_TRUE(plan_append_rows(slots, {Ints{0, 1, 2, 3, 4}, Ints{0, 1, 2, 3}}, 8, batch, positions));
  EXPECT_EQ(slots[10], -1);
  EXPECT_EQ(plan_append_positions(batch, positions, Ints{0, 6}, Ints{5}).error(), Errc::kBadRequest);
}

TEST(RowPlanTest, AppendRefusesPagesThatAreNotThere) {
  Longs slots(1);
  const Ints indptr = {0, 2}, indices = {7, 2};
  EXPECT_TRUE(plan_append_rows(slots, {indptr, indices}, 4, Ints{0}, Ints{7}));
  EXPECT_EQ(plan_append_rows(slots, {indptr, indices}, 4, Ints{0}, Ints{8}).error(), Errc::kBadRequest);
  EXPECT_EQ(plan_append_rows(slots, {indptr, indices}, 4, Ints{1}, Ints{0}).error(), Errc::kBadRequest);
  EXPECT_EQ(plan_append_rows(slots, {indptr, indices}, 4, Ints{0}, Ints{-1}).error(), Errc::kBadRequest);
}

TEST(RowPlanTest, TablesStartAnywhereInABlock) {
  Longs slots(8);
  const Ints ids = {3, 1, 9, 5};
  EXPECT_EQ(plan_table_rows(slots, {ids, 2}, 4, Longs{3, 0}, Longs{3, 2}).value(), 5);
  slots.resize(5);
  EXPECT_EQ(slots, (Longs{15, 4, 5, 36, 37}));
}

TEST(RowPlanTest, AMissingBlockKeepsOrLosesItsRows) {
  const Ints ids = {3, -1, 9};
  Longs slots(12);
  EXPECT_EQ(plan_table_rows(slots, {ids, 3}, 2, {}, Longs{6}).value(), 6);
  EXPECT_EQ(Longs(slots.begin(), slots.begin() + 6), (Longs{6, 7, -1, -1, 18, 19}));
  EXPECT_EQ(plan_table_rows(slots, {ids, 3}, 2, {}, Longs{6}, MissingBlock::kDropRow).value(), 4);
  EXPECT_EQ(Longs(slots.begin(), slots.begin() + 4), (Longs{6, 7, 18, 19}));
}

TEST(RowPlanTest, TableErrorsAreFound) {
  Longs slots(4);
  const Ints ids = {3, 1};
  EXPECT_EQ(plan_table_rows(slots, {ids, 2}, 2, {}, Longs{5}).error(), Errc::kBadRequest);
  EXPECT_EQ(plan_table_rows(slots, {ids, 2}, 2, Longs{-1}, Longs{1}).error(), Errc::kBadRequest);
  EXPECT_EQ(plan_table_rows(slots, {ids, 2}, 2, {}, Longs{1, 1}).error(), Errc::kBadRequest);
  EXPECT_EQ(plan_table_rows(std::span(slots).first(2), {ids, 2}, 2, {}, Longs{3}).error(), Errc::kTooLarge);
}

TEST(RowsTest, EveryKindNamesTheSameSlots) {
  const Longs wide = {12, 13, 14, 15, -1, -1, -1, -1, 4, 5, 6, 7};
  const Ints narrow(wide.begin(), wide.end());
  const Longs blocks = {3, -5, 1};
  const Ints narrow_pairs = {0, 3, 0, -5, 0, 1};
  for (std::int64_t row = 0; row < 12; ++row) {
    const std::int64_t slot = wide[static_cast<std::size_t>(row)];
    EXPECT_EQ(Rows::slots(wide.data()).slot(row), slot);
    EXPECT_EQ(Rows::slots(narrow.data()).slot(row), slot);
    EXPECT_EQ(Rows::blocks(blocks.data(), 4).slot(row), slot);
    EXPECT_EQ(Rows::blocks(narrow_pairs.data() + 1, 4, 2).slot(row), slot);
    EXPECT_EQ(Rows::range(100).slot(row), 100 + row);
  }
}

TEST(RowsTest, SlotsPassTwoToTheThirtyOne) {
  const std::int32_t last_block = 0x7FFFFFFF;
  EXPECT_EQ(Rows::blocks(&last_block, 16).slot(15), std::int64_t{0x7FFFFFFF} * 16 + 15);
}

}  // namespace
}  // namespace kv
