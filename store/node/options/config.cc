#include "store/node/options/config.h"

#include <spdlog/fmt/fmt.h>

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <map>

#include "base/assert.h"
#include "base/numa.h"
#include "base/text/printable.h"
#include "base/text/spelling.h"
#include "store/node/access/access.h"
#include "store/node/machine/disk_path.h"
#include "store/node/machine/processors.h"
#include "store/node/membership/member_text.h"
#include "store/node/options/option_table.h"
#include "store/policy/combined_counts.h"
#include "transport/frames/frame_message.h"
#include "transport/tls/tls_credentials.h"

namespace kv {
namespace {

/// The largest accepted size of memory or disk, 64 TiB: sums and products of sizes then fit 64 bits.
constexpr std::size_t kBytesMax = std::size_t{1} << 46;

using Given = GivenValues;

// -- the table: name, target, limits, help, excludes

constexpr Form kEndpointForm{"tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH"};
constexpr Form kPemForm{"a file in PEM form that this user can read"};

std::vector<OptionRow> memory_rows(Given& given) {
  NodeOptions& o = given.options;
  return {
      fixed("others know the node by it", {"node-id", &o.node_id, Form{"1 to 128 bytes, without '/' in a cluster"},
                                           "Name of this node in logs and answers (default: the host name)"}),
      fixed("clients are connected there", {"listen", &given.listen, kEndpointForm,
                                            "Where clients connect: tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH; "
                                            "may be repeated. Port 0 picks a free one"}),
      fixed("the admin server listens there", {"admin", &given.admin, Form{"HOST:PORT, https://HOST:PORT or none"},
                                               "HOST:PORT of the admin HTTP server (/metrics, /healthz, /readyz), "
                                               "https://HOST:PORT with TLS; 'none' for no server"}),
      live({"capacity", &o.store.arena.capacity_bytes, kSize, "Memory for blocks, such as 64GiB"}),
      live({"capacity-blocks", &given.capacity_blocks, kAnyValue,
            "Memory for exactly this many blocks of --capacity-block-bytes instead", "capacity"}),
      {"capacity-max", &o.store.arena.capacity_bytes_max, kSizeOrZero,
       "Capacity can be changed while the node runs, up to this, such as 256GiB; RDMA is off then, whose devices keep "
       "what they have registered. 0: a restart changes it"},
      {"capacity-block-bytes", &given.capacity_block_bytes, kSize, "Size of those blocks, a multiple of 4096"},
      fixed("what was learned is one policy's",
            {"eviction-policy", &given.eviction_policy, OneOf{"auto", "yield", "lru", "lfu"},
             "Which blocks go, and which come in: those that bring most hits, learned while running (yield); the least "
             "recently used go, and everything comes in (lru); recency and frequency (lfu); or yield, but lru on one "
             "of several nodes that do not learn together, by --etcd or --peer (auto)"}),
      {"curve", &o.store.curve.is_on, kAnyValue,
       "Tell from a sample what the hit rate would be with less memory, or more (kvstorectl curve)"},
      {"no-huge-pages", &given.no_huge_pages, kAnyValue, "Do not use reserved huge pages even if there are enough"},
      {"numa-nodes", &o.numa_nodes, Form{"auto, off, or NUMA nodes such as 0-1"},
       "NUMA nodes, such as 1 or 0-1: memory for blocks lies on them in turns, and the node's threads keep to their "
       "processors. auto: on all there are, without keeping to any; off: wherever the kernel puts it"},
  };
}

std::vector<OptionRow> disk_rows(Given& given) {
  NodeOptions& o = given.options;
  return {
      live({"disk-path", &o.disk_paths, Form{"a directory, or one to be made in a directory that is there"},
            "Directory of the disk tier, one node's own; none: memory only. May be repeated, one for each device"}),
      fixed("directories are opened when the node starts; SIGHUP reads the file again",
            {"disk-key-file", &o.operator_keys.file, Form{"a file of keys, 64 hexadecimal digits on a line"},
             "File of keys, the current one first: 64 hexadecimal digits on a line, or an id and the digits. What is "
             "written to disk is encrypted (docs/security.md). None: it is not"}),
      // The command may contain a password or a token.
      secret(fixed(
          "directories are opened when the node starts; SIGHUP runs the command again",
          {"disk-key-command", &o.operator_keys.command, Form{"a command for /bin/sh"},
           "Instead of that file: a command for /bin/sh that prints its lines, out of a KMS or a TPM, within 30 s"})),
      live({"disk-capacity", &o.store.disk.capacity_bytes, kSize,
            "Blocks kept on disk besides those in memory, such as 800GiB. The files take up to 1.25 x (this + "
            "capacity)"}),
      live({"disk-capacity-blocks", &given.disk_capacity_blocks, kAnyValue,
            "Exactly this many blocks of --capacity-block-bytes instead", "disk-capacity"}),
      live({"spill-policy", &given.spill_policy, OneOf{"eviction", "write-through"},
            "When a block is written: eviction (its memory is wanted soon), write-through (it was stored)"}),
      live({"spill-reserve", &o.store.spill.reserve, RealLimits{0.001, 0.5},
            "Share of memory kept free by writing ahead of puts"}),
      live({"spill-put-wait-seconds", &o.session.spill_wait, RealLimits{0, 5},
            "A put waits this long for the disk, at most half of its time (its deadline, at most 5 s), before blocks "
            "that are not on it are evicted; 0: never"}),
      fixed("it needs to know when each block was stored",
            {"spill-skip-unused", &o.store.spill.skip_unused, kAnyValue,
             "While the disk or disk-write-rate is behind: evict blocks that were never used again unwritten"}),
      live({"spill-chance-min", &o.store.spill.chance_min, RealLimits{0, 1},
            "With a full disk and --eviction-policy yield: evict unwritten what is less likely than this to be used in "
            "the time that a block stays on disk; 0: write everything"}),
      live({"disk-write-rate", &o.disk_threads.write_bytes_per_second, kSizeOrZero,
            "Bytes a second written at most, such as 500MiB; 0: no limit"}),
      live({"disk-scrub-rate", &o.disk_threads.scrub_bytes_per_second, kSizeOrZero,
            "Bytes a second read and verified while nobody reads, such as 16MiB; 0: none"}),
      live({"disk-drain-rate", &o.disk_threads.drain_bytes_per_second, kSizeOrZero,
            "Bytes a second moved at most out of a directory that was taken out of disk-path, such as 128MiB; 0: no "
            "limit"}),
      live({"disk-warm-rate", &o.warm_bytes_per_second, kSizeOrZero,
            "Bytes a second of named contexts brought to memory ahead of need, such as 256MiB; 0: none"}),
      live({"disk-promote-reads", &o.store.disk.promote_reads, IntegerLimits{1, 255},
            "A block goes back to memory with its n-th read from disk"}),
      {"disk-read-threads", &o.disk_threads.read_threads, IntegerLimits{1, 256}, "Threads that wait for reads"},
      {"disk-retry-seconds", &o.disk_threads.retry_after, RealLimits{0.01, 3600},
       "A disk that failed is left alone this long, then tried again"},
      {"disk-hang-seconds", &o.disk_hang, RealLimits{0.1, 3600},
       "Of several directories, one that does not answer for this long is left out until it does"},
      live({"disk-drop-wait-seconds", &o.session.drop_wait, RealLimits{0, 3600},
            "A drop's answer waits this long for the disk to keep the drop; then it says that the drop holds until the "
            "next start"}),
      live({"disk-stop-seconds", &o.disk_threads.give_up_after, RealLimits{0.01, 3600},
            "A stop no longer waits for a disk that finishes nothing for this long"}),
      live({"spill-save", &o.spill_save, kAnyValue, "At a clean stop, write what is in memory, for the next start"}),
  };
}

std::vector<OptionRow> rdma_rows(Given& given) {
  VerbsConfig& verbs = given.options.verbs;
  return {
      {"rdma", &given.rdma, OneOf{"auto", "on", "off"},
       "Move blocks by RDMA: auto (if there is a device), on (do not start without), off. `kvstorectl doctor --rdma` "
       "checks a machine for it"},
      {"rdma-device", &verbs.devices.names, Form{"a device such as mlx5_0, or mlx5_0@10.0.0.1"},
       "A device to use, such as mlx5_0, or mlx5_0@10.0.0.1 for one of its addresses; may be repeated. Its link may "
       "come later. None: those nearest to this node's processor whose link is up, at most 4"},
      {"rdma-lanes-max", &verbs.lane_count_max, IntegerLimits{1, 32},
       "Queue pairs of one session; lane i is on device i"},
      {"rdma-messages-max", &verbs.message_count_max, IntegerLimits{0, static_cast<int>(kMessageCountMax)},
       "Small requests of one session that come by SEND and have no answer yet; 0: they come through the socket"},
      {"rdma-queue-pairs-max", &verbs.queue_pair_count_max, IntegerLimits{1, 1000000}, "Queue pairs of all sessions"},
      {"rdma-traffic-class", &verbs.devices.traffic_class, IntegerLimits{0, 255},
       "Of the node's packets; on RoCE 4 x DSCP, such as 104 for the lossless class 26"},
      {"rdma-slice-bytes", &verbs.slice_bytes_max, kSizeOrZero,
       "Memory registered at once, such as 64GiB; 0: as much as the devices take"},
  };
}

std::vector<OptionRow> cluster_rows(Given& given) {
  EtcdConfig& etcd = given.options.etcd;
  MembershipConfig& membership = given.options.membership;
  return {
      {"etcd", &etcd.endpoints, Form{"http://HOST:PORT or https://HOST:PORT"},
       "http://HOST:PORT or https://HOST:PORT of an etcd member; may be repeated. Nodes with the same etcd and "
       "etcd-prefix are a cluster, whose clients need the address of any of them. None: this node stands alone, or on "
       "a list that clients have"},
      {"etcd-prefix", &membership.prefix, Form{"2 to 256 bytes that begin with '/' and do not end so"},
       "Of this cluster's keys in etcd"},
      {"etcd-ca", &etcd.ca_file, kPemForm, "PEM file of who signed etcd's certificates (default: the system's)"},
      {"etcd-cert", &etcd.cert_file, kPemForm, "PEM file of this node's certificate for etcd"},
      {"etcd-key", &etcd.key_file, kPemForm, "PEM file of its key"},
      {"etcd-user", &etcd.user, Form{"a name, with etcd-password-file"}, "User of etcd, where it asks for one"},
      {"etcd-password-file", &etcd.password_file, Form{"a file that this user can read, with etcd-user"},
       "File whose first line is that user's password"},
      {"etcd-lease-seconds", &given.etcd_lease, RealLimits{2, 300},
       "A node that etcd has not heard of for so long is off the map"},
      {"advertise", &membership.self.endpoints, kEndpointForm,
       "Where clients reach this node: tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH; may be repeated (default: as "
       "listen)"},
      {"weight", &given.weight, RealLimits{0, kMemberWeightMax},
       "This node's share of the blocks, in proportion (default: its capacity in GiB)"},
      {"zone", &membership.self.zone, Form{"a name without blanks"},
       "Where this node stands; shown, and for clients to come"},
      live({"move-rate", &given.options.move_rate, kSizeOrZero,
            "Bytes a second, such as 256MiB, that this node hands to others when they join, or it leaves; 0: hands "
            "nothing over"}),
      live({"copy-uses", &given.options.copy_uses, IntegerLimits{0, 255},
            "A prefix that was used so often, the put that brought it included, gets a second copy on the node that "
            "would own it next; 0: none does. 2 is everything that was asked for again"}),
      live({"hand-over-seconds", &given.options.hand_over_max, RealLimits{0, 86400},
            "After SIGTERM the node hands over what it owns for so long at most, before it leaves"}),
      {"join-seconds", &given.options.join_max, RealLimits{0, 86400},
       "A node that joins is given what will be its own for so long at most, before it serves"},
      {"peer", &given.options.peers, kEndpointForm,
       "tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH of a node of a static list, with which this one learns which "
       "blocks are used again; may be repeated, and may be this node itself. With --etcd all nodes of the cluster are"},
      live({"exchange-seconds", &given.options.exchange_period, RealLimits{0, 3600},
            "Between two times that nodes tell one another what they have learned; 0: this node learns alone"}),
      {"cluster-extent-blocks", &membership.extent_blocks, IntegerLimits{1, 1 << 20},
       "For a cluster that has no nodes yet: one block in so many begins an extent (docs/cluster.md)"},
  };
}

std::vector<OptionRow> tls_rows(Given& given) {
  NodeOptions& o = given.options;
  return {
      {"tls-cert", &o.tls.cert_file, kPemForm,
       "PEM file of this node's certificate, and of those between it and the CA; for tls:// and https://"},
      {"tls-key", &o.tls.key_file, kPemForm, "PEM file of its private key"},
      {"tls-ca", &o.tls.ca_file, kPemForm, "PEM file of who signs clients' certificates; each client has to show one"},
      {"tls-crl", &o.tls.crl_file, kPemForm, "PEM file of revoked certificates, one list for each CA"},
      {"tls-allowed-name", &o.tls.allowed_names, Form{"a DNS name, *.NAME, a URI or URI/*"},
       "A name (subject alternative name) that a client's certificate may have: a URI, URI/* for all below it, a DNS "
       "name, or *.NAME; may be repeated. None: every certificate of the CA"},
      {"policy-file", &o.policy_file, Form{"a TOML file of roles (docs/security.md)"},
       "TOML file of who may do what: certificates' names, tokens and Unix users to roles. None: whoever is let in may "
       "do everything"},
      {"tenant-secret-file", &o.tenant_secret_file,
       Form{"a file with 64 hexadecimal digits that others cannot read, with policy-file"},
       "File with 64 hexadecimal digits, the same on all nodes of a cluster: tenants' namespaces are named by it, so "
       "that no record of one finds another's. Needs policy-file"},
      {"tls-handshake-seconds", &o.handshake_timeout, RealLimits{0.1, 3600},
       "For a connection to prove who it is, before it may say hello"},
      live({"tls-handshakes-max", &o.handshakes_max, IntegerLimits{1, 1000000},
            "Connections that have not proved who they are, half of them from one address; more are closed at once"}),
      live({"tls-handshakes-per-second", &o.handshakes_per_second, RealLimits{0, 1000000},
            "Connections that begin to prove who they are, half of them from one address; more are closed at once. 0: "
            "no bound"}),
      {"plaintext-on-trusted-network", &given.allows_plain_network, kAnyValue,
       "Listen beyond loopback without TLS too: whoever reaches these addresses may read, write and drop everything"},
  };
}

std::vector<OptionRow> session_rows(Given& given) {
  NodeOptions& o = given.options;
  return {
      fixed("sessions live on the threads that there are",
            {"threads", &o.threads, IntegerLimits{0, 1024},
             "I/O threads (default: one for each processor that affinity mask and control group allow)"}),
      {"busy-poll-us", &o.busy_poll, IntegerLimits{0, 1000000},
       "Spin this long for the next request before sleeping; costs CPU, saves wake-ups"},
      live({"session-count-max", &o.sessions.count_max, IntegerLimits{1, 1000000},
            "Sessions at once; more are refused"}),
      live({"session-share-max", &o.sessions.peer_share_max, RealLimits{0.01, 1},
            "Share of them that one peer (a Unix user, a TCP address) may hold while alone; some stay free for others; "
            "1: all"}),
      live({"session-idle-seconds", &o.sessions.idle_min, RealLimits{1, 1e9},
            "A session that did nothing for this long, lends no memory and holds no lease may be closed to make room"}),
      live({"index-bytes-max", &o.store.index_bytes_max, kAnySize,
            "Memory for what is kept of blocks besides their bytes, token ids too; 0: 256MiB and a 16th of the "
            "capacity"}),
      live({"namespace-count-max", &o.store.namespace_count_max, IntegerLimits{1, 1000000},
            "Namespaces at once; idle ones make room for others"}),
      fixed("clients were told when they connected",
            {"chain-blocks-max", &o.store.chain_blocks_max, IntegerLimits{1, 80000}, "Hashes in one request"}),
      live({"lease-count-max", &o.store.lease_count_max, IntegerLimits{1, 100000000}, "Leases at once"}),
      live({"lease-count-per-session-max", &o.store.lease_count_per_session_max, IntegerLimits{1, 100000000},
            "Leases of one session"}),
      fixed(
          "leases end in the order in which they were granted",
          {"lease-seconds", &o.store.lease_duration, RealLimits{0.001, 3600}, "How long a match may keep its blocks"}),
      live({"retained-fraction-max", &o.store.retained_fraction_max, RealLimits{0, 1},
            "Share of the memory that retained blocks may take"}),
      live({"leased-fraction-max", &o.store.leased_fraction_max, RealLimits{0, 1},
            "Share of the memory that leases may keep, shared blocks counted once"}),
      live({"requests-max", &o.session.requests_max, IntegerLimits{1, 1000000}, "Transfers in flight in one session"}),
      live({"region-bytes-max", &o.session.region_bytes_max, kSize, "Memory one session may lend"}),
      {"region-bytes-max-node", &o.region_bytes_max_node, kSizeOrZero,
       "Memory all sessions together may lend as memfds, each counted once; 0: what the machine has besides the "
       "capacity"},
      live({"queued-bytes-max", &o.session.queued_bytes_max, kSize,
            "Answers queued for one session before its requests wait"}),
      live({"hello-seconds", &o.session.hello_timeout, RealLimits{0.1, 3600}, "For a connection to say hello"}),
      live({"frame-seconds", &o.session.frame_timeout, RealLimits{0.1, 3600},
            "For a started request to arrive, and for each further 64 KiB of payload"}),
      live({"write-seconds", &o.session.write_timeout, RealLimits{0.1, 3600},
            "For a client to take a byte of its answers"}),
      live({"read-rate-min", &o.session.read_rate_min, kSizeOrZero,
            "Bytes a second, such as 1MiB, that a client must take of what is queued for it, over write-seconds; 0: "
            "any"}),
      live({"tls-grace-seconds", &o.session.certificate_grace, RealLimits{0, 86400 * 30.0},
            "A session that lasts as long behind the end of its client's certificate is ended; one without transfers "
            "ends with the certificate"}),
      live({"get-seconds", &o.session.get_timeout, RealLimits{0.1, 86400}, "From request to last byte of a get"}),
      live({"put-seconds", &o.session.put_timeout, RealLimits{0.1, 3600}, "From offer to last byte of a put"}),
      live({"drain-seconds", &o.drain_timeout, RealLimits{0, 3600}, "For running transfers to end after SIGTERM"}),
      live({"log-level", &o.log_level, OneOf{"trace", "debug", "info", "warn", "error"},
            "trace, debug, info, warn or error"}),
      {"log-json", &o.log_json, kAnyValue, "One JSON object a line instead of text"},
      fixed("its memory is taken at the start",
            {"events-count", &o.store.event_count_max, IntegerLimits{0, 1 << 24},
             "Changes of what is here that are kept for routers, 80 bytes each (/events.json); 0: none"}),
      live(
          {"slow-log-seconds", &o.slow_log.threshold, RealLimits{0, 3600},
           "Requests that take so long are kept with where their time went (kvstorectl slowlog), and logged; 0: none"}),
      live({"slow-log-count", &o.slow_log.count_max, IntegerLimits{1, static_cast<int>(SlowLog::kCountMax)},
            "How many of them are kept"}),
  };
}

/// In the order of --help.
std::vector<OptionRow> all_rows(Given& given) {
  std::vector<OptionRow> all = memory_rows(given);
  const auto add = [&all](const char* heading, std::vector<OptionRow> rows) {
    for (OptionRow& row : rows) all.emplace_back(std::move(row)).group = heading;
  };
  add("Disk tier", disk_rows(given));
  add("RDMA", rdma_rows(given));
  add("TLS and access (docs/security.md)", tls_rows(given));
  add("Cluster", cluster_rows(given));
  add("", session_rows(given));
  return all;
}

// -- from the command line to the rows

/// Returns "", or the error.
std::string take_switches(const OptionSources& sources, NodeOptions& options) {
  NodeOptions::Autotune& autotune = options.autotune;
  options.check_only = sources.switches.contains("check-config");
  autotune = {.is_asked = sources.switches.contains("autotune"),
              .as_json = sources.switches.contains("json"),
              .as_toml = sources.switches.contains("toml")};
  if ((autotune.as_json || autotune.as_toml) && !autotune.is_asked)
    return std::string(autotune.as_json ? "--json" : "--toml") + ": is for --autotune, which is not given";
  return autotune.as_json && autotune.as_toml ? "--toml: given beside --json; allowed is one of them" : "";
}

/// False: the process should end with *exit_code: 0 after --help, 2 after an error, described in *wrong.
bool read_given(int argc, const char* const* argv, Given& given, int* exit_code, std::string* wrong) {
  KV_ASSERT(argc > 0 && exit_code != nullptr);
  const std::vector<OptionRow> rows = all_rows(given);
  for (const std::string_view each : std::vector<std::string_view>(argv + 1, argv + argc)) {
    if (each != "--help" && each != "-h" && each != "--version") continue;
    std::cout << (each == "--version" ? "kvstore-node " KV_VERSION "\n" : help_of(rows));
    *exit_code = 0;
    return false;
  }
  OptionSources sources;
  *wrong = read_sources(argc, argv, rows, {"check-config", "autotune", "json", "toml"}, &sources);
  if (wrong->empty()) *wrong = take_switches(sources, given.options);
  for (const OptionRow& row : rows) {
    const auto text = sources.options.find(row.name);
    if (text == sources.options.end() || !wrong->empty()) continue;
    *wrong = assign(row, text->second.values);
    if (!wrong->empty()) *wrong = with_place(*wrong, text->second.place);
    given.places[row.name] = text->second.place;
  }
  if (wrong->empty() && given.options.check_only && !sources.unknown_variables.empty())
    *wrong = sources.unknown_variables.front();
  given.file = sources.file;
  given.unknown_variables = std::move(sources.unknown_variables);
  if (!wrong->empty()) *exit_code = kExitBadConfig;
  return wrong->empty();
}

// -- from the rows to the options. Each returns the error, or "".

std::string set_node_id(Given& given) {
  std::string& id = given.options.node_id;
  if (id.empty()) {
    char host[256] = {};
    id = ::gethostname(host, sizeof host - 1) == 0 ? host : "node";
  }
  return id.size() > 128 ? fmt::format("node-id: '{}...' has {} bytes", printable(id.substr(0, 32)), id.size()) : "";
}

bool is_network(const Endpoint& endpoint) {
  return endpoint.scheme != Endpoint::Scheme::kUnix && !endpoint.is_loopback();
}

bool is_plain_network(const Endpoint& endpoint) {
  return endpoint.scheme == Endpoint::Scheme::kTcp && !endpoint.is_loopback();
}

/// Refuses plain TCP on a network: every machine in reach could read all blocks.
std::string set_listen(Given& given) {
  for (const std::string& text : given.listen) {
    const auto endpoint = parse_endpoint(text);
    if (!endpoint) return "listen: " + endpoint.error().text;
    if (endpoint->scheme == Endpoint::Scheme::kSim)
      return "listen: '" + text + "'; allowed: tcp://, tls:// and unix://";
    if (is_plain_network(*endpoint) && !given.allows_plain_network) {
      return fmt::format(
          "listen: {}: refused, because whoever reaches it could read all blocks: plain TCP is neither encrypted nor "
          "authenticated; allowed: tls:// with TLS certificates (tls-cert, tls-key, tls-ca), loopback addresses "
          "(tcp://127.0.0.1:7400, tcp://[::1]:7400) and unix:// sockets; or, in a closed network, "
          "plaintext-on-trusted-network",
          text);
    }
    given.options.plain_network_count += is_plain_network(*endpoint);
    given.options.network_count += is_network(*endpoint);
    given.options.listen.push_back(*endpoint);
  }
  return given.options.listen.empty() ? "listen: [] is none; at least one is needed" : "";
}

std::string set_admin(Given& given) {
  NodeOptions& options = given.options;
  if (given.admin == "none") {
    options.admin_host.clear();
    return "";
  }
  constexpr std::string_view kHttp = "http://", kHttps = "https://";
  options.admin_tls = given.admin.starts_with(kHttps);
  const bool is_url = options.admin_tls || given.admin.starts_with(kHttp);
  const auto endpoint = parse_endpoint((options.admin_tls ? "tls://" : "tcp://") +
                                       given.admin.substr(is_url ? given.admin.find("//") + 2 : 0));
  if (!endpoint)
    return "admin: '" + given.admin + "'; allowed: HOST:PORT with a port of 0 to 65535, https://HOST:PORT or none";
  if (is_plain_network(*endpoint) && !given.allows_plain_network) {
    return fmt::format(
        "admin: {}: refused, because whoever reaches it could read and change all; allowed: https://HOST:PORT with TLS "
        "certificates (tls-cert, tls-key, tls-ca), loopback addresses such as 127.0.0.1:7401, and, in a closed "
        "network, plaintext-on-trusted-network",
        given.admin);
  }
  options.plain_network_count += is_plain_network(*endpoint);
  options.network_count += is_network(*endpoint);
  options.admin_host = endpoint->host == "localhost" ? "127.0.0.1" : endpoint->host;
  options.admin_port = static_cast<std::uint16_t>(std::stoi(endpoint->port));
  return "";
}

/// Reads the files, for --check-config.
std::string set_tls(Given& given) {
  NodeOptions& options = given.options;
  const bool is_used = options.admin_tls || std::ranges::any_of(options.listen, [](const Endpoint& endpoint) {
                         return endpoint.scheme == Endpoint::Scheme::kTls;
                       });
  if (!is_used && options.tls.is_given()) {
    const TlsConfig& tls = options.tls;
    const char* const first = !tls.cert_file.empty()  ? "tls-cert"
                              : !tls.key_file.empty() ? "tls-key"
                              : !tls.ca_file.empty()  ? "tls-ca"
                              : !tls.crl_file.empty() ? "tls-crl"
                                                      : "tls-allowed-name";
    return std::string(first) + ": nothing uses it; allowed: with tls://HOST:PORT in listen or https:// in admin";
  }
  if (!is_used) return "";
  const auto read = TlsCredentials::read(options.tls, TlsSide::kNode);
  return read ? "" : read.error().text;
}

std::string set_policy(Given& given) {
  StoreConfig& store = given.options.store;
  store.has_tenants = !given.options.policy_file.empty();
  const auto read =
      AccessControl::open(given.options.policy_file, {store.arena.capacity_bytes, store.disk.capacity_bytes},
                          given.options.tenant_secret_file);
  return read ? "" : read.error().text;
}

std::string set_capacity(Given& given) {
  ArenaConfig& arena = given.options.store.arena;
  KV_ASSERT(given.capacity_block_bytes > 0);  // kSize
  arena.huge_pages = !given.no_huge_pages;
  // Nodes of a cluster that learn apart value a chain differently, and tear holes in it.
  given.options.store.lru_unless_combined = given.eviction_policy == "auto";
  const auto* const policy =
      std::ranges::find(kPolicyNames, given.eviction_policy == "auto" ? "yield" : given.eviction_policy);
  KV_ASSERT(policy != std::end(kPolicyNames));  // the option's limits
  given.options.store.policy = static_cast<PolicyKind>(policy - std::begin(kPolicyNames));
  // The arena is cut into exactly this many blocks of one size, without waste.
  if (given.capacity_blocks > 0) {
    if (given.capacity_block_bytes % 4096 != 0)
      return fmt::format("capacity-block-bytes: {}; allowed: multiples of 4096", given.capacity_block_bytes);
    if (given.capacity_blocks > kBytesMax / given.capacity_block_bytes)
      return fmt::format("capacity-blocks: {}, more than 64 TiB in all; allowed: up to {} of capacity-block-bytes",
                         given.capacity_blocks, kBytesMax / given.capacity_block_bytes);
    arena.capacity_bytes = given.capacity_blocks * given.capacity_block_bytes;
    arena.granule_bytes = given.capacity_block_bytes;
  } else if (arena.capacity_bytes < (1 << 20)) {
    return fmt::format("capacity: {} bytes; allowed: 1MiB to 64 TiB", arena.capacity_bytes);
  }
  KV_ASSERT(arena.capacity_bytes > 0 && arena.capacity_bytes <= kBytesMax);
  if (arena.capacity_bytes_max == 0) return "";
  const char* const field = given.capacity_blocks > 0 ? "capacity-blocks" : "capacity";
  if (arena.capacity_bytes > arena.capacity_bytes_max) {
    return fmt::format("{}: {} bytes, more than capacity-max; allowed: up to {}", field, arena.capacity_bytes,
                       arena.capacity_bytes_max);
  }
  if (arena.capacity_bytes % arena.granule_bytes != 0 || arena.capacity_bytes_max % arena.granule_bytes != 0) {
    const bool is_max = arena.capacity_bytes % arena.granule_bytes == 0;
    return fmt::format("{}: {} bytes; allowed: with capacity-max both are multiples of {}",
                       is_max ? "capacity-max" : field, is_max ? arena.capacity_bytes_max : arena.capacity_bytes,
                       arena.granule_bytes);
  }
  return "";
}

/// A path without a size, or a size without a path, is an error: a default size could fill a shared file system.
std::string set_disk(Given& given) {
  NodeOptions& options = given.options;
  KV_ASSERT(options.store.arena.capacity_bytes > 0);  // set_capacity() has run before
  const std::vector<std::string>& paths = options.disk_paths;
  std::uint64_t& capacity_bytes = options.store.disk.capacity_bytes;
  if (given.disk_capacity_blocks > kBytesMax / given.capacity_block_bytes)
    return fmt::format("disk-capacity-blocks: {}, more than 64 TiB in all; allowed: up to {}",
                       given.disk_capacity_blocks, kBytesMax / given.capacity_block_bytes);
  if (given.disk_capacity_blocks > 0) capacity_bytes = given.disk_capacity_blocks * given.capacity_block_bytes;
  for (auto each = paths.begin(); each != paths.end(); ++each) {
    if (each->empty()) return "disk-path: ''; allowed: a directory. To have none, leave the option out and restart";
    if (std::find(paths.begin(), each, *each) != each)
      return "disk-path: " + *each + " is given twice; allowed: each directory once";
  }
  if (paths.size() > kPlaceCount)
    return fmt::format("disk-path: {} directories; allowed: at most {}", paths.size(), kPlaceCount);
  if (paths.empty() && capacity_bytes > 0)
    return std::string(given.disk_capacity_blocks > 0 ? "disk-capacity-blocks" : "disk-capacity") +
           ": given without disk-path; allowed: both or neither";
  if (!paths.empty() && capacity_bytes == 0)
    return "disk-path: given without disk-capacity; allowed: both (disk-capacity = \"100GiB\") or neither";
  if (paths.empty() && options.operator_keys.is_given())
    return std::string(options.operator_keys.option()) + ": given without disk-path; allowed: both or neither";
  if (!options.operator_keys.file.empty() && !options.operator_keys.command.empty())
    return "disk-key-command: given beside disk-key-file; allowed: one of them";
  options.store.spill.write_through = given.spill_policy == "write-through";
  // Blocks being written are pinned: a disk that hangs must leave most of the memory to puts.
  options.disk_threads.batch_bytes =
      std::min<std::uint64_t>(options.disk_threads.batch_bytes, options.store.arena.capacity_bytes / 8);
  // The whole tier counts as stuck only if disabling a directory did not help.
  options.disk_threads.stuck_after = options.disk_hang * (paths.size() > 1 ? 2 : 1);
  options.disk_threads.drain_give_up_after = options.disk_hang * 30;
  return "";
}

/// Checked at the start only: a disk that fails later must not block changes of other options.
std::string check_disk_paths(Given& given) {
  for (const std::string& path : given.options.disk_paths) {
    if (const std::string why = check_disk_path(path); !why.empty())
      return "disk-path: '" + printable(path) + "': " + why;
  }
  return "";
}

std::string set_rdma(Given& given) {
  NodeOptions& options = given.options;
  options.rdma = given.rdma == "on"     ? NodeOptions::Rdma::kOn
                 : given.rdma == "auto" ? NodeOptions::Rdma::kAuto
                                        : NodeOptions::Rdma::kOff;
  for (const std::string& name : options.verbs.devices.names) {
    if (const auto wish = verbs::parse_device_wish(name); !wish) return "rdma-" + wish.error().text;
  }
  if (options.store.arena.capacity_bytes_max > 0) {
    if (options.rdma == NodeOptions::Rdma::kOn)
      return "rdma: on, and capacity-max is given: RDMA devices keep the memory that they have registered, so it "
             "cannot be given back; allowed: rdma without capacity-max, or capacity-max without rdma";
    options.rdma = NodeOptions::Rdma::kOff;
  }
  return "";
}

std::string set_cluster(Given& given) {
  NodeOptions& options = given.options;
  const std::vector<std::string>& peers = options.peers;
  if (peers.size() > CombinedCounts::kPeersMax)
    return fmt::format("peer: {} are given; allowed: at most {}", peers.size(), CombinedCounts::kPeersMax);
  for (auto each = peers.begin(); each != peers.end(); ++each) {
    if (const auto read = parse_endpoint(*each); !read) return "peer: " + read.error().text;
    if (std::find(peers.begin(), each, *each) != each)
      return "peer: " + *each + " is given twice; allowed: each node once";
  }
  if (!peers.empty() && !options.etcd.endpoints.empty())
    return "peer: given beside etcd, which knows all nodes; allowed: one of them";
  MembershipConfig& membership = options.membership;
  if (options.etcd.endpoints.empty()) {
    if (!membership.self.endpoints.empty())
      return "advertise: given without etcd, where it would be written; allowed: with etcd";
    return "";
  }
  if (const std::string why = check_etcd(options.etcd); !why.empty()) return why;
  if (membership.prefix.size() < 2 || membership.prefix.size() > 256 || membership.prefix.front() != '/' ||
      membership.prefix.back() == '/') {
    return "etcd-prefix: '" + membership.prefix + "'; allowed: 2 to 256 bytes that begin with '/' and do not end so";
  }
  membership.lease = std::chrono::ceil<std::chrono::seconds>(given.etcd_lease);
  membership.self.id = options.node_id;
  membership.self.weight =
      given.weight > 0 ? given.weight : static_cast<double>(options.store.arena.capacity_bytes) / (1 << 30);
  // Endpoints are complete once the node listens; the configured fields are checked now.
  Member sample = membership.self;
  sample.instance = std::string(32, '0');
  const bool is_advertised = !sample.endpoints.empty();
  if (!is_advertised) {
    for (const Endpoint& each : options.listen) sample.endpoints.push_back(each.to_string());
    if (sample.endpoints.empty()) sample.endpoints = {"tcp://127.0.0.1:1"};
  }
  const std::string why = check_member(sample);
  if (why.starts_with("id:")) return "node-" + why;
  if (!why.starts_with("endpoints:")) return why;
  return (is_advertised ? "advertise" : "listen") + why.substr(std::string("endpoints").size());
}

/// Fills in values of 0 from the machine.
std::string set_machine(Given& given) {
  NodeOptions& options = given.options;
  const auto numa = choose_numa(NumaTopology::read(), options.numa_nodes);
  if (!numa) return "numa-nodes: " + numa.error().text;
  const ProcessorShare share = processor_share(read_processor_facts(), *numa);
  options.threads_why = options.threads > 0 ? "given" : share.why;
  if (options.threads == 0) options.threads = share.count;
  // One thread reads about as fast as two devices of 100 Gbit/s write.
  options.verbs.verify_thread_count = static_cast<unsigned>(std::clamp<std::size_t>(share.count / 4, 1, 8));
  if (options.region_bytes_max_node > 0) return "";
  // Clients have touched the memory they lend, so all of it fits into the machine beside the arena. A client that
  // offers more has not touched it, and a copy into it would take memory from everyone.
  const auto machine_bytes =
      static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t capacity_bytes = options.store.arena.capacity_bytes;
  options.region_bytes_max_node =
      std::max<std::uint64_t>(machine_bytes - std::min(machine_bytes, capacity_bytes), 1ull << 30);
  return "";
}

/// The order matters: the first error is reported, and the disk's sizes and the policy need the capacity.
/// `reads_files`: certificates and policy too; not at later changes, when a file may have gone bad.
std::string derive(Given& given, bool reads_files) {
  for (const auto set : {&set_node_id, &set_listen, &set_admin, &set_tls, &set_capacity, &set_disk, &check_disk_paths,
                         &set_policy, &set_rdma, &set_cluster, &set_machine}) {
    if (!reads_files && (set == &set_tls || set == &set_policy || set == &check_disk_paths)) continue;
    if (std::string wrong = set(given); !wrong.empty()) return wrong;
  }
  given.options.store.has_tenants = !given.options.policy_file.empty();
  const NodeOptions& options = given.options;
  KV_ASSERT(options.threads > 0 && options.region_bytes_max_node > 0 && !options.listen.empty());
  return "";
}

/// A refusal by derive() begins with an option's name. Adds missing details: value, allowed values, origin.
std::string explained(const Given& given, std::string wrong) {
  Given copy = given;
  const std::vector<OptionRow> rows = all_rows(copy);
  const OptionRow* const row = find_row(rows, std::string_view(wrong).substr(0, wrong.find(':')));
  if (row == nullptr) return wrong;
  const auto place = given.places.find(row->name);
  if (wrong.find("allowed") == std::string::npos) wrong += "; allowed: " + allowed_text(*row);
  if (place == given.places.end()) return wrong + " (not given: the default)";
  const std::vector<std::string> values = values_of(*row);
  const bool is_shown = values.empty() || std::ranges::any_of(values, [&](const std::string& value) {
                          return wrong.find(value) != std::string::npos;
                        });
  if (!is_shown && !row->is_secret) wrong += "; given: '" + printable(values.front()) + "'";
  return with_place(wrong, place->second);
}

}  // namespace

std::optional<GivenOptions> GivenOptions::read(int argc, const char* const* argv, int* exit_code, std::string* wrong) {
  GivenOptions given;
  if (!read_given(argc, argv, given.given_, exit_code, wrong)) return std::nullopt;
  return given;
}

std::optional<NodeOptions> GivenOptions::options(std::string* wrong, bool reads_files) const {
  Given derived = given_;
  *wrong = derive(derived, reads_files);
  if (!wrong->empty()) *wrong = kv::explained(given_, *wrong);
  return wrong->empty() ? std::optional(std::move(derived.options)) : std::nullopt;
}

std::string GivenOptions::explained(const std::string& wrong) const { return kv::explained(given_, wrong); }

std::vector<GivenOptions::Entry> GivenOptions::list() const {
  Given now = given_, before;
  const std::vector<OptionRow> rows = all_rows(now), defaults = all_rows(before);
  std::vector<Entry> entries;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto found = given_.places.find(rows[i].name);
    const OptionPlace place = found == given_.places.end() ? OptionPlace{} : found->second;
    entries.push_back({.name = rows[i].name,
                       .values = values_of(rows[i]),
                       .otherwise = values_of(defaults[i]),
                       .source = place.source,
                       .place = place.text,
                       .is_list = is_list(rows[i]),
                       .fixed = rows[i].fixed,
                       .allowed = allowed_text(rows[i]),
                       .is_secret = rows[i].is_secret});
  }
  return entries;
}

std::vector<std::string> GivenOptions::Entry::shown(const std::vector<std::string>& given) const {
  std::vector<std::string> texts = given;
  for (std::string& text : texts) {
    if (is_secret && !text.empty()) text = "(set)";
  }
  return texts;
}

std::string GivenOptions::set(const std::string& name, const std::vector<std::string>& values, Source source) {
  Given next = given_, before;
  const std::vector<OptionRow> rows = all_rows(next), defaults = all_rows(before);
  const OptionRow* const row = find_row(rows, name);
  if (row == nullptr) {
    const std::string meant = did_you_mean(name, names_of(rows));
    return name + ": there is no such option" + (meant.empty() ? "; `kvstorectl config list` shows all" : meant);
  }
  if (std::string wrong = assign(*row, values); !wrong.empty()) return wrong;
  // If two options exclude one another, the one just set wins.
  for (const OptionRow& other : rows) {
    if (name != other.excludes && std::string_view(row->excludes) != other.name) continue;
    copy_value(other, *find_row(defaults, other.name));
    next.places.erase(other.name);
  }
  next.places[name] = {source, ""};
  if (source == Source::kDefault) next.places.erase(name);
  given_ = std::move(next);
  return "";
}

void GivenOptions::take(const std::string& name, const GivenOptions& from) {
  Given other = from.given_;
  const std::vector<OptionRow> rows = all_rows(given_), others = all_rows(other);
  copy_value(*find_row(rows, name), *find_row(others, name));
  const auto place = other.places.find(name);
  given_.places.erase(name);
  if (place != other.places.end()) given_.places[name] = place->second;
}

std::optional<NodeOptions> parse_options(int argc, const char* const* argv, int* exit_code,
                                         std::optional<GivenOptions>* kept) {
  std::string wrong;
  auto given = GivenOptions::read(argc, argv, exit_code, &wrong);
  if (!given && wrong.empty()) return std::nullopt;  // --help, --version
  auto options = given ? given->options(&wrong) : std::nullopt;
  if (options && kept != nullptr) *kept = std::move(given);
  if (options) return options;
  std::cerr << "kvstore-node: " << wrong << "\nRun with --help for more information.\n";
  std::string ignored;
  const auto text_alone = given ? given->options(&ignored, /*reads_files=*/false) : std::nullopt;
  *exit_code = text_alone && !text_alone->check_only ? kExitNotNow : kExitBadConfig;
  return std::nullopt;
}

}  // namespace kv
