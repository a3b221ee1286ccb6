// Whatever a client sends: it is told what was wrong, everyone else is served on, and nothing is left behind
// (TearDown).
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "tests/node/limits_change.h"
#include "tests/node/node_world.h"

namespace kv {
namespace {

using testing::HasSubstr;

class SessionHostileTest : public NodeTest {
 protected:
  template <class T>
  static void overwrite(Bytes& bytes, std::size_t offset, T value) {
    std::memcpy(bytes.data() + offset, &value, sizeof value);
  }
  /// The checksum is made right again, so that what is behind it is reached.
  static void repair(Bytes& frame) {
    FrameHeader header;
    header.version = static_cast<std::uint8_t>(frame[4]);
    header.type = static_cast<FrameType>(frame[5]);
    std::memcpy(&header.flags, frame.data() + 6, 2);
    std::memcpy(&header.request_id, frame.data() + 8, 8);
    std::memcpy(&header.payload_bytes, frame.data() + 24, 8);
    std::uint32_t table_bytes;
    std::memcpy(&table_bytes, frame.data() + 16, 4);
    encode_frame_header(header, std::span(frame).subspan(kFrameHeaderBytes, table_bytes),
                        std::span<std::byte, kFrameHeaderBytes>(frame.data(), kFrameHeaderBytes));
  }
  /// The session answers `bytes` with this error, which says `words`, and ends.
  void expect_ended(RawClient& client, std::span<const std::byte> bytes, Errc code, std::vector<std::string> words) {
    client.send_bytes(bytes);
    expect_last_error(client, code, words);
  }
  void expect_last_error(RawClient& client, Errc code, std::vector<std::string> words) {
    const auto answer = client.next();
    ASSERT_TRUE(answer.has_value()) << "no answer, wanted: " << words[0];
    ASSERT_TRUE(answer->is_error());
    EXPECT_EQ(answer->error(), code) << answer->message();
    for (const auto& word : words) EXPECT_THAT(answer->message(), HasSubstr(word));
    EXPECT_STRNE(frame_type_name(answer->header.type), "unknown");
    EXPECT_TRUE(client.ended());
    expect_others_served();
  }
  /// The session answers with this error and goes on.
  void expect_refused(RawClient& client, const Answer& answer, Errc code, std::vector<std::string> words) {
    ASSERT_TRUE(answer.is_error()) << words[0];
    EXPECT_TRUE(answer.is_last());
    EXPECT_EQ(answer.error(), code) << answer.message();
    for (const auto& word : words) EXPECT_THAT(answer.message(), HasSubstr(word));
    EXPECT_FALSE(client.ask(FrameType::kPing, 4242, ping()).is_error()) << "the session goes on";
    expect_others_served();
  }
  Bytes good_ping() { return frame_bytes(FrameType::kPing, 7, ping()); }
};

// -- frames

TEST_F(SessionHostileTest, BadMagicEndsTheSession) {
  for (const bool greeted : {false, true}) {
    const auto client = greeted ? greet() : connect();
    const std::string http = "GET / HTTP/1.1\r\nHost: example.org\r\n\r\n";
    expect_ended(*client, std::as_bytes(std::span(http)), Errc::kBadFrame, {"magic", "KVS1"});
  }
  EXPECT_EQ(metric("kvstore_sessions_closed_total{reason=\"bad_frame\"}"), 2);
}

TEST_F(SessionHostileTest, BadHeaderFieldsEndTheSessionWithTheirName) {
  struct Case {
    std::function<void(Bytes&)> spoil;
    Errc code;
    std::vector<std::string> words;
  };
  const Case cases[] = {
      {[](Bytes& f) { overwrite<std::uint8_t>(f, 4, 0); }, Errc::kUnsupported, {"version: 0"}},
      {[](Bytes& f) { overwrite<std::uint8_t>(f, 4, 200); }, Errc::kUnsupported, {"version: 200", "known here: 1"}},
      {[](Bytes& f) { overwrite<std::uint8_t>(f, 5, 0); }, Errc::kUnsupported, {"type: 0"}},
      {[](Bytes& f) { overwrite<std::uint8_t>(f, 5, 99); }, Errc::kUnsupported, {"type: 99", "1..23"}},
      {[](Bytes& f) { overwrite<std::uint16_t>(f, 6, 0x4000); }, Errc::kBadFrame, {"flags: 16384"}},
      {[](Bytes& f) { overwrite<std::uint16_t>(f, 6, kFrameResponse); },
       Errc::kBadFrame,
       {"flags: 1", "a request has none"}},
      {[](Bytes& f) { overwrite<std::uint16_t>(f, 6, kFrameMore); }, Errc::kBadFrame, {"flags: 2"}},
      {[](Bytes& f) { overwrite<std::uint16_t>(f, 6, kFrameError); }, Errc::kBadFrame, {"flags: 4"}},
      {[](Bytes& f) { overwrite<std::uint32_t>(f, 16, UINT32_MAX); }, Errc::kTooLarge, {"table_bytes: 4294967295"}},
      {[](Bytes& f) { overwrite<std::uint32_t>(f, 16, (4 << 20) + 1); }, Errc::kTooLarge, {"table_bytes", "4194304"}},
      {[](Bytes& f) { overwrite<std::uint64_t>(f, 24, UINT64_MAX); },
       Errc::kTooLarge,
       {"payload_bytes: 18446744073709551615"}},
      {[](Bytes& f) { overwrite<std::uint64_t>(f, 24, 1ull << 63); }, Errc::kTooLarge, {"payload_bytes"}},
      {[](Bytes& f) { overwrite<std::uint64_t>(f, 24, (1ull << 30) + 1); }, Errc::kTooLarge, {"payload_bytes"}},
  };
  for (const Case& each : cases) {
    for (const bool repaired : {false, true}) {  // a right checksum does not make a wrong field right
      Bytes frame = good_ping();
      each.spoil(frame);
      if (repaired && each.code != Errc::kTooLarge) repair(frame);
      if (!repaired && each.words[0].starts_with("flags") && each.words[0] != "flags: 16384") continue;
      expect_ended(*greet(), frame, each.code, each.words);
    }
  }
}

TEST_F(SessionHostileTest, BeforeHelloTablesAreSmallAndPayloadsNone) {
  Bytes frame = good_ping();
  overwrite<std::uint32_t>(frame, 16, 4097);
  expect_ended(*connect(), frame, Errc::kTooLarge, {"table_bytes: 4097", "4096"});
  frame = good_ping();
  overwrite<std::uint64_t>(frame, 24, 1);
  expect_ended(*connect(), frame, Errc::kTooLarge, {"payload_bytes: 1", "at most 0"});
}

TEST_F(SessionHostileTest, WrongChecksumEndsTheSession) {
  Bytes frame = good_ping();
  frame[20] ^= std::byte{1};
  expect_ended(*greet(), frame, Errc::kBadFrame, {"checksum"});
  frame = frame_bytes(FrameType::kMatch, 7, match_request(chain(1, 3)));
  frame.back() ^= std::byte{1};
  expect_ended(*greet(), frame, Errc::kBadFrame, {"checksum"});
}

/// Each of these may send a table of 4 MiB, and leave its last byte away.
TEST_F(SessionHostileTest, TablesThatDoNotEndHaveOneBoundForAllSessionsAndGoWhenOthersWantTheirRoom) {
  chain_blocks_max = 100'000;
  start(32);
  node->tables = std::make_unique<TableBudget>(1 << 20);
  const auto honest = greet();
  const Bytes whole = frame_bytes(FrameType::kMatch, 7, match_request(chain(1, 8000)));
  ASSERT_GT(whole.size(), 250u << 10);
  std::vector<std::unique_ptr<RawClient>> crowd;
  for (int i = 0; i < 20; ++i) {
    crowd.push_back(greet());
    ASSERT_TRUE(crowd.back()->send_bytes(std::span(whole).first(whole.size() - 1)));
    world.run_for(1ms);
    EXPECT_LE(node->tables->bytes(), 1u << 20);
  }
  EXPECT_GT(node->tables->bytes(), 500u << 10);
  expect_others_served();  // small ones go on as ever
  const auto large = chain(2, 20'000);
  const auto refused = honest->ask(FrameType::kMatch, 8, match_request(large));
  expect_refused(*honest, refused, Errc::kBusy, {"table_bytes: ", "just now"});
  const TimePoint began = world.clock.now();
  auto answer = honest->ask(FrameType::kMatch, 9, match_request(large));
  while (answer.is_error() && world.clock.now() - began < 4s) {  // before any of them is late by itself
    world.run_for(100ms);
    answer = honest->ask(FrameType::kMatch, 9, match_request(large));
  }
  EXPECT_FALSE(answer.is_error()) << answer.message();
  EXPECT_GE(metric("kvstore_sessions_closed_total{reason=\"slow_frame\"}"), 2);
  crowd.clear();
  world.run_for(10s);
  EXPECT_EQ(node->tables->bytes(), 0u) << "what is kept for the next table is given back";
}

/// A put that waits for memory keeps its hashes, as does a get that waits for the disk or its client.
TEST_F(SessionHostileTest, LargeTransfersInFlightHaveOneBoundForAllSessions) {
  chain_blocks_max = 100'000;
  start(32);
  node->requests = std::make_unique<TableBudget>(1 << 20);
  const auto client = greet();
  const auto leased = chain(1, 32);
  ASSERT_EQ(put(*client, leased), 32u);
  ASSERT_FALSE(client->ask(FrameType::kMatch, 3, match_request(leased, /*lease=*/true)).is_error());
  for (std::uint32_t i = 0; i < 8; ++i) {
    client->send(FrameType::kPut, 100 + i, put_request(chain(2 + i, 8000), 0, {}, 5'000'000));
    world.run_for(1ms);
    EXPECT_LE(node->requests->bytes(), 1u << 20);
  }
  EXPECT_GT(node->requests->bytes(), 500u << 10);
  int refused_count = 0;
  for (int i = 0; i < 5; ++i) refused_count += client->answer().error() == Errc::kBusy;
  EXPECT_EQ(refused_count, 5) << "three wait";
  world.run_for(100s);
  EXPECT_EQ(node->requests->bytes(), 0u);
}

TEST_F(SessionHostileTest, AnswersThatNobodyTakesHaveOneBoundForAllSessions) {
  constexpr std::uint64_t kAll = 1 << 20, kEach = 512 << 10;  ///< A session's own, once there are as many as may be.
  node->queued_bytes_max = kAll;
  const Bytes one = good_ping();
  Bytes many;
  while (many.size() < 2 << 20) many.insert(many.end(), one.begin(), one.end());
  std::vector<std::unique_ptr<RawClient>> mute;
  for (std::uint64_t i = 0; i < 10; ++i) {
    mute.push_back(connect());
    ASSERT_TRUE(mute.back()->send_bytes(frame_bytes(FrameType::kHello, 1, hello_request())));
    static_cast<void>(mute.back()->send_bytes(many, 1s));
    EXPECT_LE(node->queued_bytes, kAll + (i + 1) * kEach);
  }
  EXPECT_GT(node->queued_bytes, kAll) << "or this tests nothing";
  expect_others_served();
  mute.clear();
  world.run_for(10s);
  EXPECT_EQ(node->queued_bytes, 0u);
}

TEST_F(SessionHostileTest, AFrameCutAnywhereEndsTheSession) {
  const auto hashes = chain(1, 1);
  record = make_record("tiny", 10);
  const auto opened = greet();
  const Bytes frame = frame_bytes(FrameType::kMatch, 7, match_request(hashes));
  for (std::size_t cut = 1; cut < frame.size(); cut += 5) {
    const auto client = greet();
    ASSERT_TRUE(client->send_bytes(std::span(frame).first(cut)));
    client->close();
  }
  world.run_for(1s);
  EXPECT_EQ(session_count, 1u);
  expect_others_served();
}

TEST_F(SessionHostileTest, RandomBytesAreRefused) {
  const std::uint64_t seed = seed_or(99);
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 50; ++round) {
    const auto client = round % 2 == 0 ? greet() : connect();
    Bytes bytes(32 + random() % 10'000);
    for (auto& each : bytes) each = static_cast<std::byte>(random());
    client->send_bytes(bytes);
    EXPECT_TRUE(client->next()->is_error());
    EXPECT_TRUE(client->ended());
  }
  expect_others_served();
}

TEST_F(SessionHostileTest, ALastErrorIsSeenEvenIfMuchMoreWasSent) {
  const auto client = greet();
  Bytes bytes = good_ping();
  overwrite<std::uint32_t>(bytes, 0, 0);
  bytes.resize(300'000);
  client->send_bytes(bytes);
  expect_last_error(*client, Errc::kBadFrame, {"magic"});
}

// -- hello

TEST_F(SessionHostileTest, RequestsBeforeHelloEndTheSession) {
  for (const auto type : {FrameType::kOpen, FrameType::kGet, FrameType::kPing, FrameType::kRegionAdd}) {
    expect_ended(*connect(), frame_bytes(type, 7, ping()), Errc::kBadRequest,
                 {"first frame must be hello", frame_type_name(type)});
  }
}

TEST_F(SessionHostileTest, HelloTwiceIsRefused) {
  const auto client = greet();
  expect_refused(*client, client->ask(FrameType::kHello, 5, hello_request()), Errc::kBadRequest, {"said already"});
}

TEST_F(SessionHostileTest, VersionsThatDoNotMeetEndTheSession) {
  expect_ended(*connect(), frame_bytes(FrameType::kHello, 7, hello_request(3, 9)), Errc::kUnsupported,
               {"hello.version: 3..9", "spoken here: 1"});
  expect_ended(*connect(), frame_bytes(FrameType::kHello, 7, hello_request(0, 0)), Errc::kUnsupported,
               {"hello.version: 0..0"});
}

TEST_F(SessionHostileTest, AnEndlessIdentityEndsTheSession) {
  const std::string name(129, 'x');
  expect_ended(*connect(),
               frame_bytes(FrameType::kHello, 7,
                           [&](FlatBufferBuilder& b) { return wire::CreateHelloRequestDirect(b, 1, 1, name.c_str()); }),
               Errc::kBadRequest, {"hello.identity bytes: 129", "128"});
}

TEST_F(SessionHostileTest, AHelloThatFailsVerificationEndsTheSession) {
  Bytes frame = frame_bytes(FrameType::kHello, 7, hello_request());
  overwrite<std::uint32_t>(frame, kFrameHeaderBytes, 0x7FFFFFFF);
  repair(frame);
  expect_ended(*connect(), frame, Errc::kBadRequest, {"hello", "verification"});
}

// -- tables

TEST_F(SessionHostileTest, ATableThatFailsVerificationIsRefusedForEveryRequest) {
  for (int type = 2; type <= kFrameTypeMax; ++type) {
    const auto frame_type = static_cast<FrameType>(type);
    if (frame_type == FrameType::kPutData || frame_type == FrameType::kPing) continue;
    const auto client = greet();
    Bytes frame = frame_bytes(frame_type, 7, match_request(chain(1, 3)));
    overwrite<std::uint32_t>(frame, kFrameHeaderBytes, 0x7FFFFFFF);
    repair(frame);
    ASSERT_TRUE(client->send_bytes(frame));
    expect_refused(*client, client->answer(), Errc::kBadRequest, {frame_type_name(frame_type), "verification"});
  }
}

TEST_F(SessionHostileTest, EmptyTablesAreRefusedOrHarmlessForEveryRequest) {
  for (int type = 2; type <= kFrameTypeMax; ++type) {
    const auto frame_type = static_cast<FrameType>(type);
    const auto client = greet();
    FrameHeader header;
    header.type = frame_type;
    header.request_id = 7;
    Bytes frame(kFrameHeaderBytes);
    encode_frame_header(header, {}, std::span<std::byte, kFrameHeaderBytes>(frame.data(), kFrameHeaderBytes));
    ASSERT_TRUE(client->send_bytes(frame));
    client->send(FrameType::kPing, 8, ping());
    while (client->answer().header.request_id != 8) {
    }
  }
  expect_others_served();
}

TEST_F(SessionHostileTest, EveryMangledTableIsAnsweredOrIgnoredAndHarmsNobody) {
  const std::uint64_t seed = seed_or(5);
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto client = greet();
  const auto hashes = chain(1, 4);
  put(*client, hashes);
  const auto memory = SharedMemory::create(8 * kBlockBytes).value();
  const std::uint32_t region = lend(*client, *memory);
  const std::vector<std::uint64_t> offsets = {0, kBlockBytes, 2 * kBlockBytes, 3 * kBlockBytes};
  const Bytes seeds[] = {
      frame_bytes(FrameType::kOpen, 7,
                  [&](FlatBufferBuilder& b) { return wire::CreateOpenRequestDirect(b, record.text().c_str()); }),
      frame_bytes(FrameType::kMatch, 7, match_request(hashes, true, {1, 2, 3})),
      frame_bytes(FrameType::kGet, 7, get_request(hashes, region, offsets, {kStripeBytes, kBlockBytes})),
      frame_bytes(FrameType::kPut, 7, put_request(chain(2, 4), region, offsets, 1000)),
      frame_bytes(FrameType::kPutData, 7, put_data(1, {1, 2, 3})),
      frame_bytes(FrameType::kCancel, 7, cancel(7)),
      frame_bytes(FrameType::kRelease, 7, [](FlatBufferBuilder& b) { return wire::CreateReleaseRequest(b, 1); }),
      frame_bytes(FrameType::kTouch, 7, prefix_request(hashes)),
      frame_bytes(FrameType::kRetain, 7, prefix_request(hashes)),
      frame_bytes(FrameType::kDrop, 7, prefix_request(hashes)),
      frame_bytes(FrameType::kRegionAdd, 7, region_add(4096)),
      frame_bytes(FrameType::kRegionRemove, 7, region_remove(55)),
  };
  for (int round = 0; round < 4000; ++round) {
    Bytes frame = seeds[random() % std::size(seeds)];
    mangle(frame, 10'000 + static_cast<std::uint64_t>(round), random);
    ASSERT_TRUE(client->send_bytes(frame));
    client->send(FrameType::kPing, 8, ping());
    while (client->answer().header.request_id != 8) {  // answers, until the ping's
    }
  }
  client->close();  // it may have taken all the memory there is
  world.run_for(1s);
  expect_others_served();
}

TEST_F(SessionHostileTest, APayloadWhereNoneBelongsIsRefusedAndSkipped) {
  const auto client = greet();
  client->send(FrameType::kMatch, 7, match_request(chain(1, 3)), Bytes(1 << 20));
  expect_refused(*client, client->answer(), Errc::kBadRequest, {"payload_bytes: 1048576", "match"});
}

TEST_F(SessionHostileTest, ABadNamespaceRecordIsRefusedByField) {
  const auto client = greet();
  const auto ask = [&](const std::string& text) {
    return client->ask(FrameType::kOpen, 7,
                       [&](FlatBufferBuilder& b) { return wire::CreateOpenRequestDirect(b, text.c_str()); });
  };
  expect_refused(*client, ask(""), Errc::kBadRequest, {"model"});
  expect_refused(*client, ask("block_bytes=0\nblock_size=16\nmodel=m\n"), Errc::kBadRequest, {"block_bytes"});
  expect_refused(*client, ask("block_bytes=4096\nblock_size=16\n"), Errc::kBadRequest, {"model"});
  expect_refused(*client, ask("block_bytes=4096\nblock_size=16\nmodel=m\ntenannt=x\n"), Errc::kBadRequest, {"tenannt"});
  expect_refused(*client, ask("block_bytes=1073741824\nblock_size=16\nmodel=m\n"), Errc::kTooLarge, {"1073741824"});
  expect_refused(*client, ask(std::string(100'000, 'x')), Errc::kBadRequest, {"100000"});
}

TEST_F(SessionHostileTest, UnknownNamespacesAreRefused) {
  const auto client = greet();
  space = 4711;
  for (const auto& frame : {frame_bytes(FrameType::kMatch, 7, match_request(chain(1, 2))),
                            frame_bytes(FrameType::kGet, 7, get_request(chain(1, 2))),
                            frame_bytes(FrameType::kPut, 7, put_request(chain(1, 2))),
                            frame_bytes(FrameType::kTouch, 7, prefix_request(chain(1, 2))),
                            frame_bytes(FrameType::kDrop, 7, prefix_request({}))}) {
    ASSERT_TRUE(client->send_bytes(frame));
    const auto answer = client->answer();
    ASSERT_TRUE(answer.is_error());
    EXPECT_EQ(answer.error(), Errc::kNoNamespace);
    EXPECT_THAT(answer.message(), HasSubstr("4711"));
  }
  expect_others_served();
}

TEST_F(SessionHostileTest, ChainsBeyondTheLimitAreRefused) {
  const auto client = greet();
  const std::vector<BlockHash> many(1001);
  const std::vector<std::uint64_t> offsets;
  expect_refused(*client, client->ask(FrameType::kMatch, 7, match_request(many)), Errc::kTooLarge,
                 {"hashes: 1001", "1000"});
  expect_refused(*client, client->ask(FrameType::kGet, 7, get_request(many)), Errc::kTooLarge, {"hashes: 1001"});
  expect_refused(*client, client->ask(FrameType::kPut, 7, put_request(many)), Errc::kTooLarge, {"hashes: 1001"});
  for (const auto type : {FrameType::kTouch, FrameType::kRetain, FrameType::kUnretain, FrameType::kDrop}) {
    expect_refused(*client, client->ask(type, 7, prefix_request(many)), Errc::kTooLarge, {"hashes: 1001"});
  }
}

TEST_F(SessionHostileTest, AChainOfAMillionHashesIsRefusedByItsLength) {
  const auto client = greet();
  const std::vector<BlockHash> million(1'000'000);
  expect_ended(*client, frame_bytes(FrameType::kMatch, 7, match_request(million)), Errc::kTooLarge,
               {"table_bytes", "at most 4194304"});
}

// -- regions

TEST_F(SessionHostileTest, RegionsThatCannotBeTrustedAreRefused) {
  const auto client = greet();
  const auto add = [&](int fd, std::uint64_t bytes) {
    if (fd >= 0) client->stream().send_descriptor(fd);
    return client->ask(FrameType::kRegionAdd, 7, region_add(bytes));
  };
  const Descriptor unsealed(::memfd_create("t", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), 8192), 0);
  expect_refused(*client, add(unsealed.get(), 8192), Errc::kNoRegion, {"not sealed"});
  const auto memory = SharedMemory::create(8192).value();
  expect_refused(*client, add(memory->fd(), 8193), Errc::kNoRegion, {"bytes: 8193", "holds 8192"});
  expect_refused(*client, add(memory->fd(), 0), Errc::kNoRegion, {"bytes: 0"});
  expect_refused(*client, add(memory->fd(), UINT64_MAX), Errc::kTooLarge, {"18446744073709551615"});
  expect_refused(*client, add(-1, 8192), Errc::kNoRegion, {"no descriptor"});
  const Descriptor file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  expect_refused(*client, add(file.get(), 8192), Errc::kNoRegion, {"not a memfd"});
  EXPECT_EQ(metric("kvstore_region_bytes"), 0);
}

TEST_F(SessionHostileTest, AMemfdTruncatedBeforeItArrivesIsRefused) {
  const auto client = greet();
  const Descriptor fd(::memfd_create("t", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(fd.get(), 1 << 20), 0);
  ASSERT_EQ(::ftruncate(fd.get(), 4096), 0);
  ASSERT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  client->stream().send_descriptor(fd.get());
  expect_refused(*client, client->ask(FrameType::kRegionAdd, 7, region_add(1 << 20)), Errc::kNoRegion, {"holds 4096"});
}

TEST_F(SessionHostileTest, LentMemoryIsBoundedInBytesAndNumber) {
  change(node->limits)->region_bytes_max = 10'000;
  change(node->limits)->region_count_max = 3;
  const auto client = greet();
  const auto memory = SharedMemory::create(4096).value();
  const auto add = [&](std::uint64_t bytes) {
    client->stream().send_descriptor(memory->fd());
    return client->ask(FrameType::kRegionAdd, 7, region_add(bytes));
  };
  EXPECT_FALSE(add(4096).is_error());
  const std::uint32_t second = add(4096).as<wire::RegionResponse>().region();
  expect_refused(*client, add(1809), Errc::kTooLarge, {"region bytes: 1809", "1808"});
  EXPECT_FALSE(add(10).is_error());
  expect_refused(*client, add(10), Errc::kBusy, {"regions: 4", "3"});
  EXPECT_FALSE(client->ask(FrameType::kRegionRemove, 7, region_remove(second)).is_error());
  EXPECT_FALSE(add(1808).is_error()) << "what was removed may be lent again";
}

Descriptor sealed_memfd(std::size_t bytes, std::size_t with_memory) {
  Descriptor fd(::memfd_create("t", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  const Bytes touched(with_memory);
  EXPECT_EQ(::pwrite(fd.get(), touched.data(), with_memory, static_cast<off_t>(bytes - with_memory)),
            static_cast<ssize_t>(with_memory));
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  return fd;
}
std::uint64_t memory_of(const Descriptor& fd) {
  struct stat status;
  EXPECT_EQ(::fstat(fd.get(), &status), 0);
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

TEST_F(SessionHostileTest, AMemfdWithHolesIsRefusedAndStaysAsItIs) {
  const auto client = greet();
  const auto add = [&](const Descriptor& fd, std::uint64_t bytes) {
    client->stream().send_descriptor(fd.get());
    return client->ask(FrameType::kRegionAdd, 7, region_add(bytes));
  };
  const Descriptor sparse = sealed_memfd(1 << 30, 0);
  expect_refused(*client, add(sparse, 1 << 30), Errc::kNoRegion, {"1073741824", "only 0 of the memfd have memory"});
  EXPECT_EQ(memory_of(sparse), 0u);
  const Descriptor half = sealed_memfd(16 * 4096, 8 * 4096);  // enough memory, but behind the region
  expect_refused(*client, add(half, 8 * 4096), Errc::kNoRegion, {"no memory at 0"});
  EXPECT_EQ(memory_of(half), 8 * 4096u);
  EXPECT_EQ(metric("kvstore_region_bytes"), 0);
  EXPECT_EQ(node->lent->bytes(), 0u);
}

TEST_F(SessionHostileTest, AHolePunchedIntoALentMemfdIsNotFilledByTransfers) {
  const auto hashes = chain(1, 2), others = chain(2, 2);
  for (const bool is_put : {false, true}) {
    const auto client = greet();
    put(*client, hashes);
    const Descriptor fd = sealed_memfd(2 * kBlockBytes, 2 * kBlockBytes);
    client->stream().send_descriptor(fd.get());
    const auto added = client->ask(FrameType::kRegionAdd, 7, region_add(2 * kBlockBytes));
    ASSERT_FALSE(added.is_error()) << added.message();
    const std::uint32_t region = added.as<wire::RegionResponse>().region();
    ASSERT_EQ(::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 2 * kBlockBytes), 0);
    world.run_for(1s);
    if (is_put) {
      ASSERT_FALSE(client->ask(FrameType::kPut, 9, put_request(others, region, {0, kBlockBytes})).is_last());
      expect_refused(*client, client->ask(FrameType::kPutData, 9, put_data(2, sums(others))), Errc::kNoRegion,
                     {"memory was taken out"});
    } else {
      expect_refused(*client, client->ask(FrameType::kGet, 9, get_request(hashes, region, {0, kBlockBytes})),
                     Errc::kNoRegion, {"memory was taken out"});
    }
    EXPECT_EQ(memory_of(fd), 0u);
  }
}

TEST_F(SessionHostileTest, LentMemoryIsBoundedForTheWholeNodeAndEachFileCountsOnce) {
  node->lent = std::make_unique<LentRegions>(LentRegionsConfig{.bytes_max = 3 * 4096, .count_max = 4});
  const auto one = greet(), two = greet();
  const auto first = SharedMemory::create(2 * 4096).value(), second = SharedMemory::create(4096).value(),
             third = SharedMemory::create(4096).value();
  const auto add = [&](RawClient& client, const SharedMemory& memory, std::uint64_t bytes) {
    client.stream().send_descriptor(memory.fd());
    return client.ask(FrameType::kRegionAdd, 7, region_add(bytes));
  };
  const std::uint32_t region = lend(*one, *first);
  EXPECT_FALSE(add(*two, *first, 2 * 4096).is_error()) << "the same memory, for another session";
  EXPECT_EQ(node->lent->bytes(), 2 * 4096u);
  EXPECT_FALSE(add(*two, *second, 4096).is_error());
  expect_refused(*one, add(*one, *third, 1), Errc::kBusy, {"region bytes: 1", "12288", "region-bytes-max-node"});
  EXPECT_FALSE(one->ask(FrameType::kRegionRemove, 7, region_remove(region)).is_error());
  EXPECT_EQ(node->lent->bytes(), 3 * 4096u) << "the other session still lends it";
  two->close();
  world.run_for(1s);
  EXPECT_EQ(node->lent->bytes(), 0u);
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(add(*one, *third, 4096).is_error());
  expect_refused(*one, add(*one, *third, 4096), Errc::kBusy, {"regions: all sessions lend 4"});
}

TEST_F(SessionHostileTest, ASessionThatEndsWhileItsMemoryIsLookedAtLeavesNothingBehind) {
  node->lent = std::make_unique<LentRegions>(LentRegionsConfig{.in_place = false});
  for (int round = 0; round < 20; ++round) {
    const auto client = greet();
    const auto memory = SharedMemory::create(4 << 20).value();
    client->stream().send_descriptor(memory->fd());
    client->send(FrameType::kRegionAdd, 7, region_add(4 << 20));
    client->close();
    while (session_count > 0) world.run_for(1ms);  // until the thread, whose time is real, has noticed
  }
  node->lent->finish();
  EXPECT_EQ(node->lent->bytes(), 0u);
  EXPECT_EQ(metric("kvstore_region_bytes"), 0);
}

TEST_F(SessionHostileTest, UnknownRegionsAreRefused) {
  const auto client = greet();
  expect_refused(*client, client->ask(FrameType::kRegionRemove, 7, region_remove(9)), Errc::kNoRegion, {"region: 9"});
  const auto hashes = chain(1, 1);
  expect_refused(*client, client->ask(FrameType::kGet, 7, get_request(hashes, 9, {0})), Errc::kNoRegion, {"region: 9"});
  expect_refused(*client, client->ask(FrameType::kPut, 7, put_request(hashes, 9, {0})), Errc::kNoRegion, {"region: 9"});
  const auto memory = SharedMemory::create(kBlockBytes).value();
  const std::uint32_t region = lend(*client, *memory);
  const auto other = greet();
  expect_refused(*other, other->ask(FrameType::kGet, 7, get_request(hashes, region, {0})), Errc::kNoRegion, {"region"});
}

TEST_F(SessionHostileTest, OffsetsOutsideTheRegionAreRefused) {
  const auto client = greet();
  const auto hashes = chain(1, 2);
  put(*client, hashes);
  const auto memory = SharedMemory::create(2 * kBlockBytes).value();
  const std::uint32_t region = lend(*client, *memory);
  const std::uint64_t bad[] = {
      kBlockBytes + 1, 2 * kBlockBytes, 2 * kBlockBytes + 1, UINT64_MAX, UINT64_MAX - kBlockBytes + 1, 1ull << 63};
  for (const std::uint64_t offset : bad) {
    const auto text = "offsets: " + std::to_string(offset);
    expect_refused(*client, client->ask(FrameType::kGet, 7, get_request(hashes, region, {0, offset})), Errc::kNoRegion,
                   {text});
    expect_refused(*client, client->ask(FrameType::kPut, 7, put_request(chain(2, 2), region, {offset, 0})),
                   Errc::kNoRegion, {text});
  }
  expect_refused(*client, client->ask(FrameType::kGet, 7, get_request(hashes, region, {0})), Errc::kBadRequest,
                 {"offsets: 1", "(2)"});
  expect_refused(*client, client->ask(FrameType::kGet, 7, get_request(hashes, 0, {0, 0})), Errc::kBadRequest,
                 {"offsets: 2", "none without a region"});
  EXPECT_FALSE(client->ask(FrameType::kGet, 7, get_request(hashes, region, {kBlockBytes, 0})).is_error())
      << "the last byte of the region may be used";
}

// -- get

TEST_F(SessionHostileTest, SegmentsThatAreNoneAreRefused) {
  const auto client = greet();
  const auto hashes = chain(1, 2);
  put(*client, hashes);
  const std::vector<std::vector<std::uint64_t>> bad = {
      {0, kBlockBytes},                           // empty
      {kStripeBytes},                             // does not end at the block's end
      {kStripeBytes, kStripeBytes, kBlockBytes},  // not increasing
      {2 * kStripeBytes, kStripeBytes, kBlockBytes},
      {1000, kBlockBytes},  // cuts a stripe
      {kBlockBytes, kBlockBytes},
      {kStripeBytes, kBlockBytes + 1},
      {kStripeBytes, UINT64_MAX},
      {UINT64_MAX},
      {0},
  };
  for (const auto& ends : bad) {
    expect_refused(*client, client->ask(FrameType::kGet, 7, get_request(hashes, 0, {}, ends)), Errc::kBadRequest,
                   {"segment_ends["});
  }
}

TEST_F(SessionHostileTest, ARequestIdInUseIsRefused) {
  const auto client = greet();
  const auto hashes = chain(1, 2);
  ASSERT_FALSE(client->ask(FrameType::kPut, 9, put_request(hashes)).is_last());
  const auto again = client->ask(FrameType::kPut, 9, put_request(chain(2, 2)));
  ASSERT_TRUE(again.is_error());
  EXPECT_EQ(again.error(), Errc::kBadRequest);
  EXPECT_THAT(again.message(), HasSubstr("request_id"));
  const auto get_too = client->ask(FrameType::kGet, 9, get_request(hashes));
  ASSERT_TRUE(get_too.is_error());
  EXPECT_THAT(get_too.message(), HasSubstr("request_id"));
  EXPECT_FALSE(client->ask(FrameType::kPutData, 9, put_data(2, sums(hashes)), blocks(hashes)).is_error())
      << "the first use of the id is not disturbed";
  EXPECT_EQ(put(*client, chain(3, 1)), 1u) << "and then it is free again";
}

TEST_F(SessionHostileTest, TransfersInFlightAreBounded) {
  change(node->limits)->requests_max = 4;
  const auto client = greet();
  for (std::uint64_t id = 10; id < 14; ++id) {
    ASSERT_FALSE(client->ask(FrameType::kPut, id, put_request(chain(static_cast<std::uint32_t>(id), 1))).is_error());
  }
  expect_refused(*client, client->ask(FrameType::kPut, 14, put_request(chain(14, 1))), Errc::kBusy,
                 {"requests in flight"});
  expect_refused(*client, client->ask(FrameType::kGet, 15, get_request(chain(14, 1))), Errc::kBusy,
                 {"requests in flight"});
}

// -- put

TEST_F(SessionHostileTest, APutOfNothingIsRefused) {
  const auto client = greet();
  expect_refused(*client, client->ask(FrameType::kPut, 9, put_request({})), Errc::kBadRequest, {"hashes: 0"});
}

TEST_F(SessionHostileTest, PositionsAndTokensThatDoNotFitAreRefused) {
  const auto client = greet();
  const auto offered = wire_hashes(chain(1, 2));
  const auto ask = [&](std::vector<std::uint32_t> positions, std::vector<std::uint32_t> tokens,
                       std::vector<wire::ExtraDigest> extras = {}) {
    return client->ask(FrameType::kPut, 9, [&](FlatBufferBuilder& b) {
      return wire::CreatePutRequestDirect(b, space, &offered, &positions, &tokens, 0, nullptr, 0, 0, check(),
                                          extras.empty() ? nullptr : &extras);
    });
  };
  expect_refused(*client, ask({1}, {}), Errc::kBadRequest, {"positions: 1"});
  expect_refused(*client, ask({5, 5}, {}), Errc::kBadRequest, {"positions"});
  expect_refused(*client, ask({5, 4}, {}), Errc::kBadRequest, {"positions"});
  expect_refused(*client, ask({}, {1, 2, 3}), Errc::kBadRequest, {"token_ids: 3"});
  expect_refused(*client, ask({}, {}, std::vector<wire::ExtraDigest>(9)), Errc::kBadRequest, {"extras: 9"});
}

TEST_F(SessionHostileTest, BytesThatDoNotMatchTheirChecksumsAreNeverVisible) {
  const auto hashes = chain(1, 3);
  for (const bool through_region : {false, true}) {
    const auto client = greet();
    const auto memory = SharedMemory::create(3 * kBlockBytes).value();
    const std::uint32_t region = through_region ? lend(*client, *memory) : 0;
    Bytes bytes = blocks(hashes);
    bytes[kBlockBytes + 5] ^= std::byte{1};  // in the second block
    std::memcpy(memory->bytes().data(), bytes.data(), bytes.size());
    const std::vector<std::uint64_t> offsets = {0, kBlockBytes, 2 * kBlockBytes};
    const auto request = put_request(hashes, region, through_region ? offsets : std::vector<std::uint64_t>());
    ASSERT_FALSE(client->ask(FrameType::kPut, 9, request).is_last());
    const auto answer = client->ask(FrameType::kPutData, 9, put_data(3, sums(hashes)),
                                    through_region ? std::span<const std::byte>() : std::span<const std::byte>(bytes));
    expect_refused(*client, answer, Errc::kCorruptBlock, {"block 1"});
    EXPECT_EQ(answer.header.type, FrameType::kPut);
    EXPECT_EQ(matched(*client, hashes), 1u) << "the block before it is good";
    EXPECT_EQ(stats().incoming_count, 0u);
    client->ask(FrameType::kDrop, 10, prefix_request({}));
  }
  EXPECT_EQ(metric("kvstore_checksum_failures_total"), 2);
}

TEST_F(SessionHostileTest, BytesOfAnotherBlockAreRefused) {
  const auto client = greet();
  const auto hashes = chain(1, 1), other = chain(2, 1);
  ASSERT_FALSE(client->ask(FrameType::kPut, 9, put_request(hashes)).is_last());
  // Right bytes and right checksums, of the wrong block: checksums are bound to the name.
  expect_refused(*client, client->ask(FrameType::kPutData, 9, put_data(1, sums(other)), blocks(other)),
                 Errc::kCorruptBlock, {"block 0"});
}

TEST_F(SessionHostileTest, PutDataWithoutAPutIsSwallowed) {
  const auto client = greet();
  const auto hashes = chain(1, 2);
  client->send(FrameType::kPutData, 9, put_data(2, sums(hashes)), blocks(hashes));
  EXPECT_EQ(client->ask(FrameType::kPing, 10, ping()).header.request_id, 10u)
      << "a put that just failed may have its data on the way still";
  EXPECT_EQ(stats().block_count, 0u);
  expect_others_served();
}

TEST_F(SessionHostileTest, PutDataThatDoesNotFitEndsThePut) {
  const auto hashes = chain(1, 3);
  const std::span<const BlockHash> all(hashes);
  struct Case {
    std::size_t count;
    std::vector<std::uint64_t> checksums;
    Bytes payload;
    std::string words;
  };
  const Case cases[] = {
      {0, {}, {}, "put_data.block_count: 0, 1..3 are due"},
      {4, sums(chain(1, 4)), blocks(chain(1, 4)), "put_data.block_count: 4, 1..3 are due"},
      {UINT32_MAX, {}, {}, "put_data.block_count: 4294967295"},
      {3, sums(all.first(2)), blocks(hashes), "put_data.checksums: 6, 9 are due"},
      {3, {}, blocks(hashes), "put_data.checksums: 0, 9 are due"},
      {2, sums(all.first(2)), blocks(hashes), "put_data payload_bytes"},
      {3, sums(hashes), blocks(all.first(2)), "put_data payload_bytes"},
      {3, sums(hashes), Bytes(3 * kBlockBytes - 1), "put_data payload_bytes"},
      {3, sums(hashes), {}, "put_data payload_bytes: 0"},
  };
  for (const Case& each : cases) {
    const auto client = greet();
    ASSERT_FALSE(client->ask(FrameType::kPut, 9, put_request(hashes)).is_last());
    const auto answer = client->ask(FrameType::kPutData, 9, put_data(each.count, each.checksums), each.payload);
    expect_refused(*client, answer, Errc::kBadRequest, {each.words});
    EXPECT_EQ(stats().incoming_count, 0u);
    EXPECT_EQ(matched(*client, hashes), 0u);
  }
}

TEST_F(SessionHostileTest, APayloadWithARegionPutEndsThePut) {
  const auto client = greet();
  const auto hashes = chain(1, 1);
  const auto memory = SharedMemory::create(kBlockBytes).value();
  const std::uint32_t region = lend(*client, *memory);
  ASSERT_FALSE(client->ask(FrameType::kPut, 9, put_request(hashes, region, {0})).is_last());
  expect_refused(*client, client->ask(FrameType::kPutData, 9, put_data(1, sums(hashes)), blocks(hashes)),
                 Errc::kBadRequest, {"payload_bytes", "0 are due"});
}

TEST_F(SessionHostileTest, MoreDataAfterTheLastBlockIsSwallowed) {
  const auto client = greet();
  const auto hashes = chain(1, 1);
  ASSERT_FALSE(client->ask(FrameType::kPut, 9, put_request(hashes)).is_last());
  EXPECT_FALSE(client->ask(FrameType::kPutData, 9, put_data(1, sums(hashes)), blocks(hashes)).is_error());
  client->send(FrameType::kPutData, 9, put_data(1, sums(hashes)), blocks(hashes));
  EXPECT_FALSE(client->ask(FrameType::kPing, 10, ping()).is_error());
  expect_others_served();
}

TEST_F(SessionHostileTest, PutDataBeforePutWantEndsThePut) {
  const auto client = greet();
  const auto kept = chain(1, 32);
  put(*client, kept);
  client->ask(FrameType::kMatch, 5, match_request(kept, true));
  const auto hashes = chain(2, 1);
  client->send(FrameType::kPut, 9, put_request(hashes, 0, {}, 5'000'000));  // waits for memory
  client->send(FrameType::kPutData, 9, put_data(1, sums(hashes)), blocks(hashes));
  const auto answer = client->answer();
  ASSERT_TRUE(answer.is_error());
  EXPECT_THAT(answer.message(), HasSubstr("before put_want"));
  EXPECT_FALSE(client->ask(FrameType::kPing, 4242, ping()).is_error());
}

TEST_F(SessionHostileTest, CancellingWhatIsNotThereHasNoAnswerAndNoEffect) {
  const auto client = greet();
  client->send(FrameType::kCancel, 9, cancel(12345));
  EXPECT_EQ(client->ask(FrameType::kPing, 10, ping()).header.request_id, 10u);
}

TEST_F(SessionHostileTest, LeasesOfOthersCannotBeEnded) {
  const auto owner = greet(), thief = greet();
  const auto hashes = chain(1, 2);
  put(*owner, hashes);
  const auto lease = owner->ask(FrameType::kMatch, 5, match_request(hashes, true)).as<wire::MatchResponse>().lease();
  const auto release = [=](FlatBufferBuilder& b) { return wire::CreateReleaseRequest(b, lease); };
  expect_refused(*thief, thief->ask(FrameType::kRelease, 6, release), Errc::kStaleLease, {"lease"});
  thief->send(FrameType::kGet, 7, get_request(hashes, 0, {}, {}, lease));
  while (!thief->answer().is_last()) {
  }
  EXPECT_EQ(stats().lease_count, 1u);
  EXPECT_FALSE(owner->ask(FrameType::kRelease, 6, release).is_error());
}

}  // namespace
}  // namespace kv
