// tests/node/verbs_node_test.cc: what a node's devices keep, and what clients cannot use up.

#include <gmock/gmock.h>

#include <optional>
#include <vector>

#include "tests/node/lanes_world.h"

namespace kv {
namespace {

using testing::HasSubstr;

class VerbsNodeTest : public SessionLanesTest {
 protected:
  static VerbsConfig few_at_once() {
    VerbsConfig config;
    config.connect_count_max = 2;
    return config;
  }
  VerbsNodeTest() : SessionLanesTest({.device_count = 3}, few_at_once()) {}

  std::weak_ptr<DeviceLoop> loop_of(std::size_t device) {
    return verbs_thread->loop(device, rdma->device(device).value()).value();
  }
};

TEST_F(VerbsNodeTest, ACompletionQueueIsKeptForAClientThatConnectsAgainAndAgain) {
  const std::weak_ptr<DeviceLoop> first = loop_of(0);
  ASSERT_FALSE(first.expired()) << "nobody else holds it";
  EXPECT_EQ(loop_of(0).lock(), first.lock());
  EXPECT_NE(loop_of(1).lock(), first.lock());
  for (int times = 0; times < 2; ++times) {
    const auto client = greet();
    RawSide side(fake, kBytes);
    connect_lanes(*client, side, 1);
    client->close();
    world.run_for(1s);
    EXPECT_EQ(loop_of(0).lock(), first.lock());
  }
}

TEST_F(VerbsNodeTest, NothingIsKeptOfADeviceThatIsLeftOut) {
  const std::weak_ptr<DeviceLoop> first = loop_of(0);
  const std::shared_ptr<NodeDevice> device = rdma->device(0).value();
  rdma->leave_out(0, *device, "for a test");
  world.run_for(1ms);
  EXPECT_TRUE(first.expired());
  // Somebody asked before it was left out, and gets here late.
  const std::weak_ptr<DeviceLoop> late = verbs_thread->loop(0, device).value();
  EXPECT_TRUE(late.expired()) << "it would never be closed";

  world.run_for(6s);
  rdma->check_devices();
  const std::weak_ptr<DeviceLoop> again = loop_of(0);
  world.run_for(1s);
  EXPECT_FALSE(again.expired()) << "the device is in use again";
}

TEST_F(VerbsNodeTest, LanesBeyondThoseThatMayConnectAtOnceAreRefusedAndToldWhy) {
  const auto client = greet();
  RawSide side(fake, kBytes);
  std::optional<VerbsNode::ConnectTurn> first = rdma->take_connect_turn().value();
  ASSERT_TRUE(first);
  const Answer answer =
      client->ask(FrameType::kVerbsConnect, 50, offer({{0, side.make_pair()}, {1, side.make_pair()}}));
  const auto& ends = *answer.as<wire::VerbsConnectResponse>().lanes();
  EXPECT_NE(ends[0]->end(), nullptr);
  ASSERT_EQ(ends[1]->end(), nullptr);
  EXPECT_THAT(ends[1]->why()->str(), HasSubstr("connecting: the node's limit of 2 queue pairs at once"));
  EXPECT_EQ(rdma->counters().lanes_refused, 1u);

  // Turns end with the answer: the next client gets them.
  first.reset();
  const auto next = greet();
  RawSide other(fake, kBytes);
  connect_lanes(*next, other, 2);
  std::vector<Result<VerbsNode::ConnectTurn, Failure>> all;
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(all.emplace_back(rdma->take_connect_turn()));
  EXPECT_FALSE(rdma->take_connect_turn());
}

}  // namespace
}  // namespace kv
