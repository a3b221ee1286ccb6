#include "transport/verbs/verbs_devices.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace kv::verbs {
namespace {

/// Node of the calling thread, now. A daemon with a NUMA setting is bound to a node; otherwise any choice will do.
int own_numa_node() {
  unsigned processor = 0, node = 0;
  return ::getcpu(&processor, &node) == 0 ? static_cast<int>(node) : -1;
}

struct Found {
  std::unique_ptr<Device> device;
  DeviceInfo info;
};
Result<Found, Failure> find(Provider& provider, const std::string& name) {
  auto device = provider.open(name);
  if (!device) {
    const bool is_unknown = device.error() == Errc::kBadRequest;
    return Failure(device.error(), name + ": " + (is_unknown ? "no such device" : device.error().message()));
  }
  auto info = (*device)->query();
  if (!info) return Failure(info.error(), name + ": " + info.error().message());
  return Found{std::move(*device), std::move(*info)};
}

}  // namespace

/// A device that fails is skipped with its reason, and the others are used: one broken card of four must not turn RDMA
/// off. Reasons are reported even on success, since an operator wants to learn of a missing card.
Result<OpenDevices, Failure> open_devices(Provider& provider, const DevicesConfig& config) {
  std::string reasons;
  const auto add_reason = [&](const std::string& reason) {
    if (!reason.empty()) reasons += (reasons.empty() ? "" : "; ") + reason;
  };
  // Every device is opened and queried before the choice, which depends on all of them.
  std::vector<DeviceInfo> infos;
  std::vector<std::unique_ptr<Device>> handles;
  for (const std::string& name : provider.device_names()) {
    auto found = find(provider, name);
    if (!found) {
      add_reason(found.error().text);
      continue;
    }
    infos.push_back(std::move(found->info));
    handles.push_back(std::move(found->device));
  }
  DeviceChoices choices = choose_devices(infos, own_numa_node(), config.names);
  std::vector<OpenDevice> open;
  bool is_attached = false;
  for (DeviceChoice& choice : choices.chosen) {
    if (config.names.empty() && open.size() == config.count_max) break;
    const std::string& name = choice.wish.device;
    const auto info = std::ranges::find(infos, name, &DeviceInfo::name);
    auto& handle = handles[static_cast<std::size_t>(info - infos.begin())];
    KV_ASSERT(handle);  // each device is chosen once
    auto domain = handle->create_domain();
    if (!domain) {
      add_reason(name + ": " + domain.error().message());
      continue;
    }
    is_attached = is_attached || choice.attachment;
    open.push_back({std::move(choice.wish), config.traffic_class, info->limits, std::move(handle), std::move(*domain)});
  }
  add_reason(choices.left_out);
  if (!is_attached) return Failure(Errc::kUnavailable, std::move(reasons));
  return OpenDevices{std::move(open), std::move(reasons)};
}

Result<OpenDevice, Failure> open_device(Provider& provider, const DeviceWish& wish, std::uint8_t traffic_class) {
  auto found = find(provider, wish.device);
  if (!found) return found.error();
  auto domain = found->device->create_domain();
  if (!domain) return Failure(domain.error(), wish.device + ": " + domain.error().message());
  return OpenDevice{wish, traffic_class, found->info.limits, std::move(found->device), std::move(*domain)};
}

/// Drivers return ENODEV for a device that was pulled out, EIO for one that was reset.
bool is_gone(error_code error) {
  return error.category() == boost::system::system_category() && (error.value() == EIO || error.value() == ENODEV);
}

/// By the device's present state: an address or a link may have changed since the opening.
Result<Attachment, Failure> OpenDevice::attach() const {
  const auto info = device->query();
  if (!info) return Failure(info.error(), wish.device + ": " + info.error().message());
  auto attached = verbs::attach(*info, wish.gid);
  if (attached) attached->traffic_class = traffic_class;
  return attached;
}

RegisteredMemory::RegisteredMemory(std::span<std::byte> memory, std::uint64_t slice_bytes)
    : memory_(memory), slice_bytes_(slice_bytes), slice_count_((memory.size() + slice_bytes - 1) / slice_bytes) {}

Result<std::unique_ptr<RegisteredMemory>, Failure> RegisteredMemory::make(std::span<const OpenDevice> devices,
                                                                          std::span<std::byte> memory, Access access,
                                                                          std::uint64_t slice_bytes_max) {
  const auto register_slice = [&](ProtectionDomain& domain, std::uint64_t begin, std::uint64_t bytes) {
    return domain.register_memory(memory.subspan(begin, bytes), access);
  };
  return make_slices(devices, memory, slice_bytes_max, register_slice);
}

Result<std::unique_ptr<RegisteredMemory>, Failure> RegisteredMemory::make_of_device(std::span<const OpenDevice> devices,
                                                                                    std::span<std::byte> addresses,
                                                                                    int dmabuf_fd,
                                                                                    std::uint64_t dmabuf_offset,
                                                                                    Access access) {
  const auto register_slice = [&](ProtectionDomain& domain, std::uint64_t begin,
                                  std::uint64_t bytes) -> Result<std::unique_ptr<MemoryRegion>, Failure> {
    std::string by_dmabuf = "there is none";
    if (dmabuf_fd >= 0) {
      const auto address = reinterpret_cast<std::uintptr_t>(addresses.data()) + begin;
      auto region = domain.register_dmabuf(dmabuf_fd, dmabuf_offset + begin, bytes, address, access);
      if (region) return region;
      by_dmabuf = region.error().text;
    }
    auto region = domain.register_memory(addresses.subspan(begin, bytes), access);
    if (region) return region;
    return Failure(region.error().code,
                   "by dma-buf: " + by_dmabuf + "; by address, which needs nvidia-peermem: " + region.error().text);
  };
  return make_slices(devices, addresses, /*slice_bytes_max=*/0, register_slice);
}

Result<std::unique_ptr<RegisteredMemory>, Failure> RegisteredMemory::make_slices(std::span<const OpenDevice> devices,
                                                                                 std::span<std::byte> memory,
                                                                                 std::uint64_t slice_bytes_max,
                                                                                 const RegisterSlice& register_slice) {
  constexpr std::uint64_t kSliceAlign = 2 << 20;  // whole huge pages: one shared by two slices would be mapped twice
  KV_ASSERT(!devices.empty() && !memory.empty());
  std::uint64_t slice_bytes = memory.size();
  if (slice_bytes_max > 0) slice_bytes = std::min(slice_bytes, slice_bytes_max);
  // One size for all devices: the peer gets one list of slices, with a key per device.
  for (const OpenDevice& each : devices) slice_bytes = std::min(slice_bytes, each.limits.region_bytes_max);
  if (slice_bytes < memory.size() && slice_bytes > kSliceAlign) slice_bytes -= slice_bytes % kSliceAlign;
  std::unique_ptr<RegisteredMemory> made(new RegisteredMemory(memory, slice_bytes));
  error_code refused;
  bool any = false;
  for (const OpenDevice& each : devices) {
    std::vector<std::unique_ptr<MemoryRegion>> slices;
    while (slices.size() < made->slice_count_) {
      const std::uint64_t begin = slices.size() * slice_bytes;
      auto region = register_slice(*each.domain, begin, std::min<std::uint64_t>(slice_bytes, memory.size() - begin));
      if (!region) {
        refused = region.error().code;
        made->left_out_ += (made->left_out_.empty() ? "" : "; ") + each.wish.device + ": " + region.error().text;
        break;
      }
      slices.push_back(std::move(*region));
    }
    // All slices or none: a device with a part of the memory would fail in the middle of a move.
    if (slices.size() < made->slice_count_) slices.clear();
    any = any || !slices.empty();
    slices.resize(made->slice_count_);
    std::ranges::move(slices, std::back_inserter(made->regions_));
  }
  if (!any) return Failure(refused, std::move(made->left_out_));
  return made;
}

/// A work request names one key, and each slice has its own: a request must not cross slices.
std::span<std::byte> RegisteredMemory::within_slice(const std::byte* from, std::uint64_t bytes_max) const {
  const auto begin = static_cast<std::uint64_t>(from - memory_.data());
  KV_ASSERT(from >= memory_.data() && begin < memory_.size() && bytes_max > 0);
  const std::uint64_t end = std::min<std::uint64_t>((slice_of(from) + 1) * slice_bytes_, memory_.size());
  return memory_.subspan(begin, std::min(bytes_max, end - begin));
}

}  // namespace kv::verbs
