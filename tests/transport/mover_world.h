// tests/transport/mover_world.h: a node with an arena and a mover, a client that has lent memory, on any provider.
#pragma once

#include <gtest/gtest.h>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "tests/transport/verbs_world.h"
#include "transport/verbs/verbs_mover.h"

namespace kv::verbs {

struct MoverWorld {
  explicit MoverWorld(const std::string& provider, const MoverOptions& given = {}, const FakeOptions& fake_options = {},
                      std::size_t bytes = 4 << 20)
      : options(given),
        world(VerbsWorld::make(provider, fake_options)),
        // As in a node: the arena is open to nobody.
        node(*world, world->node_device(), bytes, {.local_write = true}),
        client(std::make_unique<Side>(*world, world->client_device(), bytes)),
        loop(world->io().get_executor(), std::move(node.queue)) {
    std::mt19937_64 random(fake_options.seed);
    for (std::byte& byte : node.memory) byte = static_cast<std::byte>(random());
    for (std::byte& byte : client->memory) byte = static_cast<std::byte>(random());
    asio::co_spawn(world->io(), loop.run(), asio::detached);
    connect();
  }
  ~MoverWorld() {
    mover.reset();
    loop.stop();
    for (int i = 0; i < 3; ++i) world->wait_some();
  }

  void connect(std::uint8_t timeout_exponent = 16) {
    mover.reset();
    client_pair.reset();
    mover = VerbsMover::create(loop, world->clock(), *node.domain, options).value();
    client_pair = client->domain->create_queue_pair(*client->queue, kOpen).value();
    const std::uint32_t node_psn = random_psn(), client_psn = random_psn();
    const auto node_address = address_of(node.attachment, mover->queue_pair().number(), node_psn);
    const auto client_address = address_of(client->attachment, client_pair->number(), client_psn);
    Path path = path_to(node.attachment, node_psn, client_address);
    path.timeout_exponent = timeout_exponent;
    ASSERT_TRUE(mover->queue_pair().connect(client_address, path));
    ASSERT_TRUE(client_pair->connect(node_address, path_to(client->attachment, client_psn, node_address)));
  }

  Stretch stretch(std::size_t local, std::size_t remote, std::size_t bytes) {
    return {std::span(node.memory).subspan(local, bytes), node.region->lkey(), client->address(remote),
            client->region->rkey()};
  }

  struct Running {
    std::optional<Result<void>> result;
    std::vector<std::size_t> marks;
    std::weak_ptr<const void> owner;
    asio::cancellation_signal cancel;
  };
  std::shared_ptr<Running> start(Direction direction, std::vector<Stretch> stretches, std::vector<std::size_t> ends,
                                 Duration limit = 1h, std::function<void(std::size_t)> on_mark = {}) {
    auto running = std::make_shared<Running>();
    std::shared_ptr<const void> owner = std::make_shared<int>(0);
    running->owner = owner;
    auto moving = mover->move(direction, std::move(stretches), std::move(ends), std::move(owner),
                              world->clock().now() + limit, [running, on_mark](std::size_t segment) {
                                running->marks.push_back(segment);
                                if (on_mark) on_mark(segment);
                              });
    asio::co_spawn(world->io(), std::move(moving),
                   asio::bind_cancellation_slot(running->cancel.slot(),
                                                [running](const std::exception_ptr& thrown, Result<void> result) {
                                                  if (thrown) std::rethrow_exception(thrown);
                                                  running->result = result;
                                                }));
    return running;
  }
  template <class Condition>
  bool run_until(Condition done) {
    world->progressed();
    while (!done()) {
      if (!world->wait_some()) return done();
    }
    return true;
  }
  /// How a move ended; nullopt if it never did.
  std::optional<error_code> finish(const std::shared_ptr<Running>& running) {
    if (!run_until([&] { return running->result.has_value(); })) return std::nullopt;
    return *running->result ? error_code() : running->result->error();
  }

  MoverOptions options;
  std::unique_ptr<VerbsWorld> world;
  Side node;
  std::unique_ptr<Side> client;
  CompletionLoop loop;
  std::unique_ptr<QueuePair> client_pair;
  std::unique_ptr<VerbsMover> mover;
};

}  // namespace kv::verbs
