// Peers that break the rules, or only sit there: each gets an answer that names what was wrong, or is cut off, and
// everyone else is served as before.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <random>

#include "tests/e2e/node_process.h"
#include "tests/e2e/raw_session.h"
#include "tests/e2e/test_client.h"

namespace kv::e2e {
namespace {

using testing::HasSubstr;

constexpr std::size_t kHostileBlockBytes = 64 << 10;

class E2eHostileTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(client.put(chain).stored, chain.size()); }
  void TearDown() override {
    // Whatever happened: the node serves, and holds what it held.
    EXPECT_EQ(client.get(chain).block_count, chain.size());
    EXPECT_EQ(client.wrong_bytes(chain, chain.size()), 0u);
    EXPECT_EQ(node.metric("kvstore_incoming_blocks"), 0);
    EXPECT_EQ(node.metric("kvstore_allocated_bytes"), node.metric("kvstore_blocks") * kHostileBlockBytes);
  }

  /// A hello frame, to be broken in one place.
  static std::vector<std::byte> hello_frame() {
    flatbuffers::FlatBufferBuilder builder;
    builder.Finish(wire::CreateHelloRequestDirect(builder, kWireVersion, kWireVersion, "hostile"));
    const auto table = std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize()));
    FrameHeader header;
    header.type = FrameType::kHello;
    header.request_id = 7;
    std::vector<std::byte> bytes(kFrameHeaderBytes + table.size());
    encode_frame_header(header, table, std::span(bytes).first<kFrameHeaderBytes>());
    std::memcpy(bytes.data() + kFrameHeaderBytes, table.data(), table.size());
    return bytes;
  }
  template <class T>
  static std::vector<std::byte> hello_with(std::size_t offset, T value) {
    auto bytes = hello_frame();
    std::memcpy(bytes.data() + offset, &value, sizeof value);
    return bytes;
  }
  /// Sends bytes that end the session; the error's text, which a node sends if it understood that much.
  std::string refused(std::span<const std::byte> bytes) const {
    RawSession session(node.tcp());
    session.send_bytes(bytes);
    const auto answer = session.read_answer();
    EXPECT_TRUE(session.is_closed());
    return answer ? answer->error_text() : "";
  }

  NodeProcess node{{"--capacity", "64MiB", "--hello-seconds", "1", "--frame-seconds", "1", "--write-seconds", "1"}};
  TestClient client{node.unix_socket(), Transport::kUnix, kHostileBlockBytes, 16};
  std::vector<BlockHash> chain = make_chain(1, 16);
};

TEST_F(E2eHostileTest, ABrokenFrameIsRefusedByTheNameOfItsField) {
  EXPECT_THAT(refused(hello_with<std::uint32_t>(0, 0xDEADBEEF)), HasSubstr("magic"));
  EXPECT_THAT(refused(hello_with<std::uint8_t>(4, 99)), HasSubstr("version"));
  EXPECT_THAT(refused(hello_with<std::uint8_t>(5, 200)), HasSubstr("type"));
  EXPECT_THAT(refused(hello_with<std::uint16_t>(6, 0x8000)), HasSubstr("flag"));
  EXPECT_THAT(refused(hello_with<std::uint32_t>(16, 0xFFFFFFFF)), HasSubstr("table_bytes"));
  EXPECT_THAT(refused(hello_with<std::uint64_t>(24, ~std::uint64_t{0})), HasSubstr("payload_bytes"));
  EXPECT_THAT(refused(hello_with<std::uint32_t>(20, 12345)), HasSubstr("checksum"));
  // A session is counted when it has ended, which may be after its last answer came.
  EXPECT_TRUE(eventually([&] { return node.metric("kvstore_sessions_closed_total{reason=\"bad_frame\"}") >= 7; }));
}

TEST_F(E2eHostileTest, RandomBytesEndTheirSessionOnly) {
  const char* given = std::getenv("KV_SEED");
  const std::uint64_t seed = given != nullptr ? std::stoull(given) : std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 50; ++i) {
    std::vector<std::byte> bytes = hello_frame();
    if (i % 2 == 0) {
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    } else {
      bytes[random() % bytes.size()] ^= static_cast<std::byte>(1 + random() % 255);
    }
    RawSession session(i % 3 == 0 ? node.unix_socket() : node.tcp());
    session.send_bytes(bytes);
    bytes.resize(random() % 4096);
    session.send_bytes(bytes);
  }
}

TEST_F(E2eHostileTest, ARequestBeforeHelloIsRefused) {
  RawSession session(node.tcp());
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(wire::CreatePingRequest(builder));
  session.send_frame(FrameType::kPing, 1, builder);
  const auto answer = session.read_answer();
  ASSERT_TRUE(answer);
  EXPECT_THAT(answer->error_text(), HasSubstr("hello"));
  EXPECT_TRUE(session.is_closed());
}

TEST_F(E2eHostileTest, ATableThatIsNoneIsRefusedAndTheSessionGoesOn) {
  RawSession session(node.tcp());
  ASSERT_TRUE(session.send_hello());
  for (const FrameType type :
       {FrameType::kOpen, FrameType::kMatch, FrameType::kGet, FrameType::kPut, FrameType::kDrop}) {
    flatbuffers::FlatBufferBuilder builder;
    builder.Finish(builder.CreateString(std::string(200, '\xFF')));
    ASSERT_TRUE(session.send_frame(type, 2, builder));
    const auto answer = session.read_answer();
    ASSERT_TRUE(answer) << frame_type_name(type);
    EXPECT_TRUE(answer->is_error()) << frame_type_name(type);
  }
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(wire::CreatePingRequest(builder));
  ASSERT_TRUE(session.send_frame(FrameType::kPing, 3, builder));
  const auto answer = session.read_answer();
  ASSERT_TRUE(answer);
  EXPECT_FALSE(answer->is_error());
}

TEST_F(E2eHostileTest, AMillionHashesAreTooMany) {
  RawSession session(node.tcp());
  ASSERT_TRUE(session.send_hello());
  flatbuffers::FlatBufferBuilder builder(40 << 20);
  const std::vector<wire::Hash> hashes(1'000'000);
  builder.Finish(wire::CreateMatchRequest(builder, 0, builder.CreateVectorOfStructs(hashes)));
  session.send_frame(FrameType::kMatch, 2, builder);
  const auto answer = session.read_answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->error_code(), Errc::kTooLarge) << answer->error_text();
  EXPECT_THAT(answer->error_text(), HasSubstr("table_bytes"));
}

TEST_F(E2eHostileTest, WhoeverSaysNothingOrStopsMidwayIsCutOff) {
  RawSession silent(node.tcp());
  RawSession slow(node.tcp());
  ASSERT_TRUE(slow.send_hello());
  const std::vector<std::byte> frame = hello_frame();
  slow.send_bytes(std::span(frame).first(11));
  EXPECT_TRUE(silent.is_closed());
  EXPECT_TRUE(slow.is_closed());
  EXPECT_TRUE(eventually([&] { return node.metric("kvstore_sessions_closed_total{reason=\"hello_timeout\"}") == 1; }));
  EXPECT_TRUE(eventually([&] { return node.metric("kvstore_sessions_closed_total{reason=\"slow_frame\"}") == 1; }));
}

TEST_F(E2eHostileTest, AClientThatNeverReadsIsCutOffAndItsBlocksAreUnpinned) {
  RawSession session(node.tcp());
  ASSERT_TRUE(session.send_hello());
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(wire::CreateOpenRequestDirect(builder, client.record().text().c_str()));
  ASSERT_TRUE(session.send_frame(FrameType::kOpen, 2, builder));
  const auto opened = session.read_answer();
  ASSERT_TRUE(opened && !opened->is_error());
  const auto* response = read_table<wire::OpenResponse>(opened->table);
  ASSERT_NE(response, nullptr);
  std::vector<wire::Hash> hashes(chain.size());
  std::memcpy(static_cast<void*>(hashes.data()), chain.data(), hashes.size() * sizeof(wire::Hash));
  for (std::uint64_t id = 10; id < 200; ++id) {  // 190 MiB of answers
    builder.Clear();
    builder.Finish(wire::CreateGetRequest(builder, response->space(), builder.CreateVectorOfStructs(hashes), 0, 0, 0, 0,
                                          2, 0, 0, namespace_check(client.record().id())));
    if (!session.send_frame(FrameType::kGet, id, builder)) break;
  }
  EXPECT_TRUE(eventually([&] { return node.metric("kvstore_sessions_closed_total{reason=\"slow_reader\"}") == 1; }));
  const auto dropped =
      client->drop(client.space(), chain, kDeadline);  // the last block: free at once if nothing pins it
  ASSERT_TRUE(dropped);
  EXPECT_EQ(node.metric("kvstore_allocated_bytes"), node.metric("kvstore_blocks") * kHostileBlockBytes);
  EXPECT_EQ(client.put(chain).stored, 1u);
}

TEST_F(E2eHostileTest, TenThousandIdleConnectionsHurtNobodyAndOneTooManyIsRefused) {
  constexpr std::size_t kIdle = 10'000;
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_cur < kIdle + 1000) {
    GTEST_SKIP() << "only " << limit.rlim_cur << " open files allowed, " << kIdle + 1000 << " are needed";
  }
  NodeProcess crowded(
      {"--capacity", "64MiB", "--session-count-max", std::to_string(kIdle + 20), "--session-share-max", "1"});
  TestClient other(crowded.unix_socket(), Transport::kUnix, kHostileBlockBytes, 16);
  ASSERT_EQ(other.put(chain).stored, chain.size());
  std::vector<RawSession> idle;
  for (std::size_t i = 0; i < kIdle; ++i) {
    idle.emplace_back(crowded.tcp());
    ASSERT_TRUE(idle.back().send_hello()) << i;
  }
  EXPECT_GE(crowded.metric("kvstore_sessions"), kIdle);
  EXPECT_EQ(other.get(chain).block_count, chain.size());
  EXPECT_EQ(other.wrong_bytes(chain, chain.size()), 0u);
  std::vector<RawSession> more;
  for (int i = 0; i < 50; ++i) more.emplace_back(crowded.tcp());
  EXPECT_TRUE(eventually([&] { return crowded.metric("kvstore_sessions_refused_total{reason=\"full\"}") > 0; }));
  idle.clear();
  more.clear();
  EXPECT_TRUE(eventually([&] { return crowded.metric("kvstore_sessions") < 10; }));
}

}  // namespace
}  // namespace kv::e2e
