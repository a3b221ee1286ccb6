// A node of several does not answer: where clients look and put meanwhile, and what becomes of it afterwards. Real
// nodes on the simulated network and virtual time. Reads turn to the copy when the first is dead.
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "tests/client/three_nodes.h"

namespace kv {
namespace {

class StandInTest : public ThreeNodesTest {
 protected:
  StandInTest() {
    config.backoff_min = 1ms;
    config.backoff_max = 10ms;
    config.breaker_failures = 2;
    config.extent_blocks = 8;
    deadline = 1s;
    list_all();
    start_client();
  }
  void start_client() {
    ThreeNodesTest::start_client();
    set = loop.run(client->open(set_record, 5s)).value();
  }
  bool is_away(const std::string& name) const {
    for (const NodeStatus& node : client->nodes()) {
      if (node.name == name) return node.breaker_open;
    }
    return false;
  }
  void put_all(std::uint32_t count) {
    for (std::uint32_t seed = 1; seed <= count; ++seed) {
      chains.push_back(test_chain(record, 60, seed));
      ASSERT_EQ(put(chains.back()).stored, 60u);
    }
  }
  /// Until the client knows it. Of other chains, so that nothing here becomes hot.
  void find_out(const std::string& name) {
    for (std::uint32_t seed = 1'000'000; !is_away(name); ++seed) {
      ASSERT_LT(seed, 1'000'100u);
      (void)match(test_chain(record, 60, seed));
      loop.run_for(5ms);  // a connection is not tried again at once
    }
  }
  void wait_until_back(const std::string& name) {
    for (std::uint32_t seed = 2'000'000; is_away(name); ++seed) {
      ASSERT_LT(seed, 2'000'100u);
      (void)match(test_chain(record, 60, seed));
      loop.run_for(100ms);
    }
  }
  std::size_t found() {
    std::size_t sum = 0;
    for (const auto& each : chains) sum += get(each);
    return sum;
  }
  std::size_t all() const { return chains.size() * 60; }

  const NamespaceRecord set_record =
      NamespaceRecord::from_fields({{"kind", "set"}, {"model", "m"}, {"block_bytes_max", "64"}}).value();
  std::unique_ptr<Client> other;
  Space set{};
  std::vector<std::vector<BlockHash>> chains;
  std::uint32_t last_seed = 3'000'000;
};

TEST_F(StandInTest, WhatIsPutAnewIsFoundWhileItsOwnerIsAway) {
  put_all(30);
  nodes["b"]->kill();
  find_out("b");
  const std::size_t left = found();
  EXPECT_LT(left, all());
  for (const auto& each : chains) EXPECT_EQ(put(each).refused, 0u);
  EXPECT_EQ(found(), all());
  // Another client, which found out by itself, looks in the same places.
  other = std::make_unique<Client>(loop.context().get_executor(), config, network, clock);
  ASSERT_EQ(loop.run(other->open(record, 1s)).value(), space);
  std::size_t sum = 0;
  for (int turn = 0; turn < 2; ++turn) {
    sum = 0;
    for (const auto& each : chains) sum += get(*other, each);
  }
  EXPECT_EQ(sum, all());
}

TEST_F(StandInTest, WithoutStandInsItIsMissedAndRefused) {
  config.stand_ins = false;
  start_client();
  put_all(30);
  nodes["b"]->kill();
  find_out("b");
  std::size_t refused = 0;
  for (const auto& each : chains) refused += put(each).refused;
  EXPECT_GT(refused, 0u);
  EXPECT_LT(found(), all());
}

TEST_F(StandInTest, AMatchThatMeetsADeadNodeFirstAsksWhoStandsInForIt) {
  put_all(30);
  nodes["b"]->kill();
  find_out("b");
  for (const auto& each : chains) put(each);
  start_client();  // it knows nothing yet, and b refuses connections at once
  std::size_t short_matches = 0;
  for (const auto& each : chains) short_matches += match(each).block_count < each.size();
  EXPECT_LE(short_matches, config.breaker_failures);
}

TEST_F(StandInTest, AMatchCutAtWhatAnAwayNodeOwnsSaysSo) {
  put_all(30);
  nodes["b"]->kill();
  find_out("b");
  std::size_t cut = 0;
  for (const auto& each : chains) {
    const MatchResult result = match(each);
    if (result.block_count == each.size()) continue;
    EXPECT_EQ(result.why, Errc::kUnavailable);
    ++cut;
  }
  EXPECT_GT(cut, 0u);
  const auto other_chain = test_chain(record, 1, 77'777);
  const MatchResult unknown = match(other_chain);
  EXPECT_EQ(unknown.block_count, 0u);
}

/// A frozen node swallows what it is sent, so each call that went to it would take its whole deadline.
TEST_F(StandInTest, NoCallOfTheCallersIsTheOneThatFindsOutWhetherANodeIsBack) {
  put_all(30);
  network.freeze("b");
  find_out("b");
  for (const auto& each : chains) EXPECT_EQ(put(each).refused, 0u);
  for (int round = 0; round < 20; ++round) {
    for (const auto& each : chains) {
      // Of another chain each time: few that are matched again and again would be hot, and lie elsewhere.
      const TimePoint begun = clock.now();
      (void)match(test_chain(record, 60, ++last_seed));
      EXPECT_EQ(get(each), each.size());
      EXPECT_LT(clock.now() - begun, 100ms) << "a deadline is 1 s";
    }
    loop.run_for(500ms);  // the breaker is open for 1 s: each second round would have a probe
  }
  network.thaw("b");
  wait_until_back("b");
  EXPECT_EQ(found(), all()) << "it has what it had";
}

TEST_F(StandInTest, ANodeThatComesBackEmptyOwnsWhatItDidAgain) {
  put_all(30);
  nodes["b"]->kill();
  find_out("b");
  for (const auto& each : chains) put(each);
  nodes["b"]->start();
  wait_until_back("b");
  EXPECT_LT(found(), all()) << "what was put meanwhile lies elsewhere";
  for (const auto& each : chains) EXPECT_EQ(put(each).refused, 0u);
  EXPECT_EQ(found(), all());
  EXPECT_GT(nodes["b"]->stats().block_count, all() / 6);
}

TEST_F(StandInTest, WhereAllNodesAreAwayCallsEndAtOnce) {
  put_all(3);
  for (auto& [name, node] : nodes) node->kill();
  for (const char* name : {"a", "b", "c"}) find_out(name);
  const TimePoint begun = clock.now();
  EXPECT_EQ(found(), 0u);
  EXPECT_EQ(match(chains[0]).why, Errc::kUnavailable);
  EXPECT_LT(clock.now() - begun, 100ms);
  for (auto& [name, node] : nodes) node->start();
  for (const char* name : {"a", "b", "c"}) wait_until_back(name);
  for (const auto& each : chains) EXPECT_EQ(put(each).stored, each.size());
}

TEST_F(StandInTest, ADropReachesWhatLiesInAnotherPlaceMeanwhile) {
  put_all(10);
  nodes["b"]->kill();
  find_out("b");
  for (const auto& each : chains) put(each);
  nodes["b"]->start();
  wait_until_back("b");
  for (const auto& each : chains) {
    // Behind a gap nothing is found, and there is nothing that a match could name; so from the first block on.
    ASSERT_TRUE(loop.run(client->drop(space, std::span(each).first(1), 1s)));
  }
  nodes["b"]->kill();
  find_out("b");
  for (const auto& each : chains) EXPECT_EQ(match(each).block_count, 0u) << "it was dropped";
}

TEST_F(StandInTest, BlocksOfASetAreStoodInForToo) {
  const auto names = test_chain(record, 100, 5);
  Blocks memory(names.size(), kBlockBytes);
  memory.fill(names);
  const auto put_names = [&] { return loop.run(client->put_set(set, names, memory.from, {.deadline = 1s})).value(); };
  const auto held = [&] {
    const SetMatchResult result = loop.run(client->match_set(set, names, {.deadline = 1s})).value();
    return std::ranges::count_if(result.held, [](Held each) { return each != Held::kNowhere; });
  };
  put_names();
  EXPECT_EQ(held(), 100);
  nodes["b"]->kill();
  find_out("b");
  EXPECT_LT(held(), 100);
  put_names();
  EXPECT_EQ(held(), 100);
  nodes["b"]->start();
  wait_until_back("b");
  ASSERT_TRUE(loop.run(client->drop(set, names, 1s)));
  EXPECT_EQ(held(), 0);
  nodes["b"]->kill();
  find_out("b");
  EXPECT_EQ(held(), 0) << "what stood in was dropped too";
}

}  // namespace
}  // namespace kv
