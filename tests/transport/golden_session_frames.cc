// tests/transport/golden_session_frames.cc: what names no block: sessions, regions and lanes, the node itself and its
// cluster.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "tests/transport/golden_frames.h"

namespace kv::golden {
namespace {

const std::string kRecord = "block_bytes=131072\nblock_size=16\nmodel=m\n";
const std::vector<std::uint8_t> kIdBytes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

void add_sessions(Frames& frames) {
  frames.add<wire::HelloRequest>(
      "hello.request", kRequest, 1, [](auto& b) { return wire::CreateHelloRequestDirect(b, 1, 1, "worker-3"); },
      [](const auto& t) {
        EXPECT_EQ(t.version_min(), 1);
        EXPECT_EQ(t.version_max(), 1);
        EXPECT_EQ(t.identity()->str(), "worker-3");
      });
  frames.add<wire::HelloResponse>(
      "hello.answer", kAnswer, 1,
      [](auto& b) {
        return wire::CreateHelloResponseDirect(b, 1, "node-7", 5, 4 << 20, 65536, 1024, 64ull << 30, 3, true,
                                               &kIdBytes);
      },
      [](const auto& t) {
        EXPECT_EQ(t.version(), 1);
        EXPECT_EQ(t.node_id()->str(), "node-7");
        EXPECT_EQ(t.epoch(), 5u);
        EXPECT_EQ(t.table_bytes_max(), 4u << 20);
        EXPECT_EQ(t.chain_blocks_max(), 65536u);
        EXPECT_EQ(t.requests_max(), 1024u);
        EXPECT_EQ(t.region_bytes_max(), 64ull << 30);
        EXPECT_EQ(t.lanes_max(), 3u);
        EXPECT_TRUE(t.messages());
        EXPECT_TRUE(std::ranges::equal(*t.instance(), kIdBytes));
      });
  frames.add<wire::OpenRequest>(
      "open.request", kRequest, 2, [](auto& b) { return wire::CreateOpenRequestDirect(b, kRecord.c_str()); },
      [](const auto& t) { EXPECT_EQ(t.record()->str(), kRecord); });
  frames.add<wire::OpenResponse>(
      "open.answer", kAnswer, 2, [](auto& b) { return wire::CreateOpenResponseDirect(b, 1, 131072, &kIdBytes); },
      [](const auto& t) {
        EXPECT_EQ(t.space(), 1u);
        EXPECT_EQ(t.block_bytes(), 131072u);
        EXPECT_TRUE(std::ranges::equal(*t.namespace_id(), kIdBytes));
      });
  frames.add<wire::CancelRequest>(
      "cancel.request", kRequest, 6, [](auto& b) { return wire::CreateCancelRequest(b, 5); },
      [](const auto& t) { EXPECT_EQ(t.request_id(), 5u); });
  frames.add<wire::HelloRequest>(
      "hello.token", kRequest, 1,
      [](auto& b) {
        return wire::CreateHelloRequestDirect(b, 1, 1, "worker-3", "a-token-that-is-only-good-for-this-file");
      },
      [](const auto& t) {
        EXPECT_EQ(t.identity()->str(), "worker-3");
        EXPECT_EQ(t.token()->str(), "a-token-that-is-only-good-for-this-file");
      });
  frames.add<wire::PingRequest>(
      "ping.request", kRequest, 15, [](auto& b) { return wire::CreatePingRequest(b); }, nothing_more);
  frames.add<wire::EmptyResponse>("ping.answer", kAnswer, 15, empty, nothing_more);
}

void add_regions(Frames& frames) {
  frames.add<wire::RegionAddRequest>(
      "region_add.request", kRequest, 12, [](auto& b) { return wire::CreateRegionAddRequest(b, 1ull << 30); },
      [](const auto& t) { EXPECT_EQ(t.bytes(), 1ull << 30); });
  frames.add<wire::RegionResponse>(
      "region_add.answer", kAnswer, 12, [](auto& b) { return wire::CreateRegionResponse(b, 2); },
      [](const auto& t) { EXPECT_EQ(t.region(), 2u); });
  frames.add<wire::RegionAddRequest>(
      "region_add.verbs", kRequest, 16,
      [](auto& b) {
        const std::vector<std::uint32_t> rkeys = {0x0A0B0C0D, 0xFFFFFFFF};
        const std::vector<flatbuffers::Offset<wire::RegionSlice>> slices = {
            wire::CreateRegionSliceDirect(b, 0x7F0000001000, 4096, &rkeys),
            wire::CreateRegionSliceDirect(b, 0x7F0000002000, 1000, &rkeys)};
        return wire::CreateRegionAddRequestDirect(b, 5096, &slices);
      },
      [](const auto& t) {
        EXPECT_EQ(t.bytes(), 5096u);
        ASSERT_EQ(t.slices()->size(), 2u);
        EXPECT_EQ(t.slices()->Get(1)->address(), 0x7F0000002000u);
        EXPECT_EQ(t.slices()->Get(1)->bytes(), 1000u);
        EXPECT_EQ(t.slices()->Get(1)->rkeys()->Get(0), 0x0A0B0C0Du);
      });
  frames.add<wire::VerbsConnectRequest>(
      "verbs_connect.request", kRequest, 17,
      [](auto& b) {
        const std::vector<std::uint8_t> gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 77, 0, 1};
        const auto end = wire::CreateQueuePairEndDirect(b, 0x123456, 0x00ABCDEF, 7, &gid, 4096, 16);
        const std::vector<flatbuffers::Offset<wire::LaneOffer>> lanes = {wire::CreateLaneOffer(b, 1, end)};
        return wire::CreateVerbsConnectRequestDirect(b, &lanes);
      },
      [](const auto& t) {
        const wire::LaneOffer& lane = *t.lanes()->Get(0);
        EXPECT_EQ(lane.lane(), 1u);
        EXPECT_EQ(lane.end()->number(), 0x123456u);
        EXPECT_EQ(lane.end()->first_psn(), 0x00ABCDEFu);
        EXPECT_EQ(lane.end()->lid(), 7u);
        EXPECT_EQ(lane.end()->gid()->Get(12), 10u);
        EXPECT_EQ(lane.end()->mtu_bytes(), 4096u);
        EXPECT_EQ(lane.end()->read_count_max(), 16u);
      });
  frames.add<wire::VerbsConnectResponse>(
      "verbs_connect.answer", kAnswer, 17,
      [](auto& b) {
        const std::vector<std::uint8_t> gid(16, 0xFE);
        const auto end = wire::CreateQueuePairEndDirect(b, 17, 1, 0, &gid, 1024, 1);
        const std::vector<flatbuffers::Offset<wire::LaneAnswer>> lanes = {
            wire::CreateLaneAnswer(b, 1, end), wire::CreateLaneAnswerDirect(b, 2, 0, "no device")};
        return wire::CreateVerbsConnectResponseDirect(b, &lanes);
      },
      [](const auto& t) {
        EXPECT_EQ(t.lanes()->Get(0)->end()->number(), 17u);
        EXPECT_EQ(t.lanes()->Get(1)->end(), nullptr);
        EXPECT_EQ(t.lanes()->Get(1)->why()->str(), "no device");
      });
  frames.add<wire::VerbsConnectRequest>(
      "verbs_connect.messages", kRequest, 19,
      [](auto& b) {
        const std::vector<std::uint8_t> gid(16, 0xFD);
        const auto end = wire::CreateQueuePairEndDirect(b, 18, 2, 0, &gid, 1024, 1);
        const std::vector<flatbuffers::Offset<wire::LaneOffer>> lanes = {wire::CreateLaneOffer(b, 4, end, 16)};
        return wire::CreateVerbsConnectRequestDirect(b, &lanes);
      },
      [](const auto& t) {
        EXPECT_EQ(t.lanes()->Get(0)->lane(), 4u);
        EXPECT_EQ(t.lanes()->Get(0)->messages(), 16u);
      });
  frames.add<wire::VerbsConnectResponse>(
      "verbs_connect.messages_answer", kAnswer, 19,
      [](auto& b) {
        const std::vector<std::uint8_t> gid(16, 0xFC);
        const auto end = wire::CreateQueuePairEndDirect(b, 19, 3, 0, &gid, 1024, 1);
        const std::vector<flatbuffers::Offset<wire::LaneAnswer>> lanes = {wire::CreateLaneAnswer(b, 4, end, 0, 8)};
        return wire::CreateVerbsConnectResponseDirect(b, &lanes);
      },
      [](const auto& t) { EXPECT_EQ(t.lanes()->Get(0)->messages(), 8u); });
  frames.add<wire::RegionRemoveRequest>(
      "region_remove.request", kRequest, 13, [](auto& b) { return wire::CreateRegionRemoveRequest(b, 2); },
      [](const auto& t) { EXPECT_EQ(t.region(), 2u); });
  frames.add<wire::EmptyResponse>("region_remove.answer", kAnswer, 13, empty, nothing_more);
}

void add_cluster(Frames& frames) {
  frames.add<wire::ClusterMapRequest>(
      "cluster_map.request", kRequest, 25, [](auto& b) { return wire::CreateClusterMapRequest(b); }, nothing_more);
  frames.add<wire::ClusterMapResponse>(
      "cluster_map.answer", kAnswer, 25,
      [](auto& b) {
        const std::vector<std::string> endpoints = {"tcp://10.0.0.1:7400", "unix:///run/a"};
        const auto list = b.CreateVectorOfStrings(endpoints);
        const auto zone = b.CreateString("z1");
        const auto id = b.CreateString("a");
        const std::vector<flatbuffers::Offset<wire::ClusterNode>> nodes = {
            wire::CreateClusterNode(b, id, list, 64.5, 1, zone)};
        return wire::CreateClusterMapResponse(b, 0x1122334455667788, 256, b.CreateVector(nodes));
      },
      [](const auto& t) {
        EXPECT_EQ(t.epoch(), 0x1122334455667788u);
        EXPECT_EQ(t.extent_blocks(), 256u);
        ASSERT_EQ(t.nodes()->size(), 1u);
        const wire::ClusterNode& node = *t.nodes()->Get(0);
        EXPECT_EQ(node.id()->str(), "a");
        EXPECT_EQ(node.endpoints()->Get(1)->str(), "unix:///run/a");
        EXPECT_EQ(node.weight(), 64.5);
        EXPECT_EQ(node.state(), 1u);
        EXPECT_EQ(node.zone()->str(), "z1");
      });
  frames.add<wire::ClusterMapResponse>(
      "cluster_map.phase", kAnswer, 25,
      [](auto& b) {
        const std::vector<std::string> endpoints = {"tcp://10.0.0.1:7400"};
        const auto list = b.CreateVectorOfStrings(endpoints);
        const auto id = b.CreateString("a");
        const std::vector<flatbuffers::Offset<wire::ClusterNode>> nodes = {
            wire::CreateClusterNode(b, id, list, 64.5, 0, 0, 2)};
        return wire::CreateClusterMapResponse(b, 7, 256, b.CreateVector(nodes));
      },
      [](const auto& t) {
        ASSERT_EQ(t.nodes()->size(), 1u);
        EXPECT_EQ(t.nodes()->Get(0)->state(), 0u);
        EXPECT_EQ(t.nodes()->Get(0)->phase(), 2u);
      });
}

void add_admin(Frames& frames) {
  frames.add<wire::AdminRequest>(
      "admin.request", kRequest, 14,
      [](auto& b) { return wire::CreateAdminRequestDirect(b, "/erase", "tenant=research"); },
      [](const auto& t) {
        EXPECT_EQ(t.path()->str(), "/erase");
        EXPECT_EQ(t.query()->str(), "tenant=research");
      });
  frames.add<wire::AdminResponse>(
      "admin.answer", kAnswer, 14, [](auto& b) { return wire::CreateAdminResponseDirect(b, "{\"erase_done\":1}"); },
      [](const auto& t) { EXPECT_EQ(t.json()->str(), "{\"erase_done\":1}"); });
}

}  // namespace

void add_session_frames(Frames& frames) {
  add_sessions(frames);
  add_regions(frames);
  add_cluster(frames);
  add_admin(frames);
}

}  // namespace kv::golden
