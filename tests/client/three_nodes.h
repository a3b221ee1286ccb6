// tests/client/three_nodes.h: a client and three real nodes on the simulated network and virtual time.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "tests/client/real_nodes.h"
#include "tests/fakes/virtual_clock.h"

namespace kv {

/// Nodes "a", "b" and "c". Whom of them the client is told of, and how it is made, is the test's.
class ThreeNodesTest : public testing::Test {
 protected:
  static constexpr std::size_t kBlockBytes = 64;

  ThreeNodesTest() {
    store.arena.capacity_bytes = 4 << 20;
    store.arena.granule_bytes = 4096;
    store.arena.huge_pages = false;
    store.arena.touch = false;
    config.connections_per_node = 1;
    for (const char* name : {"a", "b", "c"}) start_node(name);
  }
  ~ThreeNodesTest() override {
    client.reset();
    nodes.clear();
    loop.drain();
  }
  void start_node(const std::string& name) {
    nodes[name] = std::make_unique<sim::SimNode>(loop.context(), network, clock, name, store);
  }
  void list_all() {  ///< A static list.
    for (const char* name : {"a", "b", "c"})
      config.nodes.push_back({.endpoint = std::string("sim://") + name, .name = name});
  }
  void start_client() {
    client = std::make_unique<Client>(loop.context().get_executor(), config, network, clock);
    space = loop.run(client->open(record, 5s)).value();
  }
  PutResult put(std::span<const BlockHash> chain) { return put(*client, chain); }
  PutResult put(Client& by, std::span<const BlockHash> chain) {
    Blocks memory(chain.size(), kBlockBytes);
    memory.fill(chain);
    return loop.run(by.put(space, chain, memory.from, {.deadline = deadline})).value();
  }
  std::size_t get(std::span<const BlockHash> chain) { return get(*client, chain); }
  std::size_t get(Client& by, std::span<const BlockHash> chain) {
    Blocks memory(chain.size(), kBlockBytes);
    memory.clear();
    const GetResult got = loop.run(by.get(space, chain, memory.to, {.deadline = deadline})).value();
    EXPECT_GE(memory.right(chain), got.block_count) << "a wrong byte";
    return got.block_count;
  }
  MatchResult match(std::span<const BlockHash> chain) {
    return loop.run(client->match(space, chain, {.deadline = deadline})).value();
  }

  VirtualClock clock;
  SimNetwork network{clock, 1};
  Loop loop{&clock};
  StoreConfig store;
  const NamespaceRecord record = test_record(kBlockBytes);
  ClientConfig config = repeatable_config();
  std::chrono::microseconds deadline = 5s;
  std::map<std::string, std::unique_ptr<sim::SimNode>> nodes;
  std::unique_ptr<Client> client;
  Space space{};
};

}  // namespace kv
