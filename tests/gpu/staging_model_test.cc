// Loads and stores in flight together, of random layouts and sizes, against scatter and gather done one after another.
#include <gtest/gtest.h>

#include <list>
#include <memory>
#include <random>
#include <vector>

#include "gpu/staging.h"
#include "tests/gpu/staged_side.h"

namespace kv {
namespace {

/// Blocks, what they should hold once all is done, and the mark after which they may be used again.
struct ModelBlocks {
  ModelBlocks(EmulatedDevice& device, const Layout& pages, std::mt19937_64& random)
      : blocks(device, pages, random() % 2 == 0 ? 1 : 2, 1 + static_cast<std::int64_t>(random() % 6), random() % 2 == 0,
               random, random() % 2 == 0 ? 8 : 32),
        want(blocks.cache) {}
  HostBlocks blocks;
  TestCache want;
  Mark last;
};

void run(std::uint64_t seed) {
  SCOPED_TRACE(seed_text(seed));
  std::mt19937_64 random(seed);
  EmulatedDevice device(seed);
  const CacheShape shape{.block_count = 32,
                         .block_tokens = 16,
                         .heads = 2,
                         .key_size = 32,
                         .layer_count = 1 + static_cast<std::int64_t>(random() % 5)};
  using Make = Checked<Layout> (*)(const CacheShape&);
  constexpr Make kMakers[] = {layouts::nhd, layouts::hnd, layouts::x_packed, layouts::fractal_nz, layouts::cross_layer};
  DevicePages pages(device, kMakers[random() % 5](shape).value(), random);
  TestCache want = pages.cache;
  const std::size_t largest = 2 * 32 * 2 * 32 * 2;  // a layer of a block of 32 tokens
  const auto staging = Staging::create(device, {.buffer_bytes = largest + random() % (4 * largest),
                                                .buffer_count = 2 + static_cast<int>(random() % 3),
                                                .direct_bytes_max = random() % 2 == 0 ? 0 : random() % (8 * largest)})
                           .value();
  std::list<ModelBlocks> all;
  for (int i = 0; i < 4; ++i) all.emplace_back(device, pages.cache.layout(), random);

  for (int step = 0; step < 30; ++step) {
    ModelBlocks& blocks = *std::next(all.begin(), static_cast<std::ptrdiff_t>(random() % all.size()));
    ASSERT_TRUE(staging->wait(blocks.last, TimePoint::max()));  // the caller's part: it lends blocks to one call
    StagedBlocks staged = blocks.blocks.staged(pages);
    staged.block_count -= static_cast<std::int64_t>(random()) & 1;
    const std::int64_t first = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(shape.layer_count));
    const std::int64_t count =
        1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(shape.layer_count - first));
    const std::int64_t tokens = staged.block_count * staged.blocks.layout.block_tokens;
    const BoundLayout want_pages = slice_layers(want.bound(), first, count);
    const BoundLayout want_blocks = slice_layers(blocks.want.bound(), first, count);
    std::vector<StagedLayers> marks;
    if (random() % 2 == 0) {
      ASSERT_TRUE(staging->load(staged, first, count, marks));
      ASSERT_TRUE(scatter(want_pages, staged.rows, want_blocks, tokens));
    } else {
      ASSERT_TRUE(staging->store(staged, first, count, marks));
      ASSERT_TRUE(gather(want_blocks, want_pages, staged.rows, tokens));
      EXPECT_TRUE(staged.is_page_locked || same_bytes(blocks.blocks.cache, blocks.want));
    }
    std::int64_t layer = first;
    for (const StagedLayers& each : marks) {
      EXPECT_GT(each.layer_end, layer);
      layer = each.layer_end;
    }
    EXPECT_EQ(layer, staged.block_count == 0 ? first : first + count);
    if (!marks.empty()) blocks.last = marks.back().mark;
  }
  ASSERT_TRUE(staging->drain(TimePoint::max()));
  EXPECT_TRUE(same_bytes(pages.cache, want));
  for (const ModelBlocks& blocks : all) EXPECT_TRUE(same_bytes(blocks.blocks.cache, blocks.want));
}

TEST(StagingModelTest, AnyMixOfLoadsAndStoresIsAsIfOneByOne) {
  const std::uint64_t seed = test_seed();
  const int runs = std::getenv("KV_SEED") ? 1 : 60;
  for (int i = 0; i < runs && !testing::Test::HasFailure(); ++i) run(seed + static_cast<std::uint64_t>(i));
}

}  // namespace
}  // namespace kv
