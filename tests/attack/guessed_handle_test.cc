// Numbers that belong to somebody else: namespaces, leases, regions and requests of other sessions, guessed.
#include "tests/attack/attacked_node.h"
#include "tests/attack/attacker.h"
#include "transport/shared_memory.h"

namespace kv::attack {
namespace {

constexpr std::size_t kGuessedBlock = 64 << 10;

/// A victim with a namespace, blocks, a lease, a region, and a put under way; and an attacker who has none of these.
class GuessedHandleTest : public AttackTest {
 protected:
  void SetUp() override {
    start();
    victim = std::make_unique<Attacker>(Attacker::greeted(node->unix_socket()));
    for (int i = 0; i < 5; ++i) space = victim->open(record_of(kGuessedBlock, "victim" + std::to_string(i)));
    record = record_of(kGuessedBlock, "victim4");
    ASSERT_EQ(victim->put(space, record, chain, std::byte{7}), chain.size());
    const auto matched = victim->ask(FrameType::kMatch, 5, match_request(space, chain, true));
    lease = read_table<wire::MatchResponse>(matched.table)->lease();
    ASSERT_NE(lease, 0u);
    memory = SharedMemory::create(chain.size() * kGuessedBlock).value();
    region = victim->lent(memory->fd(), memory->bytes().size());
    victim->send(FrameType::kPut, kPutId, put_request(space, next));
    ASSERT_TRUE(victim->read_answer());
    thief = std::make_unique<Attacker>(Attacker::greeted(node->unix_socket()));
  }
  /// Nothing of the victim's was touched.
  void TearDown() override {
    victim->send(FrameType::kPutData, kPutId, put_data(4, sums_of(record, next, std::byte{7})),
                 Bytes(next.size() * kGuessedBlock, std::byte{7}));
    const auto put = victim->last_answer(kPutId);
    EXPECT_FALSE(put.is_error()) << put.error_text();
    EXPECT_FALSE(victim->ask(FrameType::kRelease, 6, release_request(lease)).is_error()) << "somebody ended the lease";
    const Offsets offsets = {0, kGuessedBlock, 2 * kGuessedBlock, 3 * kGuessedBlock};
    const auto got = victim->ask(FrameType::kGet, 7, get_request(space, chain, region, offsets));
    ASSERT_FALSE(got.is_error()) << got.error_text();
    EXPECT_EQ(read_table<wire::GetResponse>(got.table)->block_count(), chain.size());
    for (const std::byte byte : memory->bytes()) ASSERT_EQ(byte, std::byte{7});
    EXPECT_FALSE(victim->ask(FrameType::kRegionRemove, 8, region_remove(region)).is_error());
    victim.reset();
    thief.reset();
    AttackTest::TearDown();
  }

  /// One that is not refused is cancelled at once.
  e2e::RawSession::Answer refusal_of_put(std::uint32_t guess) const {
    thief->send(FrameType::kPut, 9, put_request({guess, namespace_check(record.id())}, chain));
    thief->send(FrameType::kCancel, 10, cancel_request(9));
    return thief->last_answer(9);
  }

  static constexpr std::uint64_t kPutId = 77;
  NamespaceRecord record = record_of(kGuessedBlock, "victim");
  std::vector<BlockHash> chain = e2e::make_chain(11, 4), next = e2e::make_chain(12, 4);
  OpenedSpace space;
  std::uint32_t region = 0;
  std::uint64_t lease = 0;
  std::unique_ptr<SharedMemory> memory;
  std::unique_ptr<Attacker> victim, thief;
};

TEST_F(GuessedHandleTest, NamespacesOfOthersAreNoNamespaces) {
  for (std::uint32_t guess = 0; guess < 2000; ++guess) {
    const OpenedSpace guessed{guess, space.check};
    ASSERT_EQ(refusal_of_put(guess).error_code(), Errc::kNoNamespace) << guess;
    ASSERT_EQ(thief->ask(FrameType::kMatch, 9, match_request(guessed, chain, true)).error_code(), Errc::kNoNamespace);
    ASSERT_EQ(thief->ask(FrameType::kGet, 9, get_request(guessed, chain)).error_code(), Errc::kNoNamespace);
    ASSERT_EQ(thief->ask(FrameType::kDrop, 9, prefix_request(guessed, {})).error_code(), Errc::kNoNamespace);
  }
  // What it has opened is not good for another namespace either.
  const OpenedSpace own = thief->open(record_of(kGuessedBlock, "thief"));
  for (const std::uint64_t check : {space.check, std::uint64_t{0}, own.check + 1}) {
    ASSERT_EQ(thief->ask(FrameType::kDrop, 9, prefix_request({own.number, check}, {})).error_code(), Errc::kMismatch);
    ASSERT_EQ(thief->ask(FrameType::kGet, 9, get_request({own.number, check}, chain)).error_code(), Errc::kMismatch);
  }
}

TEST_F(GuessedHandleTest, LeasesOfOthersLiveOn) {
  const OpenedSpace handle = thief->open(record);
  for (std::uint64_t guess = lease > 50 ? lease - 50 : 0; guess < lease + 50; ++guess) {
    thief->ask(FrameType::kRelease, 9, release_request(guess));
    thief->ask(FrameType::kGet, 10, get_request(handle, chain, 0, {}, guess));
  }
}

TEST_F(GuessedHandleTest, RegionsOfOthersAreNoRegions) {
  const OpenedSpace handle = thief->open(record);
  for (std::uint32_t guess = 1; guess < region + 50; ++guess) {
    EXPECT_EQ(thief->ask(FrameType::kGet, 9, get_request(handle, chain, guess, Offsets(4))).error_code(),
              Errc::kNoRegion);
    EXPECT_EQ(
        thief->ask(FrameType::kPut, 9, put_request(handle, e2e::make_chain(13, 4), guess, Offsets(4))).error_code(),
        Errc::kNoRegion);
    EXPECT_TRUE(thief->ask(FrameType::kRegionRemove, 9, region_remove(guess)).is_error());
  }
}

TEST_F(GuessedHandleTest, RequestsOfOthersAreNotCancelledAndTakeNobodysData) {
  for (std::uint64_t guess = kPutId - 10; guess < kPutId + 10; ++guess) {
    thief->send(FrameType::kCancel, 9, cancel_request(guess));
    thief->send(FrameType::kPutData, guess, put_data(4, sums_of(record, next, std::byte{9})),
                Bytes(next.size() * kGuessedBlock, std::byte{9}));
  }
  thief->ping();
}

TEST_F(GuessedHandleTest, ARequestIdInUseIsRefusedAndTheFirstGoesOn) {
  for (const auto type : {FrameType::kPut, FrameType::kGet}) {
    victim->send_bytes(type == FrameType::kPut ? frame_bytes(type, kPutId, put_request(space, e2e::make_chain(14, 2)))
                                               : frame_bytes(type, kPutId, get_request(space, chain)));
    const auto refused = victim->last_answer(kPutId);
    EXPECT_EQ(refused.error_code(), Errc::kBadRequest);
  }
}

TEST_F(GuessedHandleTest, AnIdUsedByEveryRequestAtOnceGetsAnAnswerForEach) {
  const OpenedSpace handle = thief->open(record);
  constexpr std::uint64_t kId = 5;
  const FrameType types[] = {FrameType::kMatch, FrameType::kTouch, FrameType::kPing, FrameType::kAdmin,
                             FrameType::kGet};
  for (const FrameType type : types) {
    switch (type) {
      case FrameType::kMatch: thief->send(type, kId, match_request(handle, chain)); break;
      case FrameType::kTouch: thief->send(type, kId, prefix_request(handle, chain)); break;
      case FrameType::kAdmin: thief->send(type, kId, stats_request()); break;
      case FrameType::kGet: thief->send(type, kId, get_request(handle, chain)); break;
      default: thief->send(type, kId, ping_request()); break;
    }
  }
  for (const FrameType type : types) {
    const auto answer = thief->last_answer(kId);
    EXPECT_EQ(answer.header.type, type);
    EXPECT_FALSE(answer.is_error());
  }
}

}  // namespace
}  // namespace kv::attack
