// tests/client/client_fixture.h: a Client and real nodes, one or several, over whichever transport a test names.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "tests/client/real_nodes.h"
#include "tests/fakes/virtual_clock.h"

namespace kv {

struct Setup {
  const char* transport;
  std::size_t node_count;
  friend void PrintTo(const Setup& setup, std::ostream* out) { *out << setup.transport << " x " << setup.node_count; }
};

class ClientFixture : public testing::TestWithParam<Setup> {
 protected:
  ClientFixture() {
    network.set_passes_descriptors(!is_verbs());
    for (std::size_t i = 0; i < GetParam().node_count; ++i) {
      const std::string name = "node" + std::to_string(i);
      if (is_sim()) {
        sim_nodes.push_back(std::make_unique<sim::SimNode>(loop.context(), network, clock, name, small_store(),
                                                           sim::DiskFaults{}, i, is_verbs() ? &verbs : nullptr,
                                                           std::vector{"fake" + std::to_string(i)}));
        config.nodes.push_back({.endpoint = "sim://" + name, .name = name});
      } else {
        const Endpoint endpoint = transport() == "tcp"
                                      ? Endpoint{Endpoint::Scheme::kTcp, "127.0.0.1", "0"}
                                      : Endpoint{Endpoint::Scheme::kUnix, directory.path() + "/" + name, ""};
        nodes.push_back(std::make_unique<SocketNode>(small_store(), name, endpoint));
        config.nodes.push_back({.endpoint = nodes.back()->endpoint().to_string(), .name = name});
      }
    }
    if (transport() == "staged") config.staging_bytes = 2 << 20;
    config.extent_blocks = 2;  // so that chains of a few blocks lie on several nodes
    client = make_client();
  }
  ~ClientFixture() override {
    client.reset();
    sim_nodes.clear();
    loop.drain();
  }

  std::unique_ptr<Client> make_client() {
    config.rdma_devices = {"fake4", "fake5"};
    config.rdma_lanes = 2;
    if (is_sim())
      return std::make_unique<Client>(loop.context().get_executor(), config, network, clock,
                                      is_verbs() ? &verbs : nullptr);
    return std::make_unique<Client>(loop.context().get_executor(), config);
  }
  std::string transport() const { return GetParam().transport; }
  bool is_verbs() const { return transport() == "verbs"; }
  bool is_sim() const { return transport() == "sim" || is_verbs(); }
  Blocks blocks(std::size_t count, std::size_t block_bytes) {
    if (transport() != "memfd" && !is_verbs()) return Blocks(count, block_bytes);
    const auto lent = client->allocate(count * block_bytes).value();
    if (is_verbs()) {  // else the first calls would go through the socket
      EXPECT_GE(loop.run(client->lend(lent, 5s)).value(), GetParam().node_count);
      for (const NodeStatus& node : client->nodes()) EXPECT_EQ(node.peer_transport, "sim+verbs") << node.rdma_text;
    }
    return Blocks(lent, count, block_bytes);
  }
  Space open(const NamespaceRecord& record) { return loop.run(client->open(record, 5s)).value(); }

  VirtualClock clock;
  SimNetwork network{clock, 1};
  Loop loop{is_sim() ? &clock : nullptr};
  verbs::FakeVerbs verbs{clock, loop.context().get_executor(), {.device_count = 6}};
  TemporaryDirectory directory;
  std::vector<std::unique_ptr<sim::SimNode>> sim_nodes;
  std::vector<std::unique_ptr<SocketNode>> nodes;
  ClientConfig config = repeatable_config();
  std::unique_ptr<Client> client;
};

}  // namespace kv
