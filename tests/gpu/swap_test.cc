#include "gpu/swap.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "gpu/named_layouts.h"
#include "gpu/permute.h"
#include "tests/gpu/matrix.h"

namespace kv {
namespace {

CacheShape shape_of(std::int64_t block_count) {
  return {.block_count = block_count, .block_tokens = 16, .heads = 2, .key_size = 64, .layer_count = 3};
}

TEST(SwapTest, BlocksOfEveryLayoutArriveAsRelayoutWouldMoveThem) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE(seed_text(seed));
  std::mt19937_64 random(seed);
  std::vector<NamedMaker> makers = copy_layouts();
  makers.push_back({"ds_mla", layouts::ds_mla, false});
  makers.push_back({"head-folded", layouts::head_folded, false});
  makers.push_back(
      {"NVFP4", [](const CacheShape& s) { return layouts::nvfp4(s, layouts::ScaleOrder::kSwizzledValues); }, false});
  for (const NamedMaker& maker : makers) {
    SCOPED_TRACE(maker.name);
    CacheShape small = shape_of(8), large = shape_of(13);
    if (maker.may_differ) small.value_size = large.value_size = 32;
    TestCache to(maker.make(small).value()), from(maker.make(large).value());
    from.fill_random(random);
    to.fill_random(random);
    const std::vector<std::int64_t> pairs = {12, 0, 3, 4, 4, 5, 5, 6, -1, 1, 7, -1, 0, 7};
    TestCache want = to;
    std::vector<std::int64_t> to_blocks, from_blocks;
    for (std::size_t i = 0; i < pairs.size(); i += 2) {
      from_blocks.push_back(pairs[i]);
      to_blocks.push_back(pairs[i + 1]);
    }
    ASSERT_TRUE(relayout(want.bound(), to_blocks, from.bound(), from_blocks));
    const auto copies = plan_swap(to.bound(), from.bound(), pairs);
    ASSERT_TRUE(copies);
    for (std::size_t i = 0; i < copies->to.size(); ++i) std::memcpy(copies->to[i], copies->from[i], copies->bytes[i]);
    EXPECT_TRUE(same_bytes(to, want));
  }
}

std::size_t copies_for(const Layout& layout, const std::vector<std::int64_t>& pairs) {
  const TestCache to(layout), from(layout);
  return plan_swap(to.bound(), from.bound(), pairs).value().to.size();
}

TEST(SwapTest, WhatIsContiguousIsOneCopy) {
  const std::vector<std::int64_t> scattered = {0, 4, 2, 1, 4, 6}, in_a_row = {2, 4, 3, 5, 4, 6};
  const Layout nhd = layouts::nhd(shape_of(8)).value(), joint = layouts::joint_hnd(shape_of(8)).value();
  EXPECT_EQ(copies_for(nhd, scattered), 3u * 2 * 3);  // blocks, K and V, layers
  EXPECT_EQ(copies_for(nhd, in_a_row), 2u * 3);
  EXPECT_EQ(copies_for(joint, scattered), 3u * 3);  // K and V of a block are neighbours
  EXPECT_EQ(copies_for(joint, in_a_row), 3u);
  EXPECT_EQ(copies_for(layouts::packed_nhd(shape_of(8)).value(), scattered), 3u * 3);
  EXPECT_EQ(copies_for(layouts::cross_layer(shape_of(8)).value(), scattered), 3u);  // and so are layers
  EXPECT_EQ(copies_for(layouts::cross_layer(shape_of(8)).value(), in_a_row), 1u);
  EXPECT_EQ(copies_for(layouts::kv_first_nhd(shape_of(8)).value(), in_a_row), 2u * 3);
  EXPECT_EQ(copies_for(layouts::store_block(nhd, 2, 8).value(), in_a_row), 1u);
}

TEST(SwapTest, RefusesWhatIsNoCopyOfBytes) {
  TestCache nhd(layouts::nhd(shape_of(8)).value()), hnd(layouts::hnd(shape_of(8)).value());
  const std::vector<std::int64_t> pairs = {0, 0}, beyond = {0, 8}, beyond_too = {8, 0};
  EXPECT_EQ(plan_swap(nhd.bound(), hnd.bound(), pairs).error(), Errc::kMismatch);
  EXPECT_EQ(plan_swap(nhd.bound(), nhd.bound(), beyond).error(), Errc::kBadRequest);
  EXPECT_EQ(plan_swap(nhd.bound(), nhd.bound(), beyond_too).error(), Errc::kBadRequest);
  const BoundLayout heads = slice_heads(nhd.bound(), 1, 1).value();
  EXPECT_EQ(plan_swap(heads, heads, pairs).error(), Errc::kMismatch);  // its bytes have holes
  EXPECT_EQ(plan_swap(slice_layers(nhd.bound(), 0, 2), nhd.bound(), pairs).error(), Errc::kMismatch);
  EXPECT_TRUE(plan_swap(nhd.bound(), nhd.bound(), {})->to.empty());
}

}  // namespace
}  // namespace kv
