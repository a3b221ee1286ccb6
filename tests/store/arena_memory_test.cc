#include "store/memory/arena_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace kv {
namespace {

constexpr std::size_t kMiB = 1 << 20;

/// Maps and unmaps memory as malloc does for a new thread. Ends with `lost` if somebody else took a mapping away.
void map_and_look(const std::atomic<bool>& is_over, std::atomic<bool>& lost) {
  constexpr std::size_t kBytes = 64 * kMiB;
  while (!is_over) {
    void* const mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    auto* const byte = static_cast<volatile char*>(mapped);
    *byte = 1;
    unsigned char page = 0;
    for (int i = 0; i < 50 && !lost; ++i) {
      std::this_thread::yield();
      // Reading would crash where nothing is mapped any more.
      if (mincore(mapped, 1, &page) != 0 || *byte != 1) lost = true;
    }
    if (lost) return;
    munmap(mapped, kBytes);
  }
}

TEST(ArenaMemoryTest, ReportsProgressUpToItsCapacityWhileTouching) {
  std::vector<std::size_t> progress;
  ArenaConfig config;
  config.capacity_bytes = 100 * kMiB + 5;
  config.progress = [&](std::size_t bytes) { progress.push_back(bytes); };
  ASSERT_TRUE(ArenaMemory::create(config));
  ASSERT_GE(progress.size(), 2u);
  EXPECT_TRUE(std::is_sorted(progress.begin(), progress.end()));
  EXPECT_EQ(progress.back(), 100 * kMiB + 5);
}

/// Most machines have no huge pages reserved: then they are asked for in vain, while other threads get their heaps.
TEST(ArenaMemoryTest, AskingForHugePagesLeavesOthersMemoryAlone) {
  std::atomic<bool> is_over = false, lost = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back([&] { map_and_look(is_over, lost); });
  for (int i = 0; i < 3000 && !lost; ++i)
    EXPECT_TRUE(ArenaMemory::create({.capacity_bytes = 128 * kMiB, .touch = false}));
  is_over = true;
  for (std::thread& each : threads) each.join();
  EXPECT_FALSE(lost);
}

}  // namespace
}  // namespace kv
