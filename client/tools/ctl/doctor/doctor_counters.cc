#include "client/tools/ctl/doctor/doctor.h"

#include <chrono>
#include <span>
#include <string>

#include "client/tools/text_table.h"

namespace kv {
namespace {

constexpr double kUnwrittenMax = 0.01;  ///< Of the blocks that left memory, as in the alert KvstoreDiskSlow.

void warn(Findings& findings, std::string check, std::string found, std::string advice) {
  findings.push_back({std::move(check), Verdict::kWarning, std::move(found), std::move(advice)});
}

/// A warning where a counter or flag is not 0.
struct Rule {
  const char* value;
  const char* check;
  bool is_counted;  ///< Then the count comes before what was found.
  const char* found;
  const char* advice;
};

constexpr Rule kRules[] = {
    {"disk_read_refusals", "reads of the disk", true,
     "refused since the start: more was asked for than the disk can keep up with", "docs/runbook.md, KvstoreDiskSlow"},
    {"disk_drops_not_kept", "drops", true, "were not kept by the disk: they may come undone at the next start",
     "drop again once the disk works"},
    {"put_conflict_blocks", "conflicting puts", true,
     "blocks were put again with other bytes since the start; the first stayed",
     "two workers share a namespace record and compute different bytes (docs/runbook.md, KvstorePutConflicts)"},
    {"sessions_refused", "connections", true,
     "were refused since the start: all sessions are taken, or one peer has its share",
     "who is refused computes everything (docs/runbook.md, KvstoreSessionsRefused)"},
};

constexpr Rule kSecurityRules[] = {
    {"plaintext_network_listeners", "plain text", true, "listeners beyond loopback neither encrypt nor authenticate",
     "whoever reaches them may read, write and drop every block. Give the node certificates and tls:// listeners "
     "(docs/security.md), or be sure of that network"},
    {"network_listeners_without_policy", "policy", true,
     "listeners beyond loopback, and no policy-file: whoever is let in may do everything",
     "say who may read, write, operate and observe: policy-file (docs/security.md)"},
    {"policy_reload_failed", "policy", false, "the last reload failed; the policy in use is older than the file",
     "the node's log says what is wrong in the file"},
    {"tls_reload_failed", "certificate files", false, "the last reload failed; what is in use is older than the files",
     "the node's log names the file and what is wrong in it"},
    {"disk_key_file_exposed", "disk-key-file", false, "others than its owner may read or write it",
     "chmod 400, owned by the node's user; then put a new key in the first line and send SIGHUP: the old one may be "
     "known (docs/security.md)"},
    {"disk_key_reload_failed", "disk-key-file", false,
     "the last reload failed; keys on disk may still need an older key",
     "the node's log says what is wrong; keep the old key in the file until a reload works"},
};

void warn_of(std::span<const Rule> rules, const NodeStats& node, Findings& findings) {
  for (const Rule& rule : rules) {
    if (stat(node, rule.value) <= 0) continue;
    warn(findings, std::string(rule.check) + " of " + node.name,
         (rule.is_counted ? count_text(node, rule.value) + " " : "") + rule.found, rule.advice);
  }
}

/// Validity of a certificate or list. Warns weeks before the end, while a person can still act.
void check_expiry(const NodeStats& node, const char* value, const std::string& what, const char* advice,
                  Findings& findings) {
  constexpr double kDay = 86400, kSoonDays = 14;
  if (!has_stat(node, value)) return;
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const double days = (stat(node, value) - now) / kDay;
  const Verdict verdict = days < 0 ? Verdict::kFailed : days < kSoonDays ? Verdict::kWarning : Verdict::kOk;
  findings.push_back({what + " of " + node.name, verdict,
                      days < 0 ? "ended " + format_number(-days, 1) + " days ago: new connections fail"
                               : "ends in " + format_number(days, 1) + " days",
                      verdict == Verdict::kOk ? "" : advice});
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
    warn(findings, check,
         "off: what it holds is a miss, and blocks leave memory unwritten; failures since the start: " +
             count_text(node, "disk_outages"),
         "full, read-only, broken or stuck? The node's log says which (\"disk: off\"), df and dmesg on its machine. It "
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
         "nobody was given a wrong byte. dmesg and smartctl on the node's machine; `kvstorectl disk verify` while the "
         "node is stopped");
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
  warn_of(kRules, node, findings);
  return findings;
}

Findings check_security(const NodeStats& node) {
  Findings findings;
  if (node.error) return findings;
  warn_of(kSecurityRules, node, findings);
  check_expiry(node, "tls_cert_expiry_timestamp_seconds", "certificate",
               "put a new one in place of the node's tls-cert and tls-key; it is taken up by itself", findings);
  check_expiry(node, "tls_ca_expiry_timestamp_seconds", "CA",
               "add the next CA to tls-ca of all nodes and clients, then replace the certificates", findings);
  check_expiry(node, "tls_crl_expiry_timestamp_seconds", "list of revoked certificates",
               "fetch a new tls-crl; is what fetches it running?", findings);
  return findings;
}

}  // namespace kv
