// client/tools/ctl/doctor.h: what `kvstorectl doctor` finds.
//
// Files, in reading order:
//   ctl_doctor.cc      the command: nodes and machine
//   doctor_counters.h  what a node's counters say: disk, damage, connections
//   rdma_machine.h     what the kernel tells about RDMA here
//   rdma_loopback.h    a real transfer of a device to itself
//   doctor_rdma.h      both, judged: what is wrong with RDMA, and what to do
//   doctor_numa.h      where a node's memory for blocks lies
#pragma once

#include <string>
#include <vector>

namespace kv {

enum class Verdict {
  kOk,
  kNote,     ///< Worth knowing; nothing has to be done.
  kWarning,  ///< Something should be done, but the store serves: the exit status stays 0.
  kFailed,   ///< Does not work: exit status 1.
};

struct Finding {
  std::string check;
  Verdict verdict;
  std::string found;
  std::string advice;  ///< Empty if there is nothing to do.
};
using Findings = std::vector<Finding>;

}  // namespace kv
