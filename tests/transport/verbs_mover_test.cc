// The mover on a good day, on every provider.
#include "transport/verbs/verbs_mover.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/transport/mover_world.h"

namespace kv::verbs {
namespace {

class VerbsMoverTest : public testing::TestWithParam<std::string> {};

TEST_P(VerbsMoverTest, AGetLandsInOrderOfSegmentsWithAMarkForEach) {
  MoverWorld world(GetParam(), {.chunk_bytes = 64 << 10, .batch_request_count = 4, .outstanding_bytes_max = 512 << 10});
  constexpr std::size_t kBlocks = 10, kBlockBytes = 300'000, kSegments = 3, kPartBytes = kBlockBytes / kSegments;
  std::vector<Stretch> stretches;
  std::vector<std::size_t> ends;
  const auto remote_of = [](std::size_t block) { return (kBlocks - 1 - block) * 400'000; };
  for (std::size_t segment = 0; segment < kSegments; ++segment) {
    for (std::size_t block = 0; block < kBlocks; ++block) {
      stretches.push_back(world.stretch(block * kBlockBytes + segment * kPartBytes,
                                        remote_of(block) + segment * kPartBytes, kPartBytes));
    }
    ends.push_back(stretches.size());
  }
  std::vector<std::byte> expected = world.client->memory;
  std::size_t wrong = 0;
  const auto moved = world.start(Direction::kToPeer, stretches, ends, 1h, [&](std::size_t segment) {
    for (std::size_t block = 0; block < kBlocks; ++block) {
      const auto from =
          world.node.memory.begin() + static_cast<std::ptrdiff_t>(block * kBlockBytes + segment * kPartBytes);
      const auto at = static_cast<std::ptrdiff_t>(remote_of(block) + segment * kPartBytes);
      wrong += !std::equal(from, from + kPartBytes, world.client->memory.begin() + at);
      std::copy_n(from, kPartBytes, expected.begin() + at);
    }
  });
  EXPECT_EQ(world.finish(moved), error_code());
  EXPECT_EQ(moved->marks, (std::vector<std::size_t>{0, 1, 2}));
  EXPECT_EQ(wrong, 0u) << "parts that had not landed at their mark";
  EXPECT_TRUE(world.client->memory == expected);
  EXPECT_TRUE(moved->owner.expired());
  EXPECT_EQ(world.mover->counters().bytes, kBlocks * kBlockBytes);
  EXPECT_GE(world.mover->counters().requests, kBlocks * kSegments * 2);
  EXPECT_LE(world.mover->counters().batches, world.mover->counters().requests / 2);
}

TEST_P(VerbsMoverTest, APutIsDrainedFromTheClientsMemory) {
  MoverWorld world(GetParam(), {.chunk_bytes = 100'000});
  std::vector<Stretch> stretches;
  for (std::size_t block = 0; block < 8; ++block)
    stretches.push_back(world.stretch(block * 262'144, block * 300'001, 250'000));
  std::vector<std::byte> expected = world.node.memory;
  for (std::size_t block = 0; block < 8; ++block) {
    std::copy_n(world.client->memory.data() + block * 300'001, 250'000, expected.data() + block * 262'144);
  }
  const auto moved = world.start(Direction::kFromPeer, stretches, {8});
  EXPECT_EQ(world.finish(moved), error_code());
  EXPECT_TRUE(world.node.memory == expected);
  EXPECT_EQ(moved->marks, std::vector<std::size_t>{0});
}

TEST_P(VerbsMoverTest, SlotsThatAdjoinAtThePeerGoAsOneRequest) {
  MoverWorld world(GetParam(), {.chunk_bytes = 100'000, .piece_count_max = 4});
  std::vector<Stretch> stretches;
  for (std::size_t i = 0; i < 8; ++i) stretches.push_back(world.stretch((7 - i) * 20'000, i * 10'000, 10'000));
  EXPECT_EQ(world.finish(world.start(Direction::kToPeer, stretches, {8})), error_code());
  EXPECT_EQ(world.mover->counters().requests, 2u);
  EXPECT_EQ(world.mover->counters().batches, 1u);
  for (std::size_t i = 0; i < 8; ++i) {
    const auto from = world.node.memory.begin() + static_cast<std::ptrdiff_t>((7 - i) * 20'000);
    EXPECT_TRUE(
        std::equal(from, from + 10'000, world.client->memory.begin() + static_cast<std::ptrdiff_t>(i * 10'000)));
  }
}

TEST_P(VerbsMoverTest, ManyMovesShareAFewRequests) {
  MoverWorld world(GetParam(), {.chunk_bytes = 4096,
                                .batch_request_count = 2,
                                .outstanding_bytes_max = 16 << 10,
                                .request_count_max = 3,
                                .piece_count_max = 2});
  std::vector<std::shared_ptr<MoverWorld::Running>> all;
  for (std::size_t i = 0; i < 20; ++i) {
    all.push_back(world.start(Direction::kToPeer, {world.stretch(i * 50'000, i * 60'000, 30'000)}, {1}));
  }
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(world.finish(all[i]), error_code());
    const auto from = world.node.memory.begin() + static_cast<std::ptrdiff_t>(i * 50'000);
    EXPECT_TRUE(
        std::equal(from, from + 30'000, world.client->memory.begin() + static_cast<std::ptrdiff_t>(i * 60'000)));
  }
  EXPECT_TRUE(world.mover->is_drained());
}

TEST_P(VerbsMoverTest, EmptyMovesAndEmptySegmentsAreMarkedToo) {
  MoverWorld world(GetParam());
  EXPECT_EQ(world.finish(world.start(Direction::kToPeer, {}, {})), error_code());
  const auto empty = world.start(Direction::kToPeer, {}, {0, 0});
  EXPECT_EQ(world.finish(empty), error_code());
  EXPECT_EQ(empty->marks, (std::vector<std::size_t>{0, 1}));
  const auto mixed = world.start(Direction::kToPeer, {world.stretch(0, 0, 100)}, {0, 1, 1});
  EXPECT_EQ(world.finish(mixed), error_code());
  EXPECT_EQ(mixed->marks, (std::vector<std::size_t>{0, 1, 2}));
}

TEST_P(VerbsMoverTest, AWrongKeyEndsItAndBreaksTheMover) {
  MoverWorld world(GetParam());
  const auto before = world.client->memory;
  Stretch bad = world.stretch(0, 0, 100'000);
  bad.rkey ^= 0x00010001;
  const auto failed = world.start(Direction::kToPeer, {bad}, {1});
  const auto next = world.start(Direction::kToPeer, {world.stretch(0, 200'000, 100'000)}, {1});
  EXPECT_EQ(world.finish(failed), make_error_code(Status::kRemoteAccess));
  EXPECT_TRUE(world.finish(next).value());  // went down with it
  EXPECT_TRUE(world.mover->is_broken());
  EXPECT_TRUE(world.run_until([&] { return world.mover->is_drained(); }));
  EXPECT_TRUE(failed->owner.expired() && next->owner.expired());
  EXPECT_TRUE(failed->marks.empty() && next->marks.empty());
  EXPECT_EQ(world.finish(world.start(Direction::kToPeer, {world.stretch(0, 0, 1)}, {1})),
            error_code(Errc::kUnavailable));
  EXPECT_TRUE(world.client->memory == before);
  world.connect();
  EXPECT_EQ(world.finish(world.start(Direction::kToPeer, {world.stretch(0, 0, 1)}, {1})), error_code());
}

TEST_P(VerbsMoverTest, ARegionRemovedDuringATransferEndsIt) {
  MoverWorld world(GetParam(), {.chunk_bytes = 16 << 10, .outstanding_bytes_max = 64 << 10});
  std::vector<Stretch> stretches;
  std::vector<std::size_t> ends;
  for (std::size_t i = 0; i < 16; ++i) {
    stretches.push_back(world.stretch(i << 18, i << 18, 1 << 18));
    ends.push_back(i + 1);
  }
  const auto moved = world.start(Direction::kToPeer, stretches, ends, 1h, [&](std::size_t segment) {
    if (segment == 1) world.client->region.reset();
  });
  EXPECT_EQ(world.finish(moved), make_error_code(Status::kRemoteAccess));
  EXPECT_GE(moved->marks.size(), 2u);
  EXPECT_LT(moved->marks.size(), 16u);
  const auto then = world.client->memory;
  EXPECT_TRUE(world.run_until([&] { return world.mover->is_drained(); }));
  for (int i = 0; i < 100; ++i) world.world->wait_some();
  EXPECT_TRUE(world.client->memory == then) << "written after the region was gone";
}

TEST_P(VerbsMoverTest, APeerThatVanishesEndsItAndNothingIsTouchedAfterwards) {
  MoverWorld world(GetParam(), {.chunk_bytes = 16 << 10, .outstanding_bytes_max = 64 << 10});
  for (const Direction direction : {Direction::kToPeer, Direction::kFromPeer}) {
    world.connect(12);
    std::vector<Stretch> stretches;
    std::vector<std::size_t> ends;
    for (std::size_t i = 0; i < 16; ++i) {
      stretches.push_back(world.stretch(i << 18, i << 18, 1 << 18));
      ends.push_back(i + 1);
    }
    const auto moved = world.start(direction, stretches, ends, 1h, [&](std::size_t segment) {
      if (segment == 1) world.client_pair.reset();
    });
    EXPECT_EQ(world.finish(moved), make_error_code(Status::kRetryExceeded));
    EXPECT_TRUE(world.run_until([&] { return world.mover->is_drained(); }));
    EXPECT_TRUE(moved->owner.expired());
    const auto arena = world.node.memory, lent = world.client->memory;
    for (int i = 0; i < 100; ++i) world.world->wait_some();
    EXPECT_TRUE(world.node.memory == arena && world.client->memory == lent);
  }
}

INSTANTIATE_TEST_SUITE_P(Providers, VerbsMoverTest, testing::ValuesIn(provider_names()),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace kv::verbs
