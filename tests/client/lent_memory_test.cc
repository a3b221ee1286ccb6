#include "client/link/lent_memory.h"

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

/// A device's memory: addresses that nobody here may touch.
std::span<std::byte> addresses(std::uintptr_t first, std::size_t bytes) {
  return {reinterpret_cast<std::byte*>(first), bytes};
}

TEST(LentMemoryTest, ADevicesRegionIsFoundAndToldApart) {
  LentMemory memory(16 * kPage);
  const auto device = addresses(0x7000'0000, 4 * kPage);
  EXPECT_FALSE(memory.is_device(device));
  ASSERT_TRUE(memory.add_device(device, Descriptor(), 0));
  const auto host = memory.allocate(kPage).value();
  EXPECT_TRUE(memory.find(device.subspan(kPage, kPage))->is_device());
  EXPECT_FALSE(memory.find(host)->is_device());
  EXPECT_TRUE(memory.is_device(device));
  EXPECT_TRUE(memory.is_device(device.last(1)));
  EXPECT_TRUE(memory.is_device(addresses(0x7000'0000 - kPage, kPage + 1))) << "its first byte";
  EXPECT_FALSE(memory.is_device(addresses(0x7000'0000 - kPage, kPage)));
  EXPECT_TRUE(memory.is_device(addresses(0x7000'0000 + 4 * kPage - 1, kPage))) << "its last byte";
  EXPECT_FALSE(memory.is_device(addresses(0x7000'0000 + 4 * kPage, kPage)));
  EXPECT_TRUE(memory.is_device(addresses(0x6000'0000, 0x2000'0000))) << "around it";
  EXPECT_FALSE(memory.is_device(host));
}

TEST(LentMemoryTest, RegionsOfDevicesDoNotOverlapAndCount) {
  LentMemory memory(8 * kPage);
  ASSERT_TRUE(memory.add_device(addresses(0x7000'0000, 4 * kPage), Descriptor(), 0));
  for (const auto& bad : {addresses(0x7000'0000, kPage), addresses(0x7000'0000 - 1, 2),
                          addresses(0x7000'0000 + 4 * kPage - 1, 1), addresses(0x6000'0000, 0x2000'0000),
                          addresses(0x8000'0000, 0), addresses(0, kPage), addresses(~std::uintptr_t{0} - 5, 10)}) {
    EXPECT_EQ(memory.add_device(bad, Descriptor(), 0).error(), Errc::kBadRequest) << bad.data() << " " << bad.size();
  }
  EXPECT_EQ(memory.add_device(addresses(0x9000'0000, 5 * kPage), Descriptor(), 0).error(), Errc::kBusy);
  EXPECT_EQ(memory.add_device(addresses(0x9000'0000, 2), Descriptor(), ~std::uint64_t{0}).error(), Errc::kBadRequest);
  EXPECT_TRUE(memory.add_device(addresses(0x7000'0000 + 4 * kPage, 4 * kPage), Descriptor(), 0)) << "adjoins";
  EXPECT_EQ(memory.bytes(), 8 * kPage);
}

TEST(LentMemoryTest, MemoryWhereADevicesIsKnownToBeIsRefusedAndGivenBack) {
  LentMemory memory(16 * kPage);
  for (const std::size_t first : {std::size_t{0}, kPage}) {  // the same address, and within
    ASSERT_TRUE(memory.reserve(2 * kPage));
    auto made = SharedMemory::create(2 * kPage).value();
    const auto stale = made->bytes().subspan(first, kPage);  // unmapped by its owner, and not removed here
    ASSERT_TRUE(memory.add_device(stale, Descriptor(), 0));
    EXPECT_EQ(memory.adopt(2 * kPage, std::move(made)).error(), Errc::kBadRequest);
    EXPECT_TRUE(memory.find(stale)->is_device());
    EXPECT_EQ(memory.bytes(), kPage) << "the device's only";
    const auto region = memory.begin_removal(stale).value();
    LentMemory::set_gone(*region);
    memory.end_removal(*region);
    EXPECT_EQ(memory.bytes(), 0u);
  }
}

TEST(LentMemoryTest, ADevicesRegionIsRefusedWhileItLeavesAndIsThereUntilItIsGone) {
  LentMemory memory(16 * kPage);
  const auto device = addresses(0x7000'0000, 4 * kPage);
  ASSERT_TRUE(memory.add_device(device, Descriptor(), 0));
  memory.quarantine({device.first(kPage)});
  EXPECT_EQ(memory.free(device).error(), Errc::kBadRequest);
  EXPECT_EQ(memory.begin_removal(device.first(kPage)).error(), Errc::kBadRequest);
  const auto region = memory.find(device);
  ++region->call_count;
  EXPECT_EQ(memory.begin_removal(device).error(), Errc::kBusy);
  EXPECT_FALSE(region->is_leaving);
  --region->call_count;
  ASSERT_EQ(memory.begin_removal(device).value(), region);
  EXPECT_TRUE(memory.is_quarantined(device.last(1)));
  EXPECT_TRUE(memory.is_device(device)) << "our processor must still leave it alone";
  EXPECT_EQ(memory.add_device(device, Descriptor(), 0).error(), Errc::kBadRequest);
  EXPECT_EQ(memory.begin_removal(device).value(), region) << "again, to wait for it";
  LentMemory::set_gone(*region);
  EXPECT_TRUE(region->is_gone);
  EXPECT_TRUE(memory.is_quarantined(device)) << "its owner does not know yet";
  memory.end_removal(*region);
  memory.end_removal(*region);
  EXPECT_FALSE(memory.is_quarantined(device)) << "with its quarantine";
  EXPECT_EQ(memory.find(device), nullptr);
  EXPECT_EQ(memory.bytes(), 0u);
  EXPECT_TRUE(memory.add_device(device, Descriptor(), 0));
  memory.end_removal(*region);
  EXPECT_NE(memory.find(device), nullptr) << "another region at these addresses stays";
}

}  // namespace
}  // namespace kv
