#include "store/memory/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "arena_sizes.h"
#include "base/checksum.h"
#include "tests/store/oldest_window.h"

namespace kv {
namespace {

std::unique_ptr<Arena> make_arena(std::size_t capacity_bytes, std::size_t granule_bytes = 2 * kMiB) {
  ArenaConfig config;
  config.capacity_bytes = capacity_bytes;
  config.granule_bytes = granule_bytes;
  config.touch = false;
  return Arena::create(config).value();
}

std::vector<SlotId> fill(Arena& arena, std::size_t block_bytes) {
  std::vector<SlotId> slots;
  while (const auto slot = arena.allocate(block_bytes)) slots.push_back(*slot);
  return slots;
}

TEST(ArenaTest, RefusesZeroCapacityAndOddGranules) {
  EXPECT_EQ(Arena::create({.capacity_bytes = 0}).error(), Errc::kBadRequest);
  EXPECT_EQ(Arena::create({.capacity_bytes = kMiB, .granule_bytes = 0}).error(), Errc::kBadRequest);
  EXPECT_EQ(Arena::create({.capacity_bytes = kMiB, .granule_bytes = 4097}).error(), Errc::kBadRequest);
}

TEST(ArenaTest, HoldsExactlyNBlocksOfGranuleSize) {  // invariant 4
  for (const std::size_t block_bytes : {std::size_t{4096}, 196 * kKiB, std::size_t{1155072}, 2 * kMiB}) {
    for (const std::size_t count : {1, 2, 7, 33}) {
      const auto arena = make_arena(count * block_bytes, block_bytes);
      EXPECT_EQ(fill(*arena, block_bytes).size(), count) << block_bytes;
      EXPECT_EQ(arena->allocated_bytes(), arena->capacity_bytes());
      EXPECT_EQ(arena->check(), "");
    }
  }
}

TEST(ArenaTest, HoldsExactlyNSmallBlocksInAnArenaWithAPartialLastGranule) {  // invariant 4
  for (const std::size_t count : {1, 511, 512, 513, 1000, 30000}) {
    const auto arena = make_arena(count * 4096);
    EXPECT_EQ(fill(*arena, 4096).size(), count);
    EXPECT_EQ(arena->check(), "");
  }
}

TEST(ArenaTest, HoldsOneBlockOfAnySizeThatFillsIt) {
  for (const std::size_t block_bytes : {1, 63, 64, 65, 4095, 4097, 100000, 1000001, 5000003}) {
    const auto arena = make_arena(block_bytes, 4096);
    EXPECT_TRUE(arena->fits(block_bytes));
    EXPECT_FALSE(arena->fits(block_bytes + 1));
    EXPECT_FALSE(arena->allocate(block_bytes + 1));
    const auto slots = fill(*arena, block_bytes);
    ASSERT_EQ(slots.size(), 1u) << block_bytes;
    std::memset(arena->bytes(slots[0]).data(), 7, block_bytes);
  }
}

TEST(ArenaTest, NoBlockOfZeroBytesFits) {
  const auto arena = make_arena(kMiB);
  EXPECT_FALSE(arena->fits(0));
  EXPECT_FALSE(arena->allocate(0));
}

TEST(ArenaTest, SlabsWasteAtMostThreePercent) {
  std::vector<std::size_t> sizes(std::begin(kMixedSizes), std::end(kMixedSizes));
  std::mt19937_64 random(42);
  for (int i = 0; i < 300; ++i) sizes.push_back(3 * kKiB + random() % (1 << (12 + random() % 15)));
  for (const std::size_t block_bytes : sizes) {
    const auto arena = make_arena(4096 * kMiB);  // address space only: not touched
    ASSERT_TRUE(arena->allocate(block_bytes));
    const Arena::SizeClass of = arena->classes().at(0);
    EXPECT_EQ(of.slab_count, 1u);
    EXPECT_GE(of.slot_count * block_bytes * 100, arena->slab_bytes() * 97) << block_bytes;
    EXPECT_EQ(of.stride_bytes % 64, 0u);
  }
}

TEST(ArenaTest, MixedSizesTogetherWasteAtMostThreePercentOfTheirSlabs) {
  const auto arena = make_arena(1024 * kMiB);
  bool any = true;
  while (any) {  // about equal bytes of each, until nothing fits
    any = false;
    for (const std::size_t block_bytes : kMixedSizes)
      for (std::size_t bytes = 0; bytes < 80 * kMiB; bytes += block_bytes)
        any |= arena->allocate(block_bytes).has_value();
  }
  EXPECT_EQ(arena->check(), "");
  EXPECT_GE(arena->allocated_bytes() * 100, arena->slab_bytes() * 97);
  EXPECT_GE(arena->slab_bytes() * 100, arena->capacity_bytes() * 97);
}

TEST(ArenaTest, StripeChecksumsLieBesideEachSlot) {
  const auto arena = make_arena(64 * kMiB);
  for (const std::size_t block_bytes : {std::size_t{4096}, 196 * kKiB, 2 * kMiB}) {
    const SlotId slot = arena->allocate(block_bytes).value();
    EXPECT_EQ(arena->checksums(slot).size(), stripe_count(block_bytes));
    EXPECT_EQ(arena->bytes(slot).size(), block_bytes);
    EXPECT_EQ(arena->block_bytes(slot), block_bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena->bytes(slot).data()) % 64, 0u);
  }
}

TEST(ArenaTest, SlotsOfAnEmptySlabGoToAnyClassAtOnce) {  // invariant 3
  const auto arena = make_arena(80 * kMiB);
  for (int round = 0; round < 3; ++round) {
    for (const std::size_t block_bytes : kMixedSizes) {
      const auto slots = fill(*arena, block_bytes);
      EXPECT_GE(slots.size() * block_bytes * 100, arena->capacity_bytes() * (block_bytes == 32 * kMiB ? 80 : 97))
          << block_bytes;
      for (const SlotId slot : slots) arena->free(slot);
      EXPECT_EQ(arena->slab_bytes(), 0u);
      EXPECT_EQ(arena->allocated_bytes(), 0u);
      EXPECT_EQ(arena->check(), "");
    }
  }
}

TEST(ArenaTest, RepeatedFreesOfAFullArenaLeaveRoomForExactlyAsManyBlocks) {
  const auto arena = make_arena(20 * 196 * kKiB);
  auto slots = fill(*arena, 196 * kKiB);
  const std::size_t count = slots.size();
  std::mt19937_64 random(7);
  for (int i = 0; i < 2000; ++i) {
    const std::size_t victim = random() % slots.size();
    arena->free(slots[victim]);
    slots[victim] = arena->allocate(196 * kKiB).value();
    EXPECT_FALSE(arena->allocate(196 * kKiB));
  }
  EXPECT_EQ(slots.size(), count);
  EXPECT_EQ(arena->check(), "");
}

std::vector<SlotId> slots_in(const Arena& arena, const Arena::Window& window) {
  std::vector<SlotId> slots;
  Arena::Cursor at = arena.begin(window);
  Steps steps(1'000'000);
  while (const auto slot = arena.next_slot(window, at, steps)) slots.push_back(*slot);
  return slots;
}

TEST(ArenaTest, OldestWindowIsTheRunUsedLongestAgo) {
  const auto arena = make_arena(8 * 64 * kKiB, 64 * kKiB);
  const auto slots = fill(*arena, 64 * kKiB);  // a slab each
  const std::uint64_t uses[] = {5, 9, 3, 4, 8, 2, 7, 6};
  for (std::size_t i = 0; i < 8; ++i) arena->use(slots[i], Tick{uses[i]});
  const auto one = oldest_window(*arena, 32 * kKiB).value();
  EXPECT_EQ(one.first_granule, 5u);
  EXPECT_EQ(one.last_use, Tick{2});
  const auto two = oldest_window(*arena, 128 * kKiB).value();
  EXPECT_EQ(two.first_granule, 2u);
  EXPECT_EQ(two.granule_count, 2u);
  EXPECT_EQ(two.last_use, Tick{4});
  arena->use(slots[3], Tick{1});  // ticks only grow
  EXPECT_EQ(oldest_window(*arena, 128 * kKiB)->last_use, Tick{4});
  const auto in_window = slots_in(*arena, two);
  EXPECT_EQ(in_window, (std::vector<SlotId>{slots[2], slots[3]}));
  for (const SlotId slot : in_window) arena->free(slot);
  EXPECT_TRUE(arena->allocate(128 * kKiB));
}

TEST(ArenaTest, OldestWindowAvoidsHeldAndShieldedSlabsAndThoseOfTheClassItself) {
  const auto arena = make_arena(4 * 64 * kKiB, 64 * kKiB);
  const auto slots = fill(*arena, 32 * kKiB);
  ASSERT_EQ(slots.size(), 8u);
  for (const SlotId slot : slots) arena->use(slot, Tick{1});
  EXPECT_FALSE(oldest_window(*arena, 32 * kKiB));
  EXPECT_EQ(oldest_window(*arena, 64 * kKiB)->first_granule, 0u);
  arena->hold(slots[1]);
  EXPECT_EQ(oldest_window(*arena, 64 * kKiB)->first_granule, 1u);
  arena->shield(slots[2]);
  EXPECT_EQ(oldest_window(*arena, 64 * kKiB)->first_granule, 2u);
  EXPECT_EQ(oldest_window(*arena, 128 * kKiB)->first_granule, 2u);
  EXPECT_FALSE(oldest_window(*arena, 192 * kKiB));
  arena->end_shields();
  EXPECT_EQ(oldest_window(*arena, 192 * kKiB)->first_granule, 1u);
  arena->end_hold(slots[1]);
  EXPECT_EQ(oldest_window(*arena, 192 * kKiB)->first_granule, 0u);
  EXPECT_EQ(oldest_window(*arena, 256 * kKiB)->first_granule, 0u);
}

TEST(ArenaTest, RandomAllocationsOfMixedSizesNeverShareAByte) {  // invariants 1 and 2
  const char* env = std::getenv("KV_SEED");
  const std::uint64_t seed = env != nullptr ? std::strtoull(env, nullptr, 10) : std::random_device{}();
  std::printf("KV_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  const std::size_t sizes[] = {64, 100, 4096, 5000, 20000, 131072, 200704, 300000};
  const auto arena = make_arena(3 * kMiB + 12345, 64 * kKiB);
  std::map<const std::byte*, SlotId> by_address;
  std::size_t bytes = 0;
  for (int step = 0; step < 40000; ++step) {
    const bool growing = (step / 4000) % 2 == 0;
    if (random() % 10 < (growing ? 7u : 3u)) {
      const std::size_t block_bytes = sizes[random() % std::size(sizes)];
      const auto slot = arena->allocate(block_bytes);
      if (!slot) continue;
      const auto span = arena->bytes(*slot);
      ASSERT_EQ(span.size(), block_bytes);
      const auto next = by_address.lower_bound(span.data());
      if (next != by_address.end()) {
        ASSERT_LE(span.data() + span.size(), next->first);
      }
      if (next != by_address.begin()) {
        const auto before = arena->bytes(std::prev(next)->second);
        ASSERT_LE(before.data() + before.size(), span.data());
      }
      std::memset(span.data(), 1, span.size());  // faults if it lies outside
      by_address.emplace(span.data(), *slot);
      bytes += block_bytes;
    } else if (!by_address.empty()) {
      auto it = by_address.begin();
      std::advance(it, random() % by_address.size());
      bytes -= arena->block_bytes(it->second);
      arena->free(it->second);
      by_address.erase(it);
    }
    ASSERT_EQ(arena->allocated_bytes(), bytes);
    if (step % 100 == 0) {
      ASSERT_EQ(arena->check(), "");
    }
  }
}

}  // namespace
}  // namespace kv
