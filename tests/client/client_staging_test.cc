#include "client/link/client_staging.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

namespace kv {
namespace {

constexpr std::size_t kUnit = 64 * 1024;

TEST(ClientStagingTest, RoomIsGivenFromTheFrontAgain) {
  LentMemory memory(1 << 24);
  ClientStaging staging(memory, 16 * kUnit);
  EXPECT_EQ(memory.bytes(), 0u) << "nothing is made before it is used";
  auto first = staging.take(3 * kUnit + 1);
  EXPECT_EQ(memory.bytes(), 16 * kUnit);
  EXPECT_EQ(first.bytes().size(), 3 * kUnit + 1);
  EXPECT_EQ(memory.find(first.bytes()), staging.region());
  const auto* const front = first.bytes().data();
  auto second = staging.take(kUnit);
  EXPECT_EQ(second.bytes().data(), front + 4 * kUnit);
  first = {};
  EXPECT_EQ(staging.take(4 * kUnit).bytes().data(), front);
}

TEST(ClientStagingTest, WhatIsLargerThanHalfOfItHasNoRoom) {
  LentMemory memory(1 << 24);
  ClientStaging staging(memory, 4 * kUnit);
  EXPECT_TRUE(staging.can_hold(2 * kUnit));
  EXPECT_FALSE(staging.can_hold(2 * kUnit + 1));
  EXPECT_FALSE(staging.take(2 * kUnit + 1));
  EXPECT_FALSE(ClientStaging(memory, 0).can_hold(1));
}

TEST(ClientStagingTest, WhereItCannotBeMadeThereIsNoneForGood) {
  LentMemory memory(kUnit);
  ClientStaging staging(memory, 4 * kUnit);
  EXPECT_FALSE(staging.take(kUnit));
  EXPECT_FALSE(staging.can_hold(kUnit));
  EXPECT_EQ(memory.bytes(), 0u);
}

// Against a model that knows of each unit whether a call has it and how many nodes may still write it.
TEST(ClientStagingTest, RoomIsOneCallsAndNeverWhatANodeMayStillWrite) {
  const char* const text = std::getenv("KV_SEED");
  const std::uint64_t first_seed = text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device()();
  constexpr std::size_t kUnits = 24;
  for (std::uint64_t seed = first_seed; seed < first_seed + 200; ++seed) {
    SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    LentMemory memory(1 << 24);
    ClientStaging staging(memory, kUnits * kUnit);
    std::vector<ClientStaging::Room> rooms;
    struct Late {
      LentMemory::QuarantineId id;
      std::size_t first, count;
    };
    std::vector<Late> late;
    std::vector<int> users(kUnits, 0);
    const auto place = [&](std::span<const std::byte> bytes) {
      const auto first = static_cast<std::size_t>(bytes.data() - staging.region()->bytes().data()) / kUnit;
      return std::pair(first, (bytes.size() + kUnit - 1) / kUnit);
    };
    const auto count = [&](std::size_t first, std::size_t units, int by) {
      for (std::size_t i = first; i < first + units; ++i) users[i] += by;
    };
    for (int step = 0; step < 200; ++step) {
      const auto what = random() % 4;
      if (what < 2) {
        const std::size_t bytes = 1 + random() % (kUnits / 2 * kUnit);
        const std::size_t units = (bytes + kUnit - 1) / kUnit;
        std::size_t free = 0, longest = 0;
        for (const int each : users) longest = std::max(longest, free = each == 0 ? free + 1 : 0);
        auto room = staging.take(bytes);
        ASSERT_EQ(bool(room), longest >= units);
        if (!room) continue;
        ASSERT_EQ(room.bytes().size(), bytes);
        const auto [first, taken] = place(room.bytes());
        for (std::size_t i = first; i < first + taken; ++i) ASSERT_EQ(users[i], 0) << i;
        count(first, taken, 1);
        rooms.push_back(std::move(room));
      } else if (what == 2 && !rooms.empty()) {
        std::swap(rooms[random() % rooms.size()], rooms.back());
        const auto [first, taken] = place(rooms.back().bytes());
        if (random() % 2 == 0) {  // its call has timed out, and the node has not said its last word
          late.push_back({memory.quarantine({rooms.back().bytes()}), first, taken});
          count(first, taken, 1);
        }
        rooms.pop_back();
        count(first, taken, -1);
      } else if (!late.empty()) {
        memory.end_quarantine(late.back().id);
        count(late.back().first, late.back().count, -1);
        late.pop_back();
      }
    }
  }
}

}  // namespace
}  // namespace kv
