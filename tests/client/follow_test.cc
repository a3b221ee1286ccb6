// A client whose nodes belong to a cluster: how it learns of the map, and what becomes of calls while that changes.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "client/core/client_core.h"
#include "tests/client/three_nodes.h"

namespace kv {
namespace {

constexpr std::uint32_t kExtentBlocks = 8;

class FollowTest : public ThreeNodesTest {
 protected:
  FollowTest() {
    config.backoff_min = 1ms;
    config.backoff_max = 10ms;
    config.nodes = {{.endpoint = "sim://a", .name = ""}};
  }
  static Member member(const std::string& id, const std::string& at = "") {
    Member made;
    made.id = id;
    made.endpoints = {"unix:///run/not-here", "sim://" + (at.empty() ? id : at)};
    return made;
  }
  /// All nodes that live know this from now on.
  void set_map(std::uint64_t epoch, std::vector<Member> members, std::uint32_t extent_blocks = kExtentBlocks) {
    for (auto& [name, node] : nodes) node->set_cluster({epoch, extent_blocks, members});
  }
  std::vector<std::string> ids() const {
    std::vector<std::string> ids;
    for (const ClusterStatus::Node& node : client->cluster().nodes) ids.push_back(node.id);
    return ids;
  }
  std::size_t match(std::span<const BlockHash> chain) { return ThreeNodesTest::match(chain).block_count; }
  /// Where each block of the chain belongs by a map that this test makes itself.
  std::map<std::string, std::size_t> owned(std::span<const BlockHash> chain,
                                           const std::vector<std::string>& ids) const {
    std::vector<ClusterMap::Node> names;
    for (const std::string& id : ids) names.push_back({id, 1.0});
    std::map<std::string, std::size_t> owned;
    for (const ClusterMap::Extent& extent : ClusterMap(names, kExtentBlocks).extents(chain))
      owned[ids[extent.node]] += extent.end - extent.begin;
    return owned;
  }
  std::map<std::string, std::size_t> held() const {
    std::map<std::string, std::size_t> held;
    for (const auto& [name, node] : nodes) {
      if (node->stats().block_count > 0) held[name] = node->stats().block_count;
    }
    return held;
  }
  std::vector<BlockHash> chain(std::uint32_t seed = 1, std::size_t block_count = 200) const {
    return test_chain(record, block_count, seed);
  }
};

TEST_F(FollowTest, OneAddressIsEnoughAndBlocksLieByTheIdsOfTheMap) {
  set_map(5, {member("a"), member("b"), member("c")});
  start_client();
  EXPECT_EQ(client->cluster().epoch, 5u) << "once a namespace is open";
  EXPECT_EQ(ids(), (std::vector<std::string>{"a", "b", "c"}));
  ASSERT_EQ(client->nodes().size(), 3u);
  EXPECT_EQ(client->nodes()[1].endpoint, "sim://b") << "a Unix socket may be another node's";
  const auto blocks = chain();
  EXPECT_EQ(put(blocks).stored, blocks.size());
  EXPECT_EQ(held(), owned(blocks, {"a", "b", "c"}));
  config.nodes[0].endpoint = "sim://c";  // another client, told of another node
  start_client();
  EXPECT_EQ(match(blocks), blocks.size());
  EXPECT_EQ(get(blocks), blocks.size());
}

TEST_F(FollowTest, ANodeOfNoClusterIsAListOfOne) {
  start_client();
  EXPECT_EQ(client->cluster().epoch, 0u);
  EXPECT_TRUE(client->cluster().nodes.empty());
  const auto blocks = chain();
  EXPECT_EQ(put(blocks).stored, blocks.size());
  EXPECT_EQ(held(), (std::map<std::string, std::size_t>{{"a", blocks.size()}}));
  set_map(5, {member("a"), member("b")});  // it joins one later
  EXPECT_EQ(match(chain(2)), 0u);
  loop.run_for(1s);
  EXPECT_EQ(ids(), (std::vector<std::string>{"a", "b"}));
}

TEST_F(FollowTest, AClientMayBeToldNotToFollow) {
  set_map(5, {member("a"), member("b"), member("c")});
  config.follow_cluster = false;
  start_client();
  EXPECT_EQ(match(chain()), 0u);
  loop.run_for(1s);
  EXPECT_EQ(client->cluster().epoch, 0u);
  EXPECT_EQ(client->nodes().size(), 1u);
}

// Clients refresh the map when an answer carries a newer epoch. Here: any first answer, and no call fails.
TEST_F(FollowTest, EachKindOfAnswerTellsOfAChange) {
  set_map(5, {member("a"), member("b")});
  start_client();
  const auto blocks = chain();
  ASSERT_EQ(put(blocks).stored, blocks.size());
  std::uint64_t epoch = 5;
  const auto becomes_known = [&](const char* how, const auto& call) {
    set_map(++epoch, {member("a"), member("b"), member("c")});
    call();
    loop.run_for(10ms);
    EXPECT_EQ(client->cluster().epoch, epoch) << how;
  };
  becomes_known("match", [&] { EXPECT_EQ(match(blocks), blocks.size()); });
  becomes_known("put", [&] { EXPECT_EQ(put(blocks).refused, 0u); });
  becomes_known("hello", [&] {
    network.kill("b");
    network.revive("b");
    nodes["b"]->kill();
    nodes["b"]->start();
    nodes["b"]->set_cluster({epoch, kExtentBlocks, {member("a"), member("b"), member("c")}});
    nodes["a"]->set_cluster({epoch - 1, kExtentBlocks, {}});
    nodes["c"]->set_cluster({epoch - 1, kExtentBlocks, {}});
    for (int i = 0; i < 10; ++i) (void)loop.run(client->ping(100ms));
  });
  const auto set_record =
      NamespaceRecord::from_fields({{"model", "m"}, {"kind", "set"}, {"block_bytes_max", "4096"}}).value();
  const Space set = loop.run(client->open(set_record, 5s)).value();
  becomes_known("set match", [&] { ASSERT_TRUE(loop.run(client->match_set(set, blocks, {.deadline = 5s}))); });
}

TEST_F(FollowTest, CallsThatRunWhileTheMapChangesEndAsTheyBegan) {
  set_map(5, {member("a"), member("b")});
  start_client();
  std::mt19937_64 random(7);
  for (std::uint64_t epoch = 6; epoch < 40; ++epoch) {
    const auto blocks = chain(static_cast<std::uint32_t>(epoch), 300);
    std::vector<Member> members = {member("a"), member("b"), member("c")};
    members.erase(members.begin() + static_cast<std::ptrdiff_t>(random() % 3));
    std::optional<PutResult> result;
    Blocks memory(blocks.size(), kBlockBytes);
    memory.fill(blocks);
    asio::co_spawn(loop.context(), client->put(space, blocks, memory.from, {.deadline = 5s}),
                   [&](std::exception_ptr error, Result<PutResult> put) {
                     if (error) std::rethrow_exception(error);
                     result = put.value();
                   });
    loop.run_for(std::chrono::microseconds(random() % 2000));
    set_map(epoch, members);
    loop.run_until([&] { return result.has_value(); });
    EXPECT_EQ(result->stored, blocks.size()) << result->why.message();
    const auto found = loop.run(client->match(space, blocks, {.deadline = 5s}));
    ASSERT_TRUE(found);
    EXPECT_FALSE(found->why) << found->why.message();
    get(blocks);  // fewer perhaps, since they moved; none wrong
    loop.run_for(1s);
    EXPECT_EQ(client->cluster().epoch, epoch);
  }
}

/// To a node each extent is a chain of its own: so it is found there whatever else of the chain has moved.
TEST_F(FollowTest, AChangeOfTheMapLeavesAloneWhatItDoesNotMove) {
  set_map(5, {member("a"), member("b"), member("c")});
  start_client();
  const auto blocks = chain(1, 1000);
  ASSERT_EQ(put(blocks).stored, blocks.size());
  start_node("d");
  set_map(6, {member("a"), member("b"), member("c"), member("d")});
  match(blocks);
  loop.run_for(10ms);
  const std::size_t moved = owned(blocks, {"a", "b", "c", "d"})["d"];
  ASSERT_GT(moved, 100u);
  const PutResult again = put(blocks);
  EXPECT_EQ(again.stored, moved);
  EXPECT_EQ(again.already_stored, blocks.size() - moved);
  EXPECT_EQ(get(blocks), blocks.size());
  set_map(7, {member("a"), member("b"), member("c")});  // it has gone, and what was there before is there still
  match(blocks);
  loop.run_for(10ms);
  EXPECT_EQ(get(blocks), blocks.size());
}

TEST_F(FollowTest, AClusterOfOneNodePlacesAsALargerOneWould) {
  set_map(5, {member("a")});
  start_client();
  const auto blocks = chain(1, 300);
  ASSERT_EQ(put(blocks).stored, blocks.size());
  EXPECT_EQ(match(blocks), blocks.size());
  set_map(6, {member("a"), member("b")});
  match(blocks);
  loop.run_for(10ms);
  const std::size_t moved = owned(blocks, {"a", "b"})["b"];
  ASSERT_GT(moved, 50u);
  EXPECT_EQ(put(blocks).stored, moved);
  set_map(7, {member("a")});
  match(blocks);
  loop.run_for(10ms);
  EXPECT_EQ(get(blocks), blocks.size());
}

TEST_F(FollowTest, NothingIsPlacedOnANodeThatDrainsAndItIsStillAsked) {
  Member draining = member("b");
  set_map(5, {member("a"), member("b"), member("c")});
  start_client();
  draining.state = Member::State::kDraining;
  set_map(6, {member("a"), draining, member("c")});
  match(chain(9));
  loop.run_for(10ms);
  const auto blocks = chain();
  ASSERT_EQ(put(blocks).stored, blocks.size());
  EXPECT_EQ(held(), owned(blocks, {"a", "c"}));
  EXPECT_EQ(client->nodes().size(), 3u);
  EXPECT_FALSE(client->cluster().nodes[1].is_serving);
}

TEST_F(FollowTest, ANodeThatLeftIsNotAskedAndItsPlaceIsTakenByTheNext) {
  set_map(5, {member("a"), member("b"), member("c")});
  start_client();
  nodes["b"]->kill();
  set_map(6, {member("a"), member("c")});
  match(chain(9));
  loop.run_for(1s);
  EXPECT_EQ(ids(), (std::vector<std::string>{"a", "c"}));
  for (const NodeStatus& node : client->nodes()) EXPECT_NE(node.node_id, "b");
  const auto blocks = chain();
  ASSERT_EQ(put(blocks).stored, blocks.size());
  for (std::uint64_t epoch = 7; epoch < 200; ++epoch) {  // as in a cluster whose nodes get new names
    const std::string name = "n" + std::to_string(epoch);
    start_node(name);
    set_map(epoch, {member("a"), member("c"), member(name)});
    // Other chains each time: what many matches begin with moves, and the node that left answers nothing.
    for (std::uint32_t i = 0; i < 20 && client->cluster().epoch < epoch; ++i) {
      match(chain(static_cast<std::uint32_t>(100 * epoch) + i));
      loop.run_for(10ms);
    }
    ASSERT_EQ(ids(), (std::vector<std::string>{"a", "c", name}));
    nodes.erase(name);
  }
  set_map(200, {member("a"), member("c")});
  for (std::uint32_t i = 0; i < 20 && client->cluster().epoch < 200; ++i) match(chain(i));
  loop.run_for(1s);
  EXPECT_EQ(match(blocks), blocks.size()) << "what lies by the same owners is found again";
}

// A stale map costs misses and can do no harm.
TEST_F(FollowTest, ADeadNodeCostsItsOwnExtentsUntilTheMapSaysSoAndThenItsExtentsLieElsewhere) {
  set_map(5, {member("a"), member("b"), member("c")});
  start_client();
  const auto blocks = chain();
  ASSERT_EQ(put(blocks).stored, blocks.size());
  nodes["b"]->kill();
  for (int i = 0; i < 20; ++i) (void)loop.run(client->ping(50ms));
  EXPECT_LT(match(blocks), blocks.size());
  set_map(6, {member("a"), member("c")});
  match(blocks);
  loop.run_for(10ms);
  EXPECT_EQ(put(blocks).refused, 0u);
  EXPECT_EQ(match(blocks), blocks.size());
  EXPECT_EQ(get(blocks), blocks.size());
}

TEST_F(FollowTest, AnotherNodeAtAMembersAddressIsNotTakenForIt) {
  set_map(5, {member("a"), member("x", "b")});
  start_client();
  EXPECT_EQ(ids(), (std::vector<std::string>{"a", "x"}));
  for (int i = 0; i < 5; ++i) (void)loop.run(client->ping(100ms));
  ASSERT_EQ(client->nodes().size(), 2u);
  EXPECT_FALSE(client->nodes()[1].connected);
  EXPECT_NE(client->nodes()[1].last_error_text.find("node 'b' answers there, not 'x'"), std::string::npos)
      << client->nodes()[1].last_error_text;
}

TEST_F(FollowTest, AClientWhoseNodesHaveAllMovedFindsTheClusterWhereItFoundItFirst) {
  set_map(5, {member("b"), member("c")});  // the address that it has is no member: a load balancer, say
  start_client();
  EXPECT_EQ(ids(), (std::vector<std::string>{"b", "c"}));
  nodes["b"]->kill();
  nodes["c"]->kill();
  start_node("d");
  set_map(6, {member("d")});
  for (int i = 0; i < 20 && client->cluster().epoch < 6; ++i) {
    (void)match(chain());
    loop.run_for(500ms);
  }
  EXPECT_EQ(ids(), (std::vector<std::string>{"d"}));
  EXPECT_EQ(put(chain()).stored, chain().size());
}

TEST_F(FollowTest, AClusterThatDrainsAltogetherGoesOn) {
  set_map(5, {member("a"), member("b")});
  start_client();
  Member draining_a = member("a"), draining_b = member("b");
  draining_a.state = draining_b.state = Member::State::kDraining;
  set_map(6, {draining_a, draining_b});
  match(chain(9));
  loop.run_for(10ms);
  EXPECT_EQ(client->cluster().epoch, 6u);
  const auto blocks = chain();
  EXPECT_EQ(put(blocks).stored, blocks.size());
  EXPECT_EQ(held(), owned(blocks, {"a", "b"}));
}

TEST_F(FollowTest, AMapThatIsNoneIsNotTaken) {
  set_map(5, {member("a"), member("b")});
  start_client();
  set_map(6, {});
  match(chain());
  loop.run_for(10ms);
  EXPECT_EQ(client->cluster().epoch, 5u);
  const std::vector<NodeStatus> told = client->nodes();
  EXPECT_TRUE(std::ranges::any_of(told, [](const NodeStatus& node) {
    return node.last_error_text.find("cluster_map: an epoch without nodes") != std::string::npos;
  }));
}

TEST_F(FollowTest, AnEarlierEpochIsOlderWhoeverTellsIt) {
  set_map(5, {member("a"), member("b"), member("c")});
  start_client();
  nodes["b"]->set_cluster({4, kExtentBlocks, {member("b")}});
  for (const char* const name : {"a", "c"}) nodes[name]->set_cluster({7, kExtentBlocks, {member("a"), member("c")}});
  for (std::uint32_t seed = 1; seed < 10; ++seed) match(chain(seed));
  loop.run_for(10ms);
  EXPECT_EQ(client->cluster().epoch, 7u);
  EXPECT_EQ(ids(), (std::vector<std::string>{"a", "c"}));
}

TEST_F(FollowTest, ATokenGoesToNoNodeThatAMapAloneNames) {
  set_map(5, {member("a"), member("b"), member("c")});
  config.token = Secret("a-token-that-is-long-enough-for-a-test");
  config.nodes.push_back({.endpoint = "sim://b", .name = ""});
  start_client();
  ASSERT_EQ(ids(), (std::vector<std::string>{"a", "b", "c"}));
  for (int i = 0; i < 5; ++i) (void)loop.run(client->ping(100ms));
  for (const NodeStatus& node : client->nodes()) {
    EXPECT_EQ(node.connected, node.name != "c") << node.name;
    if (node.connected) continue;
    EXPECT_EQ(node.last_error, TlsErrc::kNotNamed) << node.last_error_text;
  }
}

/// What it does while a node lies: asks, for so long.
constexpr int kAskedWhileLying = 40;

TEST_F(FollowTest, ANodeThatNamesItselfAloneGetsNoMoreThanItsShare) {
  for (const bool is_static : {false, true}) {
    SCOPED_TRACE(is_static);
    for (const std::uint64_t epoch : {std::uint64_t{6}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
      config.nodes.clear();
      for (const char* const name : {"a", "b", "c"})
        config.nodes.push_back({.endpoint = std::string("sim://") + name, .name = name});
      config.extent_blocks = kExtentBlocks;
      if (is_static) {
        for (auto& [name, node] : nodes) node->set_cluster({});
      } else {
        set_map(5, {member("a"), member("b"), member("c")});
      }
      nodes["a"]->set_cluster({epoch, kExtentBlocks, {member("a")}});
      start_client();
      for (int i = 0; i < kAskedWhileLying; ++i) {
        match(chain(static_cast<std::uint32_t>(i)));
        loop.run_for(500ms);
      }
      EXPECT_EQ(client->cluster().epoch, is_static ? 0u : 5u);
      const auto blocks = chain(5000 + static_cast<std::uint32_t>(epoch % 1000) + 1000 * is_static);
      const auto before = held();
      ASSERT_EQ(put(blocks).stored, blocks.size());
      auto gained = held();
      for (const auto& [name, count] : before) gained[name] -= count;
      std::erase_if(gained, [](const auto& each) { return each.second == 0; });
      EXPECT_EQ(gained, owned(blocks, {"a", "b", "c"}));
      EXPECT_EQ(get(blocks), blocks.size());
    }
  }
}

TEST_F(FollowTest, AClientThatMetTheLiarAloneComesBackWhenOthersAnswer) {
  for (const char* const name : {"b", "c"}) {
    config.nodes.push_back({.endpoint = std::string("sim://") + name, .name = ""});
    nodes[name]->kill();
  }
  nodes["a"]->set_cluster({std::uint64_t{1} << 50, kExtentBlocks, {member("a")}});
  start_client();
  for (int i = 0; i < kAskedWhileLying && client->cluster().epoch == 0; ++i) {
    match(chain(static_cast<std::uint32_t>(i)));
    loop.run_for(100ms);
  }
  ASSERT_EQ(ids(), (std::vector<std::string>{"a"})) << "it was the only one that answered";
  for (const char* const name : {"b", "c"}) {
    nodes[name]->start();
    nodes[name]->set_cluster({5, kExtentBlocks, {member("a"), member("b"), member("c")}});
  }
  for (int i = 0; i < 200 && client->cluster().epoch != 5; ++i) {
    match(chain(static_cast<std::uint32_t>(i)));
    loop.run_for(500ms);
  }
  EXPECT_EQ(ids(), (std::vector<std::string>{"a", "b", "c"})) << "though it still lies";
}

}  // namespace
}  // namespace kv
