// kvstorectl doctor: checks nodes and machine. Each check becomes a finding with advice.
//
// Exit status 1 is for faults that keep a store from serving (FAILED). Faults that only cost speed are warnings or
// notes, so that a start script with doctor does not fail on advice.
#include <sys/resource.h>

#include <map>
#include <sstream>

#include "base/assert.h"
#include "base/kernel_files.h"
#include "client/tools/ctl/admin_http.h"
#include "client/tools/ctl/ctl.h"
#include "client/tools/ctl/doctor/doctor.h"
#include "client/tools/ctl/doctor/doctor_rdma.h"
#include "client/tools/latency_histogram.h"
#include "client/tools/text_table.h"
#include "index/record_differences.h"
#include "transport/tls/tls.h"

namespace kv {
namespace {

struct DoctorOptions : CtlOptions {
  std::string admin = "127.0.0.1:7401";
  bool rdma_only = false;
  std::vector<std::string> rdma_devices;
};

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk: return "ok";
    case Verdict::kNote: return "note";
    case Verdict::kWarning: return "warning";
    case Verdict::kFailed: return "FAILED";
  }
  return "?";
}

std::uint64_t meminfo_value(const std::string& name) {
  const std::string value = kernel_value("/proc/meminfo", name);
  return value.empty() ? 0 : std::stoull(value);
}

// -- the nodes

/// The client's error is about a socket. The advice names causes that a person can check, the likeliest first.
std::string reach_advice(const NodeStatus& node) {
  if (node.last_error == Errc::kUnsupported) {
    return "this kvstorectl and the node speak different wire versions: install the same release, or one apart";
  }
  if (node.last_error == Errc::kPermissionDenied) {
    return "the node does not know this token, or it must not go there: --token-file, and the node's policy-file "
           "(docs/security.md)";
  }
  if (node.last_error == boost::system::errc::permission_denied) {
    return "no right to the socket: run as the node's user, or join the group that owns the socket file";
  }
  if (node.last_error == boost::system::errc::no_such_file_or_directory) {
    return "no such socket: is the node running (systemctl status kvstore-node), and does it listen there?";
  }
  if (node.last_error.category() == tls_category() || node.last_error_text.find("tls: ") != std::string::npos) {
    return "docs/security.md says what certificates each side needs; the node's log has its view of the same handshake";
  }
  if (node.last_error == asio::error::timed_out) {
    return "the node does not answer: is it stopped, overloaded, or behind a firewall? See its log";
  }
  return "is the node running (systemctl status kvstore-node), and does its `listen` name this address?";
}

/// Whether one node answers, and how fast. Its own round trip alone decides: NodeStatus::last_error stays after the
/// trouble is over, so a node that was away during another one's check would be reported as out of reach.
void check_node(ToolClient& client, const DoctorOptions& options, std::size_t index, Findings& findings) {
  const NodeStatus before = client->nodes()[index];
  LatencyHistogram latency;
  // Fifty suffice for a steady median, and take some milliseconds. The p99 of so few is the slowest.
  for (int i = 0; i < 50; ++i) {
    const auto round_trips = client.run(client->ping(options.node.deadline));
    const NodeStatus node = client->nodes()[index];
    KV_ASSERT(!round_trips || index < round_trips->size());
    if (!round_trips || (*round_trips)[index].count() < 0) {
      findings.push_back({"reach " + before.name, Verdict::kFailed,
                          !round_trips                   ? describe(round_trips.error())
                          : node.last_error_text.empty() ? describe(node.last_error)
                                                         : node.last_error_text,
                          reach_advice(node)});
      return;
    }
    if (i > 0) latency.record((*round_trips)[index]);  // the first one pays for connecting
  }
  const NodeStatus node = client->nodes()[index];
  findings.push_back(
      {"reach " + node.name, Verdict::kOk, "node " + node.node_id + ", over " + node.peer_transport, ""});
  const double p50_us = latency.quantile_us(0.5);
  findings.push_back(
      {"round trip", p50_us < 1000 ? Verdict::kOk : Verdict::kWarning,
       format_number(p50_us, 0) + " us in the middle, " + format_number(latency.quantile_us(0.99), 0) + " us p99",
       p50_us < 1000 ? ""
                     : "slow even for a network: is the node's machine short of processor time? On one host "
                       "prefer a Unix socket; --busy-poll-us on both sides saves wake-ups"});
}

/// From counters since the node's start: the findings say so, since a burst of refusals long ago is still reported.
void check_contents(const NodeStats& node, Findings& findings) {
  if (node.error) return;  // reported by check_node
  const double capacity = stat(node, "capacity_bytes"), used = stat(node, "allocated_bytes");
  if (capacity <= 0) return;
  const double full = used / capacity;
  Finding finding{"memory of " + node.name, Verdict::kOk,
                  format_bytes(static_cast<std::uint64_t>(used)) + " of " +
                      format_bytes(static_cast<std::uint64_t>(capacity)) + " used",
                  ""};
  const double evictions = stat(node, "evicted_blocks"), age_seconds = stat(node, "eviction_age_p50_seconds");
  if (evictions > 0)
    finding.found += "; half of the evicted blocks were last used less than " + format_seconds(age_seconds) + " before";
  // A working cache is full, so fullness alone is no finding. Eviction within two minutes of the last use is: the next
  // turn of a conversation comes about that late, and misses.
  if (full > 0.97 && evictions > 0 && age_seconds < 120) {
    finding.verdict = Verdict::kWarning;
    finding.advice =
        "blocks go before conversations come back for them (that takes minutes): give the node more memory, or add a "
        "node";
  } else if (full > 0.97) {
    finding.verdict = Verdict::kNote;
    finding.advice = "full, as a cache should be";
  }
  findings.push_back(finding);
  if (const double refused = stat(node, "refused_blocks"); refused > 0) {
    findings.push_back({"refused puts", Verdict::kWarning,
                        format_count(static_cast<std::uint64_t>(refused)) + " blocks since start",
                        "nothing unpinned was left to evict: fewer retained prefixes (kvstorectl unretain), shorter "
                        "leases, or more memory"});
  }
  if (const double pinned = stat(node, "pinned_blocks"), blocks = stat(node, "blocks");
      blocks > 0 && pinned > blocks / 2) {
    findings.push_back({"pins", Verdict::kWarning,
                        format_number(100 * pinned / blocks, 0) + " % of the blocks are pinned",
                        "what is pinned cannot make room: see kvstorectl unretain"});
  }
}

/// A namespace's name for people: its model, and the beginning of its id.
std::string space_name(const NamespaceRecord& record) {
  return std::string(record.field("model")) + " (" + to_hex(record.id().bytes).substr(0, 8) + ")";
}

/// What was stored and looked up in a namespace, on all nodes.
struct Use {
  NamespaceRecord record;
  std::uint64_t stored = 0, lookups = 0, empty_lookups = 0;
  std::uint64_t roots = 0, stored_only = 0, asked_only = 0;
};
/// By record: a chain's parts lie on several nodes.
using Uses = std::map<std::string, Use>;

Uses uses_of(const std::vector<NodeStats>& nodes) {
  Uses spaces;
  for (const NodeStats& node : nodes) {
    for (const nlohmann::json& one : rows_in(node.said, "namespaces")) {
      const std::string text = text_in(one, "record");
      auto record = NamespaceRecord::parse(text);
      if (!record) continue;
      Use& use = spaces.try_emplace(text, Use{.record = *std::move(record)}).first->second;
      use.stored += count_in(one, "stored_blocks");
      use.lookups += count_in(one, "lookups");
      use.empty_lookups += count_in(one, "empty_lookups");
      use.roots += count_in(one, "roots");
      use.stored_only += count_in(one, "roots_stored_only");
      use.asked_only += count_in(one, "roots_asked_only");
    }
  }
  return spaces;
}

/// "It writes and never reads": namespaces that are looked up while empty, beside those that are stored but never
/// looked up, with the fields in which they differ; and chains whose first blocks never meet.
void check_lookups(const Uses& spaces, Findings& findings) {
  constexpr std::uint64_t kLookupsMin = 16;  // fewer may be chance
  constexpr std::uint32_t kRootsMin = 8;
  constexpr std::size_t kDifferencesMax = 3, kFindingsMax = 8;
  const std::size_t before = findings.size();
  const auto add = [&](const Use& use, std::string found, std::string advice) {
    if (findings.size() - before < kFindingsMax)
      findings.push_back(
          {"lookups in " + space_name(use.record), Verdict::kWarning, std::move(found), std::move(advice)});
  };
  for (const auto& [text, use] : spaces) {
    if (use.lookups < kLookupsMin || use.empty_lookups < use.lookups) continue;
    const std::string looked = format_count(use.lookups) + " lookups, and none has found anything";
    if (use.stored > 0) {
      // The same namespace, with different names for the same prompts.
      if (use.asked_only >= kRootsMin && use.stored_only >= kRootsMin)
        add(use, looked + ": stored under roots that nobody looks up, looked up under roots that nobody stores",
            "whoever stores and whoever looks up name the same prompts differently: one seed for both (vLLM: "
            "PYTHONHASHSEED), one block size, one version of the engine");
      // Names of a set are not sampled, so repetition of prompts is unknown.
      if (use.record.is_set() && findings.size() - before < kFindingsMax) {
        findings.push_back({"lookups in " + space_name(use.record), Verdict::kNote,
                            looked + ", though blocks are stored",
                            "each prompt is new, or whoever stores and whoever looks up name the same prompts "
                            "differently (vLLM: PYTHONHASHSEED)"});
      }
      continue;
    }
    const Use* twin = nullptr;
    std::vector<FieldDifference> differences;
    for (const auto& [other_text, other] : spaces) {
      if (other.stored == 0 || other.lookups > other.empty_lookups) continue;  // a namespace with hits is fine
      auto differs = record_differences(use.record, other.record);
      if (differs.empty() || differs.size() > kDifferencesMax ||
          (twin != nullptr && differs.size() >= differences.size()))
        continue;
      twin = &other;
      differences = std::move(differs);
    }
    if (twin == nullptr) {
      add(use, looked + "; nothing was ever stored there",
          "does anybody store in this namespace? kvstorectl namespaces shows what is stored in which; kvstorectl why "
          "asks for one chain");
    } else {
      add(use,
          looked + "; stored is in " + space_name(twin->record) + ", where nothing is found either. They differ in " +
              differences_text(differences),
          "make the records of those who store and those who look up equal (docs/operating.md, \"Why nothing hits\")");
    }
  }
  for (const auto& [text, use] : spaces) {
    if (use.lookups > 0 || use.stored == 0) continue;
    // A set has no roots: each of its blocks is looked up by its own name.
    const bool are_many = use.record.is_set() ? use.stored >= kRootsMin : use.roots >= kRootsMin;
    if (!are_many || use.stored_only < use.roots) continue;
    if (findings.size() - before >= kFindingsMax) break;
    findings.push_back({"lookups in " + space_name(use.record), Verdict::kNote,
                        format_count(use.stored) + " blocks stored, and nobody has looked one up",
                        "a writer without readers: do they use another namespace?"});
  }
}

/// A warning at most: a node serves without its admin server, and only its operator knows its address.
void check_admin(const DoctorOptions& options, Findings& findings) {
  for (const char* path : {"/healthz", "/readyz"}) {
    const HttpAnswer page = ask_http(options.node, options.admin, "GET", path);
    const bool is_ok = page.status == 200;
    const char* const advice =
        is_https(options.admin)
            ? "name the node's admin address with --admin; --tls-... as for its data port"
            : "name the node's admin address with --admin HOST:PORT; without it there are no metrics";
    findings.push_back({std::string("admin ") + path, is_ok ? Verdict::kOk : Verdict::kWarning,
                        options.admin + ": " + page.reason, is_ok ? "" : advice});
    if (!is_ok) return;
  }
  // Placement of the node's blocks. Silent without the right `metrics`: this is advice on speed.
  const HttpAnswer metrics = ask_http(options.node, options.admin, "GET", "/metrics");
  if (metrics.status != 200) return;
  append(findings, check_numa(metrics.body));
}

// -- this machine: settings that slow a node down silently

/// Advice only: the node runs with any of these settings. Limits are this process's, not the unit's.
void check_machine(Findings& findings) {
  const std::uint64_t huge_total = meminfo_value("HugePages_Total"), huge_free = meminfo_value("HugePages_Free");
  const std::uint64_t huge_bytes = meminfo_value("Hugepagesize") * 1024;
  findings.push_back({"huge pages", huge_total > 0 ? Verdict::kOk : Verdict::kNote,
                      huge_total > 0 ? format_count(huge_total) + " of " + format_bytes(huge_bytes) + " reserved, " +
                                           format_count(huge_free) + " free"
                                     : "none reserved",
                      huge_total > 0 ? ""
                                     : "the arena starts faster on huge pages: sysctl vm.nr_hugepages=N, N x " +
                                           format_bytes(huge_bytes) + " >= the node's capacity"});
  const std::string thp = first_line("/sys/kernel/mm/transparent_hugepage/enabled");
  const std::string thp_shmem = first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  const bool thp_always = thp.find("[always]") != std::string::npos;
  findings.push_back(
      {"transparent huge pages", thp_always ? Verdict::kNote : Verdict::kOk,
       "memory " + (thp.empty() ? "?" : thp) + ", shared memory " + (thp_shmem.empty() ? "?" : thp_shmem),
       thp_always ? "`madvise` avoids stalls while the kernel builds huge pages" : ""});
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  findings.push_back(
      {"open files limit", files.rlim_cur >= 4096 ? Verdict::kOk : Verdict::kNote, format_count(files.rlim_cur),
       files.rlim_cur >= 4096 ? "" : "a node needs one per connection: LimitNOFILE= of its unit (or ulimit -n)"});
  for (const char* name : {"tcp_rmem", "tcp_wmem"}) {
    std::istringstream values(first_line(std::string("/proc/sys/net/ipv4/") + name));
    std::uint64_t least = 0, usual = 0, most = 0;
    values >> least >> usual >> most;
    const bool is_small = most > 0 && most < (4u << 20);
    findings.push_back(
        {std::string("net.ipv4.") + name, is_small ? Verdict::kWarning : Verdict::kOk, "at most " + format_bytes(most),
         is_small
             ? "large transfers want 4 MiB or more: sysctl net.ipv4." + std::string(name) + "='4096 131072 6291456'"
             : ""});
  }
}

void check_members(DoctorOptions& options, Findings& findings) {
  if (ctl_cluster(options.node).map.epoch == 0) return;
  append(findings, check_cluster(ask_members(options)));
}

/// Nodes first, then the machine: failures come first in the table, advice on speed last.
Findings check_all(DoctorOptions& options) {
  Findings findings;
  ToolClient client(ctl_config(options.node));
  // All nodes of a cluster, whichever was named.
  for (std::size_t i = 0, count = client->nodes().size(); i < count; ++i) check_node(client, options, i, findings);
  if (const auto stats = ask_stats(client, options.node.deadline)) {
    for (const NodeStats& node : *stats) {
      if (node.error != Errc::kPermissionDenied) continue;
      findings.push_back({"counters of " + node.name, Verdict::kNote, describe(node.error),
                          "the role metrics or operator shows them: its memory and certificates were not looked at"});
    }
    for (const NodeStats& node : *stats) {
      check_contents(node, findings);
      append(findings, check_counters(node));
    }
    for (const NodeStats& node : *stats) append(findings, check_security(node));
    check_lookups(uses_of(*stats), findings);
  }
  check_members(options, findings);
  if (options.admin != "none") check_admin(options, findings);
  check_machine(findings);
  append(findings, check_rdma_here(/*is_asked_for=*/false, {}));
  return findings;
}

void run_doctor(DoctorOptions options) {
  for (const std::string& name : options.rdma_devices) {
    const auto wish = verbs::parse_device_wish(name);
    if (!wish) throw CLI::ValidationError("--rdma-device", wish.error().text);
  }
  const Findings findings =
      options.rdma_only ? check_rdma_here(/*is_asked_for=*/true, options.rdma_devices) : check_all(options);
  bool has_failed = false;
  nlohmann::json document = {{"findings", nlohmann::json::array()}};
  TextTable table({"", "check", "found"});
  for (const Finding& finding : findings) {
    has_failed = has_failed || finding.verdict == Verdict::kFailed;
    document["findings"].push_back({{"check", finding.check},
                                    {"verdict", verdict_name(finding.verdict)},
                                    {"found", finding.found},
                                    {"advice", finding.advice}});
    table.add({verdict_name(finding.verdict), finding.check, finding.found});
    if (!finding.advice.empty()) table.add({"", "", "-> " + finding.advice});
  }
  document["ok"] = !has_failed;
  print_answer(options.json, document, table);
  if (has_failed) throw ToolFailed::said();
}

}  // namespace

void add_doctor_command(CLI::App& app) {
  const auto [command, options] = add_ctl_command<DoctorOptions>(
      app, "doctor", "Is everything all right? Checks nodes and machine, and says what to do", run_doctor);
  command
      ->add_option("--admin", options->admin,
                   "Admin address of a node to check, https://HOST:PORT with TLS; 'none' skips the check")
      ->capture_default_str()
      ->type_name("HOST:PORT");
  CLI::Option* const rdma = command->add_flag(
      "--rdma", options->rdma_only,
      "Only RDMA of this machine, and no node: module, devices, limits, a transfer of each device to itself");
  command
      ->add_option("--rdma-device", options->rdma_devices,
                   "A device as it is configured, such as mlx5_0 or mlx5_0@10.0.0.1; may be repeated. Default: all")
      ->needs(rdma)
      ->type_name("NAME");
  command->footer(
      "Exit status 1 if something FAILED; notes and warnings are advice. That RDMA is absent or broken is FAILED only\n"
      "with --rdma.\n\n"
      "Examples:\n  kvstorectl doctor\n  kvstorectl doctor --rdma\n"
      "  kvstorectl doctor --rdma --rdma-device mlx5_0@10.0.0.1\n");
}

}  // namespace kv
