// tests/client/verbs_path.h: a client and a real node with RDMA, on the provider inside the process.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/client/real_nodes.h"
#include "tests/fakes/virtual_clock.h"

namespace kv {

/// A node on fake0 and fake1, a client on fake2 and fake3.
class VerbsPathTest : public testing::Test {
 protected:
  static constexpr std::size_t kBlockBytes = 300'000, kCount = 64;

  VerbsPathTest() {
    network.set_passes_descriptors(false);
    restart_node();
    config.nodes.push_back({.endpoint = "sim://node", .name = "node"});
    config.rdma_devices = {"fake2", "fake3"};
    config.connections_per_node = 1;
    restart_client();
  }
  ~VerbsPathTest() override {
    client.reset();
    node.reset();
    loop.drain();
    loop.run_for(20s);
    loop.drain();
  }

  void restart_node() {
    node.reset();
    node = std::make_unique<sim::SimNode>(loop.context(), network, clock, "node", small_store(), sim::DiskFaults{}, 1,
                                          &verbs, std::vector<std::string>{"fake0", "fake1"});
  }
  void restart_client() {
    client.reset();
    client = std::make_unique<Client>(loop.context().get_executor(), config, network, clock, &verbs);
    space = loop.run(client->open(record, 5s)).value();
    lent = client->allocate(kCount * kBlockBytes).value();
    EXPECT_EQ(loop.run(client->lend(lent, 5s)).value(), 1u);
    memory.emplace(lent, kCount, kBlockBytes);
  }
  void put_all() {
    memory->fill(chain);
    const PutResult put = loop.run(client->put(space, chain, memory->from, {.deadline = 5s})).value();
    ASSERT_EQ(put.stored, kCount) << put.why.message();
    memory->clear();
  }
  GetResult get(std::chrono::microseconds deadline = 5s) {
    memory->clear();
    const GetResult got = loop.run(client->get(space, chain, memory->to, {.deadline = deadline})).value();
    EXPECT_GE(memory->right(chain), got.block_count) << "a block that is not what it says";
    EXPECT_EQ(got.corrupt_count, 0u);
    return got;
  }
  /// Runs a get in the background.
  struct Running {
    bool is_over = false;
    GetResult result;
  };
  std::shared_ptr<Running> start_get(std::chrono::microseconds deadline) {
    const auto running = std::make_shared<Running>();
    memory->clear();
    asio::co_spawn(loop.context(), client->get(space, chain, memory->to, {.deadline = deadline}),
                   [running](std::exception_ptr thrown, Result<GetResult> result) {
                     if (thrown) std::rethrow_exception(thrown);
                     running->is_over = true;
                     if (result) running->result = *result;
                   });
    return running;
  }
  /// Until RDMA packets are on their way.
  void run_into_transfer(std::uint64_t packets = 20) {
    const std::uint64_t before = verbs.packet_count();
    loop.run_until([&] { return verbs.packet_count() > before + packets; });
  }
  /// The memory is the caller's: nothing may change in it any more.
  void expect_left_alone() {
    std::memset(lent.data(), 0x5A, lent.size());
    loop.run_for(20s);
    EXPECT_TRUE(std::ranges::all_of(lent, [](std::byte byte) { return byte == std::byte{0x5A}; }))
        << "written after it was given back";
  }
  std::string transport() { return client->nodes()[0].peer_transport; }
  bool uses_verbs() {
    const std::uint64_t before = verbs.packet_count();
    EXPECT_EQ(get().block_count, kCount);
    return verbs.packet_count() > before + kCount;
  }

  VirtualClock clock;
  SimNetwork network{clock, 1};
  Loop loop{&clock};
  verbs::FakeVerbs verbs{clock, loop.context().get_executor(), {.device_count = 4}};
  std::unique_ptr<sim::SimNode> node;
  ClientConfig config = repeatable_config();
  std::unique_ptr<Client> client;
  const NamespaceRecord record = test_record(kBlockBytes);
  const std::vector<BlockHash> chain = test_chain(record, kCount);
  Space space{};
  std::span<std::byte> lent;
  std::optional<Blocks> memory;
};

}  // namespace kv
