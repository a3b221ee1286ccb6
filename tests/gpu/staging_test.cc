#include "gpu/staging.h"

#include <gtest/gtest.h>

#include <list>
#include <memory>
#include <random>
#include <vector>

#include "tests/gpu/staged_side.h"

namespace kv {
namespace {

/// Four layers of 8 KiB a block, in buffers for two of them unless a test says otherwise.
class StagingTest : public testing::Test {
 protected:
  static CacheShape shape() {
    return {.block_count = 16, .block_tokens = 16, .heads = 4, .key_size = 32, .layer_count = 4};
  }
  static constexpr std::int64_t kLayerBytes = 2 * 16 * 4 * 32 * 2;

  std::unique_ptr<Staging> make_staging(std::size_t buffer_bytes, std::size_t direct_bytes_max = 0) {
    return Staging::create(device_,
                           {.buffer_bytes = buffer_bytes, .buffer_count = 2, .direct_bytes_max = direct_bytes_max})
        .value();
  }
  /// Blocks that outlive the staging of a test: it may still use them when it ends.
  HostBlocks& make_blocks(std::int64_t count, bool is_page_locked, std::int64_t groups = 1) {
    return all_blocks_.emplace_back(device_, pages_.cache.layout(), groups, count, is_page_locked, random_, 16);
  }
  /// What the pages should hold once `layers` layers of the blocks are in them.
  TestCache expected(const HostBlocks& blocks, std::int64_t layers) const {
    TestCache want = pages_.cache;
    TestCache source = blocks.cache;
    const auto moved = scatter(slice_layers(want.bound(), 0, layers), Rows::slots(blocks.slots.data()),
                               slice_layers(source.bound(), 0, layers), blocks.tokens());
    EXPECT_TRUE(moved);
    return want;
  }

  const std::uint64_t seed_ = test_seed();
  testing::ScopedTrace trace_{__FILE__, __LINE__, seed_text(seed_)};
  std::mt19937_64 random_{seed_};
  EmulatedDevice device_{seed_};
  DevicePages pages_{device_, layouts::hnd(shape()).value(), random_};
  std::list<HostBlocks> all_blocks_;
  std::vector<StagedLayers> marks_;
};

TEST_F(StagingTest, LayerZeroIsUsableWhileLaterLayersAreOnTheirWay) {
  const auto staging = make_staging(2 * kLayerBytes);
  const HostBlocks& blocks = make_blocks(5, true);
  const TestCache first = expected(blocks, 1), all = expected(blocks, 4);
  ASSERT_TRUE(staging->load(blocks.staged(pages_), 0, 4, marks_));
  ASSERT_EQ(marks_.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(marks_[i].layer_end, static_cast<std::int64_t>(i) + 1);
  ASSERT_TRUE(staging->wait(marks_[0].mark, TimePoint::max()));
  EXPECT_FALSE(device_.is_passed(marks_[3].mark));
  for (const auto* tensor : {&pages_.cache.memory()[0], &pages_.cache.memory()[1]}) {
    const std::size_t i = tensor == &pages_.cache.memory()[0] ? 0 : 1;
    EXPECT_EQ(*tensor, first.memory()[i]);
  }
  ASSERT_TRUE(staging->wait(marks_[3].mark, TimePoint::max()));
  EXPECT_TRUE(same_bytes(pages_.cache, all));
}

TEST_F(StagingTest, SmallTotalsGoWithoutABuffer) {
  const auto staging = make_staging(16 * kLayerBytes, /*direct_bytes_max=*/8 * kLayerBytes);
  const HostBlocks &two = make_blocks(2, true), &three = make_blocks(3, true), &pageable = make_blocks(2, false);
  const TestCache want = expected(two, 4);
  ASSERT_TRUE(staging->load(two.staged(pages_), 0, 4, marks_));
  EXPECT_EQ(device_.copy_count(), 0);
  EXPECT_EQ(device_.kernel_count(), 1);  // for all layers
  ASSERT_TRUE(staging->drain(TimePoint::max()));
  EXPECT_TRUE(same_bytes(pages_.cache, want));
  ASSERT_TRUE(staging->load(three.staged(pages_), 0, 4, marks_));
  EXPECT_EQ(device_.copy_count(), 1);
  ASSERT_TRUE(staging->load(pageable.staged(pages_), 0, 4, marks_));  // a kernel could not read it
  EXPECT_EQ(device_.copy_count(), 2);
}

TEST_F(StagingTest, OneBufferTakesAsManyLayersAsFit) {
  const auto staging = make_staging(6 * kLayerBytes);
  const HostBlocks& blocks = make_blocks(2, true, /*groups=*/2);
  const TestCache want = expected(blocks, 4);
  ASSERT_TRUE(staging->load(blocks.staged(pages_), 0, 4, marks_));
  EXPECT_EQ(device_.kernel_count(), 2);  // three layers, and the last
  EXPECT_EQ(device_.copy_count(), 4);    // for each of them and each head group
  ASSERT_EQ(marks_.size(), 2u);
  EXPECT_EQ(marks_[0].layer_end, 3);
  EXPECT_EQ(marks_[1].layer_end, 4);
  ASSERT_TRUE(staging->drain(TimePoint::max()));
  EXPECT_TRUE(same_bytes(pages_.cache, want));
}

TEST_F(StagingTest, ADeadlineEndsTheWaitForBuffersAndLeavesWholeLayers) {
  const auto staging = make_staging(5 * kLayerBytes);  // a layer of all blocks
  const HostBlocks& blocks = make_blocks(5, false);
  StagedBlocks staged = blocks.staged(pages_);
  staged.deadline = device_.now() + 9us;  // a copy takes 9.8 us; the third layer waits for the first's buffer
  const auto loaded = staging->load(staged, 0, 4, marks_);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error(), asio::error::timed_out);
  EXPECT_EQ(device_.now(), staged.deadline);
  ASSERT_EQ(marks_.size(), 2u);
  const TestCache two = expected(blocks, 2);
  ASSERT_TRUE(staging->drain(TimePoint::max()));
  EXPECT_TRUE(same_bytes(pages_.cache, two));
  marks_.clear();  // and the rings are good for the next
  staged.deadline = TimePoint::max();
  ASSERT_TRUE(staging->load(staged, 2, 2, marks_));
  const TestCache all = expected(blocks, 4);
  ASSERT_TRUE(staging->drain(TimePoint::max()));
  EXPECT_TRUE(same_bytes(pages_.cache, all));
  staged.deadline = device_.now();
  EXPECT_EQ(staging->load(staged, 0, 4, marks_).error(), asio::error::timed_out);
  EXPECT_EQ(staging->store(staged, 0, 4, marks_).error(), asio::error::timed_out);
}

TEST_F(StagingTest, AStoreThatMissedItsDeadlineWritesNoMoreToItsBlocks) {
  const auto staging = make_staging(5 * kLayerBytes);
  HostBlocks &late = make_blocks(5, false), &next = make_blocks(5, false);
  StagedBlocks staged = late.staged(pages_);
  staged.deadline = device_.now() + 9us;
  EXPECT_EQ(staging->store(staged, 0, 4, marks_).error(), asio::error::timed_out);
  late.cache.fill_random(random_);  // page-locked buffers still hold its layers; the blocks are the caller's again
  const TestCache before = late.cache;
  TestCache want = next.cache;
  ASSERT_TRUE(gather(want.bound(), pages_.cache.bound(), Rows::slots(next.slots.data()), next.tokens()));
  ASSERT_TRUE(staging->store(next.staged(pages_), 0, 4, marks_));
  EXPECT_TRUE(same_bytes(late.cache, before));
  EXPECT_TRUE(same_bytes(next.cache, want));
}

TEST_F(StagingTest, SkippedRowsShowNothingOfOtherBlocks) {
  for (const bool is_page_locked : {true, false}) {
    const auto staging = make_staging(16 * kLayerBytes);
    HostBlocks &other = make_blocks(4, is_page_locked), &blocks = make_blocks(2, is_page_locked);
    ASSERT_TRUE(staging->store(other.staged(pages_), 0, 4, marks_));  // both buffers have seen blocks
    ASSERT_TRUE(staging->store(other.staged(pages_), 0, 4, marks_));
    blocks.slots[3] = -1;
    ASSERT_TRUE(staging->store(blocks.staged(pages_), 0, 4, marks_));
    ASSERT_TRUE(staging->drain(TimePoint::max()));
    for (std::int64_t layer = 0; layer < 4; ++layer) {
      for (std::int64_t head = 0; head < 4; ++head) {
        for (std::int64_t f = 0; f < 32; ++f) EXPECT_EQ(blocks.cache.code(layer, Role::kKey, 3, head, f), 0u);
      }
    }
  }
}

TEST_F(StagingTest, RefusesBeforeAnythingIsEnqueued) {
  const TestCache before = pages_.cache;
  const auto staging = make_staging(kLayerBytes - 1);
  const HostBlocks& blocks = make_blocks(2, true);
  const StagedBlocks sound = blocks.staged(pages_);
  EXPECT_EQ(staging->load(sound, 0, 4, marks_).error(), Errc::kTooLarge);
  EXPECT_EQ(staging->load(sound, -1, 2, marks_).error(), Errc::kBadRequest);
  EXPECT_EQ(staging->load(sound, 3, 2, marks_).error(), Errc::kBadRequest);
  EXPECT_EQ(staging->load(sound, 0, INT64_MAX, marks_).error(), Errc::kBadRequest);
  StagedBlocks wrong = sound;
  wrong.block_count = 3;
  EXPECT_EQ(staging->load(wrong, 0, 4, marks_).error(), Errc::kBadRequest);
  wrong = sound;
  wrong.rows = Rows::blocks(blocks.slots.data(), 32);
  EXPECT_EQ(staging->load(wrong, 0, 4, marks_).error(), Errc::kBadRequest);
  wrong = sound;
  wrong.blocks = pages_.cache.bound();  // not the store's
  EXPECT_EQ(staging->load(wrong, 0, 4, marks_).error(), Errc::kMismatch);
  wrong = sound;
  wrong.pages = slice_layers(sound.pages, 0, 3);
  EXPECT_EQ(staging->store(wrong, 0, 3, marks_).error(), Errc::kMismatch);
  wrong = sound;
  wrong.block_count = 0;
  EXPECT_TRUE(staging->load(wrong, 0, 4, marks_));
  EXPECT_TRUE(marks_.empty());
  EXPECT_EQ(device_.kernel_count() + device_.copy_count(), 0);
  EXPECT_TRUE(same_bytes(pages_.cache, before));
  EXPECT_EQ(Staging::create(device_, {.buffer_count = 1}).error(), Errc::kBadRequest);
  EXPECT_EQ(Staging::create(device_, {.buffer_bytes = 0}).error(), Errc::kBadRequest);
}

TEST_F(StagingTest, NoMemoryIsAnErrorThatLeavesNothingBehind) {
  for (int allocations = 0; allocations < 4; ++allocations) {  // two buffers, then two to measure with
    EmulatedDevice device(seed_);
    device.fail_allocations_after(allocations);
    EXPECT_EQ(Staging::create(device, {.buffer_count = 2}).error(), Errc::kOutOfMemory);
    EXPECT_EQ(device.live_allocations(), 0u);
  }
  const auto staging = make_staging(16 * kLayerBytes);
  const HostBlocks& pageable = make_blocks(2, false);
  device_.fail_allocations_after(1);
  EXPECT_EQ(staging->load(pageable.staged(pages_), 0, 4, marks_).error(), Errc::kOutOfMemory);
  device_.fail_allocations_after(100);
  const TestCache want = expected(pageable, 4);
  ASSERT_TRUE(staging->load(pageable.staged(pages_), 0, 4, marks_));
  ASSERT_TRUE(staging->drain(TimePoint::max()));
  EXPECT_TRUE(same_bytes(pages_.cache, want));
}

/// Bytes at which reading over the bus costs as much as a copy and a kernel, in the emulated device's own figures.
double crossover_bytes(const DeviceCosts& costs) {
  const double saved = costs.copy_start + 5 * costs.launch;
  return saved / (1 / costs.host_memory - 1 / costs.bus - 1 / costs.device_memory);
}

TEST_F(StagingTest, TheThresholdIsMeasured) {
  for (const double host_memory : {4.0, 10.0, 20.0, 40.0}) {
    const DeviceCosts costs{.host_memory = host_memory};
    EmulatedDevice device(seed_, costs);
    const auto staging = Staging::create(device, {.buffer_bytes = 8 << 20}).value();
    const auto measured = static_cast<double>(staging->direct_bytes_max());
    EXPECT_GT(measured, crossover_bytes(costs) / 4) << host_memory;  // steps of two, and launches that overlap
    EXPECT_LT(measured, crossover_bytes(costs) * 2) << host_memory;
    EXPECT_EQ(device.live_allocations(), 3u);
  }
  EmulatedDevice slow_bus(seed_, {.host_memory = 0.1});
  EXPECT_EQ(Staging::create(slow_bus).value()->direct_bytes_max(), 0u);
  EmulatedDevice fast(seed_, {.bus = 1, .host_memory = 1000});  // the whole range is direct
  EXPECT_EQ(Staging::create(fast, {.buffer_bytes = 1 << 20}).value()->direct_bytes_max(), 1u << 20);
}

}  // namespace
}  // namespace kv
