// store/node/daemon/: the process around one node: starts its parts, runs them until a signal, and stops them.
//
// Knows every part of store/node; none of them knows it. Files, in reading order:
//   daemon.h          the parts, in the order of their dependencies (this file)
//   numa_placement.h  where block memory lies, and on which processors threads run
//   disk_part.h       the disk tier with its keys, learned counts and named contexts
//   rdma_part.h       RDMA, at the start or when a device appears
//   cluster_part.h    the map, hand-overs, learning together
//   main_loop.h       signals, and small work in rounds
//   cannot_start.h    the last words of a node that cannot start
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace kv {

class AccessControl;
class AdminServer;
class CapacityKeeper;
class ClusterPart;
class DiskPart;
class EventAnswers;
class GivenOptions;
class LockedStore;
class LogWriter;
class MainLoop;
class MembershipThread;
class Network;
class NodeMetrics;
class NodeSecurity;
class NumaPlacement;
class RdmaPart;
class Server;
class Settings;
class StartWatch;
class StatusAnswers;
class TenantEraser;
class TlsSource;
struct NodeContext;
struct NodeOptions;
struct StoreConfig;

/// Members are declared in the order in which parts start, and so end in reverse, however run() ends: the Store
/// outlives the disk tier, both outlive RDMA, and all of them outlive the server with its sessions.
/// Thread safety: none; one thread for all calls, which catches the process's signals.
class Daemon {
 public:
  /// Reads flags, environment and file again, as Settings::Read.
  using ReadOptions = std::function<std::optional<GivenOptions>(std::string* wrong)>;

  explicit Daemon(const NodeOptions& options);  ///< `options` outlive this.
  ~Daemon();

  /// The node's whole life, until SIGTERM or SIGINT. `given`: the origin of the options. Returns the exit status: 0, or
  /// 1 after a reason on stderr. Throws when the start meets an unexpected failure. Once.
  int run(GivenOptions given, ReadOptions read);

 private:
  /// For a part that another pointer owns.
  struct StopRdma {
    void operator()(RdmaPart* part) const;
  };

  bool start(GivenOptions given, ReadOptions read);
  // Steps of start(), in its order. false or nullopt: stderr says why the node cannot start.
  bool prepare(GivenOptions given, ReadOptions read);
  std::optional<StoreConfig> plan_store();
  bool open_access();
  bool open_tls();
  bool start_admin();
  bool make_store(const StoreConfig& config);
  void make_context();
  void bound_request_memory();
  void watch_requests();
  bool open_disk();
  void make_eraser();
  bool open_tls_to_others();
  void secure();
  void watch_tenants();
  void watch_memory();
  void watch_rdma();
  void watch_cluster();
  void make_status();
  void open_answers();
  void keep_capacity();
  void open_admin();
  void make_server();
  bool listen();
  void join_others();
  void open_settings();
  void report_ready();

  void serve();
  Duration keep_house();  ///< A round of the main loop, as is learn(). Both return the pause until the next one.
  Duration learn();
  void reload();  ///< For SIGHUP.

  void stop();

  bool has_cluster() const;
  bool has_joined() const;
  bool is_ready() const;
  Duration stalled_for() const;  ///< As Server's; zero unless it serves.
  std::string why_not_ready() const;
  std::string why_unhealthy() const;  ///< Empty: it is healthy.

  const NodeOptions& options_;
  std::unique_ptr<LogWriter> log_;  ///< Ends last: all parts write to it.
  std::unique_ptr<NumaPlacement> numa_;
  std::unique_ptr<MainLoop> loop_;
  bool has_config_file_ = false;
  std::unique_ptr<Settings> settings_;
  std::unique_ptr<NodeMetrics> metrics_;
  std::unique_ptr<StartWatch> watch_;
  std::unique_ptr<AccessControl> access_;
  std::shared_ptr<TlsSource> tls_;            ///< nullptr: listeners are without TLS.
  std::unique_ptr<AdminServer> early_admin_;  ///< While the node starts; then admin_.
  std::string admin_text_;                    ///< For the log.
  std::unique_ptr<LockedStore> store_;
  SteadyClock clock_;
  std::unique_ptr<NodeContext> node_;
  std::unique_ptr<DiskPart> disk_;
  std::unique_ptr<TenantEraser> eraser_;      ///< Uses the disk until its end.
  std::shared_ptr<TlsSource> tls_to_others_;  ///< For this node's own connections; nullptr: without TLS, or alone.
  std::unique_ptr<NodeSecurity> security_;
  std::unique_ptr<RdmaPart> rdma_;
  std::atomic<bool> ready_{false};
  std::atomic<MembershipThread*> membership_{nullptr};  ///< Set once the node listens.
  std::unique_ptr<StatusAnswers> status_;
  std::unique_ptr<EventAnswers> events_;
  std::unique_ptr<CapacityKeeper> keeper_;  ///< Outlives the admin server, whose scrapes read it.
  std::unique_ptr<Network> tls_network_;    ///< nullptr: without TLS.
  std::unique_ptr<Server> server_;
  std::unique_ptr<AdminServer> admin_;             ///< Ends before the objects that its pages read.
  std::unique_ptr<RdmaPart, StopRdma> stop_rdma_;  ///< RDMA reports devices to the server: it stops before that ends.
  std::vector<std::string> endpoints_;             ///< With the actual ports.
  std::unique_ptr<ClusterPart> cluster_;
  Duration learn_pause_;
};

}  // namespace kv
