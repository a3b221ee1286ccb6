// tests/node/lanes_world.h: a node with RDMA, and clients of its sessions with devices of their own, that know frames
// and no rules.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/fakes/verbs_fake.h"
#include "tests/node/node_world.h"
#include "transport/verbs/verbs_wire.h"

namespace kv {

using verbs::Access;
using verbs::FakeVerbs;

inline constexpr Access kAll{.local_write = true, .remote_write = true, .remote_read = true};

/// What a client has for RDMA: memory, and a queue pair for each lane. On the last device.
struct RawSide {
  explicit RawSide(FakeVerbs& verbs, std::size_t bytes)
      : devices(verbs::open_devices(verbs, {.names = {"fake2"}}).value().devices), memory(bytes) {
    registered = verbs::RegisteredMemory::make(devices, memory, kAll, 0).value();
  }
  verbs::QueuePairAddress make_pair() {
    const verbs::OpenDevice& device = devices[0];
    queues.push_back(device.device->create_completion_queue(256).value());
    pairs.push_back(device.domain->create_queue_pair(*queues.back(), {.remote = kAll}).value());
    psns.push_back(verbs::random_psn());
    return address_of(device.attach().value(), pairs.back()->number(), psns.back());
  }
  void connect(std::size_t lane, const verbs::QueuePairAddress& node) {
    ASSERT_TRUE(pairs[lane]->connect(node, path_to(devices[0].attach().value(), psns[lane], node)));
  }
  std::uint64_t address() const { return reinterpret_cast<std::uintptr_t>(memory.data()); }
  std::uint32_t rkey() const { return registered->rkey(0, 0); }

  std::vector<verbs::OpenDevice> devices;
  Bytes memory;
  std::unique_ptr<verbs::RegisteredMemory> registered;
  std::vector<std::unique_ptr<verbs::CompletionQueue>> queues;
  std::vector<std::unique_ptr<verbs::QueuePair>> pairs;
  std::vector<std::uint32_t> psns;
};

class SessionLanesTest : public NodeTest {
 protected:
  static constexpr std::size_t kBlocks = 4, kBytes = kBlocks * kBlockBytes;

  explicit SessionLanesTest(const verbs::FakeOptions& options = {.device_count = 3}, VerbsConfig config = {})
      : fake(world.clock, world.io.get_executor(), options) {
    open_verbs(std::move(config));
  }
  void open_verbs(VerbsConfig config) {
    verbs_thread.reset();  // before its node
    config.devices.names = {"fake0", "fake1"};
    config.in_place = true;
    config.slice_bytes_max = 100'000;  // blocks span registrations
    rdma = VerbsNode::open(fake, config, store->with([](Store& each) { return each.memory(); }), world.clock).value();
    node->verbs = rdma.get();
    verbs_thread = std::make_shared<VerbsThread>(*rdma, world.io.get_executor());
  }
  void TearDown() override {
    NodeTest::TearDown();
    verbs_thread->stop();
    world.run_for(1s);
    EXPECT_EQ(rdma->counters().lanes, 0u) << "a lane outlives its session";
    verbs_thread.reset();
  }

  struct OfferedLane {
    std::uint32_t lane = 0;
    verbs::QueuePairAddress end;
    std::uint32_t messages = 0;
  };
  static auto offer(std::vector<OfferedLane> lanes) {
    return [=](FlatBufferBuilder& b) {
      std::vector<flatbuffers::Offset<wire::LaneOffer>> offers;
      for (const OfferedLane& each : lanes)
        offers.push_back(wire::CreateLaneOffer(b, each.lane, encode(b, each.end), each.messages));
      return wire::CreateVerbsConnectRequestDirect(b, &offers);
    };
  }
  struct LentSlice {
    std::uint64_t address = 0, bytes = 0;
    std::vector<std::uint32_t> rkeys;
  };
  static auto lend_slices(std::uint64_t bytes, std::vector<LentSlice> given) {
    return [=](FlatBufferBuilder& b) {
      std::vector<flatbuffers::Offset<wire::RegionSlice>> slices;
      for (const LentSlice& each : given)
        slices.push_back(wire::CreateRegionSliceDirect(b, each.address, each.bytes, &each.rkeys));
      return wire::CreateRegionAddRequestDirect(b, bytes, &slices);
    };
  }
  void connect_lanes(RawClient& client, RawSide& side, std::uint32_t count) {
    std::vector<OfferedLane> lanes;
    for (std::uint32_t lane = 0; lane < count; ++lane) lanes.push_back({lane, side.make_pair()});
    const Answer answer = client.ask(FrameType::kVerbsConnect, 50, offer(lanes));
    const auto& ends = *answer.as<wire::VerbsConnectResponse>().lanes();
    for (std::uint32_t lane = 0; lane < count; ++lane) {
      ASSERT_NE(ends[lane]->end(), nullptr) << ends[lane]->why()->str();
      side.connect(lane, verbs::decode(ends[lane]->end()).value());
    }
  }
  /// Its one lane, after that broke.
  void connect_anew(RawClient& client, RawSide& side) {
    side.pairs.clear();
    side.queues.clear();
    side.psns.clear();
    connect_lanes(client, side, 1);
  }
  /// Connects `count` lanes of `side` and lends its memory over them.
  std::uint32_t set_up(RawClient& client, RawSide& side, std::uint32_t count = 2) {
    connect_lanes(client, side, count);
    // In two slices that part in the middle of a block.
    const std::vector<std::uint32_t> rkeys(count, side.rkey());
    const Answer lent = client.ask(
        FrameType::kRegionAdd, 51,
        lend_slices(kBytes, {{side.address(), 200'000, rkeys}, {side.address() + 200'000, kBytes - 200'000, rkeys}}));
    EXPECT_FALSE(lent.is_error()) << lent.message();
    return lent.as<wire::RegionResponse>().region();
  }
  static std::vector<std::uint64_t> places() {
    std::vector<std::uint64_t> offsets;
    for (std::size_t i = 0; i < kBlocks; ++i) offsets.push_back((kBlocks - 1 - i) * kBlockBytes);  // last block first
    return offsets;
  }
  auto get_over(std::uint32_t region, std::uint32_t lanes, std::vector<std::uint64_t> segment_ends = {}) {
    return [=, this, wanted = wire_hashes(names)](FlatBufferBuilder& b) {
      const auto offsets = places();
      return wire::CreateGetRequestDirect(b, space, &wanted, 0, region, &offsets, &segment_ends, 2, 0, lanes, check());
    };
  }
  auto put_over(std::uint32_t region, std::uint32_t lanes, std::span<const BlockHash> chain) {
    return [=, this, offered = wire_hashes(chain)](FlatBufferBuilder& b) {
      const auto offsets = places();
      return wire::CreatePutRequestDirect(b, space, &offered, nullptr, nullptr, region, &offsets, 0, lanes, check());
    };
  }
  auto put_over(std::uint32_t region, std::uint32_t lanes) { return put_over(region, lanes, names); }
  /// All frames of one get.
  std::vector<Answer> run_get(RawClient& client, std::uint32_t region, std::uint32_t lanes,
                              std::vector<std::uint64_t> segment_ends = {}) {
    std::vector<Answer> answers;
    client.send(FrameType::kGet, 60, get_over(region, lanes, std::move(segment_ends)));
    do answers.push_back(client.answer());
    while (!answers.back().is_last());
    return answers;
  }
  Bytes expected_memory() const {
    Bytes all(kBytes);
    const auto offsets = places();
    for (std::size_t i = 0; i < kBlocks; ++i) {
      const Bytes one = block(names[i]);
      std::copy(one.begin(), one.end(), all.begin() + static_cast<std::ptrdiff_t>(offsets[i]));
    }
    return all;
  }

  double stat(std::string_view name) const {
    for (const NodeMetrics::Value& each : rdma->stats()) {
      if (each.name == name) return each.value;
    }
    return -1;
  }

  FakeVerbs fake;
  std::unique_ptr<VerbsNode> rdma;
  const std::vector<BlockHash> names = chain(1, kBlocks);
};

}  // namespace kv
