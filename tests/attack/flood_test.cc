// Crowds at the door: connections that say nothing, too little, or the wrong thing, by the thousand.
#include <sys/resource.h>

#include <algorithm>
#include <thread>

#include "tests/attack/attacked_node.h"
#include "tests/attack/attacker.h"

namespace kv::attack {
namespace {

class FloodTest : public AttackTest {
 protected:
  static void SetUpTestSuite() {
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 8192);  // of the node too, which inherits it
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  const std::string& door(std::size_t i) const { return i % 2 == 0 ? node->tcp() : node->unix_socket(); }
};

TEST_F(FloodTest, ThousandsWhoSayNothingOrTooLittleHurtNobodyAndAreCutOff) {
  start({"--hello-seconds", "2", "--frame-seconds", "2"});
  const Bytes hello = frame_bytes(FrameType::kHello, 1, [](FlatBufferBuilder& b) {
    return wire::CreateHelloRequestDirect(b, kWireVersion, kWireVersion, "crowd");
  });
  std::vector<Attacker> crowd;
  for (std::size_t i = 0; i < 2400; ++i) {
    crowd.emplace_back(door(i));
    const std::size_t bytes[] = {0, 1, kFrameHeaderBytes / 2, kFrameHeaderBytes, hello.size() - 1, hello.size() + 5};
    Bytes said = hello;
    said.resize(bytes[i / 2 % std::size(bytes)]);
    if (!said.empty()) crowd.back().send_bytes(said);
  }
  expect_bystanders_served();
  EXPECT_TRUE(e2e::eventually([&] { return node->metric("kvstore_sessions") < 10; })) << "the crowd is not cut off";
}

TEST_F(FloodTest, ThousandsWhoSayHelloAndStayLeaveTheOthersTheirAnswers) {
  std::vector<Attacker> crowd;
  for (std::size_t i = 0; i < 2000; ++i) {
    crowd.emplace_back(door(i));
    crowd.back().send_hello();  // or is refused: there may be limits
  }
  expect_bystanders_served();
}

TEST_F(FloodTest, ConnectionsThatComeAndGoLeaveNothingBehind) {
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < 500; ++i) {
        Attacker attacker(door(i + t));
        if (i % 3 == 0) attacker.send_hello();
        if (i % 3 == 1) attacker.send_bytes(Bytes(i % 40));
      }
    });
  }
  expect_bystanders_served();
  for (auto& each : threads) each.join();
}

TEST_F(FloodTest, FramesOfNonsenseByTheThousandAreFewLinesOfTheLog) {
  bounds.log_bytes = 64 << 10;
  const std::string identity = "crowd\"}\n[error] forged";
  const Bytes hello = frame_bytes(FrameType::kHello, 1, [&](FlatBufferBuilder& b) {
    return wire::CreateHelloRequestDirect(b, kWireVersion, kWireVersion, identity.c_str());
  });
  for (std::size_t i = 0; i < 3000; ++i) {
    Attacker attacker(door(i));
    Bytes said = i % 2 == 0 ? hello : Bytes();
    said.insert(said.end(), kFrameHeaderBytes, static_cast<std::byte>(i));
    attacker.send_bytes(said);
    while (attacker.read_answer()) {
    }
  }
  expect_bystanders_served();
  EXPECT_TRUE(
      e2e::eventually([&] { return node->metric("kvstore_sessions_closed_total{reason=\"bad_frame\"}") >= 3000; }));
  EXPECT_EQ(node->log().find("\n[error] forged"), std::string::npos);
}

TEST_F(FloodTest, NoiseOnTheAdminPortHurtsNobody) {
  std::vector<Attacker> crowd;
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: node\r\nX: " + std::string(64 << 10, 'x');
  for (std::size_t i = 0; i < 300; ++i) {
    crowd.emplace_back("tcp://" + node->admin());
    const auto bytes = std::as_bytes(std::span(request)).first(i % 4 == 0 ? request.size() : i);
    crowd.back().send_bytes(bytes);
  }
  expect_bystanders_served();
}

}  // namespace
}  // namespace kv::attack
