#include "transport/verbs/verbs_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kv::verbs {
namespace {

using testing::HasSubstr;

Gid gid(const std::string& text) { return parse_gid(text).value(); }

/// As a Mellanox card shows it: each address as RoCEv1 and as RoCEv2.
DeviceInfo roce(const std::string& name, int numa_node = -1) {
  PortInfo port{.is_active = true, .is_ethernet = true, .mtu_bytes = 4096};
  port.gids = {{0, gid("fe80::1"), GidType::kRoceV1},         {1, gid("fe80::1"), GidType::kRoceV2},
               {2, gid("2001:db8::7"), GidType::kRoceV2},     {4, gid("::ffff:10.0.0.1"), GidType::kRoceV1},
               {5, gid("::ffff:10.0.0.1"), GidType::kRoceV2}, {6, gid("::ffff:10.9.9.9"), GidType::kRoceV2}};
  return {.name = name, .numa_node = numa_node, .limits = {.read_count_max = 16}, .ports = {port}};
}

TEST(VerbsChoiceTest, PrefersTheIpv4GidOfRoceV2ThenARoutableOne) {
  DeviceInfo device = roce("mlx5_0");
  EXPECT_EQ(attach(device, std::nullopt)->gid.index, 5u);
  auto& gids = device.ports[0].gids;
  gids.erase(gids.begin() + 4, gids.end());
  EXPECT_EQ(attach(device, std::nullopt)->gid.index, 2u);
  gids.erase(gids.begin() + 2);
  EXPECT_EQ(attach(device, std::nullopt)->gid.index, 1u);
  gids.erase(gids.begin() + 1);
  const Failure failure = attach(device, std::nullopt).error();
  EXPECT_EQ(failure, Errc::kUnavailable);
  EXPECT_EQ(failure.text, "mlx5_0 port 1: no RoCEv2 GID; its network interface needs an address");
}

TEST(VerbsChoiceTest, TakesTheGidThatIsAskedForOrNone) {
  EXPECT_EQ(attach(roce("mlx5_0"), gid("::ffff:10.9.9.9"))->gid.index, 6u);
  EXPECT_THAT(attach(roce("mlx5_0"), gid("::ffff:10.9.9.8")).error().text, HasSubstr("gid: ::ffff:10.9.9.8"));
}

TEST(VerbsChoiceTest, SaysOfEveryGidWhyAnotherIsTaken) {
  const PortInfo port = roce("mlx5_0").ports[0];
  const GidEntry& best = port.gids[4];
  const auto reason = [&](std::size_t i, const GidEntry* taken) {
    return std::string(why_not(port, port.gids[i], taken));
  };
  EXPECT_EQ(reason(0, &best), "kvstore speaks RoCE v2 only");
  EXPECT_EQ(reason(1, &best), "link-local comes last");
  EXPECT_EQ(reason(2, &best), "IPv4 goes before IPv6");
  EXPECT_EQ(reason(3, &best), "kvstore speaks RoCE v2 only");
  EXPECT_EQ(reason(5, &best), "the first of its kind is used");
  EXPECT_EQ(reason(0, nullptr), "kvstore speaks RoCE v2 only");
  EXPECT_EQ(why_not(port, {.type = GidType::kRoceV2}, &best), "empty");
}

TEST(VerbsChoiceTest, InfinibandUsesTheFirstGidAndTheLid) {
  PortInfo port{.number = 2, .is_active = true, .lid = 17, .mtu_bytes = 2048};
  port.gids = {{0, gid("fe80::2:c903:1"), GidType::kInfiniband}, {1, gid("fe80::5"), GidType::kInfiniband}};
  const DeviceInfo device{.name = "ib0", .limits = {.read_count_max = 4}, .ports = {PortInfo{}, port}};
  const auto attached = attach(device, std::nullopt);
  ASSERT_TRUE(attached) << attached.error();
  EXPECT_EQ(attached->port, 2);
  EXPECT_EQ(attached->gid.index, 0u);
  const QueuePairAddress peer = address_of(*attached, 5, 6);
  EXPECT_EQ(peer.lid, 17);
  EXPECT_FALSE(path_to(*attached, 1, peer).is_global);
}

TEST(VerbsChoiceTest, TakesDevicesByDistanceLeavingOutThoseThatAreDown) {
  std::vector<DeviceInfo> devices = {roce("a", 1), roce("b"), roce("c", 0), roce("d", 0)};
  devices[3].ports[0].is_active = false;
  std::string why;
  const auto names = [&](int numa_node, const std::vector<std::string>& configured) {
    std::string all;
    const DeviceChoices choices = choose_devices(devices, numa_node, configured);
    why = choices.left_out;
    for (const DeviceChoice& each : choices.chosen) {
      all += each.wish.device;
      if (!each.attachment) all += '?';
    }
    return all;
  };
  EXPECT_EQ(names(0, {}), "cba");
  EXPECT_EQ(why, "d port 1: the link is down");
  EXPECT_EQ(names(1, {}), "abc");
  EXPECT_EQ(names(-1, {}), "abc");
  EXPECT_EQ(names(0, {"b", "x", "a"}), "ba");
  EXPECT_EQ(why, "device: x, no such device");
  EXPECT_EQ(names(0, {"d", "b"}), "d?b") << "its link may come, and each lane is on its device";
  EXPECT_EQ(why, "");
  EXPECT_EQ(names(0, {"d", "x"}), "d?");
  EXPECT_EQ(why, "device: x, no such device; d port 1: the link is down");
  EXPECT_EQ(names(0, {"a", "b", "a@10.0.0.1"}), "ab");
  EXPECT_EQ(why, "device: a@10.0.0.1, a is named twice");
  EXPECT_TRUE(choose_devices({}, 0, {}).chosen.empty());
  EXPECT_EQ(choose_devices({}, 0, {}).left_out, "no RDMA device");
}

TEST(VerbsChoiceTest, ADeviceCanBeNamedWithItsAddress) {
  const std::vector<DeviceInfo> devices = {roce("a"), roce("b")};
  std::string why;
  const auto taken = [&](const std::string& text) {
    const auto [chosen, left_out] = choose_devices(devices, 0, std::vector{text});
    why = left_out;
    return chosen.empty() || !chosen[0].attachment ? -1 : static_cast<int>(chosen[0].attachment->gid.index);
  };
  EXPECT_EQ(taken("b"), 5);
  EXPECT_EQ(taken("b@10.9.9.9"), 6);
  EXPECT_EQ(taken("b@::ffff:10.9.9.9"), 6);
  EXPECT_EQ(taken("b@fe80::1"), 1);
  EXPECT_EQ(taken("b@10.9.9.8"), -1);
  EXPECT_THAT(why, HasSubstr("b port 1: gid: ::ffff:10.9.9.8"));
  for (const char* wrong : {"", "@10.9.9.9", "b@", "b@10.9.9", "b@b"}) {
    const Failure failure = parse_device_wish(wrong).error();
    EXPECT_EQ(failure, Errc::kBadRequest);
    EXPECT_THAT(failure.text, HasSubstr("'" + std::string(wrong) + "'"));
    EXPECT_EQ(taken(wrong), -1);
  }
}

TEST(VerbsChoiceTest, AgreesOnTheSmallerOfBoth) {
  Attachment ours = attach(roce("a"), std::nullopt).value();
  ours.traffic_class = 104;
  QueuePairAddress peer = address_of(ours, 1, 2);
  peer.mtu_bytes = 1024;
  peer.read_count_max = 128;
  const Path path = path_to(ours, 77, peer);
  EXPECT_EQ(path.mtu_bytes, 1024u);
  EXPECT_EQ(path.read_count, 16u);
  EXPECT_EQ(path.first_psn, 77u);
  EXPECT_EQ(path.traffic_class, 104);
  EXPECT_TRUE(path.is_global);
  EXPECT_TRUE(check_path(peer, path, {.read_count_max = 16}));
}

}  // namespace
}  // namespace kv::verbs
