// A client that guesses: keys, addresses, queue pair numbers; that replays a removed registration, or names memory of
// another session. It is connected to the node, as every client is. It must not read or change a byte of the node's
// arena or of another client's memory.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <random>

#include "tests/transport/verbs_world.h"

namespace kv::verbs {
namespace {

class VerbsAttackTest : public testing::TestWithParam<std::string> {};

std::size_t try_count(const std::string& provider) {
  if (const char* const text = std::getenv("KV_VERBS_ATTACKS")) return std::strtoull(text, nullptr, 10);
  return provider == "fake" ? 1'000'000 : 10'000;
}

enum class Attack {
  kGuessedKey,
  kTrueArenaKey,
  kOthersRegion,
  kReplayedRegion,
  kGuessedQueuePair,
  kOthersLocalKey,
  kCount
};

TEST_P(VerbsAttackTest, AGuessingClientGetsNothing) {
  const std::uint64_t seed = seed_or(1);
  const std::size_t tries = try_count(GetParam());
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto world = VerbsWorld::make(GetParam(), {.seed = seed});
  constexpr std::size_t kBytes = 4096;
  // The arena allows nothing remote, and nor do the node's queue pairs.
  Side node(*world, world->node_device(), kBytes, {.local_write = true});
  Side victim(*world, world->client_device(), kBytes), attacker(*world, world->client_device(), kBytes);
  for (std::byte& byte : node.memory) byte = static_cast<std::byte>(random());
  for (std::byte& byte : victim.memory) byte = static_cast<std::byte>(random());
  const std::vector<std::byte> arena = node.memory, lent = victim.memory, blank = attacker.memory;
  auto to_victim = std::make_unique<Link>(node, victim, QueuePairOptions{}, kOpen);

  std::array<std::size_t, static_cast<std::size_t>(Attack::kCount)> refused{};
  std::unique_ptr<Link> link;
  for (std::size_t i = 0; i < tries; ++i) {
    const auto attack = static_cast<Attack>(i % refused.size());
    if (!link) link = std::make_unique<Link>(node, attacker, QueuePairOptions{}, kOpen);
    const bool is_write = random() % 2 == 0;
    const std::size_t bytes = 1 + random() % 512;
    Request request{.opcode = is_write ? Opcode::kWrite : Opcode::kRead};
    Piece own = attacker.piece(0, bytes), slot = node.piece(0, bytes);
    request.pieces = std::span(&own, 1);
    QueuePair* through = link->b.get();  // the attacker's end
    CompletionQueue* queue = attacker.queue.get();
    std::unique_ptr<QueuePair> forged;
    switch (attack) {
      case Attack::kGuessedKey:
        // A key near the arena's, or any; an address in the arena, or any.
        request.rkey = random() % 2 ? static_cast<std::uint32_t>(random())
                                    : node.region->rkey() + static_cast<std::uint32_t>(random() % 2048) - 1024;
        request.remote_address = random() % 2 ? node.address(random() % (kBytes - bytes)) : random();
        break;
      case Attack::kTrueArenaKey:  // even if it knew it
        request.rkey = node.region->rkey();
        request.remote_address = node.address(random() % (kBytes - bytes));
        break;
      case Attack::kOthersRegion:  // asks the node to move bytes into or out of what another client has lent
        request.rkey = victim.region->rkey();
        request.remote_address = victim.address(random() % (kBytes - bytes));
        request.pieces = std::span(&slot, 1);
        through = link->a.get();
        queue = node.queue.get();
        break;
      case Attack::kReplayedRegion: {  // its own, taken back
        auto region = attacker.domain->register_memory(attacker.memory, Side::kAll).value();
        request.rkey = region->rkey();
        request.remote_address = attacker.address(random() % (kBytes - bytes));
        request.pieces = std::span(&slot, 1);
        through = link->a.get();
        queue = node.queue.get();
        break;
      }
      case Attack::kGuessedQueuePair: {  // connects to a queue pair that expects somebody else
        forged = attacker.domain->create_queue_pair(*attacker.queue, {}).value();
        const bool is_nodes = random() % 2 == 0;
        const Side& target = is_nodes ? node : victim;
        const std::uint32_t number = random() % 4 == 0 ? static_cast<std::uint32_t>(random() & 0xFFFFFF)
                                                       : (is_nodes ? to_victim->a : to_victim->b)->number();
        const auto psn = static_cast<std::uint32_t>(random() & 0xFFFFFF);
        const QueuePairAddress address = address_of(target.attachment, number, psn);
        Path path = path_to(attacker.attachment, psn, address);
        path.timeout_exponent = 8;
        path.retry_count = 1;
        ASSERT_TRUE(forged->connect(address, path));
        request.rkey = target.region->rkey();
        request.remote_address = target.address(random() % (kBytes - bytes));
        through = forged.get();
        break;
      }
      case Attack::kOthersLocalKey:  // as its own memory, to be sent away or overwritten
        own = random() % 2 ? node.piece(0, bytes) : victim.piece(0, bytes);
        request.rkey = attacker.region->rkey();
        request.remote_address = attacker.address(1024);
        break;
      case Attack::kCount: break;
    }
    ASSERT_TRUE(through->post(std::span(&request, 1), 1));
    const auto got = world->collect(*queue, 1);
    ASSERT_EQ(got.size(), 1u) << "try " << i;
    ASSERT_NE(got[0].status, Status::kSuccess) << "try " << i << ", attack " << static_cast<int>(attack);
    ++refused[static_cast<std::size_t>(attack)];
    ASSERT_TRUE(node.memory == arena) << "try " << i << ": the arena changed";
    ASSERT_TRUE(victim.memory == lent) << "try " << i << ": another client's memory changed";
    ASSERT_TRUE(attacker.memory == blank) << "try " << i << ": the attacker has read something";
    if (!forged) link.reset();  // that queue pair is in ERROR
  }
  std::cout << "seed " << seed << ": " << tries << " tries, refused";
  for (const std::size_t count : refused) std::cout << ' ' << count;
  std::cout << '\n';
  // The victim was not even disturbed.
  const Piece slot = node.piece(0, kBytes);
  const Request request{
      .pieces = std::span(&slot, 1), .remote_address = victim.address(), .rkey = victim.region->rkey()};
  ASSERT_TRUE(to_victim->a->post(std::span(&request, 1), 1));
  const auto got = world->collect(*node.queue, 1);
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].status, Status::kSuccess);
  EXPECT_TRUE(victim.memory == arena);
}

INSTANTIATE_TEST_SUITE_P(Providers, VerbsAttackTest, testing::ValuesIn(provider_names()),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace kv::verbs
