// tests/transport/golden_set_frames.cc: what asks for blocks that stand alone, and brings and fetches them.
#include <gtest/gtest.h>

#include <vector>

#include "tests/transport/golden_frames.h"

namespace kv::golden {
namespace {

const std::vector<std::uint8_t> kHeld = {3}, kOnDisk = {2}, kResults = {1, 3};
const std::vector<std::uint32_t> kLengths = {65537, 100}, kIndices = {1}, kLongBytes = {70000}, kNone;
const std::vector<std::uint32_t> kGroups = {2}, kEachAlone = {1, 1};

}  // namespace

void add_set_frames(Frames& frames) {
  frames.add<wire::SetMatchRequest>(
      "set_match.request", kRequest, 20,
      [](auto& b) { return wire::CreateSetMatchRequestDirect(b, 1, &kHashes, true, true, kCheck); },
      [](const auto& t) {
        EXPECT_EQ(t.hashes()->size(), 2u);
        EXPECT_TRUE(t.lease());
        EXPECT_TRUE(t.prefetch());
        EXPECT_EQ(t.namespace_check(), kCheck);
      });
  frames.add<wire::SetMatchResponse>(
      "set_match.answer", kAnswer, 20,
      [](auto& b) {
        return wire::CreateSetMatchResponseDirect(b, &kHeld, &kOnDisk, &kLengths, 77, 10'000'000, 0, 250);
      },
      [](const auto& t) {
        EXPECT_EQ(t.held()->Get(0), 3u);
        EXPECT_EQ(t.on_disk()->Get(0), 2u);
        EXPECT_EQ(t.block_bytes()->Get(0), 65537u);
        EXPECT_EQ(t.lease(), 77u);
        EXPECT_EQ(t.disk_us(), 250u);
      });
  // Names that come in kGroups: appended to the requests, which are the same without them.
  frames.add<wire::SetMatchRequest>(
      "set_match.groups", kRequest, 23,
      [](auto& b) { return wire::CreateSetMatchRequestDirect(b, 1, &kHashes, true, true, kCheck, &kGroups); },
      [](const auto& t) {
        EXPECT_EQ(t.hashes()->size(), 2u);
        EXPECT_EQ(t.namespace_check(), kCheck);
        ASSERT_EQ(t.group_counts()->size(), 1u);
        EXPECT_EQ(t.group_counts()->Get(0), 2u);
      });
  frames.add<wire::SetGetRequest>(
      "set_get.request", kRequest, 21,
      [](auto& b) {
        return wire::CreateSetGetRequestDirect(b, 1, &kHashes, 77, 2, &kOffsets, &kLengths, 1, 5000, 3, kCheck);
      },
      [](const auto& t) {
        EXPECT_EQ(t.lease(), 77u);
        EXPECT_EQ(t.region(), 2u);
        EXPECT_EQ(t.offsets()->Get(1), 131072u);
        EXPECT_EQ(t.rooms()->Get(1), 100u);
        EXPECT_EQ(t.max_tier(), 1u);
        EXPECT_EQ(t.deadline_us(), 5000u);
        EXPECT_EQ(t.lanes(), 3u);
        EXPECT_EQ(t.namespace_check(), kCheck);
      });
  frames.add<wire::SetGetPart>(
      "set_get.part", kPart, 21,
      [](auto& b) {
        const std::vector<std::uint64_t> one = {5};
        const std::vector<std::uint32_t> eleven = {11};
        return wire::CreateSetGetPartDirect(b, &kIndices, &eleven, &one);
      },
      [](const auto& t) {
        EXPECT_EQ(t.blocks()->Get(0), 1u);
        EXPECT_EQ(t.block_bytes()->Get(0), 11u);
        EXPECT_EQ(t.checksums()->Get(0), 5u);
      },
      "block bytes");
  frames.add<wire::SetGetResponse>(
      "set_get.answer", kAnswer, 21,
      [](auto& b) { return wire::CreateSetGetResponseDirect(b, 1, &kIndices, &kLongBytes, &kNone, 4); },
      [](const auto& t) {
        EXPECT_EQ(t.block_count(), 1u);
        EXPECT_EQ(t.too_long()->Get(0), 1u);
        EXPECT_EQ(t.too_long_bytes()->Get(0), 70000u);
        EXPECT_EQ(t.unread()->size(), 0u);
        EXPECT_EQ(t.broken_lanes(), 4u);
      });
  frames.add<wire::SetGetRequest>(
      "set_get.groups", kRequest, 24,
      [](auto& b) {
        return wire::CreateSetGetRequestDirect(b, 1, &kHashes, 77, 2, &kOffsets, &kLengths, 1, 5000, 3, kCheck,
                                               &kEachAlone);
      },
      [](const auto& t) {
        EXPECT_EQ(t.namespace_check(), kCheck);
        ASSERT_EQ(t.group_counts()->size(), 2u);
        EXPECT_EQ(t.group_counts()->Get(1), 1u);
      });
  frames.add<wire::SetPutRequest>(
      "set_put.request", kRequest, 22,
      [](auto& b) {
        return wire::CreateSetPutRequestDirect(b, 1, &kHashes, &kLengths, 2, &kOffsets, 250'000, 3, kCheck);
      },
      [](const auto& t) {
        EXPECT_EQ(t.block_bytes()->Get(0), 65537u);
        EXPECT_EQ(t.region(), 2u);
        EXPECT_EQ(t.deadline_us(), 250'000u);
        EXPECT_EQ(t.namespace_check(), kCheck);
      });
  frames.add<wire::SetPutWant>(
      "set_put.want", kPart, 22, [](auto& b) { return wire::CreateSetPutWantDirect(b, &kIndices); },
      [](const auto& t) { EXPECT_EQ(t.blocks()->Get(0), 1u); });
  frames.add<wire::SetPutResponse>(
      "set_put.answer", kAnswer, 22, [](auto& b) { return wire::CreateSetPutResponseDirect(b, &kResults, 1, 0); },
      [](const auto& t) {
        EXPECT_EQ(t.results()->Get(1), 3u);
        EXPECT_EQ(t.refused_why(), 1u);
      });
  frames.add<wire::SetPutRequest>(
      "set_put.groups", kRequest, 25,
      [](auto& b) {
        return wire::CreateSetPutRequestDirect(b, 1, &kHashes, &kLengths, 2, &kOffsets, 250'000, 3, kCheck, &kGroups);
      },
      [](const auto& t) {
        EXPECT_EQ(t.namespace_check(), kCheck);
        ASSERT_EQ(t.group_counts()->size(), 1u);
        EXPECT_EQ(t.group_counts()->Get(0), 2u);
      });
}

}  // namespace kv::golden
