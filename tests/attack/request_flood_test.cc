// More requests than anybody needs, from sessions that said hello properly: read or not, on one session or on many.
#include <sys/socket.h>

#include <atomic>
#include <thread>

#include "tests/attack/attacked_node.h"
#include "tests/attack/attacker.h"

namespace kv::attack {
namespace {

class RequestFloodTest : public AttackTest {
 protected:
  /// So many of these frames in a row.
  static Bytes repeated(const Bytes& frame, std::size_t count) {
    Bytes all;
    for (std::size_t i = 0; i < count; ++i) all.insert(all.end(), frame.begin(), frame.end());
    return all;
  }
  /// Sends `bytes` over and over without a pause, and reads what comes, until bystanders on the same thread of the node
  /// were served.
  void flood(Attacker& attacker, const Bytes& bytes) {
    std::atomic<bool> is_over{false};
    std::thread writer([&] {
      while (!is_over && attacker.send_bytes(bytes)) {
      }
    });
    std::thread reader([&] {
      Bytes scratch(256 << 10);
      while (::recv(attacker.fd(), scratch.data(), scratch.size(), 0) > 0) {
      }
    });
    expect_bystanders_served();
    is_over = true;
    writer.join();
    ::shutdown(attacker.fd(), SHUT_RDWR);
    reader.join();
  }
};

TEST_F(RequestFloodTest, PingsWithoutAPauseLeaveOthersTheirTurn) {
  Attacker attacker = Attacker::greeted(node->unix_socket());
  flood(attacker, repeated(frame_bytes(FrameType::kPing, 7, ping_request()), 2000));
}

TEST_F(RequestFloodTest, CancelsOfNothingLeaveOthersTheirTurn) {
  Attacker attacker = Attacker::greeted(node->unix_socket());
  flood(attacker, repeated(frame_bytes(FrameType::kCancel, 7, cancel_request(8)), 2000));
}

TEST_F(RequestFloodTest, PutDataForNobodyLeavesOthersTheirTurn) {
  Attacker attacker = Attacker::greeted(node->unix_socket());
  const Bytes payload(4096);
  flood(attacker, repeated(frame_bytes(FrameType::kPutData, 7, put_data(1, {1}), payload), 100));
}

TEST_F(RequestFloodTest, LongMatchesLeaveOthersTheirTurn) {
  Attacker attacker = Attacker::greeted(node->unix_socket());
  const NamespaceRecord record = record_of(4096, "matches");
  const OpenedSpace space = attacker.open(record);
  const auto chain = e2e::make_chain(5, 2000);
  EXPECT_GT(attacker.put(space, record, chain, std::byte{1}), 0u);
  flood(attacker, repeated(frame_bytes(FrameType::kMatch, 7, match_request(space, chain, true)), 10));
}

TEST_F(RequestFloodTest, GetsWithoutAPauseLeaveOthersTheirTurn) {
  Attacker attacker = Attacker::greeted(node->unix_socket());
  const NamespaceRecord record = record_of(64 << 10, "gets");
  const OpenedSpace space = attacker.open(record);
  const auto chain = e2e::make_chain(6, 32);
  EXPECT_EQ(attacker.put(space, record, chain, std::byte{1}), chain.size());
  flood(attacker, repeated(frame_bytes(FrameType::kGet, 7, get_request(space, chain)), 10));
}

TEST_F(RequestFloodTest, StatsWithoutAPauseLeaveOthersTheirTurn) {
  Attacker attacker = Attacker::greeted(node->unix_socket());
  for (int i = 0; i < 100; ++i) attacker.open(record_of(4096, "stats" + std::to_string(i)));
  flood(attacker, repeated(frame_bytes(FrameType::kAdmin, 7, stats_request()), 100));
}

TEST_F(RequestFloodTest, WhoNeverReadsHisAnswersIsCutOffAndHisAnswersAreBounded) {
  start({"--write-seconds", "2", "--queued-bytes-max", "1MiB"});
  const NamespaceRecord record = record_of(64 << 10, "unread");
  const auto chain = e2e::make_chain(7, 64);
  std::vector<Attacker> attackers;
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) attackers.push_back(Attacker::greeted(i % 2 == 0 ? node->unix_socket() : node->tcp()));
  const OpenedSpace space = attackers[0].open(record);
  EXPECT_EQ(attackers[0].put(space, record, chain, std::byte{1}), chain.size());
  for (Attacker& each : attackers) {
    if (each.open(record).number != space.number) return;  // handles are each session's own
    threads.emplace_back([&] {
      Bytes frames;
      for (std::uint64_t id = 0; id < 500; ++id) {
        const Bytes stats = frame_bytes(FrameType::kAdmin, 2 * id, stats_request());
        const Bytes get = frame_bytes(FrameType::kGet, 2 * id + 1, get_request(space, chain));
        frames.insert(frames.end(), stats.begin(), stats.end());
        frames.insert(frames.end(), get.begin(), get.end());
      }
      while (each.send_bytes(frames)) {
      }
    });
  }
  expect_bystanders_served();
  for (auto& each : threads) each.join();  // the node has cut them all off
  EXPECT_TRUE(e2e::eventually([&] { return node->metric("kvstore_sessions") < 10; }));
}

TEST_F(RequestFloodTest, AllTheLeasesASessionCanHaveLeaveOthersTheirs) {
  Attacker attacker = Attacker::greeted(node->unix_socket());
  const NamespaceRecord record = record_of(4096, "leases");
  const OpenedSpace space = attacker.open(record);
  const auto chain = e2e::make_chain(8, 16);
  EXPECT_EQ(attacker.put(space, record, chain, std::byte{1}), chain.size());
  const Bytes frames = repeated(frame_bytes(FrameType::kMatch, 7, match_request(space, chain, true)), 3000);
  std::thread writer([&] { attacker.send_bytes(frames); });
  for (int i = 0; i < 3000; ++i) EXPECT_FALSE(attacker.last_answer(7).is_error());
  writer.join();
  expect_bystanders_served();
}

TEST_F(RequestFloodTest, PutsThatAreOfferedAndNeverSentEndAndGiveTheirMemoryBack) {
  start({"--put-seconds", "2", "--requests-max", "64"});
  Attacker attacker = Attacker::greeted(node->unix_socket());
  const NamespaceRecord record = record_of(16 << 10, "offers");
  const OpenedSpace space = attacker.open(record);
  for (std::uint64_t id = 1000; id < 1190; ++id)
    attacker.send(FrameType::kPut, id, put_request(space, e2e::make_chain(id, 8)));
  expect_bystanders_served();
  EXPECT_TRUE(e2e::eventually([&] { return node->metric("kvstore_incoming_blocks") == 0; }));
  attacker.ping();
}

TEST_F(RequestFloodTest, ThousandsOfNamespacesOpenedLeaveOthersServed) {
  bounds.rss_growth_bytes = 128 << 20;
  Attacker attacker = Attacker::greeted(node->unix_socket());
  for (int i = 0; i < 3000; ++i) {
    attacker.ask(FrameType::kOpen, 2, open_request(record_of(4096, "many" + std::to_string(i))));  // or is refused
  }
  expect_bystanders_served();
}

}  // namespace
}  // namespace kv::attack
