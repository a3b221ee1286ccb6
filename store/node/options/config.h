// store/node/options/config.h: every option of kvstore-node, from file, environment and flags.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "store/node/disk/files/operator_keys.h"
#include "store/node/disk_worker/disk_threads.h"
#include "store/node/log/slow_log.h"
#include "store/node/membership/etcd.h"
#include "store/node/membership/membership.h"
#include "store/node/options/option_sources.h"
#include "store/node/rdma/verbs_node.h"
#include "store/node/session/core/session_limits.h"
#include "store/node/session/core/session_table.h"
#include "store/store.h"
#include "transport/endpoint.h"
#include "transport/tls/tls.h"

namespace kv {

struct NodeOptions {
  std::string node_id;
  std::vector<Endpoint> listen;
  std::string admin_host = "127.0.0.1";  ///< Empty: without admin server.
  std::uint16_t admin_port = 7401;
  std::size_t threads = 0;  ///< I/O threads; never 0 after parse_options.
  std::string threads_why;  ///< For the start line: "given", or how the default was chosen.
  std::chrono::microseconds busy_poll{0};
  SessionTableConfig sessions;
  std::uint64_t region_bytes_max_node = 0;  ///< Never 0 after parse_options.
  Duration drain_timeout = 5s;
  std::string log_level = "info";
  bool log_json = false;
  SlowLogConfig slow_log;
  bool check_only = false;
  struct Autotune {
    bool is_asked = false;  ///< Measure the machine, print suggested settings, and exit.
    bool as_json = false, as_toml = false;
  };
  Autotune autotune;
  std::string numa_nodes = "auto";  ///< As for choose_numa(), which has accepted it.
  StoreConfig store;
  SessionLimits session;
  std::vector<std::string> disk_paths;  ///< Empty: without disk tier.
  OperatorKeySource operator_keys;      ///< Not given: disk contents are not encrypted.
  bool spill_save = true;               ///< Write memory's blocks to disk at a clean stop.
  Duration disk_hang = 2s;              ///< With several directories, one whose call takes longer is disabled.
  DiskThreadsConfig disk_threads;
  std::uint64_t warm_bytes_per_second = 256 << 20;  ///< For named contexts, from disk to memory; 0: off.
  enum class Rdma : std::uint8_t { kOff, kAuto, kOn };
  Rdma rdma = Rdma::kAuto;  ///< kOn: fail to start without it.
  VerbsConfig verbs;
  TlsConfig tls;                        ///< Not given: listeners are without TLS.
  bool admin_tls = false;               ///< HTTPS.
  std::string policy_file;              ///< Empty: every connected peer may do everything.
  std::string tenant_secret_file;       ///< Empty: only records tell tenants' namespaces apart.
  std::size_t network_count = 0;        ///< Listeners beyond loopback, including the admin server's.
  std::size_t plain_network_count = 0;  ///< Those without TLS.
  Duration handshake_timeout = 5s;
  std::size_t handshakes_max = 256;
  double handshakes_per_second = 1000;
  EtcdConfig etcd;                      ///< Without endpoints: a single node, or a static list kept by clients.
  std::size_t copy_uses = 0;            ///< Uses after which a path gets a second copy; 0: never.
  std::uint64_t move_rate = 256 << 20;  ///< Limit on bytes a second handed to other nodes; 0: off.
  Duration join_max = 300s;             ///< As in MoverConfig.
  Duration hand_over_max = 30s;         ///< After SIGTERM, before drain_timeout begins.
  std::vector<std::string> peers;       ///< Endpoints of a static list's nodes, for learning together.
  Duration exchange_period = 10s;       ///< Zero: this node learns alone.
  /// Whether the node learns together with others.
  bool exchanges() const {
    return exchange_period > Duration::zero() && store.policy == PolicyKind::kYield &&
           (!peers.empty() || !etcd.endpoints.empty());
  }
  /// `self` lacks its instance, and its endpoints if it advertises those of `listen`.
  MembershipConfig membership;
};

/// The targets of the option table's rows: the options themselves, and values that become options once all are known.
/// Sizes in blocks, for example, depend on an option that may come later on the command line.
struct GivenValues {
  GivenValues() {
    options.store.arena.capacity_bytes = 4ull << 30;
    options.store.curve.is_on = true;
  }
  NodeOptions options;
  std::vector<std::string> listen = {"tcp://127.0.0.1:7400"};
  std::string admin = "127.0.0.1:7401";
  std::size_t capacity_blocks = 0, capacity_block_bytes = 2 << 20, disk_capacity_blocks = 0;
  bool no_huge_pages = false;
  std::string eviction_policy = "auto", spill_policy = "eviction", rdma = "auto";
  double weight = 0;
  Duration etcd_lease = 10s;
  bool allows_plain_network = false;
  std::map<std::string, OptionPlace> places;  ///< By name; absent ones have their defaults.
  std::string file;                           ///< --config.
  std::vector<std::string> unknown_variables;
};

/// Every option as given: its value and origin, so that each can be shown, and changed by name with the same checks as
/// at the start. live/settings.h puts changes into effect.
class GivenOptions {
 public:
  using Source = OptionSource;
  struct Entry {
    std::string name;
    std::vector<std::string> values, otherwise;  ///< In the form that `set` takes; the default.
    Source source;
    std::string place;  ///< As in OptionPlace.
    bool is_list;
    std::string fixed;    ///< Why it cannot be changed while the node runs; empty: it can.
    std::string allowed;  ///< In words.
    bool is_secret;       ///< Lists of options show only whether it has a value.
    /// `values` or `otherwise` in the form that may be shown.
    std::vector<std::string> shown(const std::vector<std::string>& given) const;
  };

  /// Like parse_options(), but with the message in *wrong. nullopt and an empty *wrong: after --help or --version.
  static std::optional<GivenOptions> read(int argc, const char* const* argv, int* exit_code, std::string* wrong);

  /// The options derived from all values together; nullopt and *wrong if they conflict. `reads_files`: policy, TLS too.
  std::optional<NodeOptions> options(std::string* wrong, bool reads_files = true) const;
  std::vector<Entry> list() const;                         ///< In the order of --help.
  const std::string& file() const { return given_.file; }  ///< The TOML file, or empty.
  /// Environment variables that look like misspelt options. An error with --check-config.
  const std::vector<std::string>& unknown_variables() const { return given_.unknown_variables; }
  /// Extends an error, which begins with an option's name, by the value, the allowed values and the value's origin.
  std::string explained(const std::string& wrong) const;
  /// Returns "", or an error with name, value and allowed values; then the old value stays.
  std::string set(const std::string& name, const std::vector<std::string>& values, Source source);
  void take(const std::string& name, const GivenOptions& from);  ///< Value and source. Requires: `name` exists.

 private:
  GivenOptions() = default;
  GivenValues given_;
};

/// Exit statuses of a node that does not start: for a supervisor, which must not start the first again.
inline constexpr int kExitBadConfig = 2;  ///< The text is wrong, and stays so.
inline constexpr int kExitNotNow = 1;     ///< A file, a disk, memory or a service is not there, or not yet.

/// Parses the command line, which may name a TOML file, and the environment. A flag wins over the environment, the
/// environment over the file. Returns nullopt and sets `*exit_code` when the process should end: after --help or
/// --version, or after an error, printed on stderr with the option, its value, the allowed values and its origin.
/// `kept`: receives the options as given, if they are good.
std::optional<NodeOptions> parse_options(int argc, const char* const* argv, int* exit_code,
                                         std::optional<GivenOptions>* kept = nullptr);

}  // namespace kv
