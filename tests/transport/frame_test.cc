#include "transport/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

#include "transport/wire_generated.h"

namespace kv {
namespace {

using flatbuffers::FlatBufferBuilder;
using testing::HasSubstr;

using Head = std::array<std::byte, kFrameHeaderBytes>;

std::vector<std::byte> some_table() {
  std::vector<std::byte> table(57);
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::byte>(i * 7);
  return table;
}

FrameHeader some_header() {
  FrameHeader header;
  header.type = FrameType::kPutData;
  header.flags = kFrameResponse | kFrameMore;
  header.request_id = 0x0123456789ABCDEF;
  header.table_bytes = 57;
  header.payload_bytes = 0x1122334455;
  return header;
}

Head encoded(const FrameHeader& header, std::span<const std::byte> table) {
  Head bytes{};
  encode_frame_header(header, table, bytes);
  return bytes;
}

constexpr FrameLimits kWide = {.table_bytes_max = UINT32_MAX, .payload_bytes_max = UINT64_MAX};

template <class T>
void put(Head& bytes, std::size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

TEST(FrameTest, WhatIsEncodedIsDecoded) {
  const auto table = some_table();
  const auto decoded = decode_frame_header(encoded(some_header(), table), kWide);
  ASSERT_TRUE(decoded) << decoded.error();
  EXPECT_EQ(decoded->type, FrameType::kPutData);
  EXPECT_EQ(decoded->version, kFrameVersion);
  EXPECT_EQ(decoded->flags, kFrameResponse | kFrameMore);
  EXPECT_EQ(decoded->request_id, 0x0123456789ABCDEFu);
  EXPECT_EQ(decoded->table_bytes, 57u);
  EXPECT_EQ(decoded->payload_bytes, 0x1122334455u);
}

TEST(FrameTest, FieldsLieWhereTheyAreDocumented) {
  const Head bytes = encoded(some_header(), some_table());
  EXPECT_EQ(std::memcmp(bytes.data(), "KVS1", 4), 0);
  EXPECT_EQ(bytes[4], std::byte{1});
  EXPECT_EQ(bytes[5], std::byte{6});
  EXPECT_EQ(bytes[6], std::byte{3});
  EXPECT_EQ(bytes[8], std::byte{0xEF});
  EXPECT_EQ(bytes[15], std::byte{0x01});
  EXPECT_EQ(bytes[16], std::byte{57});
  EXPECT_EQ(bytes[24], std::byte{0x55});
  EXPECT_EQ(bytes[28], std::byte{0x11});
}

TEST(FrameTest, EveryRefusalNamesFieldValueAndLimit) {
  struct Case {
    const char* name;
    std::function<void(Head&)> spoil;
    Errc code;
    std::vector<std::string> words;
  };
  const Case cases[] = {
      {"magic", [](Head& h) { put<std::uint32_t>(h, 0, 0x20544547); }, Errc::kBadFrame, {"magic", "542393671", "KVS1"}},
      {"version 0", [](Head& h) { put<std::uint8_t>(h, 4, 0); }, Errc::kUnsupported, {"version: 0", "known here: 1"}},
      {"version 2", [](Head& h) { put<std::uint8_t>(h, 4, 2); }, Errc::kUnsupported, {"version: 2", "known here: 1"}},
      {"version 255", [](Head& h) { put<std::uint8_t>(h, 4, 255); }, Errc::kUnsupported, {"version: 255"}},
      {"type 0", [](Head& h) { put<std::uint8_t>(h, 5, 0); }, Errc::kUnsupported, {"type: 0", "1..25"}},
      {"type 26", [](Head& h) { put<std::uint8_t>(h, 5, 26); }, Errc::kUnsupported, {"type: 26", "1..25"}},
      {"type 255", [](Head& h) { put<std::uint8_t>(h, 5, 255); }, Errc::kUnsupported, {"type: 255"}},
      {"flag 8", [](Head& h) { put<std::uint16_t>(h, 6, 8); }, Errc::kBadFrame, {"flags: 8", "known bits: 7"}},
      {"flag 32768", [](Head& h) { put<std::uint16_t>(h, 6, 0x8001); }, Errc::kBadFrame, {"flags: 32769"}},
      {"table", [](Head& h) { put<std::uint32_t>(h, 16, 4097); }, Errc::kTooLarge, {"table_bytes: 4097", "4096"}},
      {"table 2^32-1",
       [](Head& h) { put<std::uint32_t>(h, 16, UINT32_MAX); },
       Errc::kTooLarge,
       {"table_bytes: 4294967295", "4096"}},
      {"payload", [](Head& h) { put<std::uint64_t>(h, 24, 101); }, Errc::kTooLarge, {"payload_bytes: 101", "100"}},
      {"payload 2^63",
       [](Head& h) { put<std::uint64_t>(h, 24, 1ull << 63); },
       Errc::kTooLarge,
       {"payload_bytes: 9223372036854775808"}},
      {"payload 2^64-1",
       [](Head& h) { put<std::uint64_t>(h, 24, UINT64_MAX); },
       Errc::kTooLarge,
       {"payload_bytes: 18446744073709551615", "100"}},
  };
  const FrameLimits limits{.table_bytes_max = 4096, .payload_bytes_max = 100};
  FrameHeader header = some_header();
  header.payload_bytes = 100;
  for (const Case& each : cases) {
    Head bytes = encoded(header, some_table());
    each.spoil(bytes);
    const auto decoded = decode_frame_header(bytes, limits);
    ASSERT_FALSE(decoded) << each.name;
    EXPECT_EQ(decoded.error(), each.code) << each.name;
    for (const auto& word : each.words) EXPECT_THAT(decoded.error().text, HasSubstr(word)) << each.name;
  }
}

TEST(FrameTest, LimitsAreInclusive) {
  Head bytes = encoded(some_header(), some_table());
  put<std::uint32_t>(bytes, 16, 4096);
  put<std::uint64_t>(bytes, 24, 100);
  EXPECT_TRUE(decode_frame_header(bytes, {.table_bytes_max = 4096, .payload_bytes_max = 100}));
}

TEST(FrameTest, EveryFlippedBitOfHeaderOrTableIsSeen) {
  const auto good = some_table();
  const Head head = encoded(some_header(), good);
  EXPECT_TRUE(frame_checksum_ok(head, good));
  for (std::size_t bit = 0; bit < 8 * head.size(); ++bit) {
    Head bytes = head;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_FALSE(frame_checksum_ok(bytes, good)) << "header bit " << bit;
  }
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    auto table = good;
    table[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_FALSE(frame_checksum_ok(head, table)) << "table bit " << bit;
  }
}

TEST(FrameTest, TableThatPointsOutsideItselfFailsVerification) {
  FlatBufferBuilder builder;
  const std::vector<wire::Hash> hashes(3);
  builder.Finish(wire::CreateMatchRequestDirect(builder, 1, &hashes));
  std::vector<std::byte> table(builder.GetSize());
  std::memcpy(table.data(), builder.GetBufferPointer(), table.size());
  ASSERT_NE(read_table<wire::MatchRequest>(table), nullptr);
  EXPECT_EQ(read_table<wire::MatchRequest>({}), nullptr);
  for (std::size_t cut = 0; cut < table.size(); ++cut) {
    EXPECT_EQ(read_table<wire::MatchRequest>(std::span(table).first(cut)), nullptr) << "cut at " << cut;
  }
  auto root_outside = table;
  std::memset(root_outside.data(), 0xFF, 4);
  EXPECT_EQ(read_table<wire::MatchRequest>(root_outside), nullptr);
}

TEST(FrameTest, NumbersOfEightBytesThatLieCrookedFailVerification) {
  FlatBufferBuilder builder;
  const std::vector<std::uint64_t> sums = {1, 2};
  builder.Finish(wire::CreatePutDataDirect(builder, 2, &sums));
  for (const std::size_t place : {128, 132, 136, 140}) {  // of a vector's length, which its elements follow
    std::vector<std::byte> table(256);
    std::memcpy(table.data(), builder.GetBufferPointer(), builder.GetSize());
    auto* const data = reinterpret_cast<std::uint8_t*>(table.data());
    auto* const field =
        const_cast<std::uint8_t*>(reinterpret_cast<const flatbuffers::Table*>(flatbuffers::GetRoot<wire::PutData>(data))
                                      ->GetAddressOf(wire::PutData::VT_CHECKSUMS));
    const auto offset = static_cast<std::uint32_t>(data + place - field);
    std::memcpy(field, &offset, sizeof offset);
    table[place] = std::byte{2};
    const auto* read = read_table<wire::PutData>(table);
    EXPECT_EQ(read != nullptr, (place + 4) % 8 == 0) << place;
  }
}

TEST(FrameTest, EmptyVectorsPassVerificationWhereverTheyLie) {
  const std::vector<std::uint64_t> none;
  for (const std::size_t count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12}) {
    FlatBufferBuilder builder;
    const std::vector<wire::Hash> hashes(count);
    const std::vector<std::uint32_t> tokens(count);
    builder.Finish(wire::CreatePutRequestDirect(builder, 1, &hashes, nullptr, &tokens, 0, &none));
    std::vector<std::byte> table(builder.GetSize());
    std::memcpy(table.data(), builder.GetBufferPointer(), table.size());
    EXPECT_NE(read_table<wire::PutRequest>(table), nullptr) << count;
  }
}

TEST(FrameTest, EveryVerbHasAName) {
  for (int type = 1; type <= kFrameTypeMax; ++type) {
    EXPECT_STRNE(frame_type_name(static_cast<FrameType>(type)), "unknown") << type;
  }
  EXPECT_STREQ(frame_type_name(static_cast<FrameType>(0)), "unknown");
  EXPECT_STREQ(frame_type_name(static_cast<FrameType>(kFrameTypeMax + 1)), "unknown");
}

// -- golden frames: one of every verb, request and answer, as hex text in golden/. From the
// first release on their bytes never change: a peer of the version before must read them (docs/compatibility.md).
// KV_WRITE_GOLDEN=1 writes the files that are missing.

wire::Hash hash_of(std::uint8_t first) {
  std::array<std::uint8_t, 32> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(first + i);
  wire::Hash hash;
  std::memcpy(&hash, bytes.data(), sizeof hash);
  return hash;
}

const std::string kRecord = "block_bytes=131072\nblock_size=16\nmodel=m\n";

struct GoldenFrame {
  FrameType type;
  std::uint16_t flags;
  std::uint64_t request_id;
  std::string payload;
  std::function<void(FlatBufferBuilder&)> build;
  std::function<void(std::span<const std::byte>)> check;  ///< The decoded table says what was built.
};

template <class Table, class Check>
std::function<void(std::span<const std::byte>)> checker(Check check) {
  return [check](std::span<const std::byte> bytes) {
    const auto* table = read_table<Table>(bytes);
    ASSERT_NE(table, nullptr);
    check(*table);
  };
}

std::map<std::string, GoldenFrame> golden_frames() {
  const std::vector<wire::Hash> hashes = {hash_of(1), hash_of(101)};
  const std::vector<std::uint32_t> tokens = {7, 8, 0xFFFFFFFF};
  const std::array<std::uint8_t, 16> no_extra{}, some_extra = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  const std::vector<wire::ExtraDigest> extras = {wire::ExtraDigest(no_extra), wire::ExtraDigest(some_extra)};
  const std::vector<std::uint32_t> positions = {3, 9};
  const std::vector<std::uint64_t> offsets = {0, 131072}, ends = {65536, 131072};
  const std::vector<std::uint64_t> sums = {0x1111111111111111, 0x2222222222222222, 3, 4};
  constexpr std::uint16_t kAnswer = kFrameResponse, kPart = kFrameResponse | kFrameMore;
  const std::vector<std::uint8_t> id_bytes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  constexpr std::uint64_t kCheck = 0x0706050403020100;
  std::map<std::string, GoldenFrame> frames;
  frames["hello.request"] = {FrameType::kHello,
                             0,
                             1,
                             "",
                             [](auto& b) { b.Finish(wire::CreateHelloRequestDirect(b, 1, 1, "worker-3")); },
                             checker<wire::HelloRequest>([](const auto& t) {
                               EXPECT_EQ(t.version_min(), 1);
                               EXPECT_EQ(t.version_max(), 1);
                               EXPECT_EQ(t.identity()->str(), "worker-3");
                             })};
  frames["hello.answer"] = {FrameType::kHello,
                            kAnswer,
                            1,
                            "",
                            [=](auto& b) {
                              b.Finish(wire::CreateHelloResponseDirect(b, 1, "node-7", 5, 4 << 20, 65536, 1024,
                                                                       64ull << 30, 3, true, &id_bytes));
                            },
                            checker<wire::HelloResponse>([=](const auto& t) {
                              EXPECT_EQ(t.version(), 1);
                              EXPECT_EQ(t.node_id()->str(), "node-7");
                              EXPECT_EQ(t.epoch(), 5u);
                              EXPECT_EQ(t.table_bytes_max(), 4u << 20);
                              EXPECT_EQ(t.chain_blocks_max(), 65536u);
                              EXPECT_EQ(t.requests_max(), 1024u);
                              EXPECT_EQ(t.region_bytes_max(), 64ull << 30);
                              EXPECT_EQ(t.lanes_max(), 3u);
                              EXPECT_TRUE(t.messages());
                              EXPECT_TRUE(std::ranges::equal(*t.instance(), id_bytes));
                            })};
  frames["open.request"] = {FrameType::kOpen,
                            0,
                            2,
                            "",
                            [](auto& b) { b.Finish(wire::CreateOpenRequestDirect(b, kRecord.c_str())); },
                            checker<wire::OpenRequest>([](const auto& t) { EXPECT_EQ(t.record()->str(), kRecord); })};
  frames["open.answer"] = {FrameType::kOpen,
                           kAnswer,
                           2,
                           "",
                           [=](auto& b) { b.Finish(wire::CreateOpenResponseDirect(b, 1, 131072, &id_bytes)); },
                           checker<wire::OpenResponse>([=](const auto& t) {
                             EXPECT_EQ(t.space(), 1u);
                             EXPECT_EQ(t.block_bytes(), 131072u);
                             EXPECT_TRUE(std::ranges::equal(*t.namespace_id(), id_bytes));
                           })};
  frames["match.request"] = {
      FrameType::kMatch,
      0,
      3,
      "",
      [=](auto& b) { b.Finish(wire::CreateMatchRequestDirect(b, 1, &hashes, &tokens, true, true, kCheck)); },
      checker<wire::MatchRequest>([=](const auto& t) {
        EXPECT_EQ(t.space(), 1u);
        EXPECT_EQ(t.namespace_check(), kCheck);
        EXPECT_EQ(t.hashes()->size(), 2u);
        EXPECT_EQ(std::memcmp(t.hashes()->Get(1), &hashes[1], 32), 0);
        EXPECT_EQ(t.token_ids()->Get(2), 0xFFFFFFFFu);
        EXPECT_TRUE(t.lease());
        EXPECT_TRUE(t.prefetch());
      })};
  frames["match.extras"] = {
      FrameType::kMatch,
      0,
      3,
      "",
      [=](auto& b) { b.Finish(wire::CreateMatchRequestDirect(b, 1, &hashes, &tokens, false, false, 7, &extras)); },
      checker<wire::MatchRequest>([=](const auto& t) {
        ASSERT_EQ(t.extras()->size(), 2u);
        EXPECT_EQ(std::memcmp(t.extras()->Get(1), &extras[1], 16), 0);
      })};
  frames["match.answer"] = {
      FrameType::kMatch,
      kAnswer,
      3,
      "",
      [=](auto& b) { b.Finish(wire::CreateMatchResponse(b, 2, 0, 77, 10'000'000, 0, 5, &hashes[1])); },
      checker<wire::MatchResponse>([](const auto& t) {
        EXPECT_EQ(t.host_blocks(), 2u);
        EXPECT_EQ(t.lease(), 77u);
        EXPECT_EQ(t.lease_us(), 10'000'000u);
        EXPECT_EQ(t.partial_tokens(), 5u);
        EXPECT_NE(t.partial_block(), nullptr);
      })};
  frames["match.why"] = {FrameType::kMatch,
                         0,
                         3,
                         "",
                         [=](auto& b) {
                           wire::Trace trace;
                           std::memset(static_cast<void*>(&trace), 0x5A, sizeof trace);
                           const auto list = b.CreateVectorOfStructs(hashes);
                           wire::MatchRequestBuilder request(b);
                           request.add_space(1);
                           request.add_hashes(list);
                           request.add_namespace_check(7);
                           request.add_why(true);
                           request.add_trace(&trace);
                           b.Finish(request.Finish());
                         },
                         checker<wire::MatchRequest>([](const auto& t) {
                           EXPECT_TRUE(t.why());
                           ASSERT_NE(t.trace(), nullptr);
                           EXPECT_EQ(t.trace()->bytes()->Get(24), 0x5A);
                         })};
  frames["match.reason"] = {FrameType::kMatch,
                            kAnswer,
                            3,
                            "",
                            [](auto& b) {
                              const std::vector<std::uint8_t> name(16, 9);
                              const std::vector<flatbuffers::Offset<wire::FieldDifference>> differs = {
                                  wire::CreateFieldDifferenceDirect(b, "dtype", "bfloat16", nullptr),
                                  wire::CreateFieldDifferenceDirect(b, "salt")};
                              const std::vector<flatbuffers::Offset<wire::OtherSpace>> others = {
                                  wire::CreateOtherSpaceDirect(b, &name, true, 10, 11, 12, 13, &differs)};
                              const auto reason =
                                  wire::CreateMissReasonDirect(b, 2, 1'000'000, 2'000'000, 3'000'000, 4, 5, 6, &others);
                              wire::MatchResponseBuilder response(b);
                              response.add_host_blocks(1);
                              response.add_reason(reason);
                              b.Finish(response.Finish());
                            },
                            checker<wire::MatchResponse>([](const auto& t) {
                              ASSERT_NE(t.reason(), nullptr);
                              EXPECT_EQ(t.reason()->why(), 2);
                              EXPECT_EQ(t.reason()->left_us(), 1'000'000u);
                              EXPECT_EQ(t.reason()->idle_us(), 2'000'000u);
                              EXPECT_EQ(t.reason()->remembers_us(), 3'000'000u);
                              EXPECT_EQ(t.reason()->stored_blocks(), 4u);
                              EXPECT_EQ(t.reason()->lookups(), 5u);
                              EXPECT_EQ(t.reason()->empty_lookups(), 6u);
                              const auto* const other = t.reason()->others()->Get(0);
                              EXPECT_TRUE(other->has_block());
                              EXPECT_EQ(other->empty_lookups(), 13u);
                              EXPECT_EQ(other->differs()->Get(0)->here()->str(), "bfloat16");
                              EXPECT_EQ(other->differs()->Get(0)->there(), nullptr);
                            })};
  frames["get.request"] = {
      FrameType::kGet,
      0,
      4,
      "",
      [=](auto& b) { b.Finish(wire::CreateGetRequestDirect(b, 1, &hashes, 77, 2, &offsets, &ends, 2, 0, 0, kCheck)); },
      checker<wire::GetRequest>([=](const auto& t) {
        EXPECT_EQ(t.namespace_check(), kCheck);
        EXPECT_EQ(t.lease(), 77u);
        EXPECT_EQ(t.region(), 2u);
        EXPECT_EQ(t.offsets()->Get(1), 131072u);
        EXPECT_EQ(t.segment_ends()->Get(0), 65536u);
      })};
  frames["get.part"] = {FrameType::kGet,
                        kPart,
                        4,
                        "block bytes",
                        [=](auto& b) { b.Finish(wire::CreateGetPartDirect(b, 1, 0, 2, &sums)); },
                        checker<wire::GetPart>([](const auto& t) {
                          EXPECT_EQ(t.segment(), 1u);
                          EXPECT_EQ(t.first_block(), 0u);
                          EXPECT_EQ(t.block_count(), 2u);
                          EXPECT_EQ(t.checksums()->Get(1), 0x2222222222222222u);
                        })};
  frames["get.answer"] = {FrameType::kGet,
                          kAnswer,
                          4,
                          "",
                          [](auto& b) { b.Finish(wire::CreateGetResponse(b, 2)); },
                          checker<wire::GetResponse>([](const auto& t) { EXPECT_EQ(t.block_count(), 2u); })};
  frames["put.request"] = {
      FrameType::kPut,
      0,
      5,
      "",
      [=](auto& b) {
        b.Finish(wire::CreatePutRequestDirect(b, 1, &hashes, &positions, &tokens, 2, &offsets, 250'000, 0, kCheck));
      },
      checker<wire::PutRequest>([=](const auto& t) {
        EXPECT_EQ(t.namespace_check(), kCheck);
        EXPECT_EQ(t.positions()->Get(1), 9u);
        EXPECT_EQ(t.region(), 2u);
        EXPECT_EQ(t.deadline_us(), 250'000u);
      })};
  frames["put.extras"] = {
      FrameType::kPut,
      0,
      5,
      "",
      [=](auto& b) {
        b.Finish(wire::CreatePutRequestDirect(b, 1, &hashes, nullptr, &tokens, 2, &offsets, 250'000, 0, 7, &extras));
      },
      checker<wire::PutRequest>([=](const auto& t) {
        ASSERT_EQ(t.extras()->size(), 2u);
        EXPECT_EQ(std::memcmp(t.extras()->Get(1), &extras[1], 16), 0);
      })};
  frames["put.want"] = {FrameType::kPut,
                        kPart,
                        5,
                        "",
                        [](auto& b) { b.Finish(wire::CreatePutWant(b, 0, 2)); },
                        checker<wire::PutWant>([](const auto& t) { EXPECT_EQ(t.block_count(), 2u); })};
  frames["put_data.request"] = {FrameType::kPutData,
                                0,
                                5,
                                "block bytes",
                                [=](auto& b) { b.Finish(wire::CreatePutDataDirect(b, 2, &sums)); },
                                checker<wire::PutData>([](const auto& t) {
                                  EXPECT_EQ(t.block_count(), 2u);
                                  EXPECT_EQ(t.checksums()->size(), 4u);
                                })};
  frames["put.answer"] = {FrameType::kPut,
                          kAnswer,
                          5,
                          "",
                          [](auto& b) { b.Finish(wire::CreatePutResponse(b, 1, 1, 1, 1)); },
                          checker<wire::PutResponse>([](const auto& t) {
                            EXPECT_EQ(t.stored(), 1u);
                            EXPECT_EQ(t.already_stored(), 1u);
                            EXPECT_EQ(t.refused(), 1u);
                            EXPECT_EQ(t.refused_why(), 1u);
                          })};
  frames["cancel.request"] = {FrameType::kCancel,
                              0,
                              6,
                              "",
                              [](auto& b) { b.Finish(wire::CreateCancelRequest(b, 5)); },
                              checker<wire::CancelRequest>([](const auto& t) { EXPECT_EQ(t.request_id(), 5u); })};
  frames["put.cancelled"] = {FrameType::kPut,
                             kAnswer | kFrameError,
                             5,
                             "",
                             [](auto& b) { b.Finish(wire::CreateErrorDirect(b, 15, "put: cancelled")); },
                             checker<wire::Error>([](const auto& t) {
                               EXPECT_EQ(t.code(), 15u);
                               EXPECT_EQ(t.message()->str(), "put: cancelled");
                             })};
  frames["release.request"] = {FrameType::kRelease,
                               0,
                               7,
                               "",
                               [](auto& b) { b.Finish(wire::CreateReleaseRequest(b, 77)); },
                               checker<wire::ReleaseRequest>([](const auto& t) { EXPECT_EQ(t.lease(), 77u); })};
  const auto empty = [](auto& b) { b.Finish(wire::CreateEmptyResponse(b)); };
  const auto empty_check = checker<wire::EmptyResponse>([](const auto&) {});
  frames["release.answer"] = {FrameType::kRelease, kAnswer, 7, "", empty, empty_check};
  frames["hello.token"] = {
      FrameType::kHello,
      0,
      1,
      "",
      [](auto& b) {
        b.Finish(wire::CreateHelloRequestDirect(b, 1, 1, "worker-3", "a-token-that-is-only-good-for-this-file"));
      },
      checker<wire::HelloRequest>([](const auto& t) {
        EXPECT_EQ(t.identity()->str(), "worker-3");
        EXPECT_EQ(t.token()->str(), "a-token-that-is-only-good-for-this-file");
      })};
  const std::vector<std::uint8_t> held = {3}, on_disk = {2}, results = {1, 3};
  const std::vector<std::uint32_t> lengths = {65537, 100}, indices = {1}, long_bytes = {70000}, none;
  frames["set_match.request"] = {
      FrameType::kSetMatch,
      0,
      20,
      "",
      [=](auto& b) { b.Finish(wire::CreateSetMatchRequestDirect(b, 1, &hashes, true, true, kCheck)); },
      checker<wire::SetMatchRequest>([=](const auto& t) {
        EXPECT_EQ(t.hashes()->size(), 2u);
        EXPECT_TRUE(t.lease());
        EXPECT_TRUE(t.prefetch());
        EXPECT_EQ(t.namespace_check(), kCheck);
      })};
  frames["set_match.answer"] = {
      FrameType::kSetMatch,
      kAnswer,
      20,
      "",
      [=](auto& b) {
        b.Finish(wire::CreateSetMatchResponseDirect(b, &held, &on_disk, &lengths, 77, 10'000'000, 0, 250));
      },
      checker<wire::SetMatchResponse>([](const auto& t) {
        EXPECT_EQ(t.held()->Get(0), 3u);
        EXPECT_EQ(t.on_disk()->Get(0), 2u);
        EXPECT_EQ(t.block_bytes()->Get(0), 65537u);
        EXPECT_EQ(t.lease(), 77u);
        EXPECT_EQ(t.disk_us(), 250u);
      })};
  frames["match.hot"] = {
      FrameType::kMatch,
      0,
      22,
      "",
      [=](auto& b) {
        b.Finish(wire::CreateMatchRequestDirect(b, 1, &hashes, nullptr, false, false, kCheck, nullptr, 8, 2, 1));
      },
      checker<wire::MatchRequest>([=](const auto& t) {
        EXPECT_EQ(t.nodes(), 8u);
        EXPECT_EQ(t.beginning(), 2u);
        EXPECT_EQ(t.hot_blocks(), 1u);
      })};
  frames["match.hot_answer"] = {
      FrameType::kMatch,
      kAnswer,
      22,
      "",
      [](auto& b) { b.Finish(wire::CreateMatchResponse(b, 1, 0, 0, 0, 0, 0, nullptr, 0, 0x1122334455667788)); },
      checker<wire::MatchResponse>([](const auto& t) { EXPECT_EQ(t.hot_version(), 0x1122334455667788u); })};
  // Of a chain that lies on several nodes.
  frames["match.part"] = {FrameType::kMatch,
                          0,
                          28,
                          "",
                          [=](auto& b) {
                            const auto names = b.CreateVectorOfStructs(hashes);
                            wire::MatchRequestBuilder match(b);
                            match.add_namespace_check(kCheck);
                            match.add_space(1);
                            match.add_hashes(names);
                            match.add_reuse(3);
                            match.add_chain_blocks(700);
                            match.add_chain_first(3);
                            match.add_chain_last(689);
                            b.Finish(match.Finish());
                          },
                          checker<wire::MatchRequest>([](const auto& t) {
                            EXPECT_EQ(t.reuse(), 3u);
                            EXPECT_EQ(t.chain_blocks(), 700u);
                            EXPECT_EQ(t.chain_first(), 3u);
                            EXPECT_EQ(t.chain_last(), 689u);
                            EXPECT_FALSE(t.elsewhere());
                          })};
  frames["match.elsewhere"] = {FrameType::kMatch,
                               0,
                               29,
                               "",
                               [=](auto& b) {
                                 const auto names = b.CreateVectorOfStructs(hashes);
                                 wire::MatchRequestBuilder match(b);
                                 match.add_namespace_check(kCheck);
                                 match.add_space(1);
                                 match.add_hashes(names);
                                 match.add_elsewhere(true);
                                 b.Finish(match.Finish());
                               },
                               checker<wire::MatchRequest>([](const auto& t) {
                                 EXPECT_TRUE(t.elsewhere());
                                 EXPECT_EQ(t.chain_blocks(), 0u);
                               })};
  frames["match.part_answer"] = {FrameType::kMatch,
                                 kAnswer,
                                 28,
                                 "",
                                 [](auto& b) {
                                   wire::MatchResponseBuilder match(b);
                                   match.add_epoch(9);
                                   match.add_host_blocks(1);
                                   match.add_known_blocks(2);
                                   b.Finish(match.Finish());
                                 },
                                 checker<wire::MatchResponse>([](const auto& t) {
                                   EXPECT_EQ(t.host_blocks(), 1u);
                                   EXPECT_EQ(t.known_blocks(), 2u);
                                 })};
  frames["hot_roots.request"] = {FrameType::kHotRoots,
                                 0,
                                 23,
                                 "",
                                 [=](auto& b) { b.Finish(wire::CreateHotRootsRequest(b, 1, kCheck)); },
                                 checker<wire::HotRootsRequest>([=](const auto& t) {
                                   EXPECT_EQ(t.space(), 1u);
                                   EXPECT_EQ(t.namespace_check(), kCheck);
                                 })};
  frames["hot_roots.answer"] = {
      FrameType::kHotRoots,
      kAnswer,
      23,
      "",
      [=](auto& b) { b.Finish(wire::CreateHotRootsResponseDirect(b, 0x1122334455667788, &hashes)); },
      checker<wire::HotRootsResponse>([=](const auto& t) {
        EXPECT_EQ(t.version(), 0x1122334455667788u);
        ASSERT_EQ(t.blocks()->size(), 2u);
        EXPECT_EQ(std::memcmp(t.blocks()->Get(1), &hashes[1], 32), 0);
      })};
  frames["match.epoch_answer"] = {
      FrameType::kMatch,
      kAnswer,
      24,
      "",
      [](auto& b) { b.Finish(wire::CreateMatchResponse(b, 1, 0, 0, 0, 0, 0, nullptr, 0, 0, 0x1122334455667788)); },
      checker<wire::MatchResponse>([](const auto& t) { EXPECT_EQ(t.epoch(), 0x1122334455667788u); })};
  frames["cluster_map.request"] = {FrameType::kClusterMap,
                                   0,
                                   25,
                                   "",
                                   [](auto& b) { b.Finish(wire::CreateClusterMapRequest(b)); },
                                   checker<wire::ClusterMapRequest>([](const auto&) {})};
  frames["cluster_map.answer"] = {
      FrameType::kClusterMap,
      kAnswer,
      25,
      "",
      [](auto& b) {
        const std::vector<std::string> endpoints = {"tcp://10.0.0.1:7400", "unix:///run/a"};
        const auto list = b.CreateVectorOfStrings(endpoints);
        const auto zone = b.CreateString("z1");
        const auto id = b.CreateString("a");
        const std::vector<flatbuffers::Offset<wire::ClusterNode>> nodes = {
            wire::CreateClusterNode(b, id, list, 64.5, 1, zone)};
        b.Finish(wire::CreateClusterMapResponse(b, 0x1122334455667788, 256, b.CreateVector(nodes)));
      },
      checker<wire::ClusterMapResponse>([](const auto& t) {
        EXPECT_EQ(t.epoch(), 0x1122334455667788u);
        EXPECT_EQ(t.extent_blocks(), 256u);
        ASSERT_EQ(t.nodes()->size(), 1u);
        const wire::ClusterNode& node = *t.nodes()->Get(0);
        EXPECT_EQ(node.id()->str(), "a");
        EXPECT_EQ(node.endpoints()->Get(1)->str(), "unix:///run/a");
        EXPECT_EQ(node.weight(), 64.5);
        EXPECT_EQ(node.state(), 1u);
        EXPECT_EQ(node.zone()->str(), "z1");
      })};
  frames["cluster_map.phase"] = {FrameType::kClusterMap,
                                 kAnswer,
                                 25,
                                 "",
                                 [](auto& b) {
                                   const std::vector<std::string> endpoints = {"tcp://10.0.0.1:7400"};
                                   const auto list = b.CreateVectorOfStrings(endpoints);
                                   const auto id = b.CreateString("a");
                                   const std::vector<flatbuffers::Offset<wire::ClusterNode>> nodes = {
                                       wire::CreateClusterNode(b, id, list, 64.5, 0, 0, 2)};
                                   b.Finish(wire::CreateClusterMapResponse(b, 7, 256, b.CreateVector(nodes)));
                                 },
                                 checker<wire::ClusterMapResponse>([](const auto& t) {
                                   ASSERT_EQ(t.nodes()->size(), 1u);
                                   EXPECT_EQ(t.nodes()->Get(0)->state(), 0u);
                                   EXPECT_EQ(t.nodes()->Get(0)->phase(), 2u);
                                 })};
  frames["cluster_drain.request"] = {FrameType::kClusterDrain,
                                     0,
                                     26,
                                     "",
                                     [](auto& b) {
                                       const auto id = b.CreateString("a");
                                       b.Finish(wire::CreateClusterDrainRequest(b, id, true));
                                     },
                                     checker<wire::ClusterDrainRequest>([](const auto& t) {
                                       EXPECT_EQ(t.node_id()->str(), "a");
                                       EXPECT_TRUE(t.drain());
                                     })};
  frames["cluster_drain.answer"] = {FrameType::kClusterDrain,
                                    kAnswer,
                                    26,
                                    "",
                                    [](auto& b) { b.Finish(wire::CreateEmptyResponse(b)); },
                                    checker<wire::EmptyResponse>([](const auto&) {})};
  frames["erase.request"] = {
      FrameType::kErase,
      0,
      28,
      "",
      [](auto& b) { b.Finish(wire::CreateOpenRequestDirect(b, "tenant=research\n")); },
      checker<wire::OpenRequest>([](const auto& t) { EXPECT_EQ(t.record()->str(), "tenant=research\n"); })};
  frames["erase.answer"] = {
      FrameType::kErase,
      kAnswer,
      28,
      "",
      [](auto& b) {
        const std::vector<flatbuffers::Offset<wire::Stat>> stats = {wire::CreateStatDirect(b, "erase_done", 1)};
        b.Finish(wire::CreateStatsResponseDirect(b, &stats));
      },
      checker<wire::StatsResponse>([](const auto& t) {
        EXPECT_EQ(t.stats()->Get(0)->name()->str(), "erase_done");
        EXPECT_EQ(t.stats()->Get(0)->value(), 1);
      })};
  frames["context.request"] = {
      FrameType::kContext,
      0,
      31,
      "",
      [=](auto& b) {
        const std::vector<std::uint32_t> counts = {1, 1};
        const std::vector<flatbuffers::Offset<flatbuffers::String>> tags = {b.CreateString("team=x")};
        b.Finish(wire::CreateContextRequestDirect(b, 1, "prompt", 1, kCheck, &hashes, &counts, &tags, 3'600'000'000, 0,
                                                  true));
      },
      checker<wire::ContextRequest>([=](const auto& t) {
        EXPECT_EQ(t.act(), 1u);
        EXPECT_EQ(t.name()->str(), "prompt");
        EXPECT_EQ(t.hashes()->size(), 2u);
        EXPECT_EQ(t.chain_counts()->Get(1), 1u);
        EXPECT_EQ(t.tags()->Get(0)->str(), "team=x");
        EXPECT_EQ(t.ttl_us(), 3'600'000'000u);
        EXPECT_TRUE(t.sliding());
        EXPECT_EQ(t.namespace_check(), kCheck);
      })};
  frames["context.list"] = {FrameType::kContext,
                            0,
                            31,
                            "",
                            [](auto& b) {
                              wire::ContextRequestBuilder list(b);
                              list.add_act(2);
                              b.Finish(list.Finish());
                            },
                            checker<wire::ContextRequest>([](const auto& t) {
                              EXPECT_EQ(t.act(), 2u);
                              EXPECT_EQ(t.name(), nullptr);
                            })};
  frames["context.answer"] = {
      FrameType::kContext,
      kAnswer,
      31,
      "",
      [](auto& b) {
        const std::vector<std::uint8_t> name(16, 7);
        const std::vector<flatbuffers::Offset<flatbuffers::String>> tags = {b.CreateString("team=x")};
        const std::vector<flatbuffers::Offset<wire::ContextStatus>> contexts = {
            wire::CreateContextStatusDirect(b, "prompt", &tags, &name, "m", 16, 2, 1, 131072, 16, 1, true,
                                            3'600'000'000, 1'000'000, 3'601'000'000, 2'000'000, 32, 48, 12.5)};
        b.Finish(wire::CreateContextResponseDirect(b, &contexts, true));
      },
      checker<wire::ContextResponse>([](const auto& t) {
        const wire::ContextStatus& one = *t.contexts()->Get(0);
        EXPECT_EQ(one.name()->str(), "prompt");
        EXPECT_EQ(one.wanted_blocks(), 2u);
        EXPECT_EQ(one.kept_blocks(), 1u);
        EXPECT_EQ(one.why(), 16u);
        EXPECT_EQ(one.lost_blocks(), 1u);
        EXPECT_EQ(one.expires_us(), 3'601'000'000u);
        EXPECT_EQ(one.read_tokens(), 48u);
        EXPECT_EQ(one.stored_token_seconds(), 12.5);
        EXPECT_TRUE(t.more());
      })};
  frames["context.warm"] = {FrameType::kContext,
                            0,
                            31,
                            "",
                            [](auto& b) { b.Finish(wire::CreateContextRequestDirect(b, 5, "prompt")); },
                            checker<wire::ContextRequest>([](const auto& t) {
                              EXPECT_EQ(t.act(), 5u);
                              EXPECT_EQ(t.name()->str(), "prompt");
                            })};
  frames["context.warming"] = {
      FrameType::kContext,
      kAnswer,
      31,
      "",
      [](auto& b) {
        const std::vector<std::uint8_t> name(16, 7);
        const std::vector<flatbuffers::Offset<wire::ContextStatus>> contexts = {
            wire::CreateContextStatusDirect(b, "prompt", nullptr, &name, "m", 16, 9, 2, 262144, 16, 0, false,
                                            3'600'000'000, 1'000'000, 3'601'000'000, 0, 32, 0, 12.5, true, true, 3, 6)};
        b.Finish(wire::CreateContextResponseDirect(b, &contexts));
      },
      checker<wire::ContextResponse>([](const auto& t) {
        const wire::ContextStatus& one = *t.contexts()->Get(0);
        EXPECT_TRUE(one.warming());
        EXPECT_TRUE(one.looked());
        EXPECT_EQ(one.memory_blocks(), 3u);
        EXPECT_EQ(one.disk_blocks(), 6u);
      })};
  frames["context.place"] = {
      FrameType::kContext,
      0,
      31,
      "",
      [=](auto& b) {
        b.Finish(wire::CreateContextRequestDirect(b, 1, "prompt", 1, kCheck, &hashes, nullptr, nullptr, 1'000'000, 0,
                                                  false, nullptr, 9, 12, &positions, 7));
      },
      checker<wire::ContextRequest>([](const auto& t) {
        EXPECT_EQ(t.priority(), 9u);
        EXPECT_EQ(t.prefix_blocks(), 12u);
        EXPECT_EQ(t.positions()->Get(1), 9u);
        EXPECT_EQ(t.first(), 7u);
      })};
  frames["context.told"] = {
      FrameType::kContext,
      kAnswer,
      31,
      "",
      [=](auto& b) {
        const std::vector<std::uint8_t> name(16, 7);
        const std::vector<flatbuffers::Offset<wire::ContextStatus>> contexts = {wire::CreateContextStatusDirect(
            b, "prompt", nullptr, &name, "m", 16, 9, 2, 262144, 10, 0, false, 3'600'000'000, 1'000'000, 3'601'000'000,
            0, 32, 0, 12.5, false, false, 0, 0, 2, 4)};
        b.Finish(wire::CreateContextResponseDirect(b, &contexts, true, 77, "model=m\n", 12, &hashes, &positions));
      },
      checker<wire::ContextResponse>([](const auto& t) {
        EXPECT_EQ(t.contexts()->Get(0)->priority(), 2u);
        EXPECT_EQ(t.contexts()->Get(0)->yielded_blocks(), 4u);
        EXPECT_EQ(t.context(), 77u);
        EXPECT_EQ(t.record()->str(), "model=m\n");
        EXPECT_EQ(t.prefix_blocks(), 12u);
        EXPECT_EQ(t.hashes()->size(), 2u);
        EXPECT_EQ(t.positions()->Get(0), 3u);
        EXPECT_TRUE(t.more());
      })};
  frames["get.rest"] = {FrameType::kGet,
                        0,
                        28,
                        "",
                        [=](auto& b) {
                          const auto list = b.CreateVectorOfStructs(hashes);
                          wire::GetRequestBuilder request(b);
                          request.add_space(1);
                          request.add_hashes(list);
                          request.add_namespace_check(kCheck);
                          request.add_first_block(1);
                          b.Finish(request.Finish());
                        },
                        checker<wire::GetRequest>([](const auto& t) { EXPECT_EQ(t.first_block(), 1u); })};
  frames["put.idle"] = {FrameType::kPut,
                        0,
                        27,
                        "",
                        [=](auto& b) {
                          const auto names = b.CreateVectorOfStructs(hashes);
                          b.Finish(wire::CreatePutRequest(b, 1, names, 0, 0, 0, 0, 5000, 0, kCheck, 0, 60'000'000));
                        },
                        checker<wire::PutRequest>([](const auto& t) { EXPECT_EQ(t.idle_us(), 60'000'000u); })};
  frames["put.part"] = {FrameType::kPut,
                        0,
                        30,
                        "",
                        [=](auto& b) {
                          const auto names = b.CreateVectorOfStructs(hashes);
                          const auto places = b.CreateVector(positions);
                          wire::PutRequestBuilder put(b);
                          put.add_namespace_check(kCheck);
                          put.add_space(1);
                          put.add_hashes(names);
                          put.add_positions(places);
                          put.add_reuse(6);
                          put.add_chain_blocks(700);
                          put.add_chain_known(1);
                          b.Finish(put.Finish());
                        },
                        checker<wire::PutRequest>([](const auto& t) {
                          EXPECT_EQ(t.positions()->Get(1), 9u);
                          EXPECT_EQ(t.reuse(), 6u);
                          EXPECT_EQ(t.chain_blocks(), 700u);
                          EXPECT_EQ(t.chain_known(), 1u) << "somebody asked, and none is known";
                        })};
  frames["set_get.request"] = {
      FrameType::kSetGet,
      0,
      21,
      "",
      [=](auto& b) {
        b.Finish(wire::CreateSetGetRequestDirect(b, 1, &hashes, 77, 2, &offsets, &lengths, 1, 5000, 3, kCheck));
      },
      checker<wire::SetGetRequest>([=](const auto& t) {
        EXPECT_EQ(t.lease(), 77u);
        EXPECT_EQ(t.region(), 2u);
        EXPECT_EQ(t.offsets()->Get(1), 131072u);
        EXPECT_EQ(t.rooms()->Get(1), 100u);
        EXPECT_EQ(t.max_tier(), 1u);
        EXPECT_EQ(t.deadline_us(), 5000u);
        EXPECT_EQ(t.lanes(), 3u);
        EXPECT_EQ(t.namespace_check(), kCheck);
      })};
  frames["set_get.part"] = {FrameType::kSetGet,
                            kPart,
                            21,
                            "block bytes",
                            [=](auto& b) {
                              const std::vector<std::uint64_t> one = {5};
                              const std::vector<std::uint32_t> eleven = {11};
                              b.Finish(wire::CreateSetGetPartDirect(b, &indices, &eleven, &one));
                            },
                            checker<wire::SetGetPart>([](const auto& t) {
                              EXPECT_EQ(t.blocks()->Get(0), 1u);
                              EXPECT_EQ(t.block_bytes()->Get(0), 11u);
                              EXPECT_EQ(t.checksums()->Get(0), 5u);
                            })};
  frames["set_get.answer"] = {
      FrameType::kSetGet,
      kAnswer,
      21,
      "",
      [=](auto& b) { b.Finish(wire::CreateSetGetResponseDirect(b, 1, &indices, &long_bytes, &none, 4)); },
      checker<wire::SetGetResponse>([](const auto& t) {
        EXPECT_EQ(t.block_count(), 1u);
        EXPECT_EQ(t.too_long()->Get(0), 1u);
        EXPECT_EQ(t.too_long_bytes()->Get(0), 70000u);
        EXPECT_EQ(t.unread()->size(), 0u);
        EXPECT_EQ(t.broken_lanes(), 4u);
      })};
  frames["set_put.request"] = {
      FrameType::kSetPut,
      0,
      22,
      "",
      [=](auto& b) {
        b.Finish(wire::CreateSetPutRequestDirect(b, 1, &hashes, &lengths, 2, &offsets, 250'000, 3, kCheck));
      },
      checker<wire::SetPutRequest>([=](const auto& t) {
        EXPECT_EQ(t.block_bytes()->Get(0), 65537u);
        EXPECT_EQ(t.region(), 2u);
        EXPECT_EQ(t.deadline_us(), 250'000u);
        EXPECT_EQ(t.namespace_check(), kCheck);
      })};
  frames["set_put.want"] = {FrameType::kSetPut,
                            kPart,
                            22,
                            "",
                            [=](auto& b) { b.Finish(wire::CreateSetPutWantDirect(b, &indices)); },
                            checker<wire::SetPutWant>([](const auto& t) { EXPECT_EQ(t.blocks()->Get(0), 1u); })};
  frames["set_put.answer"] = {FrameType::kSetPut,
                              kAnswer,
                              22,
                              "",
                              [=](auto& b) { b.Finish(wire::CreateSetPutResponseDirect(b, &results, 1, 0)); },
                              checker<wire::SetPutResponse>([](const auto& t) {
                                EXPECT_EQ(t.results()->Get(1), 3u);
                                EXPECT_EQ(t.refused_why(), 1u);
                              })};
  // Names that come in groups: appended to the requests, which are the same without them.
  const std::vector<std::uint32_t> groups = {2}, each_alone = {1, 1};
  frames["set_match.groups"] = {
      FrameType::kSetMatch,
      0,
      23,
      "",
      [=](auto& b) { b.Finish(wire::CreateSetMatchRequestDirect(b, 1, &hashes, true, true, kCheck, &groups)); },
      checker<wire::SetMatchRequest>([=](const auto& t) {
        EXPECT_EQ(t.hashes()->size(), 2u);
        EXPECT_EQ(t.namespace_check(), kCheck);
        ASSERT_EQ(t.group_counts()->size(), 1u);
        EXPECT_EQ(t.group_counts()->Get(0), 2u);
      })};
  frames["set_get.groups"] = {FrameType::kSetGet,
                              0,
                              24,
                              "",
                              [=](auto& b) {
                                b.Finish(wire::CreateSetGetRequestDirect(b, 1, &hashes, 77, 2, &offsets, &lengths, 1,
                                                                         5000, 3, kCheck, &each_alone));
                              },
                              checker<wire::SetGetRequest>([=](const auto& t) {
                                EXPECT_EQ(t.namespace_check(), kCheck);
                                ASSERT_EQ(t.group_counts()->size(), 2u);
                                EXPECT_EQ(t.group_counts()->Get(1), 1u);
                              })};
  frames["set_put.groups"] = {
      FrameType::kSetPut,
      0,
      25,
      "",
      [=](auto& b) {
        b.Finish(wire::CreateSetPutRequestDirect(b, 1, &hashes, &lengths, 2, &offsets, 250'000, 3, kCheck, &groups));
      },
      checker<wire::SetPutRequest>([=](const auto& t) {
        EXPECT_EQ(t.namespace_check(), kCheck);
        ASSERT_EQ(t.group_counts()->size(), 1u);
        EXPECT_EQ(t.group_counts()->Get(0), 2u);
      })};
  std::uint64_t id = 8;
  for (const auto type : {FrameType::kTouch, FrameType::kRetain, FrameType::kUnretain, FrameType::kDrop}) {
    const std::string name = frame_type_name(type);
    frames[name + ".request"] = {
        type,
        0,
        id,
        "",
        [=](auto& b) { b.Finish(wire::CreatePrefixRequestDirect(b, 1, &hashes)); },
        checker<wire::PrefixRequest>([](const auto& t) { EXPECT_EQ(t.hashes()->size(), 2u); })};
    frames[name + ".answer"] = {type,
                                kAnswer,
                                id,
                                "",
                                [](auto& b) { b.Finish(wire::CreateCountResponse(b, 2)); },
                                checker<wire::CountResponse>([](const auto& t) { EXPECT_EQ(t.count(), 2u); })};
    ++id;
  }
  frames["region_add.request"] = {
      FrameType::kRegionAdd,
      0,
      12,
      "",
      [](auto& b) { b.Finish(wire::CreateRegionAddRequest(b, 1ull << 30)); },
      checker<wire::RegionAddRequest>([](const auto& t) { EXPECT_EQ(t.bytes(), 1ull << 30); })};
  frames["region_add.answer"] = {FrameType::kRegionAdd,
                                 kAnswer,
                                 12,
                                 "",
                                 [](auto& b) { b.Finish(wire::CreateRegionResponse(b, 2)); },
                                 checker<wire::RegionResponse>([](const auto& t) { EXPECT_EQ(t.region(), 2u); })};
  frames["region_add.verbs"] = {FrameType::kRegionAdd,
                                0,
                                16,
                                "",
                                [](auto& b) {
                                  const std::vector<std::uint32_t> rkeys = {0x0A0B0C0D, 0xFFFFFFFF};
                                  const std::vector<flatbuffers::Offset<wire::RegionSlice>> slices = {
                                      wire::CreateRegionSliceDirect(b, 0x7F0000001000, 4096, &rkeys),
                                      wire::CreateRegionSliceDirect(b, 0x7F0000002000, 1000, &rkeys)};
                                  b.Finish(wire::CreateRegionAddRequestDirect(b, 5096, &slices));
                                },
                                checker<wire::RegionAddRequest>([](const auto& t) {
                                  EXPECT_EQ(t.bytes(), 5096u);
                                  ASSERT_EQ(t.slices()->size(), 2u);
                                  EXPECT_EQ(t.slices()->Get(1)->address(), 0x7F0000002000u);
                                  EXPECT_EQ(t.slices()->Get(1)->bytes(), 1000u);
                                  EXPECT_EQ(t.slices()->Get(1)->rkeys()->Get(0), 0x0A0B0C0Du);
                                })};
  frames["verbs_connect.request"] = {
      FrameType::kVerbsConnect,
      0,
      17,
      "",
      [](auto& b) {
        const std::vector<std::uint8_t> gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 77, 0, 1};
        const auto end = wire::CreateQueuePairEndDirect(b, 0x123456, 0x00ABCDEF, 7, &gid, 4096, 16);
        const std::vector<flatbuffers::Offset<wire::LaneOffer>> lanes = {wire::CreateLaneOffer(b, 1, end)};
        b.Finish(wire::CreateVerbsConnectRequestDirect(b, &lanes));
      },
      checker<wire::VerbsConnectRequest>([](const auto& t) {
        const wire::LaneOffer& lane = *t.lanes()->Get(0);
        EXPECT_EQ(lane.lane(), 1u);
        EXPECT_EQ(lane.end()->number(), 0x123456u);
        EXPECT_EQ(lane.end()->first_psn(), 0x00ABCDEFu);
        EXPECT_EQ(lane.end()->lid(), 7u);
        EXPECT_EQ(lane.end()->gid()->Get(12), 10u);
        EXPECT_EQ(lane.end()->mtu_bytes(), 4096u);
        EXPECT_EQ(lane.end()->read_count_max(), 16u);
      })};
  frames["verbs_connect.answer"] = {FrameType::kVerbsConnect,
                                    kAnswer,
                                    17,
                                    "",
                                    [](auto& b) {
                                      const std::vector<std::uint8_t> gid(16, 0xFE);
                                      const auto end = wire::CreateQueuePairEndDirect(b, 17, 1, 0, &gid, 1024, 1);
                                      const std::vector<flatbuffers::Offset<wire::LaneAnswer>> lanes = {
                                          wire::CreateLaneAnswer(b, 1, end),
                                          wire::CreateLaneAnswerDirect(b, 2, 0, "no device")};
                                      b.Finish(wire::CreateVerbsConnectResponseDirect(b, &lanes));
                                    },
                                    checker<wire::VerbsConnectResponse>([](const auto& t) {
                                      EXPECT_EQ(t.lanes()->Get(0)->end()->number(), 17u);
                                      EXPECT_EQ(t.lanes()->Get(1)->end(), nullptr);
                                      EXPECT_EQ(t.lanes()->Get(1)->why()->str(), "no device");
                                    })};
  frames["verbs_connect.messages"] = {
      FrameType::kVerbsConnect,
      0,
      19,
      "",
      [](auto& b) {
        const std::vector<std::uint8_t> gid(16, 0xFD);
        const auto end = wire::CreateQueuePairEndDirect(b, 18, 2, 0, &gid, 1024, 1);
        const std::vector<flatbuffers::Offset<wire::LaneOffer>> lanes = {wire::CreateLaneOffer(b, 4, end, 16)};
        b.Finish(wire::CreateVerbsConnectRequestDirect(b, &lanes));
      },
      checker<wire::VerbsConnectRequest>([](const auto& t) {
        EXPECT_EQ(t.lanes()->Get(0)->lane(), 4u);
        EXPECT_EQ(t.lanes()->Get(0)->messages(), 16u);
      })};
  frames["verbs_connect.messages_answer"] = {
      FrameType::kVerbsConnect,
      kAnswer,
      19,
      "",
      [](auto& b) {
        const std::vector<std::uint8_t> gid(16, 0xFC);
        const auto end = wire::CreateQueuePairEndDirect(b, 19, 3, 0, &gid, 1024, 1);
        const std::vector<flatbuffers::Offset<wire::LaneAnswer>> lanes = {wire::CreateLaneAnswer(b, 4, end, 0, 8)};
        b.Finish(wire::CreateVerbsConnectResponseDirect(b, &lanes));
      },
      checker<wire::VerbsConnectResponse>([](const auto& t) { EXPECT_EQ(t.lanes()->Get(0)->messages(), 8u); })};
  frames["get.broken"] = {FrameType::kGet,
                          static_cast<std::uint16_t>(kAnswer | kFrameError),
                          18,
                          "",
                          [](auto& b) { b.Finish(wire::CreateErrorDirect(b, 11, "get: the transfer broke", 5)); },
                          checker<wire::Error>([](const auto& t) {
                            EXPECT_EQ(t.code(), 11u);
                            EXPECT_EQ(t.broken_lanes(), 5u);
                          })};
  frames["region_remove.request"] = {
      FrameType::kRegionRemove,
      0,
      13,
      "",
      [](auto& b) { b.Finish(wire::CreateRegionRemoveRequest(b, 2)); },
      checker<wire::RegionRemoveRequest>([](const auto& t) { EXPECT_EQ(t.region(), 2u); })};
  frames["region_remove.answer"] = {FrameType::kRegionRemove, kAnswer, 13, "", empty, empty_check};
  frames["stats.request"] = {FrameType::kStats,
                             0,
                             14,
                             "",
                             [](auto& b) { b.Finish(wire::CreateStatsRequest(b)); },
                             checker<wire::StatsRequest>([](const auto&) {})};
  frames["stats.answer"] = {
      FrameType::kStats,
      kAnswer,
      14,
      "",
      [](auto& b) {
        const std::vector<flatbuffers::Offset<wire::Stat>> stats = {wire::CreateStatDirect(b, "blocks", 2)};
        const std::vector<flatbuffers::Offset<wire::NamespaceStat>> spaces = {
            wire::CreateNamespaceStatDirect(b, kRecord.c_str(), 2, 131072)};
        b.Finish(wire::CreateStatsResponseDirect(b, &stats, &spaces));
      },
      checker<wire::StatsResponse>([](const auto& t) {
        EXPECT_EQ(t.stats()->Get(0)->name()->str(), "blocks");
        EXPECT_EQ(t.stats()->Get(0)->value(), 2.0);
        EXPECT_EQ(t.namespaces()->Get(0)->block_count(), 2u);
      })};
  frames["stats.learned"] = {FrameType::kStats,
                             0,
                             31,
                             "",
                             [](auto& b) {
                               wire::StatsRequestBuilder stats(b);
                               stats.add_learned(true);
                               b.Finish(stats.Finish());
                             },
                             checker<wire::StatsRequest>([](const auto& t) { EXPECT_TRUE(t.learned()); })};
  frames["stats.learned_answer"] = {FrameType::kStats,
                                    kAnswer,
                                    31,
                                    "",
                                    [](auto& b) {
                                      const std::vector<std::uint8_t> counts = {'K', 'V', 'Y', 'C', 1, 40, 0, 0};
                                      const auto learned = b.CreateVector(counts);
                                      wire::StatsResponseBuilder stats(b);
                                      stats.add_learned(learned);
                                      b.Finish(stats.Finish());
                                    },
                                    checker<wire::StatsResponse>([](const auto& t) {
                                      ASSERT_NE(t.learned(), nullptr);
                                      ASSERT_EQ(t.learned()->size(), 8u);
                                      EXPECT_EQ(t.learned()->Get(5), 40u);
                                      EXPECT_EQ(t.stats(), nullptr);
                                    })};
  frames["stats.slow"] = {FrameType::kStats,
                          0,
                          14,
                          "",
                          [](auto& b) { b.Finish(wire::CreateStatsRequest(b, false, 2)); },
                          checker<wire::StatsRequest>([](const auto& t) { EXPECT_EQ(t.slow(), 2); })};
  frames["stats.slow_answer"] = {
      FrameType::kStats,
      kAnswer,
      14,
      "",
      [](auto& b) {
        wire::Trace trace;
        std::memset(static_cast<void*>(&trace), 0x5A, sizeof trace);
        const std::vector<std::uint8_t> name(16, 9);
        const std::vector<flatbuffers::Offset<wire::SlowRequest>> requests = {wire::CreateSlowRequestDirect(
            b, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, "get", 11, 12, true, &name, "m", "t", 13, "me", "tcp:1.2.3.4:5", &trace)};
        const auto slow = wire::CreateSlowLogDirect(b, 100'000, 1, &requests);
        b.Finish(wire::CreateStatsResponse(b, 0, 0, 0, 0, slow));
      },
      checker<wire::StatsResponse>([](const auto& t) {
        ASSERT_NE(t.slow(), nullptr);
        EXPECT_EQ(t.slow()->threshold_us(), 100'000u);
        const auto* const one = t.slow()->requests()->Get(0);
        EXPECT_EQ(one->other_us(), 10u);
        EXPECT_EQ(one->verb()->str(), "get");
        EXPECT_EQ(one->peer()->str(), "tcp:1.2.3.4:5");
        EXPECT_EQ(one->trace()->bytes()->Get(0), 0x5A);
      })};
  frames["ping.request"] = {FrameType::kPing,
                            0,
                            15,
                            "",
                            [](auto& b) { b.Finish(wire::CreatePingRequest(b)); },
                            checker<wire::PingRequest>([](const auto&) {})};
  frames["ping.answer"] = {FrameType::kPing, kAnswer, 15, "", empty, empty_check};
  return frames;
}

std::string to_text(std::span<const std::byte> bytes) {
  std::string text;
  char pair[4];
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::snprintf(pair, sizeof pair, "%02x%s", static_cast<unsigned>(bytes[i]), i % 16 == 15 ? "\n" : " ");
    text += pair;
  }
  if (bytes.size() % 16 != 0) text.back() = '\n';
  return text;
}

std::vector<std::byte> from_text(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::byte> bytes;
  unsigned value;
  while (in >> std::hex >> value) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

TEST(GoldenFrameTest, EveryVerbHasARequestAndAnAnswer) {
  const auto frames = golden_frames();
  for (int type = 1; type <= kFrameTypeMax; ++type) {
    const std::string name = frame_type_name(static_cast<FrameType>(type));
    EXPECT_TRUE(frames.contains(name + ".request")) << name;
    // put_data is answered by put's last frame, cancel by the last frame of what it cancels.
    if (name != "put_data" && name != "cancel") {
      EXPECT_TRUE(frames.contains(name + ".answer")) << name;
    }
  }
}

TEST(GoldenFrameTest, BytesNeverChange) {
  for (const auto& [name, frame] : golden_frames()) {
    SCOPED_TRACE(name);
    FlatBufferBuilder builder;
    frame.build(builder);
    const auto table = std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize()));
    FrameHeader header;
    header.type = frame.type;
    header.flags = frame.flags;
    header.request_id = frame.request_id;
    header.payload_bytes = frame.payload.size();
    std::vector<std::byte> bytes(kFrameHeaderBytes);
    encode_frame_header(header, table, std::span<std::byte, kFrameHeaderBytes>(bytes.data(), kFrameHeaderBytes));
    bytes.insert(bytes.end(), table.begin(), table.end());
    const auto payload = std::as_bytes(std::span(frame.payload));
    bytes.insert(bytes.end(), payload.begin(), payload.end());

    const std::string path = std::string(KV_GOLDEN_DIR) + "/" + name + ".hex";
    std::ifstream file(path);
    if (!file && std::getenv("KV_WRITE_GOLDEN") != nullptr) {
      std::ofstream(path) << to_text(bytes);
      continue;
    }
    ASSERT_TRUE(file) << path << " is missing; KV_WRITE_GOLDEN=1 writes it";
    std::stringstream text;
    text << file.rdbuf();
    EXPECT_EQ(to_text(bytes), text.str());
  }
}

TEST(GoldenFrameTest, WhatOlderPeersSendIsStillUnderstood) {
  for (const auto& [name, frame] : golden_frames()) {
    SCOPED_TRACE(name);
    std::ifstream file(std::string(KV_GOLDEN_DIR) + "/" + name + ".hex");
    std::stringstream text;
    text << file.rdbuf();
    const auto bytes = from_text(text.str());
    ASSERT_GE(bytes.size(), kFrameHeaderBytes);
    const std::span<const std::byte, kFrameHeaderBytes> head(bytes.data(), kFrameHeaderBytes);
    const auto header = decode_frame_header(head, kWide);
    ASSERT_TRUE(header) << header.error();
    EXPECT_EQ(header->type, frame.type);
    EXPECT_EQ(header->flags, frame.flags);
    EXPECT_EQ(header->request_id, frame.request_id);
    EXPECT_EQ(header->payload_bytes, frame.payload.size());
    ASSERT_EQ(bytes.size(), kFrameHeaderBytes + header->table_bytes + header->payload_bytes);
    const auto table = std::span(bytes).subspan(kFrameHeaderBytes, header->table_bytes);
    EXPECT_TRUE(frame_checksum_ok(head, table));
    frame.check(table);
  }
}

}  // namespace
}  // namespace kv
