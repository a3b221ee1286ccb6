// transport/verbs/verbs_choice.h: which device, port and GID to use, and what two sides agree on. No I/O.
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

/// The first active port that has a usable GID: on Ethernet a RoCEv2 one, IPv4-mapped before routable IPv6 before
/// link-local; on InfiniBand the first. `wanted`, if given, must be among them. Errors: kUnavailable; the text says
/// what each port lacks.
Result<Attachment, Failure> attach(const DeviceInfo& device, const std::optional<Gid>& wanted);

/// Whether attach() would take an address of this kind.
bool is_usable(const PortInfo& port, const GidEntry& entry);
/// Why attach() does not take `entry` but `best`, or nothing if `best` is null. Part of a sentence.
std::string_view why_not(const PortInfo& port, const GidEntry& entry, const GidEntry* best);

/// A device as the configuration asks for it.
struct DeviceWish {
  std::string device;
  std::optional<Gid> gid;  ///< The address to be reached at; none: attach() chooses.
};
/// "mlx5_0", "mlx5_0@10.0.0.1", "mlx5_0@2001:db8::7". Errors: kBadRequest; the text names the part.
Result<DeviceWish, Failure> parse_device_wish(const std::string& text);

/// A device that is to be used, now or once it can be attached.
struct DeviceChoice {
  DeviceWish wish;
  std::optional<Attachment> attachment;  ///< None: it cannot be attached now.
};
struct DeviceChoices {
  std::vector<DeviceChoice> chosen;
  std::string left_out;  ///< What each device lacks that is left out; if none can be attached, what each one lacks.
};
/// The devices that `configured` names (as parse_device_wish() reads them) and that are there, in that order; also
/// those that cannot be attached now, since they may come. If `configured` is empty: all that can be attached, best
/// first: those on `numa_node`, then those of unknown place, then the others; equal ones by name.
DeviceChoices choose_devices(std::span<const DeviceInfo> devices, int numa_node,
                             std::span<const std::string> configured);

/// 24 random bits from the system, for a queue pair's first packet.
std::uint32_t random_psn();

QueuePairAddress address_of(const Attachment& ours, std::uint32_t number, std::uint32_t first_psn);
/// The smaller MTU and read count of both.
Path path_to(const Attachment& ours, std::uint32_t first_psn, const QueuePairAddress& peer);

bool is_link_local(const Gid& gid);
/// text_of() writes forms such as "fe80::1" and "::ffff:10.0.0.1". parse_gid() reads these, and "10.0.0.1" as well.
std::string text_of(const Gid& gid);
std::optional<Gid> parse_gid(const std::string& text);

}  // namespace kv::verbs
