// Peers that are slow on purpose, as readers and as writers: they may wait for themselves, nobody else waits for them.
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <thread>

#include "tests/attack/attacked_node.h"
#include "tests/attack/attacker.h"

namespace kv::attack {
namespace {

constexpr std::size_t kLargeBlock = 256 << 10;

class SlowPeerTest : public AttackTest {
 protected:
  /// Reads a little now and then, until told to stop or the node has closed.
  class Crawl {
   public:
    explicit Crawl(Attacker& attacker, std::size_t bytes = 7 << 10)
        : thread_([this, &attacker, bytes] {
            Bytes scratch(bytes);
            while (!stops_ && ::recv(attacker.fd(), scratch.data(), scratch.size(), MSG_DONTWAIT) != 0)
              std::this_thread::sleep_for(100ms);
          }) {}
    ~Crawl() {
      stops_ = true;
      thread_.join();
    }

   private:
    std::atomic<bool> stops_{false};
    std::thread thread_;
  };

  /// An attacker whose blocks fill nearly the whole node.
  Attacker attacker_with_all_memory() {
    Attacker attacker = Attacker::greeted(node->unix_socket());
    space = attacker.open(record);
    for (std::uint64_t i = 0; i < chain.size(); i += 16)
      attacker.put(space, record, std::span(chain).first(i + 16), std::byte{1});
    return attacker;
  }

  NamespaceRecord record = record_of(kLargeBlock, "slow");
  std::vector<BlockHash> chain = e2e::make_chain(9, 224);  // 56 MiB of 64
  OpenedSpace space;
};

TEST_F(SlowPeerTest, LargeRequestsWithoutTheirLastByteTakeNoMemoryToSpeakOf) {
  start({"--capacity", "16MiB"});
  bounds.rss_growth_bytes = 128 << 20;  // 64 MiB of them in all, and 64 KiB a session
  const Bytes frame = frame_bytes(FrameType::kMatch, 7, match_request({}, e2e::make_chain(1, 130'000)));
  ASSERT_GT(frame.size(), 3u << 20);
  std::vector<Attacker> crowd;
  for (int i = 0; i < 200; ++i) {
    crowd.push_back(Attacker::greeted(i % 2 == 0 ? node->unix_socket() : node->tcp()));
    crowd.back().send_bytes(std::span(frame).first(frame.size() - 1));
  }
  expect_bystanders_served();
  EXPECT_GT(node->metric("kvstore_request_memory_refused_total"), 0);
  EXPECT_LE(node->metric("kvstore_request_receiving_bytes"), node->metric("kvstore_request_memory_max_bytes"));
}

TEST_F(SlowPeerTest, HeadersThatDripAreCutOff) {
  start({"--frame-seconds", "1"});
  std::vector<Attacker> drips;
  for (int i = 0; i < 50; ++i) drips.push_back(Attacker::greeted(i % 2 == 0 ? node->unix_socket() : node->tcp()));
  const Bytes frame = frame_bytes(FrameType::kMatch, 7, match_request({}, e2e::make_chain(1, 100)));
  std::atomic<bool> is_over{false};
  std::thread dripping([&] {
    for (std::size_t at = 0; at < frame.size() && !is_over; ++at) {
      for (Attacker& each : drips) each.send_bytes(std::span(frame).subspan(at, 1));
      std::this_thread::sleep_for(20ms);
    }
  });
  expect_bystanders_served();
  EXPECT_TRUE(e2e::eventually([&] {
    return node->metric("kvstore_sessions_closed_total{reason=\"slow_frame\"}") == static_cast<double>(drips.size());
  }));
  is_over = true;
  dripping.join();
}

TEST_F(SlowPeerTest, PutsThatDripHoldNoMemoryThatOthersNeed) {
  start({"--frame-seconds", "2", "--put-seconds", "4"});
  std::vector<Attacker> drips;
  for (int i = 0; i < 4; ++i) {
    drips.push_back(Attacker::greeted(node->unix_socket()));
    space = drips.back().open(record);
    const auto part = std::span(chain).subspan(static_cast<std::size_t>(i) * 50, 50);  // 50 MiB in all
    drips.back().send(FrameType::kPut, 10, put_request(space, part));
    ASSERT_TRUE(drips.back().read_answer());
    Bytes frame = frame_bytes(FrameType::kPutData, 10, put_data(50, sums_of(record, part, std::byte{1})),
                              Bytes(50 * kLargeBlock, std::byte{1}));
    frame.resize(frame.size() - 49 * kLargeBlock);
    drips.back().send_bytes(frame);
  }
  std::atomic<bool> is_over{false};
  std::thread dripping([&] {
    const Bytes drop(64, std::byte{1});
    while (!is_over) {
      for (Attacker& each : drips) each.send_bytes(drop);
      std::this_thread::sleep_for(20ms);
    }
  });
  expect_bystanders_served();
  EXPECT_TRUE(e2e::eventually([&] { return node->metric("kvstore_incoming_blocks") < 50; })) << "the drips hold memory";
  is_over = true;
  dripping.join();
}

TEST_F(SlowPeerTest, OffersOfEverythingAgainAndAgainLeaveOthersRoom) {
  start({"--put-seconds", "2"});
  std::atomic<bool> is_over{false};
  std::thread greedy([&] {
    Attacker attacker = Attacker::greeted(node->unix_socket());
    const OpenedSpace handle = attacker.open(record);
    for (std::uint64_t id = 10; !is_over; ++id) {
      const auto whole = e2e::make_chain(100 + id, 300);  // more than there is
      attacker.send(FrameType::kPut, id, put_request(handle, whole, 0, {}, 100'000));
      attacker.last_answer(id);  // after the time for puts
    }
  });
  expect_bystanders_served();
  is_over = true;
  greedy.join();
}

TEST_F(SlowPeerTest, AGetWithoutAReaderIsCutOff) {
  start({"--write-seconds", "1"});
  Attacker attacker = attacker_with_all_memory();
  attacker.send(FrameType::kGet, 50, get_request(space, chain));
  expect_bystanders_served();
  EXPECT_TRUE(
      e2e::eventually([&] { return node->metric("kvstore_sessions_closed_total{reason=\"slow_reader\"}") == 1; }));
}

TEST_F(SlowPeerTest, ACancelledGetSendsLittleMore) {
  Attacker attacker = attacker_with_all_memory();
  attacker.send(FrameType::kGet, 50, get_request(space, chain));
  Bytes first(64 << 10);
  ASSERT_GT(::recv(attacker.fd(), first.data(), first.size(), 0), 0);
  attacker.send(FrameType::kCancel, 51, cancel_request(50));
  std::size_t more = 0;
  EXPECT_TRUE(e2e::eventually([&] {  // until nothing comes any more
    std::size_t now = 0;
    for (ssize_t n; (n = ::recv(attacker.fd(), first.data(), first.size(), MSG_DONTWAIT)) > 0;) {
      now += static_cast<std::size_t>(n);
    }
    more += now;
    std::this_thread::sleep_for(50ms);
    return now == 0;
  }));
  std::printf("%zu bytes of %zu came after the cancel\n", more, chain.size() * kLargeBlock);
  EXPECT_LT(more, std::size_t{20} << 20) << "a frame that has begun goes on to its end: two windows at most";
}

TEST_F(SlowPeerTest, LeasesOnEverythingLeaveOthersRoom) {
  start({"--lease-seconds", "3"});
  Attacker attacker = attacker_with_all_memory();
  std::atomic<bool> is_over{false};
  std::thread greedy([&] {
    while (!is_over) {
      attacker.ask(FrameType::kMatch, 6, match_request(space, chain, true));
      std::this_thread::sleep_for(10ms);
    }
  });
  expect_bystanders_served();
  is_over = true;
  greedy.join();
}

}  // namespace
}  // namespace kv::attack
