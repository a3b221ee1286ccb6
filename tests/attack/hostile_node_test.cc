// A hostile node and the real client library: whatever the node does, each call ends, no byte that fails its checksum
// is called good, memory that was given back is neither written nor sent, and the client can be closed.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <list>
#include <memory>
#include <random>
#include <thread>

#include "client/kvstore.h"
#include "tests/attack/hostile_node.h"
#include "tests/client/real_nodes.h"
#include "tests/client/typed_calls.h"

namespace kv::attack {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

constexpr std::chrono::microseconds kDeadline = 100ms;
/// A call that ends later does not end by its deadline, however busy the machine is.
constexpr std::chrono::seconds kLate{15};
constexpr std::size_t kCount = 6;
constexpr std::byte kReused{0xA5};

enum class Memory { kOwn, kAllocated };

/// One client and one hostile node. Failures are gathered as text: many scenes run on threads beside each other.
class Scene {
 public:
  Scene(bool is_tcp, Memory memory, std::size_t block_bytes, Script script)
      : record_(test_record(block_bytes)),
        chain_(test_chain(record_, kCount)),
        node_(is_tcp, record_, script),
        memory_(memory) {}

  /// What went wrong; empty if nothing did.
  std::string play(int rounds) {
    ClientConfig config;
    NodeConfig node;
    node.endpoint = node_.endpoint();
    config.nodes.push_back(std::move(node));
    config.backoff_min = 1ms;
    config.backoff_max = 5ms;
    config.connect_timeout = 50ms;
    config.breaker_failures = 1000;  // or most calls would not reach the node
    config.rdma = ClientConfig::Rdma::kOff;
    client_ = std::make_unique<TypedClient>(config);
    call("open", [&] {
      const auto space = client_->open(record_, kDeadline);
      if (space) space_ = *space;
      is_open_ = space.has_value();
    });
    for (int i = 0; i < rounds && is_open_; ++i) play_round();
    // What was not read is read now: let it come, with the client as it is.
    for (int i = 0; i < 1000 && node_.is_unread(); ++i) std::this_thread::sleep_for(5ms);
    for (int i = 0; i < 3; ++i) call("ping", [&] { (void)client_->ping(kDeadline); });
    for (const Blocks& each : reused_) {
      expect(std::all_of(each.memory.begin(), each.memory.end(), [](std::byte byte) { return byte == kReused; }),
             "memory was written after its call had ended");
    }
    expect(!client_->is_disabled(), "the client is disabled");
    call("close", [&] { client_.reset(); });
    expect(node_.wrong_block_count() == 0, "memory was sent after its call had ended");
    return failures_;
  }

 private:
  void expect(bool is_right, const std::string& what) {
    if (!is_right) failures_ += what + "\n";
  }
  void call(const char* name, const std::function<void()>& work) {
    const SteadyTime began = std::chrono::steady_clock::now();
    work();
    expect(std::chrono::steady_clock::now() - began < kLate, std::string(name) + " did not end by its deadline");
  }
  Blocks make_memory() {
    const std::size_t bytes = record_.block_bytes();
    if (memory_ == Memory::kOwn) return Blocks(kCount, bytes);
    const auto lent = client_->allocate(kCount * bytes);
    return lent ? Blocks(*lent, kCount, bytes) : Blocks(kCount, bytes);
  }
  /// As an engine does: it goes at once, or holds something else at once.
  void reuse(Blocks memory) {
    if (client_->is_quarantined(memory.memory)) return;
    if (memory_ == Memory::kOwn && ++reuse_count_ % 2 == 0) return;  // freed
    std::fill(memory.memory.begin(), memory.memory.end(), kReused);
    reused_.push_back(std::move(memory));
  }
  void play_round() {
    call("match", [&] {
      const auto match = client_->match(space_, chain_, {.deadline = kDeadline, .lease = true});
      expect(!match || match->block_count <= kCount, "match found more than was asked for");
      if (match) client_->release(match->lease);
    });
    for (int i = 0; i < 2; ++i) {
      Blocks memory = make_memory();
      memory.clear();
      call("get", [&] {
        const auto got = client_->get(space_, chain_, memory.to, {.deadline = kDeadline});
        if (!got) return;
        expect(got->block_count <= kCount, "get brought more than was asked for");
        expect(memory.right(chain_) >= got->block_count, "get called wrong bytes good");
      });
      reuse(std::move(memory));
    }
    for (int i = 0; i < 2; ++i) {
      Blocks memory = make_memory();
      memory.fill(chain_);
      call("put", [&] {
        const auto put = client_->put(space_, chain_, memory.from, {.deadline = kDeadline});
        expect(!put || put->stored + put->already_stored + put->refused == kCount, "put lost count");
      });
      reuse(std::move(memory));
    }
    call("touch", [&] { (void)client_->touch(space_, chain_, kDeadline); });
    call("drop", [&] { (void)client_->drop(space_, chain_, kDeadline); });
    call("stats", [&] { (void)client_->ask({.path = "/stats.json"}, kDeadline); });
  }

  NamespaceRecord record_;
  std::vector<BlockHash> chain_;
  HostileNode node_;
  Memory memory_;
  std::unique_ptr<TypedClient> client_;
  Space space_{};
  bool is_open_ = false;
  std::list<Blocks> reused_;
  std::size_t reuse_count_ = 0;
  std::string failures_;
};

/// Runs the scenes side by side, since they mostly wait.
class HostileNodeTest : public testing::Test {
 protected:
  void add(std::string name, std::function<std::string()> scene) {
    scenes_.emplace_back(std::move(name), std::move(scene));
  }
  void play_all() {
    constexpr std::size_t kThreadCount = 16;
    std::atomic<std::size_t> next{0};
    std::mutex mutex;
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < kThreadCount; ++t) {
      threads.emplace_back([&] {
        for (std::size_t i; (i = next++) < scenes_.size();) {
          const std::string failures = scenes_[i].second();
          const std::scoped_lock lock(mutex);
          EXPECT_EQ(failures, "") << scenes_[i].first;
        }
      });
    }
    for (auto& each : threads) each.join();
    std::printf("%zu scenes\n", scenes_.size());
  }
  void add_misdeeds(bool is_tcp, Memory memory, std::initializer_list<FrameType> types) {
    for (const FrameType type : types) {
      for (int misdeed = 0; misdeed < kMisdeedCount; ++misdeed) {
        const Script script{.type = type, .misdeed = static_cast<Misdeed>(misdeed)};
        // Of those, more than the sockets take while nobody reads.
        const bool is_unread = script.misdeed >= Misdeed::kStopsReading && script.misdeed <= Misdeed::kCloseWhileUnread;
        const std::size_t block_bytes =
            is_unread && (type == FrameType::kPut || type == FrameType::kPutData) ? 1'500'000 : 70'000;
        add(std::string(is_tcp ? "tcp, " : "unix, ") + (memory == Memory::kOwn ? "own" : "allocated") + " memory, " +
                frame_type_name(type) + ", misdeed " + std::to_string(misdeed),
            [=] { return Scene(is_tcp, memory, block_bytes, script).play(1); });
      }
    }
  }

 private:
  std::vector<std::pair<std::string, std::function<std::string()>>> scenes_;
};

TEST_F(HostileNodeTest, EveryMisdeedInEveryAnswerHurtsNobody) {
  add_misdeeds(false, Memory::kOwn,
               {FrameType::kHello, FrameType::kOpen, FrameType::kMatch, FrameType::kGet, FrameType::kPut,
                FrameType::kPutData, FrameType::kCancel, FrameType::kRelease, FrameType::kTouch, FrameType::kDrop,
                FrameType::kAdmin, FrameType::kPing});
  play_all();
}

TEST_F(HostileNodeTest, EveryMisdeedOverTcpHurtsNobody) {
  add_misdeeds(true, Memory::kOwn, {FrameType::kHello, FrameType::kGet, FrameType::kPut, FrameType::kPutData});
  play_all();
}

TEST_F(HostileNodeTest, EveryMisdeedWithLentMemoryHurtsNobody) {
  add_misdeeds(
      false, Memory::kAllocated,
      {FrameType::kRegionAdd, FrameType::kRegionRemove, FrameType::kGet, FrameType::kPut, FrameType::kPutData});
  play_all();
}

TEST_F(HostileNodeTest, AnEndAfterAnyByteHurtsNobody) {
  for (std::size_t cut = 0; cut < 9000; cut += cut < 500 ? 1 : 61) {
    Script script;
    script.cut_after_bytes = cut;
    add("cut after " + std::to_string(cut), [=] { return Scene(cut % 2 == 0, Memory::kOwn, 1024, script).play(1); });
  }
  play_all();
}

TEST_F(HostileNodeTest, AnythingInAnyOrderHurtsNobody) {
  const char* const given = std::getenv("KV_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 0) : std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  for (std::uint64_t i = 0; i < 100; ++i) {
    Script script;
    script.is_random = true;
    script.seed = seed * 1000 + i;
    const auto memory = i % 3 == 0 ? Memory::kAllocated : Memory::kOwn;
    add("random " + std::to_string(i), [=] { return Scene(i % 3 == 1, memory, 70'000, script).play(3); });
  }
  play_all();
}

/// The same through the C ABI, which is what engines link.
std::string play_in_c(Script script) {
  const NamespaceRecord record = test_record(70'000);
  const auto chain = test_chain(record, kCount);
  HostileNode node(false, record, script);
  const kvs_node where = {node.endpoint().c_str(), nullptr, 0};
  kvs_options options = KVS_OPTIONS_INIT;
  options.nodes = &where;
  options.node_count = 1;
  options.connect_timeout_us = 50'000;
  options.rdma_off = 1;
  kvs_client* client = nullptr;
  if (kvs_client_open(&options, &client) != KVS_OK) return kvs_last_error();
  std::string failures;
  const auto deadline_us = static_cast<std::uint64_t>(kDeadline.count());
  const auto timed = [&](const char* name, const std::function<int()>& call) {
    const SteadyTime began = std::chrono::steady_clock::now();
    const int status = call();
    if (std::chrono::steady_clock::now() - began >= kLate) failures += std::string(name) + " did not end in time\n";
    if (status == KVS_INTERNAL) failures += std::string(name) + ": " + kvs_last_error() + "\n";
    return status;
  };
  kvs_completion done{};
  const auto run = [&](const kvs_request& request) { return kvs_run(client, &request, &done, sizeof done); };
  kvs_request request = KVS_REQUEST_INIT(KVS_OP_OPEN);
  request.record = record.text().c_str();
  request.deadline_us = deadline_us;
  if (timed("open", [&] { return run(request); }) == KVS_OK) {
    std::vector<kvs_hash> hashes(kCount);
    std::memcpy(hashes.data(), chain.data(), kCount * sizeof(kvs_hash));
    auto memory = std::make_unique<Blocks>(kCount, record.block_bytes());
    std::vector<void*> to;
    for (const auto& each : memory->to) to.push_back(each.data());
    request.record = nullptr;
    request.op = KVS_OP_GET;
    request.space = done.space;
    request.hashes = hashes.data();
    request.count = kCount;
    request.blocks = to.data();
    timed("get", [&] { return run(request); });
    if (memory->right(chain) < done.block_count) failures += "get called wrong bytes good\n";
    memory->fill(chain);
    request.op = KVS_OP_PUT;
    timed("put", [&] { return run(request); });
    memory.reset();
    std::vector<char> json(4096);
    kvs_request stats = KVS_REQUEST_INIT(KVS_OP_STATS);
    stats.deadline_us = deadline_us;
    stats.json = json.data();
    stats.json_capacity = json.size();
    timed("stats", [&] { return run(stats); });
  }
  timed("close", [&] {
    kvs_client_close(client);
    return static_cast<int>(KVS_OK);
  });
  return failures;
}

TEST_F(HostileNodeTest, EveryMisdeedThroughTheCAbiHurtsNobody) {
  for (const FrameType type : {FrameType::kHello, FrameType::kOpen, FrameType::kGet, FrameType::kPut,
                               FrameType::kPutData, FrameType::kAdmin}) {
    for (int misdeed = 0; misdeed < kMisdeedCount; ++misdeed) {
      const Script script{.type = type, .misdeed = static_cast<Misdeed>(misdeed)};
      add(std::string("C, ") + frame_type_name(type) + ", misdeed " + std::to_string(misdeed),
          [=] { return play_in_c(script); });
    }
  }
  play_all();
}

}  // namespace
}  // namespace kv::attack
