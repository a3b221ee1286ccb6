// Gets of blocks that lie on disk, whole and cut short by a disk that fails, in one segment and in several.
#include "tests/node/node_world.h"
#include "tests/sim/sim_disk_worker.h"

namespace kv {
namespace {

class SessionDiskTest : public NodeTest {
 protected:
  static constexpr std::size_t kCount = 16;
  SessionDiskTest() {
    start(kCount, /*disk_bytes=*/1024 * kBlockBytes);
    disk_worker =
        std::make_unique<sim::SimDiskWorker>(*store, disk, world.clock, world.io.get_executor(), sim::DiskFaults{}, 1);
    node->disk_worker = disk_worker.get();
    client = greet();
    put(*client, hashes);
    disk_worker->notify();
    world.run_for(1s);  // half of the arena is made free: the chain's end lies on disk only
  }
  void TearDown() override {
    client.reset();
    NodeTest::TearDown();
    disk_worker->die();
  }

  struct Segmented {
    std::vector<std::size_t> block_counts;  ///< Sent, by segment.
    std::uint32_t said = 0;                 ///< By the answer.
    std::vector<Bytes> bytes;               ///< By segment.
  };
  Segmented get_in_segments(const std::vector<std::uint64_t>& ends) {
    Segmented got;
    got.block_counts.resize(ends.size());
    got.bytes.resize(ends.size());
    client->send(FrameType::kGet, 101, get_request(hashes, 0, {}, ends));
    while (true) {
      const Answer answer = client->answer();
      if (answer.is_error()) throw std::runtime_error(answer.message());
      if (answer.is_last()) {
        got.said = answer.as<wire::GetResponse>().block_count();
        return got;
      }
      const auto& part = answer.as<wire::GetPart>();
      EXPECT_EQ(part.first_block(), got.block_counts[part.segment()]) << "in order";
      got.block_counts[part.segment()] += part.block_count();
      auto& bytes = got.bytes[part.segment()];
      bytes.insert(bytes.end(), answer.payload.begin(), answer.payload.end());
    }
  }
  /// Segment by segment, what the blocks should be.
  Bytes segment(std::size_t count, std::uint64_t begin, std::uint64_t end) {
    const Bytes whole = blocks(std::span(hashes).first(count));
    Bytes cut;
    for (std::size_t i = 0; i < count; ++i) {
      const auto first = whole.begin() + static_cast<std::ptrdiff_t>(i * kBlockBytes + begin);
      cut.insert(cut.end(), first, first + static_cast<std::ptrdiff_t>(end - begin));
    }
    return cut;
  }

  MemoryDisk disk;
  std::unique_ptr<sim::SimDiskWorker> disk_worker;
  std::unique_ptr<RawClient> client;
  const std::vector<BlockHash> hashes = chain(1, kCount);
};

TEST_F(SessionDiskTest, ABlockOnDiskFollowsThoseInMemory) {
  const std::uint32_t matched_count = matched(*client, hashes);
  ASSERT_GT(matched_count, 0u);
  ASSERT_LT(matched_count, kCount) << "else nothing is on disk only";
  const Got got = get(*client, hashes);
  EXPECT_EQ(got.block_count, kCount);
  EXPECT_TRUE(got.bytes == blocks(hashes));
}

TEST_F(SessionDiskTest, SegmentsComeOneAfterTheOtherWhole) {
  const Segmented got = get_in_segments({kStripeBytes, kBlockBytes});
  EXPECT_EQ(got.said, kCount);
  EXPECT_EQ(got.block_counts, std::vector<std::size_t>(2, kCount));
  EXPECT_TRUE(got.bytes[0] == segment(kCount, 0, kStripeBytes));
  EXPECT_TRUE(got.bytes[1] == segment(kCount, kStripeBytes, kBlockBytes));
}

TEST_F(SessionDiskTest, WhatADiskThatFailsDoesNotGiveIsCutOffInAllSegments) {
  const std::uint32_t matched_count = matched(*client, hashes);
  ASSERT_LT(matched_count, kCount);
  disk_worker->set_faults({.failure_probability = 1});
  const Segmented got = get_in_segments({kStripeBytes, kBlockBytes});
  EXPECT_EQ(got.said, matched_count);
  EXPECT_EQ(got.block_counts, std::vector<std::size_t>(2, matched_count)) << "the answer says what was sent";
  EXPECT_TRUE(got.bytes[1] == segment(matched_count, kStripeBytes, kBlockBytes));
  disk_worker->set_faults({});
}

}  // namespace
}  // namespace kv
