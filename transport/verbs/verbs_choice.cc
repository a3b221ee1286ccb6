#include "transport/verbs/verbs_choice.h"

#include <arpa/inet.h>
#include <sys/random.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "base/assert.h"

namespace kv::verbs {
namespace {

bool is_ipv4_mapped(const Gid& gid) {
  return std::all_of(gid.begin(), gid.begin() + 10, [](std::uint8_t byte) { return byte == 0; }) && gid[10] == 0xFF &&
         gid[11] == 0xFF;
}
bool is_empty(const Gid& gid) {
  return std::all_of(gid.begin(), gid.end(), [](std::uint8_t byte) { return byte == 0; });
}

/// Lower is better; nullopt: not usable. On Ethernet IPv4-mapped GIDs are routed; link-local ones are not.
std::optional<int> rank(const PortInfo& port, const GidEntry& entry) {
  if (is_empty(entry.gid)) return std::nullopt;
  if (!port.is_ethernet) return static_cast<int>(entry.index);
  if (entry.type != GidType::kRoceV2) return std::nullopt;
  return is_ipv4_mapped(entry.gid) ? 0 : is_link_local(entry.gid) ? 2 : 1;
}

}  // namespace

/// The first port that works, in the device's order, and its best address. Deterministic: two processes on one machine
/// choose alike, and so does one process after a restart.
Result<Attachment, Failure> attach(const DeviceInfo& device, const std::optional<Gid>& wanted) {
  std::string reasons;
  for (const PortInfo& port : device.ports) {
    const auto refuse = [&](const std::string& reason) {
      reasons += (reasons.empty() ? "" : "; ") + device.name + " port " + std::to_string(port.number) + ": " + reason;
    };
    if (!port.is_active) {
      refuse("the link is down");
      continue;
    }
    const GidEntry* best = nullptr;
    for (const GidEntry& entry : port.gids) {
      const auto its_rank = rank(port, entry);
      if (!its_rank || (wanted && entry.gid != *wanted)) continue;
      if (!best || *its_rank < *rank(port, *best)) best = &entry;
    }
    if (best) {
      return Attachment{.device = device.name,
                        .port = port.number,
                        .gid = *best,
                        .is_ethernet = port.is_ethernet,
                        .lid = port.lid,
                        .mtu_bytes = port.mtu_bytes,
                        .read_count_max = device.limits.read_count_max};
    }
    // Each port's reason is kept: with two ports the second one may be the operator's mistake.
    refuse(wanted             ? "gid: " + text_of(*wanted) + ", not one of this port that can be used"
           : port.is_ethernet ? "no RoCEv2 GID; its network interface needs an address"
                              : "no GID");
  }
  return Failure(Errc::kUnavailable, reasons.empty() ? device.name + " has no port" : reasons);
}

bool is_usable(const PortInfo& port, const GidEntry& entry) { return rank(port, entry).has_value(); }

std::string_view why_not(const PortInfo& port, const GidEntry& entry, const GidEntry* best) {
  const auto its_rank = rank(port, entry);
  if (is_empty(entry.gid)) return "empty";
  if (!its_rank) return "kvstore speaks RoCE v2 only";
  if (!best || !port.is_ethernet || *its_rank == *rank(port, *best)) return "the first of its kind is used";
  return is_link_local(entry.gid) ? "link-local comes last" : "IPv4 goes before IPv6";
}

Result<DeviceWish, Failure> parse_device_wish(const std::string& text) {
  // Device names have no '@', while addresses may have ':' and '.', which rules these out as separators.
  const std::size_t at = text.find('@');
  DeviceWish wish{.device = text.substr(0, at), .gid = std::nullopt};
  if (at != std::string::npos) wish.gid = parse_gid(text.substr(at + 1));
  if (!wish.device.empty() && (wish.gid || at == std::string::npos)) return wish;
  return Failure(Errc::kBadRequest, "device: '" + text + "', must be NAME or NAME@ADDRESS, such as mlx5_0@10.0.0.1");
}

/// The nearest first, then by name: traffic to another processor's device costs bandwidth on the way. The order decides
/// each lane's device, so it must not depend on the kernel's order of discovery.
DeviceChoices choose_devices(std::span<const DeviceInfo> devices, int numa_node,
                             std::span<const std::string> configured) {
  std::vector<DeviceChoice> chosen;
  std::string reasons, missing;
  const auto append = [](std::string& all, const std::string& reason) {
    if (!reason.empty()) all += (all.empty() ? "" : "; ") + reason;
  };
  const auto add_reason = [&](const std::string& reason) { append(reasons, reason); };
  const auto add = [&](const DeviceInfo& device, DeviceWish wish) {
    auto attached = attach(device, wish.gid);
    if (!attached) append(configured.empty() ? reasons : missing, attached.error().text);
    chosen.push_back({std::move(wish), attached ? std::optional(std::move(*attached)) : std::nullopt});
  };
  const auto has_come = [](const DeviceChoice& each) { return each.attachment.has_value(); };
  // Without names: only devices that work now. With names: all of them, since the operator expects them here.
  if (configured.empty()) {
    std::vector<const DeviceInfo*> order;
    for (const DeviceInfo& device : devices) order.push_back(&device);
    const auto distance = [&](const DeviceInfo& device) {
      return device.numa_node < 0 || numa_node < 0 ? 1 : device.numa_node == numa_node ? 0 : 2;
    };
    std::sort(order.begin(), order.end(), [&](const DeviceInfo* a, const DeviceInfo* b) {
      return std::pair(distance(*a), a->name) < std::pair(distance(*b), b->name);
    });
    if (order.empty()) add_reason("no RDMA device");
    for (const DeviceInfo* const device : order) add(*device, {.device = device->name, .gid = std::nullopt});
    std::erase_if(chosen, std::not_fn(has_come));
  }
  for (const std::string& text : configured) {
    auto wish = parse_device_wish(text);
    if (!wish) {
      add_reason(wish.error().text);
      continue;
    }
    const auto found =
        std::find_if(devices.begin(), devices.end(), [&](const auto& each) { return each.name == wish->device; });
    const auto is_same = [&](const DeviceChoice& each) { return each.wish.device == wish->device; };
    if (found == devices.end()) {
      add_reason("device: " + wish->device + ", no such device");
    } else if (std::ranges::any_of(chosen, is_same)) {
      add_reason("device: " + text + ", " + wish->device + " is named twice");
    } else {
      add(*found, std::move(*wish));
    }
  }
  if (std::ranges::none_of(chosen, has_come)) add_reason(missing);
  return {std::move(chosen), std::move(reasons)};
}

std::uint32_t random_psn() {
  // From the system, not a seeded generator: the number keeps intruders from guessing their way into a queue pair.
  std::uint32_t random = 0;
  KV_ASSERT(::getrandom(&random, sizeof random, 0) == sizeof random);
  return random & 0xFFFFFF;
}

QueuePairAddress address_of(const Attachment& ours, std::uint32_t number, std::uint32_t first_psn) {
  return {.number = number,
          .first_psn = first_psn,
          .lid = ours.lid,
          .gid = ours.gid.gid,
          .mtu_bytes = ours.mtu_bytes,
          .read_count_max = ours.read_count_max};
}

/// MTU and READs in flight by the weaker side: a device over its limit breaks the queue pair.
Path path_to(const Attachment& ours, std::uint32_t first_psn, const QueuePairAddress& peer) {
  return {.port = ours.port,
          .gid_index = ours.gid.index,
          .is_global = ours.is_ethernet,
          .traffic_class = ours.traffic_class,
          .first_psn = first_psn,
          .mtu_bytes = std::min(ours.mtu_bytes, peer.mtu_bytes),
          .read_count = std::min(ours.read_count_max, peer.read_count_max)};
}

bool is_link_local(const Gid& gid) { return gid[0] == 0xFE && (gid[1] & 0xC0) == 0x80; }

/// By inet_ntop: a GID has the form of an IPv6 address.
std::string text_of(const Gid& gid) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  KV_ASSERT(::inet_ntop(AF_INET6, gid.data(), text.data(), text.size()) != nullptr);
  return text.data();
}

std::optional<Gid> parse_gid(const std::string& text) {
  // IPv4 first: "10.0.0.1" stands for the IPv4-mapped GID, as used by RoCE v2.
  Gid gid{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  if (::inet_pton(AF_INET, text.c_str(), gid.data() + 12) == 1) return gid;
  if (::inet_pton(AF_INET6, text.c_str(), gid.data()) != 1) return std::nullopt;
  return gid;
}

}  // namespace kv::verbs
