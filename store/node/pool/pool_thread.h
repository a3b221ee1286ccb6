// store/node/pool/pool_thread.h: runs the pool in a daemon.
#pragma once

#include <boost/asio/io_context.hpp>
#include <thread>

#include "store/node/pool/pool.h"
#include "transport/stream.h"

namespace kv {

/// A pool on its own thread, so that adding up takes no time from the node's I/O threads.
/// Thread safety: one thread makes and destroys it.
class PoolThread {
 public:
  PoolThread(Clock& clock, LockedStore& store, const ClusterBoard& cluster, PoolBoard& board, PoolConfig config);
  ~PoolThread();                     ///< Takes one round of questions at most.
  void set_period(Duration period);  ///< Any thread.

 private:
  asio::io_context context_{1};
  Pool pool_;
  std::thread thread_;
};

}  // namespace kv
