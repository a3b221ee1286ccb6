// Staging on a real device, where there is one.
#include "gpu/device/cuda_staging.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "gpu/named_layouts.h"
#include "gpu/staging.h"
#include "gpu/swap.h"
#include "tests/gpu/matrix.h"

namespace kv {
namespace {

class CudaStagingTest : public testing::Test {
 protected:
  void SetUp() override {
#ifdef KV_CUDA_MODULE
    setenv("KV_CUDA_MODULE", KV_CUDA_MODULE, /*overwrite=*/0);  // the one that was just built
#endif
    auto module = CudaModule::load();
    if (!module) GTEST_SKIP() << module.error().text;
    module_ = *module;
    device_ = CudaStagingDevice::create(module_).value();
    random_.seed(seed_);
    pages_.fill_random(random_);
    ASSERT_NO_FATAL_FAILURE(copy_pages(*device_, device_pages_, copies_));
    slots_ = random_slots(random_, 8 * 16, pages_.layout().slot_count(), false);
    ids_ = device_->allocate(StagingMemory::kDevice, slots_.size() * 8);
    ASSERT_TRUE(ids_ && module_->copy(ids_, slots_.data(), slots_.size() * 8));
  }
  void TearDown() override {
    for (std::byte* each : copies_) device_->free(StagingMemory::kDevice, each);
    if (device_) device_->free(StagingMemory::kDevice, ids_);
  }
  /// The pages in memory of `device`, in `copies`: an allocation for each tensor, which the caller frees.
  void copy_pages(CudaStagingDevice& device, BoundLayout& pages, std::vector<std::byte*>& copies) {
    pages = pages_.bound();
    for (Bytes& tensor : pages_.memory()) {
      auto* const copy = device.allocate(StagingMemory::kDevice, tensor.size());
      ASSERT_TRUE(copy && module_->copy(copy, tensor.data(), tensor.size()));
      for (std::size_t i = 0; i < pages.bases.size(); ++i) {
        const std::ptrdiff_t offset = pages_.bound().bases[i] - tensor.data();
        if (offset >= 0 && offset < static_cast<std::ptrdiff_t>(tensor.size())) pages.bases[i] = copy + offset;
      }
      copies.push_back(copy);
    }
  }
  /// What the device's pages hold now.
  TestCache read_pages() {
    TestCache read = pages_;
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      EXPECT_TRUE(module_->copy(read.memory()[i].data(), copies_[i], read.memory()[i].size()));
    }
    return read;
  }

  const std::uint64_t seed_ = test_seed();
  testing::ScopedTrace trace_{__FILE__, __LINE__, seed_text(seed_)};
  std::mt19937_64 random_;
  TestCache pages_{layouts::hnd({.block_count = 16, .heads = 4, .key_size = 64, .layer_count = 6}).value()};
  std::shared_ptr<const CudaModule> module_;
  std::unique_ptr<CudaStagingDevice> device_;
  BoundLayout device_pages_;
  std::vector<std::byte*> copies_;
  std::vector<std::int64_t> slots_;
  std::byte* ids_ = nullptr;
};

TEST_F(CudaStagingTest, BlocksGoToTheirPagesAndBackEitherWay) {
  const Layout layout = layouts::store_block(pages_.layout(), 2, 8).value();
  const auto bytes = static_cast<std::size_t>(layout.tensor_bytes(0));
  for (const std::size_t direct_bytes_max : {std::size_t{0}, 2 * bytes}) {
    for (const bool is_page_locked : {true, false}) {
      const auto staging =
          Staging::create(*device_, {.buffer_bytes = bytes / 5, .direct_bytes_max = direct_bytes_max}).value();
      TestCache source(layout), got(layout);
      source.fill_random(random_);
      std::byte* const locked = device_->allocate(StagingMemory::kPageLocked, bytes);
      ASSERT_TRUE(locked);
      void* const memory = is_page_locked ? locked : source.bound().bases.front();
      std::memcpy(locked, source.bound().bases.front(), bytes);
      StagedBlocks blocks{.pages = device_pages_,
                          .rows = Rows::slots(static_cast<const std::int64_t*>(static_cast<void*>(ids_))),
                          .blocks = bind_layout(layout, {&memory, 1}).value(),
                          .block_count = 8,
                          .is_page_locked = is_page_locked};
      TestCache want = read_pages();
      copy_elements(want, Rows::slots(slots_.data()), source, Rows::range(), 8 * 16);
      std::vector<StagedLayers> marks;
      ASSERT_TRUE(staging->load(blocks, 0, 6, marks));
      ASSERT_TRUE(staging->wait(marks.back().mark, TimePoint::max()));
      EXPECT_TRUE(same_bytes(read_pages(), want));
      std::memset(memory, 0, bytes);
      ASSERT_TRUE(staging->store(blocks, 0, 6, marks));
      ASSERT_TRUE(staging->wait(marks.back().mark, std::chrono::steady_clock::now() + 60s));
      std::memcpy(got.bound().bases.front(), memory, bytes);
      copy_elements(source, Rows::range(), want, Rows::slots(slots_.data()), 8 * 16);
      EXPECT_TRUE(same_bytes(got, source));
      device_->free(StagingMemory::kPageLocked, locked);
    }
  }
  const auto measured = Staging::create(*device_, {.buffer_bytes = 8 << 20});
  ASSERT_TRUE(measured);
  std::cout << "direct up to " << (*measured)->direct_bytes_max() << " bytes\n";
}

TEST_F(CudaStagingTest, ADeviceSaysWhereItIs) {
  const auto address = module_->pci_address(0);
  if (address.error() == Errc::kUnsupported) GTEST_SKIP() << "the driver does not say";
  ASSERT_TRUE(address) << address.error().message();
  unsigned domain = 0, bus = 0, slot = 0, function = 0;
  EXPECT_EQ(std::sscanf(address->c_str(), "%x:%x:%x.%x", &domain, &bus, &slot, &function), 4) << *address;
  EXPECT_FALSE(module_->pci_address(1000));
}

// CUDA keeps a thread's last error until it is asked for. What a call of ours found out is told by that call alone.
TEST_F(CudaStagingTest, WhatAPollOrARefusedCallFoundIsNotTheNextCallsError) {
  const auto permute = [&] {
    const Rows rows = Rows::slots(static_cast<const std::int64_t*>(static_cast<void*>(ids_)));
    return module_->permute(device_pages_, rows, device_pages_, rows, 16, Operation(), nullptr);
  };
  ASSERT_TRUE(permute());
  const auto mark = device_->mark(Line::kKernel);
  ASSERT_TRUE(mark);
  static_cast<void>(device_->wait(*mark, TimePoint::min()));  // a poll: "not ready", unless the device was quick
  EXPECT_TRUE(permute());
  EXPECT_FALSE(module_->allocate(std::size_t{1} << 60));
  EXPECT_TRUE(permute());
  std::vector<std::byte> plain(1 << 16);
  EXPECT_FALSE(module_->unlock_pages(plain.data()));
  EXPECT_TRUE(permute());
  ASSERT_TRUE(module_->lock_pages(plain));
  EXPECT_FALSE(module_->lock_pages(plain));
  EXPECT_TRUE(permute());
  ASSERT_TRUE(module_->synchronise(nullptr));  // before memory is unlocked
  EXPECT_TRUE(module_->unlock_pages(plain.data()));
  module_->free(plain.data());  // not the device's
  EXPECT_TRUE(permute());
  EXPECT_FALSE(module_->export_dmabuf(plain));
  EXPECT_TRUE(permute());
  ASSERT_TRUE(device_->wait(*mark, TimePoint::max()));
  ASSERT_TRUE(module_->synchronise(nullptr));
}

/// This thread's device is the first one, as an engine's thread may have it.
TEST_F(CudaStagingTest, TheSecondDeviceServesAThreadOfTheFirst) {
  if (module_->device_count() < 2) GTEST_SKIP() << "one device only";
  auto second = CudaStagingDevice::create(module_, 1).value();
  TestCache want = pages_;
  std::vector<std::byte*> copies;
  BoundLayout pages;
  ASSERT_NO_FATAL_FAILURE(copy_pages(*second, pages, copies));
  // By the object's own line, and by a call with the default stream.
  ASSERT_TRUE(second->permute(pages, Rows::range(64), pages, Rows::range(), 64, Operation(), 8));
  const auto mark = second->mark(Line::kKernel);
  ASSERT_TRUE(mark);
  ASSERT_TRUE(second->wait(*mark, TimePoint::max()));
  ASSERT_TRUE(module_->permute(pages, Rows::range(128), pages, Rows::range(32), 64, Operation(), nullptr));
  ASSERT_TRUE(second->clear(copies[0], 64));  // the margin before the pages
  ASSERT_TRUE(second->wait(second->mark(Line::kKernel).value(), TimePoint::max()));
  TestCache got = pages_;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    ASSERT_TRUE(module_->copy(got.memory()[i].data(), copies[i], got.memory()[i].size()));
    second->free(StagingMemory::kDevice, copies[i]);
  }
  ASSERT_TRUE(permute(want.bound(), Rows::range(64), want.bound(), Rows::range(), 64));
  ASSERT_TRUE(permute(want.bound(), Rows::range(128), want.bound(), Rows::range(32), 64));
  std::fill_n(want.memory()[0].begin(), 64, std::byte{0});
  for (std::size_t i = 0; i < copies.size(); ++i) EXPECT_EQ(got.memory()[i], want.memory()[i]) << i;
  EXPECT_FALSE(CudaStagingDevice::create(module_, module_->device_count())) << "there is none of that number";
}

TEST_F(CudaStagingTest, SwappedBlocksAreOnTheOtherSide) {
  TestCache host(pages_.layout());
  host.fill_random(random_);
  const std::vector<std::int64_t> in = {3, 7, 4, 8, 15, 0}, out = {7, 1, 8, 2, 0, 5};
  const auto swap = [&](const BoundLayout& to, const BoundLayout& from, const std::vector<std::int64_t>& pairs) {
    const auto copies = plan_swap(to, from, pairs);
    ASSERT_TRUE(copies);
    ASSERT_TRUE(module_->copy_batch(copies->to, copies->from, copies->bytes, nullptr));
    ASSERT_TRUE(module_->synchronise(nullptr));
  };
  swap(device_pages_, host.bound(), in);
  swap(host.bound(), device_pages_, out);
  const TestCache device = read_pages();
  for (std::int64_t layer = 0; layer < 6; ++layer) {
    for (std::int64_t token = 0; token < 16; ++token) {
      EXPECT_EQ(device.code(layer, Role::kValue, 7 * 16 + token, 3, 5),
                host.code(layer, Role::kValue, 3 * 16 + token, 3, 5));
      EXPECT_EQ(host.code(layer, Role::kKey, 1 * 16 + token, 3, 5),
                device.code(layer, Role::kKey, 7 * 16 + token, 3, 5));
    }
  }
}

TEST_F(CudaStagingTest, DeviceMemoryIsExportedAsADmabufOrThatIsNotSupported) {
  const auto no_memory = module_->export_dmabuf({reinterpret_cast<std::byte*>(&random_), 4096});
  EXPECT_FALSE(no_memory);
  constexpr std::size_t kBytes = 4 << 20;
  std::byte* const memory = device_->allocate(StagingMemory::kDevice, kBytes);
  ASSERT_TRUE(memory);
  const auto dmabuf = module_->export_dmabuf({memory, kBytes});
  if (dmabuf) {
    EXPECT_GT(dmabuf->fd, 2);
    EXPECT_LT(dmabuf->offset, 65536u);
    ::close(dmabuf->fd);
  } else {
    EXPECT_EQ(dmabuf.error(), Errc::kUnsupported) << dmabuf.error().message();
    std::cout << "this driver exports no dma-buf\n";
  }
  EXPECT_FALSE(module_->export_dmabuf({memory, std::size_t{1} << 50})) << "more than there is";
  device_->free(StagingMemory::kDevice, memory);
}

}  // namespace
}  // namespace kv
