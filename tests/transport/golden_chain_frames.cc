// tests/transport/golden_chain_frames.cc: what asks for chains of blocks, and brings and fetches them.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "tests/transport/golden_frames.h"

namespace kv::golden {
namespace {

const std::vector<std::uint32_t> kTokens = {7, 8, 0xFFFFFFFF};
const std::vector<wire::ExtraDigest> kExtras = {
    wire::ExtraDigest(std::array<std::uint8_t, 16>{}),
    wire::ExtraDigest(std::array<std::uint8_t, 16>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16})};
const std::vector<std::uint64_t> kEnds = {65536, 131072};
const std::vector<std::uint64_t> kSums = {0x1111111111111111, 0x2222222222222222, 3, 4};

void add_matches(Frames& frames) {
  frames.add<wire::MatchRequest>(
      "match.request", kRequest, 3,
      [](auto& b) { return wire::CreateMatchRequestDirect(b, 1, &kHashes, &kTokens, true, true, kCheck); },
      [](const auto& t) {
        EXPECT_EQ(t.space(), 1u);
        EXPECT_EQ(t.namespace_check(), kCheck);
        EXPECT_EQ(t.hashes()->size(), 2u);
        EXPECT_EQ(std::memcmp(t.hashes()->Get(1), &kHashes[1], 32), 0);
        EXPECT_EQ(t.token_ids()->Get(2), 0xFFFFFFFFu);
        EXPECT_TRUE(t.lease());
        EXPECT_TRUE(t.prefetch());
      });
  frames.add<wire::MatchRequest>(
      "match.extras", kRequest, 3,
      [](auto& b) { return wire::CreateMatchRequestDirect(b, 1, &kHashes, &kTokens, false, false, 7, &kExtras); },
      [](const auto& t) {
        ASSERT_EQ(t.extras()->size(), 2u);
        EXPECT_EQ(std::memcmp(t.extras()->Get(1), &kExtras[1], 16), 0);
      });
  frames.add<wire::MatchResponse>(
      "match.answer", kAnswer, 3,
      [](auto& b) { return wire::CreateMatchResponse(b, 2, 0, 77, 10'000'000, 0, 5, &kHashes[1]); },
      [](const auto& t) {
        EXPECT_EQ(t.host_blocks(), 2u);
        EXPECT_EQ(t.lease(), 77u);
        EXPECT_EQ(t.lease_us(), 10'000'000u);
        EXPECT_EQ(t.partial_tokens(), 5u);
        EXPECT_NE(t.partial_block(), nullptr);
      });
  frames.add<wire::MatchRequest>(
      "match.why", kRequest, 3,
      [](auto& b) {
        wire::Trace trace;
        std::memset(static_cast<void*>(&trace), 0x5A, sizeof trace);
        const auto list = b.CreateVectorOfStructs(kHashes);
        wire::MatchRequestBuilder request(b);
        request.add_space(1);
        request.add_hashes(list);
        request.add_namespace_check(7);
        request.add_why(true);
        request.add_trace(&trace);
        return request.Finish();
      },
      [](const auto& t) {
        EXPECT_TRUE(t.why());
        ASSERT_NE(t.trace(), nullptr);
        EXPECT_EQ(t.trace()->bytes()->Get(24), 0x5A);
      });
  frames.add<wire::MatchResponse>(
      "match.reason", kAnswer, 3,
      [](auto& b) {
        const std::vector<std::uint8_t> name(16, 9);
        const std::vector<flatbuffers::Offset<wire::FieldDifference>> differs = {
            wire::CreateFieldDifferenceDirect(b, "dtype", "bfloat16", nullptr),
            wire::CreateFieldDifferenceDirect(b, "salt")};
        const std::vector<flatbuffers::Offset<wire::OtherSpace>> others = {
            wire::CreateOtherSpaceDirect(b, &name, true, 10, 11, 12, 13, &differs)};
        const auto reason = wire::CreateMissReasonDirect(b, 2, 1'000'000, 2'000'000, 3'000'000, 4, 5, 6, &others);
        wire::MatchResponseBuilder response(b);
        response.add_host_blocks(1);
        response.add_reason(reason);
        return response.Finish();
      },
      [](const auto& t) {
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
      });
  frames.add<wire::MatchRequest>(
      "match.hot", kRequest, 22,
      [](auto& b) {
        return wire::CreateMatchRequestDirect(b, 1, &kHashes, nullptr, false, false, kCheck, nullptr, 8, 2, 1);
      },
      [](const auto& t) {
        EXPECT_EQ(t.nodes(), 8u);
        EXPECT_EQ(t.beginning(), 2u);
        EXPECT_EQ(t.hot_blocks(), 1u);
      });
  frames.add<wire::MatchResponse>(
      "match.hot_answer", kAnswer, 22,
      [](auto& b) { return wire::CreateMatchResponse(b, 1, 0, 0, 0, 0, 0, nullptr, 0, 0x1122334455667788); },
      [](const auto& t) { EXPECT_EQ(t.hot_version(), 0x1122334455667788u); });
  // Of a chain that lies on several nodes.
  frames.add<wire::MatchRequest>(
      "match.part", kRequest, 28,
      [](auto& b) {
        const auto names = b.CreateVectorOfStructs(kHashes);
        wire::MatchRequestBuilder match(b);
        match.add_namespace_check(kCheck);
        match.add_space(1);
        match.add_hashes(names);
        match.add_reuse(3);
        match.add_chain_blocks(700);
        match.add_chain_first(3);
        match.add_chain_last(689);
        return match.Finish();
      },
      [](const auto& t) {
        EXPECT_EQ(t.reuse(), 3u);
        EXPECT_EQ(t.chain_blocks(), 700u);
        EXPECT_EQ(t.chain_first(), 3u);
        EXPECT_EQ(t.chain_last(), 689u);
        EXPECT_FALSE(t.elsewhere());
      });
  frames.add<wire::MatchRequest>(
      "match.elsewhere", kRequest, 29,
      [](auto& b) {
        const auto names = b.CreateVectorOfStructs(kHashes);
        wire::MatchRequestBuilder match(b);
        match.add_namespace_check(kCheck);
        match.add_space(1);
        match.add_hashes(names);
        match.add_elsewhere(true);
        return match.Finish();
      },
      [](const auto& t) {
        EXPECT_TRUE(t.elsewhere());
        EXPECT_EQ(t.chain_blocks(), 0u);
      });
  frames.add<wire::MatchResponse>(
      "match.part_answer", kAnswer, 28,
      [](auto& b) {
        wire::MatchResponseBuilder match(b);
        match.add_epoch(9);
        match.add_host_blocks(1);
        match.add_known_blocks(2);
        return match.Finish();
      },
      [](const auto& t) {
        EXPECT_EQ(t.host_blocks(), 1u);
        EXPECT_EQ(t.known_blocks(), 2u);
      });
  frames.add<wire::MatchResponse>(
      "match.epoch_answer", kAnswer, 24,
      [](auto& b) { return wire::CreateMatchResponse(b, 1, 0, 0, 0, 0, 0, nullptr, 0, 0, 0x1122334455667788); },
      [](const auto& t) { EXPECT_EQ(t.epoch(), 0x1122334455667788u); });
}

void add_gets(Frames& frames) {
  frames.add<wire::GetRequest>(
      "get.request", kRequest, 4,
      [](auto& b) { return wire::CreateGetRequestDirect(b, 1, &kHashes, 77, 2, &kOffsets, &kEnds, 2, 0, 0, kCheck); },
      [](const auto& t) {
        EXPECT_EQ(t.namespace_check(), kCheck);
        EXPECT_EQ(t.lease(), 77u);
        EXPECT_EQ(t.region(), 2u);
        EXPECT_EQ(t.offsets()->Get(1), 131072u);
        EXPECT_EQ(t.segment_ends()->Get(0), 65536u);
      });
  frames.add<wire::GetPart>(
      "get.part", kPart, 4, [](auto& b) { return wire::CreateGetPartDirect(b, 1, 0, 2, &kSums); },
      [](const auto& t) {
        EXPECT_EQ(t.segment(), 1u);
        EXPECT_EQ(t.first_block(), 0u);
        EXPECT_EQ(t.block_count(), 2u);
        EXPECT_EQ(t.checksums()->Get(1), 0x2222222222222222u);
      },
      "block bytes");
  frames.add<wire::GetResponse>(
      "get.answer", kAnswer, 4, [](auto& b) { return wire::CreateGetResponse(b, 2); },
      [](const auto& t) { EXPECT_EQ(t.block_count(), 2u); });
  frames.add<wire::GetRequest>(
      "get.rest", kRequest, 28,
      [](auto& b) {
        const auto list = b.CreateVectorOfStructs(kHashes);
        wire::GetRequestBuilder request(b);
        request.add_space(1);
        request.add_hashes(list);
        request.add_namespace_check(kCheck);
        request.add_first_block(1);
        return request.Finish();
      },
      [](const auto& t) { EXPECT_EQ(t.first_block(), 1u); });
  frames.add<wire::Error>(
      "get.broken", kFailure, 18, [](auto& b) { return wire::CreateErrorDirect(b, 11, "get: the transfer broke", 5); },
      [](const auto& t) {
        EXPECT_EQ(t.code(), 11u);
        EXPECT_EQ(t.broken_lanes(), 5u);
      });
}

void add_puts(Frames& frames) {
  frames.add<wire::PutRequest>(
      "put.request", kRequest, 5,
      [](auto& b) {
        return wire::CreatePutRequestDirect(b, 1, &kHashes, &kPositions, &kTokens, 2, &kOffsets, 250'000, 0, kCheck);
      },
      [](const auto& t) {
        EXPECT_EQ(t.namespace_check(), kCheck);
        EXPECT_EQ(t.positions()->Get(1), 9u);
        EXPECT_EQ(t.region(), 2u);
        EXPECT_EQ(t.deadline_us(), 250'000u);
      });
  frames.add<wire::PutRequest>(
      "put.extras", kRequest, 5,
      [](auto& b) {
        return wire::CreatePutRequestDirect(b, 1, &kHashes, nullptr, &kTokens, 2, &kOffsets, 250'000, 0, 7, &kExtras);
      },
      [](const auto& t) {
        ASSERT_EQ(t.extras()->size(), 2u);
        EXPECT_EQ(std::memcmp(t.extras()->Get(1), &kExtras[1], 16), 0);
      });
  frames.add<wire::PutWant>(
      "put.want", kPart, 5, [](auto& b) { return wire::CreatePutWant(b, 0, 2); },
      [](const auto& t) { EXPECT_EQ(t.block_count(), 2u); });
  frames.add<wire::PutData>(
      "put_data.request", kRequest, 5, [](auto& b) { return wire::CreatePutDataDirect(b, 2, &kSums); },
      [](const auto& t) {
        EXPECT_EQ(t.block_count(), 2u);
        EXPECT_EQ(t.checksums()->size(), 4u);
      },
      "block bytes");
  frames.add<wire::PutResponse>(
      "put.answer", kAnswer, 5, [](auto& b) { return wire::CreatePutResponse(b, 1, 1, 1, 1); },
      [](const auto& t) {
        EXPECT_EQ(t.stored(), 1u);
        EXPECT_EQ(t.already_stored(), 1u);
        EXPECT_EQ(t.refused(), 1u);
        EXPECT_EQ(t.refused_why(), 1u);
      });
  frames.add<wire::Error>(
      "put.cancelled", kFailure, 5, [](auto& b) { return wire::CreateErrorDirect(b, 15, "put: cancelled"); },
      [](const auto& t) {
        EXPECT_EQ(t.code(), 15u);
        EXPECT_EQ(t.message()->str(), "put: cancelled");
      });
  frames.add<wire::PutRequest>(
      "put.idle", kRequest, 27,
      [](auto& b) {
        const auto names = b.CreateVectorOfStructs(kHashes);
        return wire::CreatePutRequest(b, 1, names, 0, 0, 0, 0, 5000, 0, kCheck, 0, 60'000'000);
      },
      [](const auto& t) { EXPECT_EQ(t.idle_us(), 60'000'000u); });
  frames.add<wire::PutRequest>(
      "put.part", kRequest, 30,
      [](auto& b) {
        const auto names = b.CreateVectorOfStructs(kHashes);
        const auto places = b.CreateVector(kPositions);
        wire::PutRequestBuilder put(b);
        put.add_namespace_check(kCheck);
        put.add_space(1);
        put.add_hashes(names);
        put.add_positions(places);
        put.add_reuse(6);
        put.add_chain_blocks(700);
        put.add_chain_known(1);
        return put.Finish();
      },
      [](const auto& t) {
        EXPECT_EQ(t.positions()->Get(1), 9u);
        EXPECT_EQ(t.reuse(), 6u);
        EXPECT_EQ(t.chain_blocks(), 700u);
        EXPECT_EQ(t.chain_known(), 1u) << "somebody asked, and none is known";
      });
}

}  // namespace

void add_chain_frames(Frames& frames) {
  add_matches(frames);
  add_gets(frames);
  add_puts(frames);
  frames.add<wire::ReleaseRequest>(
      "release.request", kRequest, 7, [](auto& b) { return wire::CreateReleaseRequest(b, 77); },
      [](const auto& t) { EXPECT_EQ(t.lease(), 77u); });
  frames.add<wire::EmptyResponse>("release.answer", kAnswer, 7, empty, nothing_more);
  frames.add<wire::HotRootsRequest>(
      "hot_roots.request", kRequest, 23, [](auto& b) { return wire::CreateHotRootsRequest(b, 1, kCheck); },
      [](const auto& t) {
        EXPECT_EQ(t.space(), 1u);
        EXPECT_EQ(t.namespace_check(), kCheck);
      });
  frames.add<wire::HotRootsResponse>(
      "hot_roots.answer", kAnswer, 23,
      [](auto& b) { return wire::CreateHotRootsResponseDirect(b, 0x1122334455667788, &kHashes); },
      [](const auto& t) {
        EXPECT_EQ(t.version(), 0x1122334455667788u);
        ASSERT_EQ(t.blocks()->size(), 2u);
        EXPECT_EQ(std::memcmp(t.blocks()->Get(1), &kHashes[1], 32), 0);
      });
  std::uint64_t id = 8;
  for (const auto type : {FrameType::kTouch, FrameType::kRetain, FrameType::kUnretain, FrameType::kDrop}) {
    const std::string name = frame_type_name(type);
    frames.add<wire::PrefixRequest>(
        name + ".request", kRequest, id, [](auto& b) { return wire::CreatePrefixRequestDirect(b, 1, &kHashes); },
        [](const auto& t) { EXPECT_EQ(t.hashes()->size(), 2u); });
    frames.add<wire::CountResponse>(
        name + ".answer", kAnswer, id, [](auto& b) { return wire::CreateCountResponse(b, 2); },
        [](const auto& t) { EXPECT_EQ(t.count(), 2u); });
    ++id;
  }
}

}  // namespace kv::golden
