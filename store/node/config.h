// store/node/config.h: every option of kvstore-node, from file, environment and flags.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "store/node/disk/spill_keys.h"
#include "store/node/membership/etcd.h"
#include "store/node/membership/membership.h"
#include "store/node/option_sources.h"
#include "store/node/rdma/verbs_node.h"
#include "store/node/session/session.h"
#include "store/node/slow_log.h"
#include "store/node/spill/spill_driver.h"
#include "store/store.h"
#include "transport/endpoint.h"

namespace kv {

struct NodeOptions {
  std::string node_id;
  std::vector<Endpoint> listen;
  std::string admin_host = "127.0.0.1";  ///< Empty: no admin server.
  std::uint16_t admin_port = 7401;
  std::size_t threads = 0;  ///< I/O threads; never 0 after parse_options.
  std::chrono::microseconds busy_poll{0};
  SessionTableConfig sessions;
  std::uint64_t region_bytes_max_node = 0;  ///< Never 0 after parse_options.
  Duration drain_timeout = 5s;
  std::string log_level = "info";
  bool log_json = false;
  SlowLogConfig slow_log;
  bool check_only = false;
  struct Autotune {
    bool is_asked = false;  ///< Measure the machine, say what to set, and end.
    bool as_json = false, as_toml = false;
  };
  Autotune autotune;
  std::string numa_nodes = "auto";  ///< As choose_numa() takes it, which took it.
  StoreConfig store;
  SessionLimits session;
  std::vector<std::string> spill_paths;  ///< Empty: no disk tier.
  SpillKeySource spill_keys;             ///< Not given: what is on disk is not encrypted.
  bool spill_save = true;                ///< Write what is in memory at a clean stop.
  Duration spill_hang = 2s;              ///< Of several directories, a directory whose call takes longer is left out.
  SpillDriverConfig spill;
  std::uint64_t warm_bytes_per_second = 256 << 20;  ///< Of named contexts, from disk to memory; 0: nothing.
  enum class Rdma : std::uint8_t { kOff, kAuto, kOn };
  Rdma rdma = Rdma::kAuto;  ///< kOn: no start without it.
  VerbsConfig verbs;
  TlsConfig tls;                        ///< Not given: no listener speaks TLS.
  bool admin_tls = false;               ///< HTTPS.
  std::string policy_file;              ///< Empty: whoever is let in may do everything.
  std::string tenant_secret_file;       ///< Empty: a tenant's namespaces are told apart by their records alone.
  std::size_t network_count = 0;        ///< Listeners beyond loopback, with and without TLS, the admin server's too.
  std::size_t plain_network_count = 0;  ///< Listeners beyond loopback without TLS, the admin server's too.
  Duration handshake_timeout = 5s;
  std::size_t handshakes_max = 256;
  double handshakes_per_second = 1000;
  EtcdConfig etcd;                      ///< Without endpoints: no cluster, or a static list that clients have.
  std::size_t copy_uses = 0;            ///< So often used, a path gets a second copy; 0: none does.
  std::uint64_t move_rate = 256 << 20;  ///< Bytes a second that are handed to other nodes at most; 0: nothing is.
  Duration join_max = 300s;             ///< As MoverConfig.
  Duration hand_over_max = 30s;         ///< After SIGTERM, before drain_timeout begins.
  std::vector<std::string> peers;       ///< Endpoints of a static list's nodes, which learn together.
  Duration pool_period = 10s;           ///< Zero: this node learns alone, and tells nobody.
  /// Whether it learns together with others.
  bool pools() const {
    return pool_period > Duration::zero() && store.policy == PolicyKind::kYield &&
           (!peers.empty() || !etcd.endpoints.empty());
  }
  MembershipConfig
      membership;  ///< `self` without its instance, and without endpoints where it advertises what it listens on.
};

/// Every option as it was given: its value and where that came from. So each can be shown, and changed by its name with
/// the same checks as at the start. A change does nothing by itself (live/settings.h).
class GivenOptions {
 public:
  using Source = OptionSource;
  struct Entry {
    std::string name;
    std::vector<std::string> values, otherwise;  ///< As `set` takes them; the default.
    Source source;
    std::string place;  ///< As OptionPlace has it.
    bool is_list;
    std::string fixed;    ///< Why it cannot be changed while the node runs; empty: it can.
    std::string allowed;  ///< In words.
    bool is_secret;       ///< Who lists options shows that there is a value, and not which.
    /// Of `values`, or `otherwise`: as they may be shown.
    std::vector<std::string> shown(const std::vector<std::string>& given) const;
  };

  /// As parse_options(), but says nothing on stderr: *wrong is what there would be to say. Nothing and an empty *wrong:
  /// after --help or --version.
  static std::optional<GivenOptions> read(int argc, const char* const* argv, int* exit_code, std::string* wrong);
  GivenOptions(const GivenOptions& other);
  GivenOptions(GivenOptions&& other) noexcept;
  GivenOptions& operator=(GivenOptions&& other) noexcept;
  ~GivenOptions();

  /// What follows from all of them together; nothing, and *wrong, if they do not fit together. `reads_files`: looks
  /// into the files of certificates and policy too.
  std::optional<NodeOptions> options(std::string* wrong, bool reads_files = true) const;
  std::vector<Entry> list() const;  ///< In the order of --help.
  const std::string& file() const;  ///< The TOML file; empty: none.
  /// Variables of the environment that look like options and are none. An error with --check-config.
  const std::vector<std::string>& unknown_variables() const;
  /// What is wrong with an option's value, beginning with its name: with the value, what is allowed and where it
  /// stands.
  std::string explained(const std::string& wrong) const;
  /// Returns "", or what is wrong, by name, value and what is allowed; then nothing changes.
  std::string set(const std::string& name, const std::vector<std::string>& values, Source source);
  void take(const std::string& name, const GivenOptions& from);  ///< The value and its source. Requires: it is one.

  struct Given;

 private:
  explicit GivenOptions(std::unique_ptr<Given> given);
  std::unique_ptr<Given> given_;
};

/// Parses the command line, which may name a TOML file, and the environment. A flag wins over the environment, the
/// environment over the file. Returns nothing and sets `*exit_code` when the process should end instead: after --help
/// or --version, or with a message on stderr that names the option, the value, what is allowed, and where it stands.
std::optional<NodeOptions> parse_options(int argc, const char* const* argv, int* exit_code);

}  // namespace kv
