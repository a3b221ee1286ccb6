// A session with RDMA, and clients of it that know frames and no rules: what is refused, what becomes of transfers to
// memory that is not there, and that nobody reaches what was not lent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "tests/node/lanes_world.h"

namespace kv {
namespace {

using testing::HasSubstr;

TEST_F(SessionLanesTest, HelloSaysThatThereIsRdmaAndHowManyLanes) {
  const auto client = connect();
  const Answer hello = client->ask(FrameType::kHello, 1, hello_request());
  EXPECT_TRUE(hello.as<wire::HelloResponse>().messages());
  EXPECT_EQ(hello.as<wire::HelloResponse>().lanes_max(), 4u);
}

TEST_F(SessionLanesTest, AGetWritesIntoLentMemoryAcrossSlicesAndSegments) {
  const auto client = greet();
  put(*client, names);
  RawSide side(fake, kBytes);
  const std::uint32_t region = set_up(*client, side);
  for (const auto& ends : {std::vector<std::uint64_t>{}, {kStripeBytes, 2 * kStripeBytes, kBlockBytes}}) {
    std::ranges::fill(side.memory, std::byte{0});
    std::size_t segment = 0, block_count = 0;
    for (const Answer& answer : run_get(*client, region, 3, ends)) {
      ASSERT_FALSE(answer.is_error()) << answer.message();
      EXPECT_EQ(answer.header.payload_bytes, 0u);
      if (answer.is_last()) break;
      const auto& part = answer.as<wire::GetPart>();
      if (part.segment() != segment) segment = part.segment(), block_count = 0;
      EXPECT_EQ(part.first_block(), block_count);
      block_count += part.block_count();
    }
    EXPECT_EQ(side.memory, expected_memory());
    EXPECT_EQ(segment, ends.empty() ? 0 : ends.size() - 1);
  }
  EXPECT_EQ(metric("kvstore_bytes_out_total{path=\"verbs\"}"), 2 * kBytes);
  EXPECT_EQ(rdma->counters().lanes, 2u);
}

TEST_F(SessionLanesTest, APutIsFetchedFromLentMemoryAndVerified) {
  const auto client = greet();
  RawSide side(fake, kBytes);
  const std::uint32_t region = set_up(*client, side);
  side.memory = expected_memory();
  side.registered = verbs::RegisteredMemory::make(side.devices, side.memory, kAll, 0).value();
  const std::uint32_t fresh =
      client
          ->ask(FrameType::kRegionAdd, 52, lend_slices(kBytes, {{side.address(), kBytes, {side.rkey(), side.rkey()}}}))
          .as<wire::RegionResponse>()
          .region();
  EXPECT_NE(fresh, region);
  EXPECT_FALSE(client->ask(FrameType::kPut, 61, put_over(fresh, 3)).is_last());
  // In two frames, of which the second is announced before the first has been fetched.
  const auto all = sums(names);
  const std::size_t half = all.size() / 2;
  client->send(FrameType::kPutData, 61, put_data(2, {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(half)}));
  const Answer done =
      client->ask(FrameType::kPutData, 61, put_data(2, {all.begin() + static_cast<std::ptrdiff_t>(half), all.end()}));
  ASSERT_FALSE(done.is_error()) << done.message();
  EXPECT_EQ(done.as<wire::PutResponse>().stored(), kBlocks);
  EXPECT_EQ(get(*client, names).bytes, blocks(names));
  EXPECT_EQ(metric("kvstore_bytes_in_total{path=\"verbs\"}"), kBytes);
}

TEST_F(SessionLanesTest, BytesThatAreNotWhatThePutSaysAreNotStored) {
  const auto client = greet();
  RawSide side(fake, kBytes);  // holds zeroes
  const std::uint32_t region = set_up(*client, side);
  EXPECT_FALSE(client->ask(FrameType::kPut, 61, put_over(region, 3)).is_last());
  const Answer refused = client->ask(FrameType::kPutData, 61, put_data(kBlocks, sums(names)));
  ASSERT_TRUE(refused.is_error());
  EXPECT_EQ(refused.error(), Errc::kCorruptBlock);
  EXPECT_EQ(client->ask(FrameType::kMatch, 62, match_request(names)).as<wire::MatchResponse>().host_blocks(), 0u);
}

/// A client with so much to put that the node, which fetches slowly, does not read on for longer than it gives a client
/// to send a frame.
class SlowFetchTest : public SessionLanesTest {
 protected:
  SlowFetchTest() : SessionLanesTest({.device_count = 3, .delay_min = 1500us, .delay_max = 1500us}) {
    verbs_thread->stop();
    world.run_for(1s);
    verbs_thread.reset();
    rdma.reset();
    start(kMany);
    open_verbs({});
  }
  static constexpr std::size_t kMany = 160;
};

TEST_F(SlowFetchTest, WhoWaitsForTheNodeIsNotCalledSlow) {
  const auto client = greet();
  RawSide side(fake, kMany * kBlockBytes);
  connect_lanes(*client, side, 1);
  const std::vector<BlockHash> many = chain(5, kMany);
  std::ranges::copy(blocks(many), side.memory.begin());
  const Answer lent =
      client->ask(FrameType::kRegionAdd, 51,
                  lend_slices(side.memory.size(), {{side.address(), side.memory.size(), {side.rkey()}}}));
  ASSERT_FALSE(lent.is_error()) << lent.message();
  const std::uint32_t region = lent.as<wire::RegionResponse>().region();
  std::vector<std::uint64_t> offsets;
  for (std::size_t i = 0; i < kMany; ++i) offsets.push_back(i * kBlockBytes);
  const auto offered = wire_hashes(many);
  const Answer want = client->ask(FrameType::kPut, 61, [&](FlatBufferBuilder& b) {
    return wire::CreatePutRequestDirect(b, space, &offered, nullptr, nullptr, region, &offsets, 0, /*lanes=*/1,
                                        check());
  });
  ASSERT_EQ(want.as<wire::PutWant>().block_count(), kMany);
  const TimePoint began = world.clock.now();
  for (const BlockHash& each : many) client->send(FrameType::kPutData, 61, put_data(1, sums(std::span(&each, 1))));
  const auto done = client->next(1min);
  ASSERT_TRUE(done.has_value());
  ASSERT_FALSE(done->is_error()) << done->message();
  EXPECT_EQ(done->as<wire::PutResponse>().stored(), kMany);
  EXPECT_GT(world.clock.now() - began, 2 * node->limits->frame_timeout) << "or nothing was tested";
}

/// Large puts are verified on real threads, which the virtual clock knows nothing of.
class VerifyThreadTest : public SessionLanesTest {
 protected:
  VerifyThreadTest() : SessionLanesTest({.device_count = 3}, {.verify_thread_count = 2}) {}

  template <class Done>
  void wait_until(Done done) {
    const auto until = std::chrono::steady_clock::now() + 60s;
    while (!done() && std::chrono::steady_clock::now() < until) {
      world.run_for(1ms);
      std::this_thread::sleep_for(1ms);
    }
  }
  Answer wait(RawClient& client) {
    std::optional<Answer> answer;
    wait_until([&] { return (answer = client.next(1ms)).has_value(); });
    return std::move(answer.value());
  }
};

TEST_F(VerifyThreadTest, WhatIsRightIsStoredWhatIsNotIsRefusedAndWhatIsCancelledIsLetGo) {
  const std::vector<BlockHash> chains[] = {names, chain(2, kBlocks), chain(3, kBlocks)};
  std::vector<std::unique_ptr<RawClient>> clients;
  std::vector<std::unique_ptr<RawSide>> sides;
  for (const auto& offered : chains) {
    RawClient& client = *clients.emplace_back(greet());
    RawSide& side = *sides.emplace_back(std::make_unique<RawSide>(fake, kBytes));  // holds zeroes
    const std::uint32_t region = set_up(client, side);
    if (&offered == &chains[0]) std::ranges::copy(expected_memory(), side.memory.begin());
    EXPECT_FALSE(client.ask(FrameType::kPut, 61, put_over(region, 3, offered)).is_last());
  }
  for (std::size_t i = 0; i < 3; ++i) {
    clients[i]->send(FrameType::kPutData, 61, put_data(kBlocks, sums(chains[i])));
  }
  clients[2]->send(FrameType::kCancel, 61, [](FlatBufferBuilder& b) { return wire::CreateCancelRequest(b, 61); });
  const Answer stored = wait(*clients[0]);
  ASSERT_FALSE(stored.is_error()) << stored.message();
  EXPECT_EQ(stored.as<wire::PutResponse>().stored(), kBlocks);
  const Answer refused = wait(*clients[1]);
  ASSERT_TRUE(refused.is_error());
  EXPECT_EQ(refused.error(), Errc::kCorruptBlock);
  EXPECT_TRUE(wait(*clients[2]).is_error());
  wait_until([&] { return store->with([](Store& each) { return each.stats().incoming_count; }) == 0; });
  EXPECT_EQ(get(*clients[0], names).bytes, blocks(names));
  EXPECT_EQ(get(*clients[0], chains[1]).bytes.size(), 0u);
}

TEST_F(SessionLanesTest, WithoutALaneAGetComesInlineAndAPutIsRefused) {
  const auto client = greet();
  put(*client, std::span(names).first(2));
  RawSide side(fake, kBytes);
  const std::uint32_t region = set_up(*client, side);
  const auto answers = run_get(*client, region, /*lanes=*/0xF0);
  ASSERT_FALSE(answers[0].is_error()) << answers[0].message();
  EXPECT_EQ(answers[0].payload, blocks(std::span(names).first(2)));
  EXPECT_FALSE(client->ask(FrameType::kPut, 61, put_over(region, 0)).is_last());
  const auto missing = std::span(names).subspan(2);
  const Answer refused = client->ask(FrameType::kPutData, 61, put_data(2, sums(missing)));
  ASSERT_TRUE(refused.is_error());
  EXPECT_EQ(refused.error(), Errc::kUnavailable);
  EXPECT_THAT(refused.message(), HasSubstr("no lane"));
}

TEST_F(SessionLanesTest, AWrongKeyCostsTheClientItsLaneAndNobodyElse) {
  const auto client = greet(), other = greet();
  put(*client, names);
  RawSide side(fake, kBytes), others(fake, kBytes);
  set_up(*client, side);
  const std::uint32_t others_region = set_up(*other, others);
  const Answer lent = client->ask(FrameType::kRegionAdd, 52,
                                  lend_slices(kBytes, {{side.address(), kBytes, {side.rkey() + 1000, side.rkey()}}}));
  const auto answers = run_get(*client, lent.as<wire::RegionResponse>().region(), 1);
  ASSERT_TRUE(answers.back().is_error());
  EXPECT_EQ(answers.back().error(), Errc::kUnavailable);
  EXPECT_EQ(answers.back().as<wire::Error>().broken_lanes(), 1u);
  EXPECT_EQ(rdma->counters().lanes_broken, 1u);
  EXPECT_EQ(rdma->counters().lanes, 3u);
  EXPECT_TRUE(std::ranges::all_of(side.memory, [](std::byte byte) { return byte == std::byte{0}; }));
  EXPECT_FALSE(run_get(*other, others_region, 3).back().is_error());
  EXPECT_EQ(others.memory, expected_memory());
}

TEST_F(SessionLanesTest, BadOffersAreRefusedNamingTheField) {
  const auto client = greet();
  RawSide side(fake, kBytes);
  const verbs::QueuePairAddress good = side.make_pair();
  const auto refused = [&](auto change, std::uint32_t lane = 0) {
    verbs::QueuePairAddress end = good;
    change(end);
    const Answer answer = client->ask(FrameType::kVerbsConnect, 50, offer({{lane, end}}));
    EXPECT_TRUE(answer.is_error());
    EXPECT_EQ(answer.error(), Errc::kBadRequest);
    return answer.message();
  };
  EXPECT_THAT(refused([](auto& end) { end.number = 0; }), HasSubstr("lanes[0].end.number: 0"));
  EXPECT_THAT(refused([](auto& end) { end.number = 1 << 24; }), HasSubstr("lanes[0].end.number"));
  EXPECT_THAT(refused([](auto& end) { end.first_psn = 1 << 24; }), HasSubstr("first_psn"));
  EXPECT_THAT(refused([](auto& end) { end.mtu_bytes = 1500; }), HasSubstr("mtu_bytes: 1500"));
  EXPECT_THAT(refused([](auto& end) { end.read_count_max = 0; }), HasSubstr("read_count_max: 0"));
  EXPECT_THAT(refused([](auto&) {}, 5), HasSubstr("lane: 5, at most 4"));
  EXPECT_THAT(refused([](auto&) {}, 4), HasSubstr("messages: 0"));
  const Answer twice = client->ask(FrameType::kVerbsConnect, 50, offer({{1, good}, {1, good}}));
  ASSERT_TRUE(twice.is_error());
  EXPECT_THAT(twice.message(), HasSubstr("lane: 1, twice"));
  const Answer none = client->ask(FrameType::kVerbsConnect, 50, offer({}));
  EXPECT_TRUE(none.is_error());
}

TEST_F(SessionLanesTest, BadSlicesAreRefusedNamingTheField) {
  const auto client = greet();
  const auto refused = [&](std::uint64_t bytes, std::vector<LentSlice> slices) {
    const Answer answer = client->ask(FrameType::kRegionAdd, 51, lend_slices(bytes, std::move(slices)));
    EXPECT_TRUE(answer.is_error());
    return answer.is_error() ? answer.message() : "";
  };
  EXPECT_THAT(refused(100, {{1000, 100, {}}}), HasSubstr("slices[0].rkeys: 0"));
  EXPECT_THAT(refused(100, {{1000, 100, {1, 2, 3, 4, 5}}}), HasSubstr("slices[0].rkeys: 5"));
  EXPECT_THAT(refused(100'000, {{1000, 65'536, {1}}, {66'536, 34'464, {1, 2}}}), HasSubstr("slices[1].rkeys: 2"));
  EXPECT_THAT(refused(100'000, {{1000, 65'535, {1}}, {66'535, 34'465, {1}}}), HasSubstr("slices[0].bytes: 65535"));
  EXPECT_THAT(refused(100, {{1000, 0, {1}}}), HasSubstr("slices[0].bytes: 0"));
  EXPECT_THAT(refused(100, {{1000, 101, {1}}}), HasSubstr("slices[0].bytes: 101"));
  EXPECT_THAT(refused(100, {{UINT64_MAX - 10, 100, {1}}}), HasSubstr("slices[0].bytes: 100 at"));
  EXPECT_THAT(refused(100, {{1000, 60, {1}}}), HasSubstr("bytes: 100, the slices have 60"));
  EXPECT_THAT(refused(UINT64_MAX, {{1000, UINT64_MAX, {1}}}), HasSubstr("region bytes"));
  EXPECT_THAT(refused(5000, std::vector<LentSlice>(5000, LentSlice{1000, 1, {1}})), HasSubstr("slices: 5000"));
}

TEST_F(SessionLanesTest, QueuePairsOfTheNodeAreLimited) {
  verbs_thread->stop();
  open_verbs({.queue_pair_count_max = 3});
  const auto first = greet(), second = greet();
  RawSide side(fake, kBytes), others(fake, kBytes);
  set_up(*first, side);
  const Answer answer =
      second->ask(FrameType::kVerbsConnect, 50, offer({{0, others.make_pair()}, {1, others.make_pair()}}));
  const auto& ends = *answer.as<wire::VerbsConnectResponse>().lanes();
  EXPECT_NE(ends[0]->end(), nullptr);
  EXPECT_EQ(ends[1]->end(), nullptr);
  EXPECT_THAT(ends[1]->why()->str(), HasSubstr("queue pairs: the node's limit of 3"));
  first->close();
  world.run_for(1s);
  const Answer again = second->ask(FrameType::kVerbsConnect, 50, offer({{1, others.make_pair()}}));
  EXPECT_NE((*again.as<wire::VerbsConnectResponse>().lanes())[0]->end(), nullptr) << "they are given back";
}

TEST_F(SessionLanesTest, ADeviceThatIsGoneIsLeftOutUntilItComesBack) {
  const auto greeted = greet();
  RawClient& client = *greeted;
  put(client, names);
  RawSide side(fake, kBytes);
  const std::uint32_t region = set_up(client, side);
  ASSERT_EQ(run_get(client, region, 3).back().as<wire::GetResponse>().broken_lanes(), 0u);
  std::ranges::fill(side.memory, std::byte{});
  const auto devices_in_use = [&] { return stat("rdma_devices"); };
  EXPECT_EQ(devices_in_use(), 2);
  const std::uint64_t arena_bytes = fake.registered_bytes("fake0");

  fake.remove_device("fake0");  // lane 0 is on it
  world.run_for(1s);
  EXPECT_EQ(devices_in_use(), 1) << "its loop tells of it, though nothing was moved";
  EXPECT_EQ(stat("rdma_devices_left_out"), 1);
  EXPECT_EQ(rdma->counters().lanes, 1u);
  rdma->check_devices();
  EXPECT_EQ(fake.registered_bytes("fake0"), 0u) << "a client that asks for nothing does not keep it open";
  const Answer last = run_get(client, region, 3).back();
  EXPECT_EQ(last.as<wire::GetResponse>().broken_lanes(), 1u);
  EXPECT_EQ(side.memory, expected_memory()) << "by the other";
  const auto offered = client.ask(FrameType::kVerbsConnect, 70, offer({{0, side.make_pair()}}));
  const auto* refused = offered.as<wire::VerbsConnectResponse>().lanes()->Get(0);
  ASSERT_EQ(refused->end(), nullptr);
  EXPECT_THAT(refused->why()->str(), HasSubstr("left out: fake0: No such device"));

  world.run_for(6s);
  rdma->check_devices();
  EXPECT_EQ(devices_in_use(), 1) << "it is still gone";
  fake.return_device("fake0");
  world.run_for(9s);
  rdma->check_devices();
  EXPECT_EQ(devices_in_use(), 1) << "pauses grow";
  world.run_for(2s);
  rdma->check_devices();
  EXPECT_EQ(devices_in_use(), 2);
  EXPECT_EQ(fake.registered_bytes("fake0"), arena_bytes);

  side.pairs.clear();
  side.queues.clear();
  side.psns.clear();
  connect_lanes(client, side, 2);
  std::ranges::fill(side.memory, std::byte{});
  EXPECT_EQ(run_get(client, region, 1).back().as<wire::GetResponse>().broken_lanes(), 0u);
  EXPECT_EQ(side.memory, expected_memory());
}

TEST_F(SessionLanesTest, ADeviceThatIsGoneIsNoticedWithoutLanes) {
  fake.remove_device("fake1");
  rdma->check_devices();
  EXPECT_EQ(stat("rdma_devices"), 1);
  fake.return_device("fake1");
  for (int flaps = 0; flaps < 8; ++flaps) {  // it never lasts
    world.run_for(5min);
    rdma->check_devices();
    EXPECT_EQ(stat("rdma_devices"), 2);
    fake.remove_device("fake1");
    rdma->check_devices();
    fake.return_device("fake1");
  }
  world.run_for(4min);
  rdma->check_devices();
  EXPECT_EQ(stat("rdma_devices"), 1) << "each time later, though it could be opened";
}

TEST_F(SessionLanesTest, ASessionWithoutAnotherLaneGetsItOnAnotherDevice) {
  const auto client = greet();
  put(*client, names);
  RawSide side(fake, kBytes);
  fake.remove_device("fake0");
  world.run_for(1s);
  const std::uint32_t region = set_up(*client, side, 1);
  run_get(*client, region, 1);
  EXPECT_EQ(side.memory, expected_memory());
  EXPECT_EQ(rdma->counters().lanes, 1u);

  // As where the other device does not reach that client.
  fake.set_link("fake1", false);
  EXPECT_TRUE(run_get(*client, region, 1).back().is_error());
  EXPECT_EQ(rdma->counters().lanes_broken, 1u);
  fake.set_link("fake1", true);
  const Answer again = client->ask(FrameType::kVerbsConnect, 70, offer({{0, side.make_pair()}}));
  EXPECT_EQ(again.as<wire::VerbsConnectResponse>().lanes()->Get(0)->end(), nullptr) << "not twice";
}

/// One of two devices takes no arena.
class LeftOutDeviceTest : public SessionLanesTest {};

TEST_F(LeftOutDeviceTest, TheOtherIsUsedAndItIsTriedAgain) {
  verbs_thread->stop();
  world.run_for(1s);
  verbs_thread.reset();
  node->verbs = nullptr;
  rdma.reset();
  fake.set_registered_bytes_max("fake0", 1000);
  open_verbs({});
  EXPECT_EQ(stat("rdma_devices"), 1);
  EXPECT_THAT(rdma->device(0).error().text, HasSubstr("memlock limit"));
  EXPECT_TRUE(rdma->device(1));

  fake.set_registered_bytes_max("fake0", 1 << 30);
  world.run_for(6s);
  rdma->check_devices();
  EXPECT_TRUE(rdma->device(0)) << rdma->device(0).error();

  verbs_thread.reset();
  rdma.reset();
  for (const char* const device : {"fake0", "fake1"}) fake.set_registered_bytes_max(device, 1000);
  const auto refused = VerbsNode::open(fake, {.devices = {.names = {"fake0", "fake1"}}, .in_place = true},
                                       store->with([](Store& each) { return each.memory(); }), world.clock);
  EXPECT_EQ(refused.error().code.value(), ENOMEM);
  for (const char* const device : {"fake0", "fake1"}) fake.set_registered_bytes_max(device, 1 << 30);
  open_verbs({});  // for TearDown
}

TEST_F(SessionLanesTest, AQueuePairIsConnectedToOnce) {
  const auto client = greet(), thief = greet();
  RawSide side(fake, kBytes);
  set_up(*client, side, 1);
  const verbs::QueuePairAddress taken =
      address_of(side.devices[0].attach().value(), side.pairs[0]->number(), /*first_psn=*/1);
  verbs::QueuePairAddress renamed = taken;  // by what does not matter on Ethernet
  renamed.lid = 7;
  renamed.mtu_bytes = 1024;
  for (const verbs::QueuePairAddress& each : {taken, renamed}) {
    const Answer answer = thief->ask(FrameType::kVerbsConnect, 50, offer({{0, each}}));
    const auto* const lane = (*answer.as<wire::VerbsConnectResponse>().lanes())[0];
    EXPECT_EQ(lane->end(), nullptr);
    EXPECT_THAT(lane->why()->str(), HasSubstr("a lane is connected to it"));
  }
  client->close();
  world.run_for(1s);
  const Answer later = thief->ask(FrameType::kVerbsConnect, 50, offer({{0, taken}}));
  EXPECT_NE((*later.as<wire::VerbsConnectResponse>().lanes())[0]->end(), nullptr) << "it is free again";
}

TEST_F(SessionLanesTest, ALaneThatIsOfferedAgainIsMadeAnew) {
  const auto client = greet();
  put(*client, names);
  RawSide side(fake, kBytes);
  const std::uint32_t region = set_up(*client, side);
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(side.pairs[0]->fail());
    ASSERT_TRUE(run_get(*client, region, 1).back().is_error());
    connect_anew(*client, side);
    std::ranges::fill(side.memory, std::byte{0});
    EXPECT_FALSE(run_get(*client, region, 1).back().is_error());
    EXPECT_EQ(side.memory, expected_memory());
  }
}

TEST_F(SessionLanesTest, ARegionThatIsRemovedOrAnothersIsOutOfReach) {
  const auto client = greet(), other = greet();
  put(*client, names);
  RawSide side(fake, kBytes), others(fake, kBytes);
  const std::uint32_t region = set_up(*client, side);
  set_up(*other, others);
  client->send(FrameType::kGet, 60, get_over(region, 3));
  const Answer removed = client->ask(FrameType::kRegionRemove, 70, region_remove(region));
  // The get's frames come before the answer to the removal.
  EXPECT_EQ(removed.header.type, FrameType::kGet);
  Answer last = removed;
  while (last.header.request_id != 70) last = client->answer();
  std::ranges::fill(side.memory, std::byte{0x77});
  world.run_for(10s);
  EXPECT_TRUE(std::ranges::all_of(side.memory, [](std::byte byte) { return byte == std::byte{0x77}; }));
  const auto replayed = run_get(*client, region, 3);
  ASSERT_TRUE(replayed.back().is_error());
  EXPECT_EQ(replayed.back().error(), Errc::kNoRegion);
  for (std::uint32_t guess = 0; guess < 1000; ++guess) {
    if (guess == 0) continue;
    const auto answers = run_get(*client, guess, 3);
    ASSERT_TRUE(answers.back().is_error());
    ASSERT_EQ(answers.back().error(), Errc::kNoRegion) << "a region number of another session";
  }
  EXPECT_TRUE(std::ranges::all_of(others.memory, [](std::byte byte) { return byte == std::byte{0}; }));
}

/// The client names keys and addresses at random: the node writes what it is told to through the client's own queue
/// pair, and so nowhere but where that client may.
TEST_F(SessionLanesTest, GuessedKeysAndAddressesReachNobodyElse) {
  const std::uint64_t seed = seed_or(3);
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto victim = greet();
  put(*victim, names);
  RawSide lent(fake, kBytes);
  set_up(*victim, lent);
  const Bytes before = lent.memory;
  const std::span<std::byte> arena = store->with([](Store& each) { return each.memory(); });
  const auto attacker = greet();
  RawSide side(fake, kBytes);
  set_up(*attacker, side, 1);
  std::size_t refused = 0;
  for (int i = 0; i < 2000; ++i) {
    // Often the true key and address of somebody else: another client's, or the arena's own.
    const std::uint32_t keys[] = {lent.rkey(), rdma->device(0).value()->arena->rkey(0, 0),
                                  static_cast<std::uint32_t>(random())};
    const std::uint64_t addresses[] = {lent.address(), reinterpret_cast<std::uintptr_t>(arena.data()), random() >> 16};
    const Answer added = attacker->ask(FrameType::kRegionAdd, 52,
                                       lend_slices(kBytes, {{addresses[random() % 3], kBytes, {keys[random() % 3]}}}));
    ASSERT_FALSE(added.is_error());
    const std::uint32_t region = added.as<wire::RegionResponse>().region();
    if (random() % 2 == 0) {
      refused += run_get(*attacker, region, 1).back().is_error();
    } else {
      const auto mine = chain(static_cast<std::uint32_t>(10 + i), kBlocks);
      const auto offered = wire_hashes(mine);
      const Answer want = attacker->ask(FrameType::kPut, 61, [&](FlatBufferBuilder& b) {
        const auto offsets = places();
        return wire::CreatePutRequestDirect(b, space, &offered, nullptr, nullptr, region, &offsets, 0, 1, check());
      });
      if (!want.is_last()) {
        const Answer done = attacker->ask(FrameType::kPutData, 61, put_data(kBlocks, sums(mine)));
        EXPECT_TRUE(done.is_error()) << "it stored what it could not read";
        refused += done.is_error();
      }
    }
    EXPECT_FALSE(attacker->ask(FrameType::kRegionRemove, 53, region_remove(region)).is_error());
    connect_anew(*attacker, side);
  }
  EXPECT_GT(refused, 1000u);
  EXPECT_EQ(lent.memory, before);
  EXPECT_EQ(get(*victim, names).bytes, blocks(names)) << "its blocks are as they were";
}

class SlowDeviceTest : public SessionLanesTest {
 protected:
  SlowDeviceTest() : SessionLanesTest({.device_count = 3, .delay_min = 1ms, .delay_max = 5ms}) {}
};

TEST_F(SlowDeviceTest, SlotsOfACancelledPutAreNotUsedAgainWhileADeviceFillsThem) {
  const auto client = greet(), other = greet();
  RawSide side(fake, kBytes);
  const std::uint32_t region = set_up(*client, side);
  for (std::uint32_t round = 0; round < 10; ++round) {
    const auto offered = wire_hashes(chain(100 + round, kBlocks));
    client->send(FrameType::kPut, 61, [&](FlatBufferBuilder& b) {
      const auto offsets = places();
      return wire::CreatePutRequestDirect(b, space, &offered, nullptr, nullptr, region, &offsets, 0, 3, check());
    });
    ASSERT_FALSE(client->answer().is_last());
    client->send(FrameType::kPutData, 61, put_data(kBlocks, std::vector<std::uint64_t>(kBlocks * 3)));
    world.run_for(round * 1ms);
    EXPECT_EQ(client->ask(FrameType::kCancel, 62, cancel(61)).error(), Errc::kCancelled);
    const auto mine = chain(200 + round, 32);  // all the memory there is
    put(*other, mine);
    world.run_for(1s);
    const Got got = get(*other, mine);
    EXPECT_GT(got.block_count, 0u);
    ASSERT_TRUE(got.bytes == blocks(std::span(mine).first(got.block_count))) << "a device wrote over a stored block";
  }
}

TEST_F(SessionLanesTest, ASessionThatEndsMidTransferFreesItsSlotsAndLanes) {
  for (int round = 0; round < 20; ++round) {
    const auto client = greet();
    put(*client, names);
    RawSide side(fake, kBytes);
    const std::uint32_t region = set_up(*client, side);
    client->send(FrameType::kGet, 60, get_over(region, 3));
    world.run_for(round * 37us);
    client->close();
    world.run_for(10s);
    EXPECT_EQ(session_count, 0u);
    EXPECT_EQ(rdma->counters().lanes, 0u);
  }
}

TEST_F(SessionLanesTest, WhatIsNearlyRightHarmsNobody) {
  const std::uint64_t seed = seed_or(5);
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto client = greet();
  put(*client, names);
  RawSide side(fake, kBytes);
  const std::uint32_t region = set_up(*client, side);
  const auto extra = side.make_pair();
  const Bytes seeds[] = {
      frame_bytes(FrameType::kVerbsConnect, 7, offer({{0, extra}, {3, extra}})),
      frame_bytes(FrameType::kRegionAdd, 7, lend_slices(kBytes, {{side.address(), kBytes, {1, 2}}})),
      frame_bytes(FrameType::kGet, 7, get_over(region, 3, {kStripeBytes, kBlockBytes})),
      frame_bytes(FrameType::kPut, 7, put_over(region, 3)),
  };
  for (int round = 0; round < 4000; ++round) {
    Bytes frame = seeds[random() % std::size(seeds)];
    mangle(frame, 10'000 + static_cast<std::uint64_t>(round), random);
    ASSERT_TRUE(client->send_bytes(frame));
    client->send(FrameType::kPing, 8, ping());
    while (client->answer().header.request_id != 8) {  // answers, until the ping's
    }
  }
  client->close();
  world.run_for(100s);
  const auto other = greet();
  const Got got = get(*other, names);  // its puts may have evicted some
  EXPECT_EQ(got.bytes, blocks(std::span(names).first(got.block_count)));
  put(*other, names);
  EXPECT_EQ(get(*other, names).bytes, blocks(names));
}

}  // namespace
}  // namespace kv
