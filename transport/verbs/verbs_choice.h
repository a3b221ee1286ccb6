// transport/verbs/verbs_choice.h: choice of device, port and GID, and the values that two sides agree on. No I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/verbs/verbs.h"

namespace kv::verbs {

/// One port of a device, with the address at which peers reach it.
struct Attachment {
  std::string device;
  std::uint8_t port = 1;
  GidEntry gid;
  bool is_ethernet = false;
  std::uint16_t lid = 0;
  std::uint32_t mtu_bytes = 0;
  std::uint32_t read_count_max = 0;
  std::uint8_t traffic_class = 0;  ///< As configured.
};

/// The first active port with a usable GID: on Ethernet a RoCEv2 one, IPv4-mapped before routable IPv6 before
/// link-local; on InfiniBand the first. `wanted` must be usable. Errors: kUnavailable; the text has each port's reason.
Result<Attachment, Failure> attach(const DeviceInfo& device, const std::optional<Gid>& wanted);

/// Whether attach() would accept an address of this kind.
bool is_usable(const PortInfo& port, const GidEntry& entry);
/// Why attach() prefers `best` to `entry`, or finds no GID if `best` is null. Part of a sentence.
std::string_view why_not(const PortInfo& port, const GidEntry& entry, const GidEntry* best);

struct DeviceWish {
  std::string device;
  std::optional<Gid> gid;  ///< The address to be reached at; nullopt: attach() chooses.
};
/// "mlx5_0", "mlx5_0@10.0.0.1", "mlx5_0@2001:db8::7". Errors: kBadRequest; the text names the part.
Result<DeviceWish, Failure> parse_device_wish(const std::string& text);

/// A device to use, now or once it can be attached.
struct DeviceChoice {
  DeviceWish wish;
  std::optional<Attachment> attachment;  ///< nullopt: it cannot be attached now.
};
struct DeviceChoices {
  std::vector<DeviceChoice> chosen;
  std::string left_out;  ///< Reasons for each skipped device; if no device can be attached, for each device.
};
/// The present devices among `configured` (as parse_device_wish() reads them), in that order, including those that
/// cannot be attached yet. If `configured` is empty: all that can be attached, those on `numa_node` first, then those
/// of unknown place, then the others; equal ones by name.
DeviceChoices choose_devices(std::span<const DeviceInfo> devices, int numa_node,
                             std::span<const std::string> configured);

/// 24 random bits from the system, for a queue pair's first packet.
std::uint32_t random_psn();

QueuePairAddress address_of(const Attachment& ours, std::uint32_t number, std::uint32_t first_psn);
/// The smaller MTU and read count of both.
Path path_to(const Attachment& ours, std::uint32_t first_psn, const QueuePairAddress& peer);

bool is_link_local(const Gid& gid);
/// text_of() writes forms such as "fe80::1" and "::ffff:10.0.0.1". parse_gid() also reads "10.0.0.1".
std::string text_of(const Gid& gid);
std::optional<Gid> parse_gid(const std::string& text);

}  // namespace kv::verbs
