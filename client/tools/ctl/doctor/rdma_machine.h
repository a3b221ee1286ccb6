// client/tools/ctl/doctor/rdma_machine.h: the kernel's report on RDMA of this machine: its devices, why one may not be
// opened, and the limit on registered memory. Independent of libibverbs, which may be missing.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/result.h"

namespace kv {

struct RdmaPort {
  std::uint8_t number = 1;
  std::string state;           ///< "ACTIVE", "INIT", "DOWN", ...
  std::string physical_state;  ///< "LinkUp", "Polling", "Disabled", ...
  std::string interface;       ///< Of RoCE, such as "eth0".
  std::uint32_t interface_mtu_bytes = 0;
};

struct RdmaDevice {
  std::string name;
  std::string file;     ///< "/dev/infiniband/uverbs0"; empty: the module ib_uverbs is not loaded.
  error_code may_open;  ///< Why this process may not open `file`.
  std::vector<RdmaPort> ports;
};

struct RdmaMachine {
  static constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

  std::vector<RdmaDevice> devices;           ///< By name.
  std::uint64_t memlock_bytes = kUnlimited;  ///< Limit on this process's registrations.
  bool ignores_memlock = false;              ///< It has CAP_IPC_LOCK, and not only within a user namespace.
  std::uint64_t memory_bytes = 0;            ///< Of the machine.
  std::string nvidia_driver;                 ///< The driver's version line; empty: not loaded.
  bool has_nvidia_peermem = false;

  const RdmaDevice* find(const std::string& name) const;  ///< Null: unknown.
  const RdmaPort* find(const std::string& device, std::uint8_t port) const;
};

/// Reads /sys, /proc and /dev below `root`, which tests set. Unreadable values stay at their defaults.
RdmaMachine read_rdma_machine(const std::string& root = "");

}  // namespace kv
