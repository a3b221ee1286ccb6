// store/node/machine/: this machine's resources and limits, and the node's settings derived from them. Start here.
//
// Independent of the Store, options and sessions. Files, in reading order:
//   facts.h      memory, processors, limits, sockets, devices, as reported by the kernel (this file)
//   room.h       whether an amount of memory is available
//   processors.h how many threads have a processor to run on
//   disk_probe.h the speed of a directory, and whether direct I/O works there
//   advice.h     settings derived from those facts
//   autotune.h   `kvstore-node --autotune`: measures, advises, prints
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/numa.h"
#include "store/node/machine/disk_probe.h"

namespace kv {

/// Unreadable facts are absent, and lead to no conclusion.
struct MachineFacts {
  static constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};

  struct HugePages {
    std::uint64_t count = 0, free_count = 0;  ///< Of 2 MiB, which the arena asks for.
  };
  struct Room {
    std::uint64_t limit_bytes = kUnlimited, left_bytes = kUnlimited;  ///< Cached file pages count as left.
  };
  struct Limit {
    std::uint64_t soft = kUnlimited, hard = kUnlimited;
  };
  struct Device {
    std::string name;
    bool is_rdma = false;  ///< Else an accelerator.
    int numa_node = -1;    ///< -1: not reported.
  };

  std::optional<std::uint64_t> memory_total_bytes, memory_available_bytes;
  std::optional<HugePages> huge_pages;
  std::string shmem_huge;            ///< "always within_size advise [never] deny force"; empty: not reported.
  std::optional<Room> group_memory;  ///< The tightest of the control groups around this process; nullopt: unlimited.
  std::optional<Room> group_huge_pages;       ///< The same for reserved pages of 2 MiB, in bytes.
  std::optional<double> group_processors;     ///< The same for processor time, in processors.
  std::vector<unsigned> allowed_processors;   ///< By this process's affinity mask, ascending.
  std::size_t machine_processor_count = 0;    ///< Online in the machine, allowed or not; 0: not reported.
  std::optional<Limit> locked_memory, files;  ///< RLIMIT_MEMLOCK, RLIMIT_NOFILE of this process.
  bool ignores_locked_limit = false;          ///< It has CAP_IPC_LOCK.
  std::optional<std::uint64_t> tcp_receive_max, tcp_send_max, socket_send_max;  ///< Bytes of a socket's buffers.
  NumaTopology numa;
  std::vector<Device> devices;  ///< By name.
  std::vector<DiskFacts> disks;
};

/// Only the first six facts, about memory. `root` as below.
MachineFacts read_memory_facts(const std::string& root = "");

/// Only those about processors.
MachineFacts read_processor_facts(const std::string& root = "");

/// All but the disks. Files are read below `root`, which tests set; limits and processors are this process's own.
MachineFacts read_machine_facts(const std::string& root = "");

}  // namespace kv
