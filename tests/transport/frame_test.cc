#include "transport/frames/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

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
      {"type 0", [](Head& h) { put<std::uint8_t>(h, 5, 0); }, Errc::kUnsupported, {"type: 0", "1..23"}},
      {"type 24", [](Head& h) { put<std::uint8_t>(h, 5, 24); }, Errc::kUnsupported, {"type: 24", "1..23"}},
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

TEST(FrameTest, EveryTypeHasAName) {
  for (int type = 1; type <= kFrameTypeMax; ++type) {
    EXPECT_STRNE(frame_type_name(static_cast<FrameType>(type)), "unknown") << type;
  }
  EXPECT_STREQ(frame_type_name(static_cast<FrameType>(0)), "unknown");
  EXPECT_STREQ(frame_type_name(static_cast<FrameType>(kFrameTypeMax + 1)), "unknown");
}

}  // namespace
}  // namespace kv
