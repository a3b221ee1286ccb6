// How much memory the index of a Store may use.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "store_fixture.h"

namespace kv {
namespace {

class IndexBudgetTest : public StoreFixture {
 protected:
  SpaceId open_with(std::size_t block_size) {
    return store->open(make_record("m" + std::to_string(block_size), 64, block_size)).value();
  }
};

TEST_F(IndexBudgetTest, ManyTokenIdsOnSmallBlocksEvictTheOldestBlocks) {
  config.index_bytes_max = 1 << 20;
  create(64 << 20);
  const SpaceId space = open_with(256);
  for (std::uint64_t name = 0; name < 4000; ++name) {  // 4 MiB of ids, 256 KiB of blocks
    EXPECT_EQ(put(space, chain(name, 1), std::vector<std::uint32_t>(256, static_cast<std::uint32_t>(name))).stored, 1u);
    ASSERT_LT(store->stats().index_used_bytes, (1u << 20) + 2048);
  }
  EXPECT_GT(store->stats().evicted_blocks, 2000u);
  EXPECT_EQ(match(space, chain(3999, 1)), 1u);
  EXPECT_EQ(match(space, chain(0, 1)), 0u);
  EXPECT_EQ(store->check(), "");
}

TEST_F(IndexBudgetTest, BlocksWithoutTokenIdsCountToo) {
  config.index_bytes_max = 1 << 20;
  create(64 << 20);
  const SpaceId space = open_with(16);
  for (std::uint64_t name = 0; name < 300; ++name) {
    EXPECT_EQ(put(space, chain(name, 100)).stored, 100u);
    ASSERT_LT(store->stats().index_used_bytes, (1u << 20) + 100 * 2048);
  }
  EXPECT_GT(store->stats().evicted_blocks, 15000u);
  EXPECT_EQ(match(space, chain(299, 100)), 100u);
}

TEST_F(IndexBudgetTest, MoreTokenIdsThanTheBlockIsWorthAreNotKept) {
  create(64 << 20);
  const SpaceId space = open_with(65536);
  for (std::uint64_t name = 0; name < 300; ++name)
    EXPECT_EQ(put(space, chain(name, 1), std::vector<std::uint32_t>(65536, 7)).stored, 1u);
  EXPECT_LT(store->stats().index_used_bytes, 300u * 1024);
  const auto found = store->match(space, chain(1000, 1), {.token_ids = std::vector<std::uint32_t>(65536, 7)}, now);
  EXPECT_EQ(found->partial_token_count, 0u);
  EXPECT_EQ(match(space, chain(299, 1)), 1u);
}

TEST_F(IndexBudgetTest, WhatIsPinnedIsKeptAndAPutIsRefusedUntilItIsNot) {
  config.index_bytes_max = 64 << 10;
  config.lease_duration = 1h;
  create(64 << 20);
  const SpaceId space = open_with(16);
  std::vector<LeaseId> leases;
  for (std::uint64_t name = 0; put(space, chain(name, 4)).refused == 0; ++name) {
    ASSERT_LT(name, 1000u);
    leases.push_back(lease(space, chain(name, 4)));
  }
  EXPECT_EQ(store->stats().evicted_blocks, 0u);
  for (std::uint64_t name = 0; name < leases.size(); ++name) EXPECT_EQ(match(space, chain(name, 4)), 4u);
  for (const LeaseId held : leases) EXPECT_TRUE(store->release(kAlice, held));
  EXPECT_EQ(put(space, chain(5000, 4)).refused, 0u);
}

}  // namespace
}  // namespace kv
