// The mover on bad days that only the provider inside the process can make: deadlines, links, devices, random faults.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>

#include "tests/transport/mover_world.h"

namespace kv::verbs {
namespace {

class VerbsMoverFaultTest : public testing::Test {
 protected:
  MoverWorld world{"fake", {.chunk_bytes = 16 << 10}};
  FakeVerbs& fake = *world.world->fake();
};

TEST_F(VerbsMoverFaultTest, ACallEndsAtItsDeadlineAndItsSlotsWhenTheyAreFlushed) {
  fake.set_link("fake1", false);
  const TimePoint began = world.world->clock().now();
  const auto late = world.start(Direction::kFromPeer, {world.stretch(0, 0, 100'000)}, {1}, 50ms);
  bool was_owned = false;
  ASSERT_TRUE(world.run_until([&] {
    was_owned = was_owned || !late->owner.expired();
    return late->result.has_value();
  }));
  EXPECT_EQ(late->result->error(), asio::error::timed_out);
  EXPECT_EQ(world.world->clock().now() - began, 50ms);
  EXPECT_TRUE(was_owned);
  EXPECT_EQ(world.mover->queue_pair().state(), QueuePair::State::kError);
  EXPECT_FALSE(late->owner.expired());  // not flushed yet
  EXPECT_TRUE(world.run_until([&] { return late->owner.expired(); }));
  EXPECT_TRUE(world.mover->is_drained());
}

TEST_F(VerbsMoverFaultTest, ADeadlineThatHasPassedPostsNothing) {
  const auto late = world.start(Direction::kToPeer, {world.stretch(0, 0, 100)}, {1}, 0ms);
  EXPECT_EQ(world.finish(late), error_code(asio::error::timed_out));
  EXPECT_FALSE(world.mover->is_broken());
  EXPECT_EQ(world.mover->counters().requests, 0u);
}

TEST_F(VerbsMoverFaultTest, ALinkThatComesBackInTimeCostsOnlyTime) {
  const auto moved = world.start(Direction::kToPeer, {world.stretch(0, 0, 1 << 20)}, {1});
  for (int i = 0; i < 50; ++i) world.world->wait_some();
  fake.set_link("fake1", false);
  for (int i = 0; i < 4; ++i) world.world->wait_some();
  fake.set_link("fake1", true);
  EXPECT_EQ(world.finish(moved), error_code());
  EXPECT_TRUE(
      std::equal(world.node.memory.begin(), world.node.memory.begin() + (1 << 20), world.client->memory.begin()));
}

TEST_F(VerbsMoverFaultTest, ACancelledMoveBreaksTheMoverAndIsDrained) {
  const auto moved = world.start(Direction::kToPeer, {world.stretch(0, 0, 1 << 20)}, {1});
  for (int i = 0; i < 20; ++i) world.world->wait_some();
  moved->cancel.emit(asio::cancellation_type::terminal);
  EXPECT_TRUE(world.run_until([&] { return world.mover->is_drained(); }));
  EXPECT_TRUE(moved->owner.expired());
  EXPECT_TRUE(world.mover->is_broken());
  EXPECT_TRUE(moved->marks.empty());
}

/// As of a device that has lost track of what was posted.
TEST_F(VerbsMoverFaultTest, ACompletionOfWhatWasNeverPostedBreaksTheMover) {
  const Piece piece = world.node.piece(0, 8);
  const Request unknown{.opcode = Opcode::kWrite,
                        .pieces = std::span(&piece, 1),
                        .remote_address = world.client->address(0),
                        .rkey = world.client->region->rkey()};
  ASSERT_TRUE(world.mover->queue_pair().post(std::span(&unknown, 1), 1u << 20));
  const auto moved = world.start(Direction::kToPeer, {world.stretch(0, 0, 1 << 20)}, {1});
  EXPECT_EQ(world.finish(moved), make_error_code(Status::kGeneral));
  EXPECT_TRUE(world.run_until([&] { return moved->owner.expired(); })) << "what was posted is flushed, then let go";
  EXPECT_TRUE(world.mover->is_drained());
}

TEST_F(VerbsMoverFaultTest, ADeviceThatIsGoneOrAPeerThatIsKilledEndsTheMove) {
  const auto gone = world.start(Direction::kToPeer, {world.stretch(0, 0, 1 << 20)}, {1});
  for (int i = 0; i < 20; ++i) world.world->wait_some();
  fake.remove_device("fake0");
  EXPECT_EQ(world.finish(gone), make_error_code(Status::kFatal));
  EXPECT_FALSE(gone->owner.expired()) << "nobody has said that the device touches it no more";
  world.mover.reset();
  EXPECT_TRUE(gone->owner.expired());

  MoverWorld other("fake");
  const auto killed = other.start(Direction::kToPeer, {other.stretch(0, 0, 1 << 20)}, {1});
  for (int i = 0; i < 20; ++i) other.world->wait_some();
  other.world->fake()->kill("fake1");
  EXPECT_EQ(other.finish(killed), make_error_code(Status::kRetryExceeded));
}

TEST_F(VerbsMoverFaultTest, DestroyingTheMoverEndsItsMovesAndFreesTheirSlots) {
  const auto moved = world.start(Direction::kFromPeer, {world.stretch(0, 0, 1 << 20)}, {1});
  const auto waiting = world.start(Direction::kFromPeer, {world.stretch(1 << 20, 0, 1 << 20)}, {1});
  for (int i = 0; i < 20; ++i) world.world->wait_some();
  EXPECT_FALSE(moved->owner.expired());
  world.mover.reset();
  EXPECT_TRUE(moved->owner.expired() && waiting->owner.expired());
  const auto arena = world.node.memory;
  EXPECT_EQ(world.finish(moved), error_code(asio::error::operation_aborted));
  EXPECT_EQ(world.finish(waiting), error_code(asio::error::operation_aborted));
  while (world.world->wait_some()) {
  }
  EXPECT_TRUE(world.node.memory == arena);
}

TEST_F(VerbsMoverFaultTest, EachStatusIsReported) {
  for (int status = 1; status < kStatusCount; ++status) {
    world.connect();
    fake.fail_next("fake0", static_cast<Status>(status));
    const auto failed = world.start(Direction::kToPeer, {world.stretch(0, 0, 1 << 20)}, {1});
    EXPECT_EQ(world.finish(failed), make_error_code(static_cast<Status>(status)));
    EXPECT_TRUE(world.run_until([&] { return failed->owner.expired(); }));
  }
}

/// Slots whose owner was let go are used for something else at once: nothing may change them any more. Segments that
/// were marked hold the right bytes, whatever came after.
TEST(VerbsMoverRandomTest, NoSlotChangesAfterItsOwnerIsLetGo) {
  constexpr std::size_t kSlots = 16, kSlotBytes = 64 << 10;
  const std::uint64_t first = seed_or(1), last = std::getenv("KV_SEED") ? first : 40;
  std::size_t good = 0, failed = 0, late = 0;
  for (std::uint64_t seed = first; seed <= last && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    MoverWorld world("fake", {.chunk_bytes = 8 << 10, .batch_request_count = 3, .outstanding_bytes_max = 64 << 10},
                     {.seed = seed, .packet_bytes_max = 8 << 10, .fault_probability = 0.002}, kSlots * kSlotBytes);
    for (int round = 0; round < 30; ++round) {
      if (world.mover->is_broken()) world.connect();
      std::vector<std::shared_ptr<MoverWorld::Running>> moves;
      std::vector<std::optional<std::vector<std::byte>>> after(kSlots);
      for (std::size_t i = 0; i < kSlots; ++i) {
        const Duration limit = random() % 40 == 0 ? Duration(1us) * static_cast<int>(random() % 6000) : Duration(1h);
        const std::size_t half = kSlotBytes / 2;
        moves.push_back(world.start(Direction::kFromPeer,
                                    {world.stretch(i * kSlotBytes, i * kSlotBytes, half),
                                     world.stretch(i * kSlotBytes + half, i * kSlotBytes + half, half)},
                                    {1, 2}, limit));
      }
      const bool cuts = random() % 8 == 0;
      for (std::size_t step = 0; world.world->wait_some(); ++step) {
        if (cuts && step == 100) world.world->fake()->set_link("fake1", false);
        for (std::size_t i = 0; i < kSlots; ++i) {
          if (after[i] || !moves[i]->owner.expired()) continue;
          std::byte* const slot = world.node.memory.data() + i * kSlotBytes;
          const std::byte* const source = world.client->memory.data() + i * kSlotBytes;
          const std::size_t landed = moves[i]->marks.size() * (kSlotBytes / 2);
          ASSERT_TRUE(std::equal(slot, slot + landed, source)) << "marked, but not there";
          std::fill(slot, slot + kSlotBytes, static_cast<std::byte>(random()));
          after[i].emplace(slot, slot + kSlotBytes);
        }
      }
      world.world->fake()->set_link("fake1", true);
      for (std::size_t i = 0; i < kSlots; ++i) {
        ASSERT_TRUE(moves[i]->result.has_value()) << "a call never ended";
        ASSERT_TRUE(after[i]) << "a slot was never let go";
        ASSERT_TRUE(std::equal(after[i]->begin(), after[i]->end(),
                               world.node.memory.begin() + static_cast<std::ptrdiff_t>(i * kSlotBytes)))
            << "slot " << i << " changed after its owner was let go";
        const Result<void>& result = *moves[i]->result;
        ASSERT_EQ(static_cast<bool>(result), moves[i]->marks.size() == 2);
        result ? ++good : result.error() == asio::error::timed_out ? ++late : ++failed;
      }
    }
  }
  std::cout << "seeds " << first << " to " << last << ": " << good << " went well, " << failed << " failed, " << late
            << " were late\n";
  EXPECT_GT(good, 100u);
  EXPECT_GT(failed, 10u);
  EXPECT_GT(late, 10u);
}

}  // namespace
}  // namespace kv::verbs
