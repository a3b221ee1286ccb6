// client/tools/ctl/doctor/doctor.h: findings of `kvstorectl doctor`.
//
// Files, in reading order:
//   ctl_doctor.cc      the command: nodes and machine
//   doctor_counters.cc a node's counters: disk, damage, connections, certificates
//   rdma_machine.h     the kernel's report on RDMA here
//   rdma_loopback.h    a real transfer of a device to itself
//   doctor_rdma.h      both, judged: faults of RDMA, with advice
//   doctor_numa.cc     NUMA placement of a node's memory for blocks
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "client/tools/node_stats.h"

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
inline void append(Findings& to, const Findings& more) { to.insert(to.end(), more.begin(), more.end()); }

/// Faults that a node's own counters show. Counters count since the node's start, and the findings say so: a past fault
/// is reported until the next start. One finding for each alert of deploy/prometheus/kvstore.rules.yml that counters
/// without a history can show.
Findings check_counters(const NodeStats& node);
/// Listeners, certificates, policy, keys of the disk: of nodes that have them, or should.
Findings check_security(const NodeStats& node);
/// Whether a node's memory for blocks lies on its proper NUMA nodes, from its /metrics. Empty if they lack NUMA nodes,
/// as on an older node.
Findings check_numa(std::string_view metrics);

}  // namespace kv
