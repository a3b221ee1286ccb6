// client/tools/ctl/doctor.h: findings of `kvstorectl doctor`.
//
// Files, in reading order:
//   ctl_doctor.cc      the command: nodes and machine
//   doctor_counters.h  a node's counters: disk, damage, connections
//   rdma_machine.h     the kernel's report on RDMA here
//   rdma_loopback.h    a real transfer of a device to itself
//   doctor_rdma.h      both, judged: faults of RDMA, with advice
//   doctor_numa.h      NUMA placement of a node's memory for blocks
#pragma once

#include <string>
#include <vector>

namespace kv {

enum class Verdict {
  kOk,
  kNote,     ///< Worth knowing; requires no action.
  kWarning,  ///< Needs action, but the store serves: the exit status stays 0.
  kFailed,   ///< Does not work: exit status 1.
};

struct Finding {
  std::string check;
  Verdict verdict;
  std::string found;
  std::string advice;  ///< Empty if no action is needed.
};
using Findings = std::vector<Finding>;

}  // namespace kv
