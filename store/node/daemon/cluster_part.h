// store/node/daemon/cluster_part.h: the node among others: its place on the map, hand-overs, learning together.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"

namespace kv {

class MainLoop;
class MembershipThread;
class Mover;
class Exchange;
class Settings;
class TlsSource;
struct NodeContext;
struct NodeOptions;
template <class Worker>
class WorkerThread;

/// Empty for a node on its own. Starts last and ends first: a node on the map takes requests.
/// Thread safety: none, one thread for all calls.
class ClusterPart {
 public:
  /// `options` and `node` outlive this. `tls`: for connections to other nodes; nullptr: without TLS.
  ClusterPart(const NodeOptions& options, NodeContext& node, std::shared_ptr<TlsSource> tls);
  ~ClusterPart();

  /// The node appears on the map, with these endpoints unless the options name others.
  MembershipThread& join(const std::vector<std::string>& endpoints);
  void start_mover();                ///< If hand-overs are on. Requires join().
  void start_exchange();             ///< If the node learns together with others.
  void wire_up(Settings& settings);  ///< Within Settings::open().

  /// Hands blocks to the nodes that stay, for at most so long, or until a second signal. The node serves meanwhile.
  void hand_over(MainLoop& loop, Duration most);
  void stop_work();  ///< Ends the mover and the exchange. After Settings::close().
  void drain();      ///< Clients place no more blocks here.
  void leave();      ///< Leaves the map. Ends the result of join().

 private:
  const NodeOptions& options_;
  NodeContext& node_;
  const std::shared_ptr<TlsSource> tls_;
  std::unique_ptr<MembershipThread> membership_;
  std::unique_ptr<WorkerThread<Mover>> mover_;
  std::unique_ptr<WorkerThread<Exchange>> exchange_;
};

}  // namespace kv
