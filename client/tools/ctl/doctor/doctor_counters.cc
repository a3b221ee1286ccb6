#include "client/tools/ctl/doctor/doctor.h"

#include <string>

#include "client/tools/text_table.h"

namespace kv {
namespace {

constexpr double kUnwrittenMax = 0.01;  ///< Of the blocks that left memory, as in the alert KvstoreDiskSlow.

void warn(Findings& findings, std::string check, std::string found, std::string advice) {
  findings.push_back({std::move(check), Verdict::kWarning, std::move(found), std::move(advice)});
}

/// On, opening, or off: a node that has just started is still reading its records.
void check_disk_state(const NodeStats& node, Findings& findings) {
  const std::string check = "disk of " + node.name;
  if (stat(node, "disk_is_loading") > 0) {
    findings.push_back(
        {check, Verdict::kNote,
         "reads its records since the start: " + count_text(node, "disk_loaded_blocks") + " blocks so far",
         "what lies there is a miss until then"});
  } else if (stat(node, "disk_is_on") == 0) {
    warn(
        findings, check,
        "off: what it holds is a miss, and blocks leave memory unwritten; failures since the start: " +
            count_text(node, "disk_outages"),
        "full, read-only, broken or stuck? The node's log says which (\"spill: off\"), df and dmesg on its machine. It "
        "comes back by itself (docs/runbook.md, KvstoreDiskOff)");
  } else if (const double left_out = stat(node, "disk_directories_left_out"); left_out > 0) {
    warn(findings, check,
         count_text(node, "disk_directories_left_out") + " of " + count_text(node, "disk_directories") +
             " directories do not work and are left out",
         "the node's log names them (docs/runbook.md, KvstoreDiskOff)");
  } else {
    const double outages = stat(node, "disk_outages");
    findings.push_back(
        {check, outages > 0 ? Verdict::kNote : Verdict::kOk,
         "on, " + count_text(node, "disk_blocks") + " blocks" +
             (outages > 0 ? "; was off " + count_text(node, "disk_outages") + " times since the start" : ""),
         outages > 0 ? "it works again; the node's log says what was wrong" : ""});
  }
}

/// Blocks that the disk failed to keep, and blocks that it returned damaged.
void check_disk_losses(const NodeStats& node, Findings& findings) {
  const double unwritten = stat(node, "lost_unspilled_blocks"), evicted = stat(node, "evicted_blocks");
  if (unwritten > kUnwrittenMax * evicted) {
    warn(findings, "unwritten blocks of " + node.name,
         count_text(node, "lost_unspilled_blocks") + " of " + count_text(node, "evicted_blocks") +
             " that left memory since the start were not written to disk: they are lost",
         "the disk was off, or is slower than what is stored: docs/runbook.md, KvstoreDiskSlow");
  }
  const double damaged =
      stat(node, "lost_blocks") + stat(node, "disk_scrub_damaged_blocks") + stat(node, "disk_read_failures");
  if (damaged > 0) {
    warn(findings, "damage on the disk of " + node.name,
         count_text(node, "disk_read_failures") + " reads failed or found damage, " + count_text(node, "lost_blocks") +
             " blocks lost and " + count_text(node, "disk_scrub_damaged_blocks") +
             " found damaged by scrubbing, since the start",
         "nobody was given a wrong byte. dmesg and smartctl on the node's machine; `kvstorectl spill verify` while the "
         "node is stopped");
  }
  if (stat(node, "disk_read_refusals") > 0) {
    warn(findings, "reads of the disk of " + node.name,
         count_text(node, "disk_read_refusals") +
             " refused since the start: more was asked for than the disk can keep up with",
         "docs/runbook.md, KvstoreDiskSlow");
  }
  if (stat(node, "disk_drops_not_kept") > 0) {
    warn(findings, "drops of " + node.name,
         count_text(node, "disk_drops_not_kept") + " were not kept by the disk: they may come undone at the next start",
         "drop again once the disk works");
  }
}

/// Damaged or conflicting puts, and refused connections.
void check_arrivals(const NodeStats& node, Findings& findings) {
  if (has_stat(node, "checksum_failures")) {
    const bool has_failed = stat(node, "checksum_failures") > 0;
    findings.push_back({"checksums of " + node.name, has_failed ? Verdict::kWarning : Verdict::kOk,
                        has_failed ? count_text(node, "checksum_failures") + " blocks arrived damaged since the start"
                                   : "all blocks arrived as they were sent",
                        has_failed
                            ? "none became visible. Memory, a network or a worker is faulty, and the node's log names "
                              "the peers (docs/runbook.md, KvstoreChecksumFailures)"
                            : ""});
  }
  if (stat(node, "put_conflict_blocks") > 0) {
    warn(findings, "conflicting puts of " + node.name,
         count_text(node, "put_conflict_blocks") +
             " blocks were put again with other bytes since the start; the first stayed",
         "two workers share a namespace record and compute different bytes (docs/runbook.md, KvstorePutConflicts)");
  }
  if (stat(node, "sessions_refused") > 0) {
    warn(findings, "connections of " + node.name,
         count_text(node, "sessions_refused") +
             " were refused since the start: all sessions are taken, or one peer has its share",
         "who is refused computes everything (docs/runbook.md, KvstoreSessionsRefused)");
  }
}

}  // namespace

Findings check_counters(const NodeStats& node) {
  Findings findings;
  if (node.error) return findings;     // reported elsewhere
  if (has_stat(node, "disk_is_on")) {  // absent on a node without a disk
    check_disk_state(node, findings);
    check_disk_losses(node, findings);
  }
  check_arrivals(node, findings);
  return findings;
}

}  // namespace kv
