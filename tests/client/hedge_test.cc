// A read that its node is late with is asked of the second node as well. Real nodes on the simulated network and
// virtual time. DESIGN 6, "reads turn to it when the first is dead or late".
#include "client/hedge/hedger.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>

#include "tests/client/real_nodes.h"

namespace kv {
namespace {

TEST(LatenciesTest, AQuantileIsAtMostAnEighthMoreThanTheTime) {
  std::mt19937_64 random(1);
  for (const double longest : {50.0, 3000.0, 1e7}) {
    Latencies latencies;
    std::vector<std::int64_t> times;
    for (int i = 0; i < 900; ++i) {
      times.push_back(std::uniform_int_distribution<std::int64_t>(1, static_cast<std::int64_t>(longest))(random));
      latencies.add(std::chrono::microseconds(times.back()));
    }
    std::ranges::sort(times);
    const auto p99 = std::chrono::duration_cast<std::chrono::microseconds>(*latencies.p99()).count();
    EXPECT_GE(p99, times[times.size() - 10]);
    EXPECT_LE(p99, times[times.size() - 9] + times[times.size() - 9] / 8 + 2);
  }
}

TEST(LatenciesTest, NothingIsSaidBeforeThereIsA99thPartAndWhatIsOldCountsLessAndLess) {
  Latencies latencies;
  for (std::uint32_t i = 0; i + 1 < Latencies::kEnough; ++i) latencies.add(1s);
  EXPECT_FALSE(latencies.p99());
  latencies.add(1s);
  EXPECT_GE(*latencies.p99(), 1s);
  for (std::uint32_t i = 0; i < 10 * Latencies::kWindow; ++i) latencies.add(1ms);
  EXPECT_LE(*latencies.p99(), 2ms);
  latencies.add(Duration::zero());
  latencies.add(std::chrono::hours(1000));
}

TEST(HedgerTest, SecondRequestsAreAShareOfAllReadsAndABurst) {
  Hedger hedger(0.02, 1ms, 100ms);
  std::size_t taken = 0;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(hedger.begin(0, Hedger::Kind::kMatch), 100ms) << "nothing is known of it yet";
    taken += hedger.take(0, TimePoint{} + 1s);
  }
  EXPECT_GE(taken, 27u);
  EXPECT_LE(taken, 28u);
  EXPECT_EQ(hedger.node(0).hedges, taken);
}

TEST(HedgerTest, WhereNothingIsFoundThereAreNoCopiesAndNoMoreIsAskedForAWhile) {
  Hedger hedger(1, 1ms, 100ms);
  TimePoint now = TimePoint{} + 1s;
  const auto tries = [&](bool finds) {
    std::size_t taken = 0;
    for (int i = 0; i < 100; ++i) {
      (void)hedger.begin(0, Hedger::Kind::kGet);
      if (!hedger.take(0, now)) continue;
      ++taken;
      hedger.answered(finds, now);
    }
    return taken;
  };
  EXPECT_EQ(tries(false), Hedger::kFruitlessMax);
  now += Hedger::kRest - 1ms;
  EXPECT_EQ(tries(false), 0u);
  now += 1ms;
  EXPECT_EQ(tries(false), 1u) << "one, to see";
  now += Hedger::kRest;
  EXPECT_EQ(tries(true), 100u) << "there are copies now";
}

class HedgeTest : public testing::Test {
 protected:
  static constexpr std::size_t kHedgeBytes = 64;

  HedgeTest() {
    store.arena.capacity_bytes = 4 << 20;
    store.arena.granule_bytes = 4096;
    store.arena.huge_pages = false;
    store.arena.touch = false;
    config.connections_per_node = 1;
    config.breaker_failures = 1'000'000;  // late, and never dead
    config.extent_blocks = 8;
    config.hedge_after_max = 50ms;
    for (const char* name : {"a", "b", "c"}) {
      nodes[name] = std::make_unique<sim::SimNode>(loop.context(), network, clock, name, store);
      config.nodes.push_back({.endpoint = std::string("sim://") + name, .name = name});
    }
  }
  ~HedgeTest() override {
    client.reset();
    nodes.clear();
    loop.drain();
  }
  void start_client() {
    client = std::make_unique<Client>(loop.context().get_executor(), config, network, clock);
    space = loop.run(client->open(record, 5s)).value();
  }
  static void put(Loop& loop, Client& by, Space space, std::span<const BlockHash> chain) {
    Blocks memory(chain.size(), kHedgeBytes);
    memory.fill(chain);
    ASSERT_EQ(loop.run(by.put(space, chain, memory.from, {.deadline = 1s}))->refused, 0u);
  }
  /// What lies on b has a copy on its second node, as b's mover would make it.
  void put_all(std::uint32_t count, bool has_copies) {
    start_client();
    ClientConfig without = config;
    without.nodes[1].weight = 0;
    Client copier(loop.context().get_executor(), without, network, clock);
    const Space same = loop.run(copier.open(record, 5s)).value();
    for (std::uint32_t seed = 1; seed <= count; ++seed) {
      chains.push_back(test_chain(record, 40, seed));
      put(loop, *client, space, chains.back());
      if (has_copies) put(loop, copier, same, chains.back());
    }
  }
  /// So that the client knows what is usual. Of other chains, so that nothing here becomes hot.
  void learn_times(int count = 300) {
    for (int i = 0; i < count; ++i) {
      (void)loop.run(client->match(space, test_chain(record, 60, ++last_seed), {.deadline = 1s}));
      const auto& chain = chains[static_cast<std::size_t>(i) % chains.size()];
      Blocks memory(chain.size(), kHedgeBytes);
      (void)loop.run(client->get(space, chain, memory.to, {.deadline = 1s}));
    }
  }
  /// 16 blocks that many prompts begin with; on all nodes.
  std::vector<BlockHash> make_hot_root() {
    std::vector<std::uint32_t> tokens(16 * record.block_size());
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint32_t>(i) * 7 + 1;  // as test_chain
    std::mt19937 random(1);
    for (int i = 0; i < 300; ++i) {
      std::vector<std::uint32_t> more = tokens;
      for (int k = 0; k < 200; ++k) more.push_back(static_cast<std::uint32_t>(random()));
      const auto chain = hash_chain(record.digest(), more, record.block_size());
      (void)loop.run(client->match(space, chain, {.deadline = 1s}));
      if (i > 200) put(loop, *client, space, chain);
    }
    return test_chain(record, 16);
  }
  /// Of b.
  NodeStatus late_node() const { return client->nodes()[1]; }

  VirtualClock clock;
  SimNetwork network{clock, 1};
  Loop loop{&clock};
  StoreConfig store;
  const NamespaceRecord record = test_record(kHedgeBytes);
  ClientConfig config = repeatable_config();
  std::map<std::string, std::unique_ptr<sim::SimNode>> nodes;
  std::unique_ptr<Client> client;
  Space space{};
  std::vector<std::vector<BlockHash>> chains;
  std::uint32_t last_seed = 3'000'000;
};

TEST_F(HedgeTest, WhatALateNodeOwnsIsReadFromItsSecond) {
  config.hedge_share = 1;  // each of these reads is late
  put_all(10, /*has_copies=*/true);
  learn_times();
  network.freeze("b");
  std::size_t matched = 0, got = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    const TimePoint began = clock.now();
    matched += loop.run(client->match(space, chains[i], {.deadline = 1s}))->block_count;
    Blocks memory(chains[i].size(), kHedgeBytes);
    memory.clear();
    const GetResult result = loop.run(client->get(space, chains[i], memory.to, {.deadline = 1s})).value();
    EXPECT_GE(memory.right(chains[i]), result.block_count) << "a wrong byte";
    got += result.block_count;
    EXPECT_LT(clock.now() - began, 100ms) << "a deadline is 1 s";
  }
  EXPECT_EQ(matched, 4u * 40);
  EXPECT_EQ(got, 4u * 40);
  EXPECT_GT(late_node().hedges, 0u);
  EXPECT_GT(late_node().hedge_wins, 0u);
  EXPECT_LE(late_node().hedge_wins, late_node().hedges);
}

TEST_F(HedgeTest, WhatALateNodeSendsAfterItsSecondHasAnsweredLandsNowhere) {
  put_all(10, /*has_copies=*/true);
  learn_times();
  network.freeze("b");
  const auto& chain = chains[0];
  Blocks memory(chain.size(), kHedgeBytes);
  memory.clear();
  ASSERT_EQ(loop.run(client->get(space, chain, memory.to, {.deadline = 1s}))->block_count, chain.size());
  ASSERT_GT(late_node().hedges, 0u);
  const auto other = test_chain(record, chain.size(), 999);
  memory.fill(other);  // the pages are another sequence's now
  network.thaw("b");
  loop.run_for(5s);
  EXPECT_EQ(memory.right(other), other.size());
}

TEST_F(HedgeTest, AFirstAnswerThatComesInTimeIsTheOnlyOneThatWasAskedFor) {
  put_all(10, /*has_copies=*/true);
  learn_times();
  const auto hedges = [&] {
    std::uint64_t sum = 0;
    for (const NodeStatus& node : client->nodes()) sum += node.hedges;
    return sum;
  };
  EXPECT_LE(hedges(), 8 + 600 / 50);  // one in a hundred is late by definition
  config.hedge_share = 0;
  start_client();
  learn_times();
  network.freeze("b");
  for (const auto& chain : chains) (void)loop.run(client->match(space, chain, {.deadline = 100ms}));
  EXPECT_EQ(hedges(), 0u);
}

TEST_F(HedgeTest, WithoutCopiesFewReadsAreAskedTwice) {
  put_all(30, /*has_copies=*/false);
  learn_times();
  network.freeze("b");
  for (int round = 0; round < 10; ++round) {
    for (const auto& chain : chains) {
      Blocks memory(chain.size(), kHedgeBytes);
      (void)loop.run(client->get(space, chain, memory.to, {.deadline = 60ms}));
    }
  }
  EXPECT_GT(late_node().hedges, 0u);
  EXPECT_LE(late_node().hedges, Hedger::kFruitlessMax + 1);
  EXPECT_EQ(late_node().hedge_wins, 0u);
}

/// The node could write there after another's bytes were verified.
TEST_F(HedgeTest, AGetIntoLentMemoryStaysWithItsNode) {
  put_all(10, /*has_copies=*/true);
  const auto lent = client->allocate(40 * kHedgeBytes).value();
  for (int i = 0; i < 50; ++i) {
    Blocks memory(lent, 40, kHedgeBytes);
    (void)loop.run(client->get(space, chains[static_cast<std::size_t>(i) % 10], memory.to, {.deadline = 1s}));
  }
  network.freeze("b");
  Blocks memory(lent, 40, kHedgeBytes);
  const GetResult got = loop.run(client->get(space, chains[0], memory.to, {.deadline = 1s})).value();
  EXPECT_LT(got.block_count, 40u);
  EXPECT_EQ(got.why, asio::error::timed_out);
  EXPECT_TRUE(client->is_quarantined(lent));
  network.thaw("b");
  loop.run_for(5s);
  EXPECT_FALSE(client->is_quarantined(lent));
}

TEST_F(HedgeTest, ALeaseOfASecondIsUsedByTheGetThatFollows) {
  put_all(10, /*has_copies=*/true);
  learn_times();
  network.freeze("b");
  const MatchResult match = loop.run(client->match(space, chains[3], {.deadline = 1s, .lease = true})).value();
  EXPECT_EQ(match.block_count, 40u);
  ASSERT_NE(match.lease, Lease{});
  Blocks memory(40, kHedgeBytes);
  EXPECT_EQ(loop.run(client->get(space, chains[3], memory.to, {.deadline = 1s, .lease = match.lease}))->block_count,
            40u);
  network.thaw("b");
  loop.run_for(60s);
  for (auto& [name, node] : nodes) {
    node->expire_leases();
    EXPECT_EQ(node->stats().lease_count, 0u) << name;
  }
}

TEST_F(HedgeTest, ACallThatIsGivenUpEndsWithItsSecondRequest) {
  put_all(10, /*has_copies=*/false);
  learn_times();
  network.freeze("b");
  network.freeze("a");
  network.freeze("c");
  for (const auto& chain : chains) {
    Blocks memory(40, kHedgeBytes);
    const TimePoint began = clock.now();
    EXPECT_EQ(loop.run(client->get(space, chain, memory.to, {.deadline = 100ms}))->block_count, 0u);
    EXPECT_LE(clock.now() - began, 100ms);
  }
  for (const char* name : {"a", "b", "c"}) network.thaw(name);
}

/// A get goes to where the match before it found the chain; but not for ever.
TEST_F(HedgeTest, WhatLiesInTheHotRootIsReadElsewhereOnceTheNodeWhereItWasFoundIsAway) {
  config.breaker_failures = 2;
  config.hedge_share = 0;
  start_client();
  const auto root = make_hot_root();
  EXPECT_EQ(loop.run(client->match(space, root, {.deadline = 1s}))->block_count, root.size());
  std::map<std::string, std::uint64_t> before;
  for (auto& [name, node] : nodes) before[name] = node->stats().get_hit_blocks;
  Blocks memory(root.size(), kHedgeBytes);
  ASSERT_EQ(loop.run(client->get(space, root, memory.to, {.deadline = 1s}))->block_count, root.size());
  std::string name;
  for (auto& [each, node] : nodes) {
    if (node->stats().get_hit_blocks > before[each]) name = each;
  }
  ASSERT_NE(name, "");
  network.freeze(name);
  const auto is_away = [&] {
    const auto known = client->nodes();
    return std::ranges::any_of(known, [&](const NodeStatus& node) { return node.name == name && node.breaker_open; });
  };
  for (std::uint32_t seed = 5'000'000; !is_away(); ++seed)
    (void)loop.run(client->match(space, test_chain(record, 60, seed), {.deadline = 100ms}));
  loop.run_for(3s);  // the breaker lets a probe through
  const TimePoint began = clock.now();
  EXPECT_EQ(loop.run(client->get(space, root, memory.to, {.deadline = 1s}))->block_count, root.size());
  EXPECT_LT(clock.now() - began, 100ms);
  network.thaw(name);
}

/// All of it is on every node, so the nearest one is asked.
TEST_F(HedgeTest, WhatLiesInTheHotRootIsReadInTheClientsZone) {
  ClusterView view{7, 8, {}};
  for (const char* name : {"a", "b", "c"}) {
    Member member;
    member.id = name;
    member.endpoints = {std::string("sim://") + name};
    member.zone = name == std::string("c") ? "here" : "there";
    view.members.push_back(member);
  }
  for (auto& [name, node] : nodes) node->set_cluster(view);
  config.zone = "here";
  start_client();
  const auto root = make_hot_root();
  const auto hits = [&](const char* name) { return nodes[name]->stats().match_hit_blocks; };
  const std::uint64_t a = hits("a"), b = hits("b"), c = hits("c");
  std::size_t found = 0;
  for (std::size_t length = 5; length <= 16; ++length)
    found += loop.run(client->match(space, std::span(root).first(length), {.deadline = 1s}))->block_count;
  EXPECT_EQ(found, 5u + 6 + 7 + 8 + 9 + 10 + 11 + 12 + 13 + 14 + 15 + 16);
  EXPECT_EQ(hits("a") - a + hits("b") - b, 0u);
  EXPECT_EQ(hits("c") - c, found);
}

}  // namespace
}  // namespace kv
