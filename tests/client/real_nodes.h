// tests/client/real_nodes.h: clients and real nodes in one process, over sockets or the simulated network.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/assert.h"
#include "client/client.h"
#include "store/node/listen/server.h"
#include "tests/fakes/sim_network.h"
#include "tests/fakes/virtual_clock.h"
#include "tests/sim/sim_node.h"

namespace kv {

inline NamespaceRecord test_record(std::size_t block_bytes, const std::string& model = "m") {
  return NamespaceRecord::from_fields(
             {{"model", model}, {"block_size", "4"}, {"block_bytes", std::to_string(block_bytes)}})
      .value();
}

inline std::vector<BlockHash> test_chain(const NamespaceRecord& record, std::size_t block_count,
                                         std::uint32_t seed = 1) {
  std::vector<std::uint32_t> tokens(block_count * record.block_size());
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint32_t>(i) * 7 + seed;
  return hash_chain(record.digest(), tokens, record.block_size());
}

/// What a block must hold, wherever it turns up.
inline void fill_block(const BlockHash& hash, std::span<std::byte> bytes) {
  std::mt19937_64 random(hash_prefix(hash));
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, std::min<std::size_t>(8, bytes.size() - i));
  }
}

/// Memory for the blocks of a chain.
struct Blocks {
  Blocks(std::size_t count, std::size_t block_bytes) : owned(count * block_bytes), memory(owned) { cut(block_bytes); }
  Blocks(std::span<std::byte> lent, std::size_t count, std::size_t block_bytes)
      : memory(lent.first(count * block_bytes)) {
    cut(block_bytes);
  }
  void fill(std::span<const BlockHash> chain) {
    for (std::size_t i = 0; i < to.size(); ++i) fill_block(chain[i], to[i]);
  }
  void clear() { std::memset(memory.data(), 0xEE, memory.size()); }
  /// Leading blocks that hold what they must.
  std::size_t right(std::span<const BlockHash> chain) const {
    std::vector<std::byte> expected(to[0].size());
    for (std::size_t i = 0; i < to.size(); ++i) {
      fill_block(chain[i], expected);
      if (std::memcmp(expected.data(), to[i].data(), expected.size()) != 0) return i;
    }
    return to.size();
  }

  std::vector<std::byte> owned;
  std::span<std::byte> memory;
  std::vector<std::span<std::byte>> to;
  std::vector<std::span<const std::byte>> from;

 private:
  void cut(std::size_t block_bytes) {
    to = blocks_in(memory, block_bytes);
    from.assign(to.begin(), to.end());
  }
};

/// Of a client on virtual time: the pauses that it chooses at random are the same in every run.
inline ClientConfig repeatable_config(std::uint64_t seed = 1) {
  ClientConfig config;
  config.seed = seed;
  return config;
}

/// Runs coroutines of the test to their end.
class Loop {
 public:
  explicit Loop(VirtualClock* virtual_clock = nullptr) : clock_(virtual_clock) {}
  asio::io_context& context() { return context_; }

  template <class T>
  Result<T> run(Async<T> call) {
    std::optional<Result<T>> result;
    asio::co_spawn(context_, std::move(call), [&](std::exception_ptr exception, Result<T> value) {
      if (exception) std::rethrow_exception(exception);
      result.emplace(std::move(value));
    });
    run_until([&] { return result.has_value(); });
    return std::move(*result);
  }
  void run_until(const std::function<bool()>& done) {
    while (!done()) step();
  }
  void run_for(Duration duration) {  // virtual time only
    const TimePoint until = clock_->now() + duration;
    for (;;) {
      if (poll() > 0) continue;
      if (!clock_->has_alarm() || clock_->next_alarm() > until) break;
      clock_->advance_to(clock_->next_alarm());
    }
    clock_->advance_to(until);
    while (poll() > 0) {
    }
  }
  /// Lets closed sessions and nodes unwind.
  void drain() {
    for (int i = 0; i < 1000 && poll() > 0; ++i) {
    }
  }

 private:
  std::size_t poll() {
    context_.restart();
    return context_.poll();
  }
  void step() {
    if (clock_ == nullptr) {
      context_.restart();
      context_.run_one();
    } else if (poll() == 0) {
      KV_ASSERT(clock_->has_alarm());  // else the test would wait for ever
      clock_->advance_to(clock_->next_alarm());
    }
  }

  asio::io_context context_{1};
  VirtualClock* clock_;
};

/// A kvstore-node on sockets of this host, with a thread of its own.
class SocketNode {
 public:
  SocketNode(StoreConfig config, const std::string& id, Endpoint endpoint)
      : metrics_("test"), store_(Store::create(config).value(), metrics_), context_{store_, clock_, metrics_, {}} {
    context_.node_id = id;
    context_.lease_duration = config.lease_duration;
    server_ = std::make_unique<Server>(context_, ServerConfig{});
    endpoint_ = server_->listen(socket_network(), endpoint).value();
    server_->start();
  }
  ~SocketNode() { server_->stop(1s); }
  const Endpoint& endpoint() const { return endpoint_; }
  StoreStats stats() {
    return store_.with([](Store& store) { return store.stats(); });
  }

 private:
  SteadyClock clock_;
  NodeMetrics metrics_;
  LockedStore store_;
  NodeContext context_;
  Endpoint endpoint_;
  std::unique_ptr<Server> server_;
};

inline StoreConfig small_store(std::size_t capacity_bytes = 64 << 20) {
  StoreConfig config;
  config.arena.capacity_bytes = capacity_bytes;
  config.arena.granule_bytes = 256 * 1024;
  config.arena.huge_pages = false;
  config.arena.touch = false;
  return config;
}

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    char name[] = "/tmp/kvstore-test-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace kv
