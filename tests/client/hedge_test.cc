// A read that its node is late with is asked of the second node as well. Real nodes on the simulated network and
// virtual time. Reads turn to the copy when the first is dead or late.
#include "client/hedge/hedger.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "tests/client/three_nodes.h"

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

class HedgeTest : public ThreeNodesTest {
 protected:
  HedgeTest() {
    config.breaker_failures = 1'000'000;  // late, and never dead
    config.extent_blocks = 8;
    config.hedge_after_max = 50ms;
    deadline = 1s;
    list_all();
  }
  /// What lies on b has a copy on its second node, as b's mover would make it.
  void put_all(std::uint32_t count, bool has_copies) {
    start_client();
    ClientConfig without = config;
    without.nodes[1].weight = 0;
    Client copier(loop.context().get_executor(), without, network, clock);
    ASSERT_EQ(loop.run(copier.open(record, 5s)).value(), space);
    for (std::uint32_t seed = 1; seed <= count; ++seed) {
      chains.push_back(test_chain(record, 40, seed));
      ASSERT_EQ(put(chains.back()).refused, 0u);
      if (!has_copies) continue;
      ASSERT_EQ(put(copier, chains.back()).refused, 0u);
    }
  }
  /// So that the client knows what is usual. Of other chains, so that nothing here becomes hot.
  void learn_times(int count = 300) {
    for (int i = 0; i < count; ++i) {
      (void)match(test_chain(record, 60, ++last_seed));
      const auto& chain = chains[static_cast<std::size_t>(i) % chains.size()];
      Blocks memory(chain.size(), kBlockBytes);
      (void)loop.run(client->get(space, chain, memory.to, {.deadline = 1s}));
    }
  }
  void learn_times_of_lent(std::span<std::byte> lent) {
    for (std::size_t i = 0; i < 50; ++i) {
      Blocks memory(lent, 40, kBlockBytes);
      (void)loop.run(client->get(space, chains[i % chains.size()], memory.to, {.deadline = 1s}));
    }
  }
  void start_b_with_disk() {
    nodes["b"].reset();
    StoreConfig with_disk = store;
    with_disk.disk.capacity_bytes = 4 << 20;
    with_disk.disk.segment_bytes = 100'000;
    nodes["b"] = std::make_unique<sim::SimNode>(loop.context(), network, clock, "b", with_disk, sim::DiskFaults{}, 1);
  }
  /// All that it had is on its disk from then on, from where nothing comes in time.
  void restart_b_with_slow_disk() {
    nodes["b"]->stop();
    nodes["b"]->start();
    nodes["b"]->set_disk_faults({.delay_max = 1h});
    loop.run_for(3s);  // the client connects again
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
      const bool is_hot = i > 200;
      EXPECT_EQ(is_hot ? put(chain).refused : 0, 0u);
    }
    return test_chain(record, 16);
  }
  /// Of b.
  NodeStatus late_node() const { return client->nodes()[1]; }

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
    Blocks memory(chains[i].size(), kBlockBytes);
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
  Blocks memory(chain.size(), kBlockBytes);
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
      Blocks memory(chain.size(), kBlockBytes);
      (void)loop.run(client->get(space, chain, memory.to, {.deadline = 60ms}));
    }
  }
  EXPECT_GT(late_node().hedges, 0u);
  EXPECT_LE(late_node().hedges, Hedger::kFruitlessMax + 1);
  EXPECT_EQ(late_node().hedge_wins, 0u);
}

/// The node could write there after another's bytes were verified.
TEST_F(HedgeTest, AGetIntoLentMemoryStaysWithANodeThatDoesNotSayThatItHasStopped) {
  put_all(10, /*has_copies=*/true);
  const auto lent = client->allocate(40 * kBlockBytes).value();
  learn_times_of_lent(lent);
  network.freeze("b");
  Blocks memory(lent, 40, kBlockBytes);
  const GetResult got = loop.run(client->get(space, chains[0], memory.to, {.deadline = 1s})).value();
  EXPECT_LT(got.block_count, 40u);
  EXPECT_EQ(got.why, asio::error::timed_out);
  EXPECT_TRUE(client->is_quarantined(lent));
  EXPECT_EQ(late_node().hedge_wins, 0u);
  network.thaw("b");
  loop.run_for(5s);
  EXPECT_FALSE(client->is_quarantined(lent));
}

TEST_F(HedgeTest, AGetIntoLentMemoryGoesToTheSecondOnceItsNodeHasStopped) {
  config.hedge_share = 1;
  start_b_with_disk();
  put_all(10, /*has_copies=*/true);
  const auto lent = client->allocate(40 * kBlockBytes).value();
  learn_times_of_lent(lent);
  ASSERT_GT(nodes["b"]->stats().block_count, 0u);
  restart_b_with_slow_disk();
  for (std::size_t i = 0; i < 4; ++i) {
    Blocks memory(lent, 40, kBlockBytes);
    memory.clear();
    const TimePoint began = clock.now();
    const GetResult got = loop.run(client->get(space, chains[i], memory.to, {.deadline = 2s})).value();
    EXPECT_EQ(got.block_count, 40u) << got.why.message();
    EXPECT_EQ(memory.right(chains[i]), 40u);
    EXPECT_LT(clock.now() - began, 200ms);
    EXPECT_FALSE(client->is_quarantined(lent));
    const auto other = test_chain(record, 40, 999);
    memory.fill(other);  // the pages are another sequence's now
    loop.run_for(5s);
    EXPECT_EQ(memory.right(other), 40u);
  }
  EXPECT_GT(late_node().hedge_wins, 0u);
}

/// Of those that a get into lent memory is asked to stop for, some have begun by then, and some have all of it.
TEST_F(HedgeTest, WhateverComesFirstOfAStopAndAnAnswerAGetIntoLentMemoryHasRightBytes) {
  config.hedge_share = 1;
  config.hedge_after_min = config.hedge_after_max = 1ms;
  start_b_with_disk();
  put_all(10, /*has_copies=*/true);
  const auto lent = client->allocate(40 * kBlockBytes).value();
  const char* const chosen = std::getenv("KV_SEED");
  const std::uint64_t seed = chosen == nullptr ? 1 : std::strtoull(chosen, nullptr, 10);
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto pick = [&random](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (int round = 0; round < 60; ++round) {
    if (round % 10 == 0) {  // all of it is on its disk again
      nodes["b"]->stop();
      nodes["b"]->start();
      loop.run_for(3s);
    }
    nodes["b"]->set_disk_faults({.delay_max = std::chrono::microseconds(pick(1, 4000))});
    const auto& chain = chains[static_cast<std::size_t>(pick(0, 9))];
    Blocks memory(lent, 40, kBlockBytes);
    memory.clear();
    const GetResult got = loop.run(client->get(space, chain, memory.to, {.deadline = 5s})).value();
    EXPECT_EQ(got.block_count, 40u) << got.why.message() << ", round " << round;
    EXPECT_EQ(memory.right(chain), 40u);
    EXPECT_FALSE(client->is_quarantined(lent));
    const auto other = test_chain(record, 40, 999);
    memory.fill(other);
    loop.run_for(1s);
    EXPECT_EQ(memory.right(other), 40u) << "written to after the get";
  }
  EXPECT_GT(late_node().hedges, 0u);
}

TEST_F(HedgeTest, ALeaseOfASecondIsUsedByTheGetThatFollows) {
  put_all(10, /*has_copies=*/true);
  learn_times();
  network.freeze("b");
  const MatchResult match = loop.run(client->match(space, chains[3], {.deadline = 1s, .lease = true})).value();
  EXPECT_EQ(match.block_count, 40u);
  ASSERT_NE(match.lease, Lease{});
  Blocks memory(40, kBlockBytes);
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
    Blocks memory(40, kBlockBytes);
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
  Blocks memory(root.size(), kBlockBytes);
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
