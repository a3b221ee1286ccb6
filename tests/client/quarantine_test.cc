// Lent memory that a node may still write to after its call.
#include <gtest/gtest.h>

#include <cstddef>
#include <span>

#include "tests/client/node_link_fixture.h"

namespace kv {
namespace {

class QuarantineTest : public NodeLinkTest {
 protected:
  QuarantineTest() : lent(client->allocate(4 * record.block_bytes()).value()), memory(lent, 4, record.block_bytes()) {}

  /// A get whose first `landed` blocks are marked in time, and no more.
  GetResult get_that_times_out(std::size_t landed) {
    memory.fill(chain);  // as the node would have copied them
    node.handler = on_get([this, landed](FakeNode::Session& s, const FrameHeader& to) {
      if (landed > 0) s.part(to, record, chain, 0, landed, /*is_inline=*/false);
      session = &s;
      request = to;
    });
    return get(memory, 20ms);
  }

  std::span<std::byte> lent;
  Blocks memory;
  FakeNode::Session* session = nullptr;
  FrameHeader request;
};

TEST_F(QuarantineTest, MarkedBlocksAreVerifiedWhereTheyLie) {
  memory.fill(chain);
  memory.to[2][5] ^= std::byte{1};  // the node copied something else
  node.handler = honest(4, /*is_inline=*/false);
  const GetResult got = get(memory);
  EXPECT_EQ(got.block_count, 2u);
  EXPECT_EQ(got.why, Errc::kCorruptBlock);
  EXPECT_EQ(node.seen[FrameType::kRegionAdd], 1);
  EXPECT_FALSE(client->is_quarantined(lent));
}

TEST_F(QuarantineTest, BlocksThatWereNotMarkedAreQuarantinedUntilTheLastFrame) {
  const GetResult got = get_that_times_out(1);
  EXPECT_EQ(got.block_count, 1u);
  EXPECT_EQ(got.why, asio::error::timed_out);
  EXPECT_FALSE(client->is_quarantined(memory.to[0]));
  for (std::size_t i = 1; i < 4; ++i) EXPECT_TRUE(client->is_quarantined(memory.to[i])) << i;
  EXPECT_EQ(loop.run(client->get(space, chain, memory.to, {.deadline = 1s})).error(), Errc::kQuarantined);
  EXPECT_EQ(loop.run(client->put(space, chain, memory.from, {.deadline = 1s})).error(), Errc::kQuarantined);

  session->part(request, record, chain, 1, 1, false);  // a mark is not the last word
  loop.run_for(10ms);
  EXPECT_TRUE(client->is_quarantined(lent));
  session->error(request, Errc::kCancelled);
  loop.run_for(10ms);
  EXPECT_FALSE(client->is_quarantined(lent));
  node.handler = honest(4, false);
  EXPECT_EQ(get(memory).block_count, 4u);
}

TEST_F(QuarantineTest, TheEndOfTheConnectionEndsTheQuarantine) {
  get_that_times_out(0);
  EXPECT_TRUE(client->is_quarantined(lent));
  node.close_all();
  loop.run_for(10ms);
  EXPECT_FALSE(client->is_quarantined(lent));
}

TEST_F(QuarantineTest, AStoppedNodeKeepsItQuarantinedAndOthersMayGoOn) {
  get_that_times_out(0);
  network.freeze("fake");
  loop.run_for(60s);
  EXPECT_TRUE(client->is_quarantined(lent));
  Blocks other(4, record.block_bytes());
  EXPECT_EQ(get(other).why, asio::error::timed_out);
  EXPECT_TRUE(client->is_quarantined(lent));
}

TEST_F(QuarantineTest, AViolationQuarantinesWhatIsUnderWayUntilTheNodeCloses) {
  memory.fill(chain);
  node.handler = on_get([this](FakeNode::Session& s, const FrameHeader& to) {
    s.part(to, record, chain, 0, 1, false);
    s.part(to, record, chain, 3, 1, false);  // out of order
  });
  const GetResult got = get(memory);
  EXPECT_EQ(got.block_count, 1u);
  EXPECT_EQ(got.why, Errc::kBadFrame);
  EXPECT_TRUE(client->is_quarantined(memory.to[1]));
  loop.run_for(10s);
  EXPECT_TRUE(client->is_quarantined(memory.to[1])) << "the node may still copy";
  node.close_all();
  loop.run_for(10ms);
  EXPECT_FALSE(client->is_quarantined(lent));
}

TEST_F(QuarantineTest, QuarantinedMemoryMayBeFreed) {
  get_that_times_out(0);
  EXPECT_TRUE(client->free_memory(lent));
  const auto again = client->allocate(4 * record.block_bytes()).value();
  EXPECT_FALSE(client->is_quarantined(again));
}

}  // namespace
}  // namespace kv
