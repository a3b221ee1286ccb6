#include "client/lent_memory.h"

#include <gtest/gtest.h>

namespace kv {
namespace {

constexpr std::size_t kPage = 4096;

TEST(LentMemoryTest, ARangeIsFoundInItsRegionOnlyIfItLiesInsideWhole) {
  LentMemory memory(16 * kPage);
  const auto bytes = memory.allocate(2 * kPage).value();
  EXPECT_NE(memory.find(bytes), nullptr);
  EXPECT_NE(memory.find(bytes.subspan(100, 50)), nullptr);
  EXPECT_NE(memory.find(bytes.last(1)), nullptr);
  EXPECT_EQ(memory.find({bytes.data() + 1, bytes.size()}), nullptr);
  std::byte elsewhere{};
  EXPECT_EQ(memory.find({&elsewhere, 1}), nullptr);
}

TEST(LentMemoryTest, NoMoreThanTheLimitIsAllocated) {
  LentMemory memory(4 * kPage);
  const auto first = memory.allocate(3 * kPage).value();
  EXPECT_EQ(memory.allocate(2 * kPage).error(), Errc::kBusy);
  EXPECT_TRUE(memory.free(first));
  EXPECT_TRUE(memory.allocate(2 * kPage));
  EXPECT_EQ(memory.allocate(0).error(), Errc::kBadRequest);
}

TEST(LentMemoryTest, OnlyWholeRegionsAreFreedAndNotWhileACallUsesThem) {
  LentMemory memory(4 * kPage);
  const auto bytes = memory.allocate(2 * kPage).value();
  EXPECT_EQ(memory.free(bytes.subspan(1)).error(), Errc::kBadRequest);
  const auto region = memory.find(bytes);
  ++region->call_count;
  EXPECT_EQ(memory.free(bytes).error(), Errc::kBusy);
  --region->call_count;
  EXPECT_TRUE(memory.free(bytes));
  EXPECT_EQ(memory.free(bytes).error(), Errc::kBadRequest);
  EXPECT_EQ(memory.bytes(), 0u);
}

TEST(LentMemoryTest, QuarantineCoversExactlyItsRangesUntilItEnds) {
  LentMemory memory(16 * kPage);
  const auto bytes = memory.allocate(8 * kPage).value();
  const auto id = memory.quarantine({bytes.subspan(kPage, kPage), bytes.subspan(4 * kPage, kPage)});
  EXPECT_FALSE(memory.is_quarantined(bytes.first(kPage)));
  EXPECT_TRUE(memory.is_quarantined(bytes.first(kPage + 1)));
  EXPECT_TRUE(memory.is_quarantined(bytes.subspan(2 * kPage - 1, 1)));
  EXPECT_FALSE(memory.is_quarantined(bytes.subspan(2 * kPage, 2 * kPage)));
  EXPECT_TRUE(memory.is_quarantined(bytes.subspan(4 * kPage, 10)));
  memory.end_quarantine(id);
  EXPECT_FALSE(memory.is_quarantined(bytes));
}

TEST(LentMemoryTest, FreedMemoryTakesItsQuarantineAlong) {
  LentMemory memory(16 * kPage);
  const auto bytes = memory.allocate(kPage).value();
  const auto kept = memory.allocate(kPage).value();
  memory.quarantine({bytes, kept});
  EXPECT_TRUE(memory.free(bytes));
  EXPECT_FALSE(memory.is_quarantined(bytes));
  EXPECT_TRUE(memory.is_quarantined(kept));
}

}  // namespace
}  // namespace kv
