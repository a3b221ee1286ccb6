// store/node/pool/pool.h: learns together with the cluster's other nodes when blocks are used again.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/event.h"
#include "client/client.h"
#include "store/count_pool.h"
#include "store/node/locked_store.h"
#include "store/node/membership/cluster_view.h"
#include "store/node/pool/pool_board.h"
#include "transport/tls/tls_source.h"

namespace kv {

struct PoolConfig {
  std::string node_id;
  std::array<std::uint8_t, 16> instance{};
  std::vector<std::string> peers;  ///< Endpoints. Empty: the nodes of the cluster's map. This one may be among them.
  Duration period = 10s;
  std::shared_ptr<TlsSource> tls = {};  ///< As MoverConfig.
};

/// Each period a node writes down what it has counted, for whoever asks (stats, `learned`), and asks all others. Nodes
/// *pull*: so nobody is heard who is not on the list. Refused: etcd, whose history would grow by each node's kilobytes
/// each period, and which static lists lack; and clients as carriers, since any of them could tell anything.
///   1. All nodes do so at the same moments, by the clock on the wall: what is in force changes together.
///   2. A node that does not answer, or tells nonsense, changes nothing but what CountPool says of silence.
///   3. The Store's lock is held for some microseconds at a time.
/// Thread safety: none; on one executor, which must be single-threaded. The board: any thread.
class Pool {
 public:
  Pool(asio::any_io_executor executor, Network& network, Clock& clock, LockedStore& store, const ClusterBoard& cluster,
       PoolBoard& board, PoolConfig config);
  ~Pool();

  asio::awaitable<void> run();  ///< Until stop(), which it outlasts by one call of the client.
  void stop();
  void set_period(Duration period);  ///< From the next round on; more than zero.
  asio::awaitable<void> exchange();  ///< One round, now.

 private:
  static constexpr std::chrono::microseconds kDeadline = 1s;

  YieldCounts own_counts();
  void meet();
  void put_in_force(YieldTable::Pooled pooled, double unit);
  asio::awaitable<void> pause(Duration most);

  const asio::any_io_executor executor_;
  Network& network_;
  Clock& clock_;
  LockedStore& store_;
  const ClusterBoard& cluster_;
  PoolBoard& board_;
  PoolConfig config_;

  CountPool pool_;
  std::vector<NodeConfig> others_;
  std::unique_ptr<Client> client_;  ///< Of others_; nullptr: there are none.
  bool stops_ = false;
  Event wake_;
  std::unique_ptr<Alarm> alarm_;
};

}  // namespace kv
