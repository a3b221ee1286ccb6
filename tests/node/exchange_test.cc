// Nodes that learn together, on the simulated network and virtual time: who hears whom, and what silence and nonsense
// change.
#include "store/node/exchange/exchange.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/client/real_nodes.h"
#include "tests/fakes/virtual_clock.h"

namespace kv {
namespace {

constexpr std::size_t kPoolBlockBytes = 64;

class ExchangeTest : public testing::Test {
 protected:
  ExchangeTest() {
    store.arena.capacity_bytes = 256 * 1024;
    store.arena.granule_bytes = 4096;
    store.arena.huge_pages = false;
    store.arena.touch = false;
    store.policy = PolicyKind::kYield;
    store.lru_unless_combined = true;
  }
  ~ExchangeTest() override {
    for (auto& [name, exchange] : pools) exchange->stop();
    client.reset();
    loop.run_for(10s);
    pools.clear();
    for (auto& [name, node] : nodes) EXPECT_EQ(node->check(), "");
    nodes.clear();
    loop.drain();
  }

  void start(const std::string& name) {
    nodes[name] = std::make_unique<sim::SimNode>(loop.context(), network, clock, name, store);
  }
  /// `peers`: a static list; else the map tells of the others.
  void start_exchange(const std::string& name, std::vector<std::string> peers = {}) {
    ExchangeConfig config;
    config.node_id = name;
    config.instance[0] = static_cast<std::uint8_t>(name[0]);
    config.peers = std::move(peers);
    NodeContext& context = nodes[name]->context();
    auto& exchange = pools[name] =
        std::make_unique<Exchange>(loop.context().get_executor(), network.from(name), clock, context.store,
                                   context.cluster, context.exchange, std::move(config));
    asio::co_spawn(loop.context(), exchange->run(), [](std::exception_ptr error) { EXPECT_EQ(error, nullptr); });
  }
  void publish(const std::vector<std::string>& names) {
    ClusterView view{++epoch, 1, {}};
    for (const std::string& name : names) {
      Member member;
      member.id = name;
      member.endpoints = {"unix:///run/not-here", "sim://" + name};
      view.members.push_back(member);
    }
    for (auto& [name, node] : nodes) node->set_cluster(view);
  }
  /// Chains, most of which are asked for again: a node learns from them. Through a client that knows all nodes.
  void work(const std::vector<std::string>& names, int requests = 300) {
    ClientConfig config = repeatable_config();
    config.connections_per_node = 1;
    config.follow_cluster = false;
    for (const std::string& name : names) config.nodes.push_back({.endpoint = "sim://" + name, .name = ""});
    client = std::make_unique<Client>(loop.context().get_executor(), config, network, clock);
    const Space space = loop.run(client->open(record, 5s)).value();
    std::mt19937 random(1);
    for (int i = 0; i < requests; ++i) {
      const auto chain = test_chain(record, 24, static_cast<std::uint32_t>(random() % 100));
      Blocks memory(chain.size(), kPoolBlockBytes);
      memory.fill(chain);
      ASSERT_TRUE(loop.run(client->match(space, chain, {.deadline = 5s})));
      ASSERT_TRUE(loop.run(client->put(space, chain, memory.from, {.deadline = 5s})));
      for (auto& [name, node] : nodes) node->learn();
    }
    client.reset();
  }
  double stat(const std::string& name, std::string_view of) {
    for (const NodeMetrics::Value& value : nodes[name]->context().exchange.stats(clock.now()))
      if (of == value.name) return value.value;
    return -1;
  }
  bool is_combined(const std::string& name) {
    return nodes[name]->context().store.with([](Store& each) { return each.yield_table()->is_combined(); });
  }
  CombinedCounts::Peer peer(const std::string& name, std::string_view of) {
    for (const CombinedCounts::Peer& each : nodes[name]->context().exchange.peers(clock.now()))
      if (each.name == of) return each;
    return {};
  }

  VirtualClock clock;
  SimNetwork network{clock, 1};
  Loop loop{&clock};
  StoreConfig store;
  const NamespaceRecord record = test_record(kPoolBlockBytes);
  std::uint64_t epoch = 0;
  std::map<std::string, std::unique_ptr<sim::SimNode>> nodes;
  std::map<std::string, std::unique_ptr<Exchange>> pools;
  std::unique_ptr<Client> client;
};

TEST_F(ExchangeTest, NodesOfAMapLearnFromOneAnother) {
  for (const char* name : {"a", "b", "c"}) start(name);
  publish({"a", "b", "c"});
  for (const char* name : {"a", "b", "c"}) start_exchange(name);
  work({"a", "b", "c"});
  loop.run_for(25s);
  for (const char* name : {"a", "b", "c"}) {
    EXPECT_EQ(stat(name, "exchange_nodes"), 2) << name;
    EXPECT_EQ(stat(name, "exchange_nodes_counted"), 2) << name;
    EXPECT_EQ(stat(name, "exchange_failures"), 0) << name;
    EXPECT_EQ(stat(name, "exchange_refusals"), 0) << name;
    EXPECT_LT(stat(name, "exchange_oldest_seconds"), 11) << name;
    EXPECT_GT(stat(name, "exchange_others_share"), 0.3) << name;
    EXPECT_TRUE(is_combined(name));
  }
}

TEST_F(ExchangeTest, NodesOfAStaticListDoSoTooAndLeaveThemselvesOut) {
  const std::vector<std::string> list = {"sim://a", "sim://b"};
  for (const char* name : {"a", "b"}) start(name);
  for (const char* name : {"a", "b"}) start_exchange(name, list);
  work({"a", "b"});
  loop.run_for(25s);
  EXPECT_EQ(stat("a", "exchange_nodes"), 1);
  EXPECT_EQ(stat("a", "exchange_nodes_counted"), 1);
  EXPECT_GT(peer("a", "sim://b").uses, 0);
  EXPECT_EQ(peer("a", "sim://a").uses, 0) << "or it would count for two";
}

TEST_F(ExchangeTest, ANodeThatIsSilentStaysCountedForAWhile) {
  for (const char* name : {"a", "b"}) start(name);
  publish({"a", "b"});
  for (const char* name : {"a", "b"}) start_exchange(name);
  work({"a", "b"});
  loop.run_for(25s);
  network.freeze("b");
  loop.run_for(60s);
  EXPECT_GT(stat("a", "exchange_failures"), 2);
  EXPECT_EQ(stat("a", "exchange_nodes_counted"), 1);
  EXPECT_GT(stat("a", "exchange_oldest_seconds"), 50);
  loop.run_for(CombinedCounts::kGone);
  EXPECT_EQ(stat("a", "exchange_nodes_counted"), 0);
  network.thaw("b");
  loop.run_for(60s);
  EXPECT_EQ(stat("a", "exchange_nodes_counted"), 1);
  EXPECT_LT(stat("a", "exchange_oldest_seconds"), 11);
}

TEST_F(ExchangeTest, ANewcomerLearnsFromTheOthersAtOnce) {
  start("a");
  publish({"a"});
  start_exchange("a");
  work({"a"});
  loop.run_for(25s);
  EXPECT_TRUE(is_combined("a")) << "alone in its cluster";
  start("b");
  publish({"a", "b"});
  start_exchange("b");
  loop.run_for(12s);
  EXPECT_TRUE(is_combined("b"));
  EXPECT_EQ(stat("b", "exchange_others_share"), 1) << "it has counted nothing yet";
}

/// Both sides of a partition go on counting, somebody joins meanwhile, and another tells nonsense. Once all hear one
/// another again, all learn from the same uses, and each use is counted once.
TEST_F(ExchangeTest, AfterAPartitionANewcomerAndNonsenseAllLearnFromTheSameUses) {
  const auto uses_of = [&](const std::string& name) {
    return nodes[name]->context().store.with([](Store& each) {
      double sum = 0;
      for (std::uint32_t i = 0; i < YieldTable::kClassCount; ++i)
        for (const double hits : each.yield_table()->counts(i).hits) sum += hits;
      return sum;
    });
  };
  // What the node learns from that others have counted.
  const auto heard_by = [&](const std::string& name) {
    double sum = 0;
    for (const CombinedCounts::Peer& each : nodes[name]->context().exchange.peers(clock.now()))
      sum += each.uses * each.weight;
    return sum;
  };
  const auto cut = [&](const std::string& a, const std::string& b) {
    network.cut(a, b);
    network.cut(b, a);
  };
  std::vector<std::string> all = {"a", "b", "c"};
  for (const std::string& name : all) start(name);
  publish(all);
  for (const std::string& name : all) start_exchange(name);
  work(all, 150);
  loop.run_for(25s);
  const double c_before = uses_of("c");
  ASSERT_GT(c_before, 0);
  EXPECT_NEAR(heard_by("a"), uses_of("b") + c_before, 1);

  cut("a", "c");
  cut("b", "c");
  work({"a", "b"}, 100);
  work({"c"}, 100);
  loop.run_for(25s);
  ASSERT_GT(uses_of("c"), c_before + 100);
  EXPECT_NEAR(heard_by("a"), uses_of("b") + c_before, 1) << "what is no minute old counts in full";
  EXPECT_GT(stat("a", "exchange_failures"), 0);
  EXPECT_EQ(stat("a", "exchange_nodes_counted"), 2);

  all.push_back("d");
  start("d");
  publish(all);
  cut("d", "c");
  start_exchange("d");
  loop.run_for(15s);
  EXPECT_NEAR(heard_by("d"), uses_of("a") + uses_of("b"), 1) << "the side that it came to";

  network.mend_all();
  start("liar");
  all.push_back("liar");
  publish(all);
  nodes["liar"]->context().exchange.tell("nonsense");
  work({"a", "b", "c", "d"}, 100);
  loop.run_for(40s);
  all.pop_back();
  double sum = 0;
  for (const std::string& name : all) sum += uses_of(name);
  for (const std::string& name : all) {
    EXPECT_NEAR(heard_by(name), sum - uses_of(name), 1) << name;
    EXPECT_EQ(stat(name, "exchange_nodes_counted"), 3) << name;
    EXPECT_LT(stat(name, "exchange_oldest_seconds"), 11) << name;
    EXPECT_GT(stat(name, "exchange_refusals"), 0) << name;
    EXPECT_TRUE(is_combined(name)) << name;
  }
}

TEST_F(ExchangeTest, NonsenseIsRefusedAndChangesNothing) {
  for (const char* name : {"a", "b"}) start(name);
  publish({"a", "b"});
  start_exchange("a");
  work({"a", "b"});
  for (const std::string& told : {std::string("nonsense"), std::string(200'000, 'K'), std::string("KVYC\x01")}) {
    nodes["b"]->context().exchange.tell(told);
    const double before = stat("a", "exchange_refusals");
    loop.run_for(11s);
    EXPECT_GT(stat("a", "exchange_refusals"), std::max(before, 0.0));
    EXPECT_EQ(stat("a", "exchange_nodes_counted"), 0);
  }
}

TEST_F(ExchangeTest, ANodeThatTellsNothingIsNoError) {
  for (const char* name : {"a", "b"}) start(name);
  publish({"a", "b"});
  start_exchange("a");
  work({"a", "b"});
  loop.run_for(25s);
  EXPECT_EQ(stat("a", "exchange_failures") + stat("a", "exchange_refusals"), 0);
  EXPECT_EQ(stat("a", "exchange_nodes_counted"), 0);
  EXPECT_FALSE(is_combined("a")) << "so it is LRU, if its policy is `auto`";
}

}  // namespace
}  // namespace kv
