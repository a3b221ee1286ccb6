// Client::why on several nodes: the owner of the first block that is missed says why. Real nodes on the simulated
// network and virtual time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <span>
#include <string>

#include "tests/client/real_nodes.h"
#include "tests/client/said.h"
#include "tests/fakes/virtual_clock.h"

namespace kv {
namespace {

using testing::HasSubstr;

class ClientWhyTest : public testing::Test {
 protected:
  static constexpr std::size_t kWhyBytes = 64;

  ClientWhyTest() {
    StoreConfig store;
    store.arena.capacity_bytes = 4 << 20;
    store.arena.granule_bytes = 4096;
    store.arena.huge_pages = false;
    store.arena.touch = false;
    config.connections_per_node = 1;
    config.extent_blocks = 8;
    config.stand_ins = false;
    for (const char* name : {"a", "b", "c"}) {
      nodes[name] = std::make_unique<sim::SimNode>(loop.context(), network, clock, name, store);
      config.nodes.push_back({.endpoint = std::string("sim://") + name, .name = name});
    }
    client = std::make_unique<Client>(loop.context().get_executor(), config, network, clock);
    space = loop.run(client->open(record, 5s)).value();
  }
  ~ClientWhyTest() override {
    client.reset();
    nodes.clear();
    loop.drain();
  }
  void put(std::span<const BlockHash> chain) {
    Blocks memory(chain.size(), kWhyBytes);
    memory.fill(chain);
    ASSERT_EQ(loop.run(client->put(space, chain, memory.from, {.deadline = 1s})).value().stored, chain.size());
  }
  MissReport why(std::span<const BlockHash> chain) { return loop.run(client->why(space, chain, 1s)).value(); }

  VirtualClock clock;
  SimNetwork network{clock, 1};
  Loop loop{&clock};
  std::map<std::string, std::unique_ptr<sim::SimNode>> nodes;
  ClientConfig config = repeatable_config();
  const NamespaceRecord record = test_record(kWhyBytes);
  std::unique_ptr<Client> client;
  Space space{};
};

TEST_F(ClientWhyTest, TheFirstGapOfAllNodesCounts) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    const auto chain = test_chain(record, 60, seed);
    const std::size_t stored = seed * 2;
    put(std::span(chain).first(stored));
    const MissReport report = why(chain);
    EXPECT_EQ(report.block_count, stored);
    EXPECT_FALSE(report.is_whole);
    EXPECT_EQ(report.kind, MissKind::kNotRemembered);
    EXPECT_FALSE(report.why);
    EXPECT_TRUE(nodes.contains(report.node)) << report.node;
    EXPECT_EQ(loop.run(client->match(space, chain, {.deadline = 1s})).value().block_count, stored) << "as a match says";
    const MissReport whole = why(std::span(chain).first(stored));
    EXPECT_TRUE(whole.is_whole);
    EXPECT_EQ(whole.block_count, stored);
    EXPECT_THAT(whole.text().at(0), HasSubstr("are held"));
  }
}

TEST_F(ClientWhyTest, ANodeThatDoesNotAnswerIsNamed) {
  const auto chain = test_chain(record, 200);
  put(chain);
  network.freeze("b");
  const MissReport report = why(chain);
  EXPECT_LT(report.block_count, 200u);
  EXPECT_EQ(report.node, "b");
  EXPECT_EQ(report.kind, MissKind::kUnknown);
  EXPECT_EQ(report.why, asio::error::timed_out);
  EXPECT_THAT(report.text().at(1), HasSubstr("did not say"));
  network.thaw("b");
}

TEST_F(ClientWhyTest, WhatCannotBeAskedIsRefused) {
  EXPECT_EQ(loop.run(client->why(space, {}, 1s)).error(), Errc::kBadRequest);
}

TEST_F(ClientWhyTest, OfASetTheFirstNameInTheGivenOrderThatAnyNodeMissesIsExplained) {
  const auto record_of_set =
      NamespaceRecord::from_fields({{"model", "m"}, {"kind", "set"}, {"block_bytes_max", std::to_string(kWhyBytes)}});
  space = loop.run(client->open(record_of_set.value(), 5s)).value();
  const auto names = test_chain(record, 30);
  const MissReport before = why(names);
  EXPECT_EQ(before.block_count, 0u);
  EXPECT_EQ(before.kind, MissKind::kNotRemembered);
  Blocks memory(names.size(), kWhyBytes);
  memory.fill(names);
  const PutOptions options{.deadline = 1s};
  ASSERT_EQ(loop.run(client->put_set(space, names, memory.from, options)).value().stored, names.size());
  EXPECT_TRUE(why(names).is_whole);
  for (const std::size_t gone : {19, 7}) {
    ASSERT_EQ(loop.run(client->drop(space, std::span(names).subspan(gone, 1), 1s)).value().block_count, 1u);
    const MissReport report = why(names);
    EXPECT_EQ(report.block_count, gone);
    EXPECT_EQ(report.kind, MissKind::kDropped);
    EXPECT_TRUE(nodes.contains(report.node)) << report.node;
  }
}

TEST_F(ClientWhyTest, TheSlowLogOfEachNodeIsTold) {
  const auto logs = loop.run(client->ask({.path = "/slowlog.json"}, 1s)).value();
  ASSERT_EQ(logs.size(), 3u);
  for (const NodeAnswer& log : logs) {
    const nlohmann::json told = said(log);
    EXPECT_EQ(told.at("threshold_seconds"), 0) << "off";
    EXPECT_EQ(told.at("requests").size(), 0u);
  }
}

TEST(MissReportTest, EachReasonHasItsSentence) {
  for (std::size_t kind = 1; kind < kMissKindCount; ++kind) {
    MissReport report;
    report.kind = static_cast<MissKind>(kind);
    report.left = 3min;
    report.idle = 10s;
    const auto lines = report.text();
    ASSERT_GE(lines.size(), 2u) << kind;
    EXPECT_GT(lines[1].size(), 20u) << kind;
  }
  MissReport evicted;
  evicted.kind = MissKind::kEvicted;
  evicted.left = 5min;
  evicted.idle = 3h;
  EXPECT_EQ(evicted.text().at(1),
            "it was evicted about 5 min ago, when it had not been used for 3.0 h: more memory or "
            "disk would keep it (kvstorectl curve)");
}

}  // namespace
}  // namespace kv
