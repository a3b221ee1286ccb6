// store/node/exchange/exchange.h: shares learned use counts with the cluster's other nodes.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/event.h"
#include "client/client.h"
#include "store/node/locked_store.h"
#include "store/node/membership/cluster_view.h"
#include "store/node/membership/exchange_board.h"
#include "store/policy/combined_counts.h"
#include "transport/tls/tls_source.h"

namespace kv {

struct ExchangeConfig {
  std::string node_id;
  std::array<std::uint8_t, 16> instance{};
  std::vector<std::string> peers;  ///< Endpoints; may include this node. Empty: the nodes of the cluster's map.
  Duration period = 10s;
  std::shared_ptr<TlsSource> tls = {};  ///< As in MoverConfig.
};

/// Each period a node publishes its counts to anybody who asks (stats, `learned`), and asks all other nodes. Nodes
/// *pull*, so that only nodes on the list are listened to. Refused: etcd, whose history would grow by each node's
/// kilobytes each period, and which static lists lack; and clients as carriers, since any could report false counts.
///   1. All nodes do so at the same moments of the wall clock, so that the combined counts change together.
///   2. A node that does not answer, or answers nonsense, only counts as silent (CombinedCounts).
///   3. The Store's lock is held for some microseconds at a time.
/// Thread safety: none; on one executor, which must be single-threaded. The board: any thread.
class Exchange {
 public:
  Exchange(asio::any_io_executor executor, Network& network, Clock& clock, LockedStore& store,
           const ClusterBoard& cluster, ExchangeBoard& board, ExchangeConfig config);
  ~Exchange();

  asio::awaitable<void> run();  ///< Returns within one call of the client after stop().
  void stop();
  void set_period(Duration period);  ///< From the next round on; above zero.
  asio::awaitable<void> exchange();  ///< One round, now.

 private:
  static constexpr std::chrono::microseconds kDeadline = 1s;

  YieldCounts own_counts();
  void meet();
  void put_in_force(YieldTable::Combined combined, double unit);
  asio::awaitable<void> pause(Duration most);

  const asio::any_io_executor executor_;
  Network& network_;
  Clock& clock_;
  LockedStore& store_;
  const ClusterBoard& cluster_;
  ExchangeBoard& board_;
  ExchangeConfig config_;

  CombinedCounts counts_;
  std::vector<NodeConfig> others_;
  std::unique_ptr<Client> client_;  ///< For others_; nullptr: others_ is empty.
  bool stops_ = false;
  Event wake_;
  std::unique_ptr<Alarm> alarm_;
};

}  // namespace kv
