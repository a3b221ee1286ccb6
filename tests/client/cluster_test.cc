// Several simulated nodes and chains of many extents: who is asked, what is found, and what is left when a node dies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>
#include <random>

#include "client/core/client_core.h"
#include "tests/client/real_nodes.h"
#include "tests/fakes/virtual_clock.h"

namespace kv {
namespace {

constexpr std::size_t kNodes = 8, kClusterExtentBlocks = 8, kBlockBytes = 64;

class ClusterTest : public testing::Test {
 protected:
  ClusterTest() {
    StoreConfig store;
    store.arena.capacity_bytes = 4 << 20;
    store.arena.granule_bytes = 4096;
    store.arena.huge_pages = false;
    store.arena.touch = false;
    store.lease_count_per_session_max = 16;
    for (std::size_t i = 0; i < kNodes; ++i) {
      const std::string name = "node" + std::to_string(i);
      nodes.push_back(std::make_unique<sim::SimNode>(loop.context(), network, clock, name, store));
      config.nodes.push_back({.endpoint = "sim://" + name, .name = name});
      names.push_back({name, 1.0});
    }
    config.extent_blocks = kClusterExtentBlocks;
    config.connections_per_node = 1;
    map.emplace(names, kClusterExtentBlocks);
    client = make_client();
    space = loop.run(client->open(record, 5s)).value();
    loop.run(client->wait_open(space, 5s)).value();
    loop.run(client->ping(5s)).value();  // every node is connected
  }
  ~ClusterTest() override {
    client.reset();
    nodes.clear();
    loop.drain();
  }

  std::unique_ptr<Client> make_client() {
    return std::make_unique<Client>(loop.context().get_executor(), config, network, clock);
  }
  /// Another one with each call. One of 400 blocks needs all three rounds of a match, one of less than 32 a single one.
  std::vector<BlockHash> long_chain(std::size_t block_count = 400) {
    for (std::uint32_t seed = next_seed_;; ++seed) {
      auto chain = test_chain(record, block_count, seed);
      const auto extents = map->extents(chain);
      if (block_count < 32 && extents.size() > 4) continue;
      if (block_count >= 400 && (extents.size() < 34 || extents[0].node == extents[5].node)) continue;
      next_seed_ = seed + 1;
      return chain;
    }
  }
  void put(std::span<const BlockHash> chain) {
    Blocks memory(chain.size(), kBlockBytes);
    memory.fill(chain);
    const PutResult put = loop.run(client->put(space, chain, memory.from, {.deadline = 5s})).value();
    ASSERT_EQ(put.stored + put.already_stored, chain.size()) << put.why.message();
  }
  GetResult get(std::span<const BlockHash> chain, Lease lease = {}) {
    Blocks memory(chain.size(), kBlockBytes);
    memory.clear();
    const GetResult got = loop.run(client->get(space, chain, memory.to, {.deadline = 5s, .lease = lease})).value();
    EXPECT_GE(memory.right(chain), got.block_count) << "a wrong byte";
    return got;
  }
  std::size_t match(std::span<const BlockHash> chain) {
    return loop.run(client->match(space, chain, {.deadline = 5s}))->block_count;
  }
  /// Calls since the last look, by node.
  std::vector<std::uint64_t> calls() {
    std::vector<std::uint64_t> counts;
    for (const NodeStatus& node : client->nodes()) counts.push_back(node.calls);
    std::vector<std::uint64_t> since = counts;
    for (std::size_t i = 0; i < seen_.size(); ++i) since[i] -= seen_[i];
    seen_ = counts;
    return since;
  }
  /// For each node, how many of the chain's first `extent_count` extents it owns: each is a request of its own.
  std::vector<std::uint64_t> owners_of(std::span<const BlockHash> chain, std::size_t extent_count) const {
    std::vector<std::uint64_t> owners(kNodes, 0);
    const auto extents = map->extents(chain);
    for (std::size_t i = 0; i < std::min(extent_count, extents.size()); ++i) ++owners[extents[i].node];
    return owners;
  }
  std::size_t lease_count() const {
    std::size_t count = 0;
    for (const auto& node : nodes) count += node->stats().lease_count;
    return count;
  }
  void wait_for_leases(std::size_t expected) {
    for (int i = 0; i < 100 && lease_count() != expected; ++i) loop.run(client->ping(5s)).value();
    EXPECT_EQ(lease_count(), expected);
  }
  /// Until the client has noticed.
  void kill(std::size_t node) {
    nodes[node]->kill();
    for (int i = 0; i < 20 && client->nodes()[node].connected; ++i) (void)loop.run(client->ping(50ms));
    ASSERT_FALSE(client->nodes()[node].connected);
  }

  VirtualClock clock;
  SimNetwork network{clock, 1};
  Loop loop{&clock};
  const NamespaceRecord record = test_record(kBlockBytes);
  ClientConfig config = repeatable_config();
  std::vector<ClusterMap::Node> names;
  std::optional<ClusterMap> map;
  std::vector<std::unique_ptr<sim::SimNode>> nodes;
  std::unique_ptr<Client> client;
  Space space{};

 private:
  std::uint32_t next_seed_ = 1;
  std::vector<std::uint64_t> seen_;
};

TEST_F(ClusterTest, AChainOfManyExtentsIsPutMatchedAndGotAcrossItsOwners) {
  const auto chain = long_chain();
  put(chain);
  std::vector<std::size_t> due(kNodes), there;
  for (const ClusterMap::Extent& extent : map->extents(chain)) due[extent.node] += extent.end - extent.begin;
  for (const auto& node : nodes) there.push_back(node->stats().block_count);
  EXPECT_EQ(there, due) << "each node holds its extents, whose chain begins on other nodes";
  EXPECT_EQ(match(chain), chain.size());
  EXPECT_EQ(get(chain).block_count, chain.size());

  client = make_client();  // another process, that knows nothing but the list
  space = loop.run(client->open(record, 5s)).value();
  EXPECT_EQ(match(chain), chain.size());
  EXPECT_EQ(get(chain).block_count, chain.size());
}

TEST_F(ClusterTest, ABlockHasTheSameOwnerInEveryCallHoweverMuchOfTheChainIsGiven) {
  const auto chain = long_chain();
  put(std::span(chain).first(100));
  put(std::span(chain).first(170));
  put(chain);
  std::size_t block_count = 0;
  for (const auto& node : nodes) block_count += node->stats().block_count;
  EXPECT_EQ(block_count, chain.size()) << "some block lies on two nodes";
  for (const std::size_t count : {1, 9, 63, 170, 333, 400}) {
    const std::span<const BlockHash> prefix = std::span(chain).first(count);
    EXPECT_EQ(match(prefix), count);
    EXPECT_EQ(get(prefix).block_count, count);
    EXPECT_EQ(loop.run(client->touch(space, prefix, 5s)).value(), count);
    EXPECT_EQ(loop.run(client->retain(space, prefix, 5s)).value(), count);
    EXPECT_EQ(loop.run(client->unretain(space, prefix, 5s)).value(), count);
  }
  EXPECT_GE(loop.run(client->drop(space, std::span(chain).first(201), 5s)).value().block_count, 1u);
  EXPECT_EQ(match(chain), 200u);
  EXPECT_EQ(get(chain).block_count, 200u);
}

TEST_F(ClusterTest, AMissAsksTheOwnersOfTheFirstExtentsOnly) {
  const auto chain = long_chain();
  calls();
  EXPECT_EQ(match(chain), 0u);
  EXPECT_EQ(calls(), owners_of(chain, 4));
}

TEST_F(ClusterTest, APromptOfAFewExtentsIsOneRequestForEachOfThem) {
  for (const std::size_t block_count : {1, 8, 16}) {
    const auto chain = long_chain(block_count);
    ASSERT_LE(map->extents(chain).size(), 4u);
    put(chain);
    calls();
    EXPECT_EQ(match(chain), block_count);
    EXPECT_EQ(calls(), owners_of(chain, 4));
  }
}

TEST_F(ClusterTest, ALongHitTakesThreeRoundsAndAGapEndsThem) {
  const auto chain = long_chain();
  const auto extents = map->extents(chain);
  put(std::span(chain).first(extents[10].end));
  calls();
  EXPECT_EQ(match(chain), extents[10].end);
  EXPECT_EQ(calls(), owners_of(chain, 32)) << "the third round was not due";
  put(chain);
  calls();
  EXPECT_EQ(match(chain), chain.size());
  EXPECT_EQ(calls(), owners_of(chain, extents.size())) << "each extent is asked for once";
}

TEST_F(ClusterTest, AGetGoesToTheOwnersOfWhatWasFound) {
  const auto chain = long_chain();
  const std::size_t stored = map->extents(chain)[1].end;
  put(std::span(chain).first(stored));
  const std::size_t found = match(chain);
  ASSERT_EQ(found, stored);
  calls();
  EXPECT_EQ(get(std::span(chain).first(found)).block_count, found);
  EXPECT_EQ(calls(), owners_of(chain, 2));
}

TEST_F(ClusterTest, AMatchOfSeveralRoundsLeavesOneLeaseForEachExtentThatTheGetEnds) {
  const auto chain = long_chain();
  put(chain);
  MatchResult match = loop.run(client->match(space, chain, {.deadline = 5s, .lease = true})).value();
  EXPECT_EQ(match.block_count, chain.size());
  EXPECT_FALSE(match.why) << match.why.message();
  const auto owners = owners_of(chain, chain.size());
  const auto owner_count = std::accumulate(owners.begin(), owners.end(), std::uint64_t{0});
  wait_for_leases(owner_count);
  std::size_t pinned = 0;
  for (const auto& node : nodes) pinned += node->stats().pinned_count;
  EXPECT_EQ(pinned, owner_count) << "the end of each extent is pinned, and so all of it";
  EXPECT_EQ(get(chain, match.lease).block_count, chain.size());
  wait_for_leases(0);

  match = loop.run(client->match(space, chain, {.deadline = 5s, .lease = true})).value();
  wait_for_leases(owner_count);
  client->release(match.lease);
  wait_for_leases(0);
}

TEST_F(ClusterTest, AGetEndsTheLeaseOnNodesThatItNeedNotAskToo) {
  const auto chain = long_chain();
  const auto extents = map->extents(chain);
  put(chain);
  // A gap in the second extent: the owners of those behind it grant leases all the same.
  ASSERT_TRUE(loop.run(client->drop(space, std::span(chain).first(extents[1].end), 5s)));
  const MatchResult match = loop.run(client->match(space, chain, {.deadline = 5s, .lease = true})).value();
  ASSERT_GE(match.block_count, extents[0].end);
  const auto found = std::span(chain).first(match.block_count);
  const auto owners = owners_of(chain, 4), asked = owners_of(found, extents.size());
  ASSERT_GT(std::accumulate(owners.begin(), owners.end(), 0u), std::accumulate(asked.begin(), asked.end(), 0u));
  EXPECT_EQ(get(found, match.lease).block_count, found.size());
  wait_for_leases(0);
}

TEST_F(ClusterTest, ASetsGetEndsTheLeaseOnNodesThatItNeedNotAskToo) {
  const auto of_set =
      NamespaceRecord::from_fields({{"model", "m"}, {"kind", "set"}, {"block_bytes_max", "64"}}).value();
  const Space set = loop.run(client->open(of_set, 5s)).value();
  const auto hashes = long_chain(12);
  Blocks memory(hashes.size(), kBlockBytes);
  memory.fill(hashes);
  ASSERT_EQ(loop.run(client->put_set(set, hashes, memory.from, {.deadline = 5s}))->stored, hashes.size());
  const auto match = loop.run(client->match_set(set, hashes, {.deadline = 5s, .lease = true})).value();
  EXPECT_EQ(lease_count(), hashes.size());
  const auto one = std::span(hashes).first(1);
  const auto got =
      loop.run(client->get_set(set, one, std::span(memory.to).first(1), {.deadline = 5s, .lease = match.lease}));
  EXPECT_EQ(got->landed_count, 1u);
  wait_for_leases(0);
}

TEST_F(ClusterTest, WhatAnEarlierRoundFoundStaysFoundIfALaterOneFails) {
  const auto chain = long_chain();
  const auto extents = map->extents(chain);
  put(chain);
  Result<MatchResult> result(MatchResult{});
  bool is_over = false;
  calls();
  asio::co_spawn(loop.context(), client->match(space, chain, {.deadline = 100ms, .lease = true}),
                 [&](std::exception_ptr, Result<MatchResult> value) {
                   result = std::move(value);
                   is_over = true;
                 });
  std::uint64_t asked = 0;
  const auto owners = owners_of(chain, 4);
  const auto first_round = std::accumulate(owners.begin(), owners.end(), std::uint64_t{0});
  loop.run_until([&] {
    for (const std::uint64_t count : calls()) asked += count;
    return asked > first_round;
  });
  for (const auto& node : nodes) network.freeze(node->name());
  loop.run_until([&] { return is_over; });
  EXPECT_EQ(result->block_count, extents[3].end);
  EXPECT_EQ(result->why, asio::error::timed_out);
  EXPECT_NE(result->lease, Lease{});
  for (const auto& node : nodes) network.thaw(node->name());
}

TEST_F(ClusterTest, ACancelEndsAMatchInAnyRound) {
  const auto chain = long_chain();
  put(chain);
  for (std::size_t steps = 0;; ++steps) {
    Cancellation cancellation;
    bool is_over = false;
    MatchOptions options{.deadline = 5s};
    options.control.cancellation = &cancellation;
    Result<MatchResult> result(MatchResult{});
    asio::co_spawn(loop.context(), client->match(space, chain, options),
                   [&](std::exception_ptr, Result<MatchResult> value) {
                     result = std::move(value);
                     is_over = true;
                   });
    for (std::size_t i = 0; i < steps && !is_over; ++i) {
      loop.context().restart();
      if (loop.context().poll_one() == 0) clock.advance_to(clock.next_alarm());
    }
    const bool was_over = is_over;
    const TimePoint began = clock.now();
    cancellation.cancel();
    loop.run_until([&] { return is_over; });
    if (was_over) break;
    EXPECT_EQ(clock.now(), began) << "it went on";
    ASSERT_TRUE(!result || result->block_count == chain.size() || result->why == Errc::kCancelled);
  }
}

/// For each node in turn: what lies before its first extent is a hit, the rest a miss, and no byte is wrong.
TEST_F(ClusterTest, ADeadNodeTakesWhatLiesFromItsFirstExtentOnAndNothingElse) {
  std::vector<std::vector<BlockHash>> chains;
  for (int i = 0; i < 6; ++i) {
    chains.push_back(long_chain(i < 3 ? 400 : 60));
    put(chains.back());
  }
  for (std::size_t dead = 0; dead < kNodes; ++dead) {
    kill(dead);
    for (const auto& chain : chains) {
      std::size_t before = chain.size();
      for (const ClusterMap::Extent& extent : map->extents(chain)) {
        if (extent.node == dead) before = std::min(before, extent.begin);
      }
      const MatchResult match = loop.run(client->match(space, chain, {.deadline = 5s})).value();
      EXPECT_EQ(match.block_count, before);
      EXPECT_EQ(match.why == Errc::kUnavailable, before < chain.size()) << match.why.message();
      const TimePoint began = clock.now();
      const GetResult got = get(chain);
      EXPECT_EQ(got.block_count, before);
      EXPECT_EQ(got.why == Errc::kUnavailable, before < chain.size()) << got.why.message();
      EXPECT_LT(clock.now() - began, 1s) << "a node that is known to be dead was waited for";
      // A put stores what the others own; it counts the dead one's part as refused.
      Blocks memory(chain.size(), kBlockBytes);
      memory.fill(chain);
      const PutResult put = loop.run(client->put(space, chain, memory.from, {.deadline = 5s})).value();
      std::size_t lost = 0;
      for (const ClusterMap::Extent& extent : map->extents(chain)) {
        if (extent.node == dead) lost += extent.end - extent.begin;
      }
      EXPECT_EQ(put.refused, lost);
      EXPECT_EQ(put.already_stored, chain.size() - lost);
    }
    nodes[dead]->start();  // empty
    loop.run_for(10s);
    for (int i = 0; i < 20; ++i) (void)loop.run(client->ping(1s));
    for (const auto& chain : chains) put(chain);
  }
}

/// A mistake of an operator, or an upgrade half done: two rules at once cost hits, and never a byte.
TEST_F(ClusterTest, ClientsWithAnotherRuleFindLessAndNeverAWrongByte) {
  const auto chain = long_chain();
  put(chain);
  for (const std::size_t extent_blocks : {1, 4, 256}) {
    config.extent_blocks = extent_blocks;
    client = make_client();
    space = loop.run(client->open(record, 5s)).value();
    loop.run(client->ping(5s)).value();
    EXPECT_LT(match(chain), chain.size());
    EXPECT_LT(get(chain).block_count, chain.size());
    put(chain);
    EXPECT_EQ(get(chain).block_count, chain.size());
  }
  config.extent_blocks = kClusterExtentBlocks;
  client = make_client();
  space = loop.run(client->open(record, 5s)).value();
  EXPECT_EQ(get(chain).block_count, chain.size()) << "what others put disturbs nobody";
}

// -- the hot root

/// Prompts that begin alike, as many as make their beginning hot.
class HotRootTest : public ClusterTest {
 protected:
  static constexpr std::size_t kRootBlocks = 20, kOwnBlocks = 6;

  /// A prompt that nobody had before. All of it is one extent, with a hot root and without: so its place depends on the
  /// block behind the root alone, or on the first block of all. These are two nodes.
  std::vector<BlockHash> prompt() {
    for (;;) {
      auto chain = root;
      const auto own = test_chain(record, kOwnBlocks, ++last_seed_);
      chain.insert(chain.end(), own.begin(), own.end());
      const bool is_one = map->extents(chain).size() == 1 && map->extents(chain, kRootBlocks).size() == 1;
      if (is_one && owner(chain) != old_owner()) return chain;
    }
  }
  std::size_t owner(std::span<const BlockHash> chain) const { return map->extents(chain, kRootBlocks).front().node; }
  std::size_t old_owner() const { return map->extents(root).front().node; }
  /// As a worker has it: look it up, get it, put what is missing.
  void serve(std::span<const BlockHash> chain) {
    const std::size_t found = match(chain);
    if (found > 0) get(chain.first(found));
    put(chain);
  }
  void heat(std::size_t count = 100) {
    for (std::size_t i = 0; i < count; ++i) serve(prompt());
  }
  std::vector<std::size_t> block_counts() const {
    std::vector<std::size_t> counts;
    for (const auto& node : nodes) counts.push_back(node->stats().block_count);
    return counts;
  }
  void another_client() {
    client = make_client();
    space = loop.run(client->open(record, 5s)).value();
    loop.run(client->ping(5s)).value();
  }

  /// Without a cut, so that before it is hot all is one extent on the owner of its first block.
  const std::vector<BlockHash> root = [this] {
    for (std::uint32_t seed = 1'000'000;; ++seed) {
      auto chain = test_chain(record, kRootBlocks, seed);
      if (map->extents(chain).size() == 1) return chain;
    }
  }();

 private:
  std::uint32_t last_seed_ = 2'000'000;
};

TEST_F(HotRootTest, PromptsThatBeginAlikeLieOnAllNodesOnceTheirBeginningIsHot) {
  heat(40);
  const auto before = block_counts();
  heat(300);
  auto stored = block_counts();
  for (std::size_t i = 0; i < stored.size(); ++i) {
    if (i == old_owner()) {
      EXPECT_EQ(stored[i], before[i]) << "it has its share from before";
    } else {
      EXPECT_GT(stored[i] - before[i], 20 * kOwnBlocks) << "prompts behind the root, on node " << i;
    }
  }
  for (const auto& node : nodes) EXPECT_EQ(node->hot_block_count(), kRootBlocks) << node->name();
  another_client();  // for this one nothing has changed, so it looks at no former place
  calls();
  const auto chain = prompt();
  EXPECT_EQ(match(chain), kRootBlocks) << "whoever is asked has the root";
  std::vector<std::uint64_t> asked(kNodes, 0);
  asked[owner(chain)] = 1;
  EXPECT_EQ(calls(), asked);
  EXPECT_EQ(get(std::span(chain).first(kRootBlocks)).block_count, kRootBlocks);
  EXPECT_EQ(calls(), asked) << "a root is got from whoever was found to have it";
}

TEST_F(HotRootTest, WhatWasStoredBeforeTheRootWasHotIsStillFound) {
  std::vector<std::vector<BlockHash>> early;
  for (int i = 0; i < 5; ++i) serve(early.emplace_back(prompt()));
  heat();
  for (const auto& chain : early) {
    ASSERT_NE(owner(chain), old_owner());
    EXPECT_EQ(match(chain), chain.size());
    EXPECT_EQ(get(chain).block_count, chain.size()) << "a get goes where the match was told";
    Lease lease = loop.run(client->match(space, chain, {.deadline = 5s, .lease = true}))->lease;
    EXPECT_EQ(get(chain, lease).block_count, chain.size());
  }
  wait_for_leases(0);
  // Put again, it lies where it belongs now.
  put(early[0]);
  nodes[old_owner()]->kill();
  EXPECT_EQ(match(early[0]), early[0].size());
  EXPECT_EQ(match(early[1]), kRootBlocks) << "the root is everywhere";
}

TEST_F(HotRootTest, WhatWasStoredBeforeTheRootWasHotIsFoundThoughAnotherPromptSharesMoreThanTheRoot) {
  const auto early = prompt();
  serve(early);
  heat();
  std::vector<BlockHash> later;
  for (std::uint32_t seed = 3'000'000; later.empty() || map->extents(later, kRootBlocks).size() > 1; ++seed) {
    later.assign(early.begin(), early.begin() + kRootBlocks + 2);
    const auto own = test_chain(record, 4, seed);
    later.insert(later.end(), own.begin(), own.end());
  }
  put(later);
  ASSERT_EQ(owner(later), owner(early));
  EXPECT_EQ(match(early), early.size()) << "two of its blocks came to the present place, the others did not";
  EXPECT_EQ(get(early).block_count, early.size());
  EXPECT_EQ(match(later), later.size());
}

TEST_F(HotRootTest, AnotherClientLearnsOfTheRootAsItOpensTheNamespace) {
  heat();
  std::vector<std::vector<BlockHash>> chains;
  for (int i = 0; i < 10; ++i) serve(chains.emplace_back(prompt()));
  another_client();
  calls();
  for (const auto& chain : chains) {
    EXPECT_EQ(match(chain), chain.size());
    EXPECT_EQ(get(chain).block_count, chain.size());
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t count : calls()) sum += count;
  EXPECT_EQ(sum, 2 * chains.size()) << "one node for each, and no look at a former place";
}

TEST_F(HotRootTest, AClientLearnsOfTheRootThoughTheOnlyNodeThatItWouldAskIsAway) {
  heat(200);
  const auto chain = prompt();
  serve(chain);
  nodes[old_owner()]->kill();
  another_client();
  (void)match(chain);
  loop.run(client->ping(5s)).value();
  EXPECT_EQ(match(chain), chain.size());
}

TEST_F(HotRootTest, ADeadNodeTakesThePromptsThatItHadAndTheRootIsGotElsewhere) {
  heat(200);
  std::vector<std::vector<BlockHash>> chains;
  for (int i = 0; i < 40; ++i) serve(chains.emplace_back(prompt()));
  kill(3);
  for (const auto& chain : chains) {
    const std::size_t expected = owner(chain) == 3 ? kRootBlocks : chain.size();
    const std::size_t found = match(chain);
    EXPECT_EQ(found, expected);
    EXPECT_EQ(get(std::span(chain).first(found)).block_count, found);
  }
}

TEST_F(HotRootTest, ADropReachesEveryCopyWhereverAChainLay) {
  const auto early = prompt();
  serve(early);
  heat(200);
  const auto chain = prompt();
  serve(chain);
  EXPECT_EQ(loop.run(client->drop(space, chain, 5s)).value().block_count, 1u);
  EXPECT_EQ(match(chain), chain.size() - 1);
  EXPECT_EQ(loop.run(client->drop(space, early, 5s)).value().block_count, 1u) << "it lies where it lay before";
  EXPECT_EQ(match(early), early.size() - 1);

  const auto in_root = std::span(root).first(5);
  EXPECT_GT(loop.run(client->drop(space, in_root, 5s)).value().block_count, kNodes * (kRootBlocks - 4));
  EXPECT_EQ(match(chain), 4u);
  EXPECT_EQ(match(early), 4u);
  EXPECT_EQ(block_counts(), std::vector<std::size_t>(kNodes, 4)) << "what hangs behind a root goes with it";
}

TEST_F(HotRootTest, RetainAndUnretainReachEveryCopy) {
  heat(200);
  const auto chain = prompt();
  serve(chain);
  EXPECT_EQ(loop.run(client->touch(space, chain, 5s)).value(), chain.size());
  EXPECT_EQ(loop.run(client->retain(space, chain, 5s)).value(), chain.size());
  for (std::size_t node = 0; node < kNodes; ++node) {
    const std::size_t blocks = node == owner(chain) ? chain.size() : kRootBlocks;
    EXPECT_EQ(nodes[node]->stats().pinned_count, blocks) << node;
  }
  another_client();  // it knows of no hot root, and gives up what others kept all the same
  loop.run(client->unretain(space, chain, 5s)).value();
  for (const auto& node : nodes) EXPECT_EQ(node->stats().pinned_count, 0u) << node->name();
}

TEST_F(HotRootTest, WhileANodeIsAwayUnretainAndDropFailAndReachAllOthers) {
  heat(200);
  const auto chain = prompt();
  serve(chain);
  ASSERT_EQ(loop.run(client->retain(space, chain, 5s)).value(), chain.size());
  const std::size_t away = owner(chain);
  kill(away);
  EXPECT_EQ(loop.run(client->unretain(space, chain, 5s)).error(), Errc::kUnavailable);
  EXPECT_EQ(loop.run(client->drop(space, std::span(root).first(5), 5s)).error(), Errc::kUnavailable);
  for (std::size_t node = 0; node < kNodes; ++node) {
    if (node == away) continue;
    EXPECT_EQ(nodes[node]->stats().pinned_count, 0u) << node;
    EXPECT_EQ(nodes[node]->stats().block_count, 4u) << node;
  }
}

TEST_F(HotRootTest, LeasesOfPlacesThatWereGivenUpEnd) {
  const auto early = prompt();
  serve(early);
  heat(200);
  for (int i = 0; i < 20; ++i) {
    const auto found = loop.run(client->match(space, early, {.deadline = 5s, .lease = true})).value();
    ASSERT_EQ(found.block_count, early.size());
    wait_for_leases(1);
    client->release(found.lease);
    wait_for_leases(0);
  }
}

TEST_F(HotRootTest, ClientsOfEveryAgeFindOneAnothersBlocksAndNeverAWrongByte) {
  const char* const text = std::getenv("KV_SEED");
  const std::uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device()();
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::vector<std::vector<BlockHash>> chains;
  std::vector<std::pair<std::unique_ptr<Client>, Space>> clients;
  std::size_t asked = 0, found = 0;
  for (int i = 0; i < 1200; ++i) {
    if (random() % 60 == 0 || clients.empty()) {
      auto fresh = make_client();
      const Space opened = loop.run(fresh->open(record, 5s)).value();
      clients.emplace_back(std::move(fresh), opened);
      if (clients.size() > 4) clients.erase(clients.begin());
    }
    auto& [one, opened] = clients[random() % clients.size()];
    std::swap(client, one);
    std::swap(space, opened);
    // The root is hot for a while, and then it is not.
    const bool is_root_used = i / 400 != 1;
    const auto chain = random() % 3 == 0 && !chains.empty()
                           ? chains[chains.size() - 1 - random() % std::min<std::size_t>(chains.size(), 20)]
                       : is_root_used ? prompt()
                                      : test_chain(record, 30, 5'000'000 + static_cast<std::uint32_t>(i));
    if (random() % 50 == 0) {
      const std::size_t length = 1 + random() % chain.size();
      loop.run(client->drop(space, std::span(chain).first(length), 5s)).value();
      EXPECT_LT(match(chain), length);
      std::erase_if(
          chains, [&](const auto& other) { return other.size() >= length && other[length - 1] == chain[length - 1]; });
    } else {
      const bool is_known = std::ranges::find(chains, chain) != chains.end();
      const std::size_t length = match(chain);
      asked += is_known;
      found += is_known && length == chain.size();
      if (length > 0) {
        EXPECT_EQ(get(std::span(chain).first(length)).block_count, length);
      }
      put(chain);
      EXPECT_EQ(match(chain), chain.size());
      if (!is_known) chains.push_back(chain);
    }
    std::swap(client, one);
    std::swap(space, opened);
  }
  clients.clear();
  EXPECT_GT(asked, 200u);
  EXPECT_GT(found * 10, asked * 8) << "of " << asked;
}

}  // namespace
}  // namespace kv
