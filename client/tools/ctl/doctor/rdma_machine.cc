#include "client/tools/ctl/doctor/rdma_machine.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>

#include "base/kernel_files.h"

namespace kv {
namespace {

constexpr unsigned kCapIpcLock = 14;  // CAP_IPC_LOCK of linux/capability.h

std::vector<std::string> names_in(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

/// "4: ACTIVE" is ACTIVE.
std::string behind_colon(const std::string& line) {
  const std::size_t begin = line.find(": ");
  return begin == std::string::npos ? line : line.substr(begin + 2);
}

/// The kernel lists each GID's network interface in a file, and reading that of an unused entry fails. All used ones
/// name the same interface or a VLAN on it, so the first readable one will do.
RdmaPort read_port(const std::filesystem::path& sys, const std::filesystem::path& port, const std::string& number) {
  RdmaPort read{.number = static_cast<std::uint8_t>(std::atoi(number.c_str())),
                .state = behind_colon(first_line(port / "state")),
                .physical_state = behind_colon(first_line(port / "phys_state")),
                .interface = "",
                .interface_mtu_bytes = 0};
  const std::filesystem::path interfaces = port / "gid_attrs/ndevs";
  for (const std::string& index : names_in(interfaces)) {
    read.interface = first_line(interfaces / index);
    if (!read.interface.empty()) break;
  }
  if (!read.interface.empty()) {
    std::istringstream(first_line(sys / "class/net" / read.interface / "mtu")) >> read.interface_mtu_bytes;
  }
  return read;
}

std::vector<RdmaDevice> read_devices(const std::string& root) {
  const std::filesystem::path sys = root + "/sys";
  std::map<std::string, std::string> files;
  for (const std::string& name : names_in(sys / "class/infiniband_verbs")) {
    const std::string device = first_line(sys / "class/infiniband_verbs" / name / "ibdev");
    if (!device.empty()) files[device] = "/dev/infiniband/" + name;
  }
  std::vector<RdmaDevice> devices;
  for (const std::string& name : names_in(sys / "class/infiniband")) {
    RdmaDevice& device = devices.emplace_back();
    device.name = name;
    device.file = files[name];
    if (!device.file.empty() && ::access((root + device.file).c_str(), R_OK | W_OK) != 0)
      device.may_open = last_errno();
    const std::filesystem::path ports = sys / "class/infiniband" / name / "ports";
    for (const std::string& number : names_in(ports)) device.ports.push_back(read_port(sys, ports / number, number));
  }
  return devices;
}

}  // namespace

const RdmaDevice* RdmaMachine::find(const std::string& name) const {
  const auto found = std::ranges::find(devices, name, &RdmaDevice::name);
  return found == devices.end() ? nullptr : &*found;
}

const RdmaPort* RdmaMachine::find(const std::string& device, std::uint8_t port) const {
  const RdmaDevice* const holder = find(device);
  if (!holder) return nullptr;
  const auto found = std::ranges::find(holder->ports, port, &RdmaPort::number);
  return found == holder->ports.end() ? nullptr : &*found;
}

RdmaMachine read_rdma_machine(const std::string& root) {
  RdmaMachine machine;
  machine.devices = read_devices(root);
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    machine.memlock_bytes = limit.rlim_cur;
  // In a user namespace of its own (a rootless container) a process has every capability, but the kernel ignores this
  // one there. Only the first namespace maps all ids to themselves.
  std::istringstream users(first_line(root + "/proc/self/uid_map"));
  std::uint64_t inside = 0, outside = 0, count = 0, capabilities = 0;
  users >> inside >> outside >> count;
  std::istringstream(kernel_value(root + "/proc/self/status", "CapEff")) >> std::hex >> capabilities;
  machine.ignores_memlock = (capabilities >> kCapIpcLock & 1) != 0 && outside == 0 && count == 0xFFFFFFFF;
  std::istringstream(kernel_value(root + "/proc/meminfo", "MemTotal")) >> machine.memory_bytes;
  machine.memory_bytes *= 1024;
  machine.nvidia_driver = first_line(root + "/proc/driver/nvidia/version");
  for (const char* const module : {"nvidia_peermem", "nv_peer_mem"}) {
    if (std::filesystem::exists(root + "/sys/module/" + module)) machine.has_nvidia_peermem = true;
  }
  return machine;
}

}  // namespace kv
