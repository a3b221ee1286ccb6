#include <algorithm>
#include <fstream>

#include "transport/ibverbs/objects.h"

namespace kv::verbs {
namespace {

/// -1 if the kernel does not say, as for a software device.
int numa_node_of(const std::string& device) {
  std::ifstream file("/sys/class/infiniband/" + device + "/device/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

GidType gid_type_of(std::uint32_t type) {
  return type == IBV_GID_TYPE_ROCE_V2   ? GidType::kRoceV2
         : type == IBV_GID_TYPE_ROCE_V1 ? GidType::kRoceV1
                                        : GidType::kInfiniband;
}

}  // namespace

/// Queried anew each time: links, addresses and the index of a GID change while the device is open.
Result<DeviceInfo> query_device(ibv_context& context) {
  ibv_device_attr attributes{};
  if (const int error = ibv_query_device(&context, &attributes); error != 0) return system_error(error);
  DeviceInfo info;
  info.name = ibv_get_device_name(context.device);
  info.numa_node = numa_node_of(info.name);
  info.limits = {
      .region_bytes_max = attributes.max_mr_size,
      .queue_pair_count_max = static_cast<std::uint32_t>(attributes.max_qp),
      .request_count_max = static_cast<std::uint32_t>(attributes.max_qp_wr),
      .completion_count_max = static_cast<std::uint32_t>(attributes.max_cqe),
      .piece_count_max = static_cast<std::uint32_t>(attributes.max_sge),
      .read_count_max = static_cast<std::uint32_t>(std::min(attributes.max_qp_rd_atom, attributes.max_qp_init_rd_atom)),
  };
  // One table for all ports, so it must hold the GIDs of each.
  std::size_t gid_count = 0;
  for (std::uint8_t number = 1; number <= attributes.phys_port_cnt; ++number) {
    ibv_port_attr port{};
    if (const int error = ibv_query_port(&context, number, &port); error != 0) return system_error(error);
    gid_count += static_cast<std::size_t>(std::max(port.gid_tbl_len, 0));
    info.ports.push_back({.number = number,
                          .is_active = port.state == IBV_PORT_ACTIVE,
                          .is_ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET,
                          .lid = port.lid,
                          .mtu_bytes = 128u << static_cast<unsigned>(port.active_mtu)});
  }
  std::vector<ibv_gid_entry> entries(gid_count);
  const ssize_t count = ibv_query_gid_table(&context, entries.data(), entries.size(), 0);
  if (count < 0) return system_error(static_cast<int>(-count));
  entries.resize(static_cast<std::size_t>(count));
  for (const ibv_gid_entry& entry : entries) {
    for (PortInfo& port : info.ports) {
      if (port.number != entry.port_num) continue;
      GidEntry& added = port.gids.emplace_back(GidEntry{.index = entry.gid_index, .type = gid_type_of(entry.gid_type)});
      std::copy_n(entry.gid.raw, added.gid.size(), added.gid.begin());
    }
  }
  return info;
}

}  // namespace kv::verbs
