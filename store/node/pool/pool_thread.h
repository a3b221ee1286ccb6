// store/node/pool/pool_thread.h: the pool at work in a daemon.
#pragma once

#include <boost/asio/io_context.hpp>
#include <thread>

#include "store/node/pool/pool.h"
#include "transport/stream.h"

namespace kv {

/// A pool on a thread of its own: what it adds up takes no time of the node's I/O threads.
/// Thread safety: one thread makes and destroys it.
class PoolThread {
 public:
  PoolThread(Clock& clock, LockedStore& store, const ClusterBoard& cluster, PoolBoard& board, PoolConfig config);
  ~PoolThread();                     ///< Within one round of questions.
  void set_period(Duration period);  ///< Any thread, as Pool.

 private:
  asio::io_context context_{1};
  Pool pool_;
  std::thread thread_;
};

}  // namespace kv
