// store/node/mover/mover_thread.h: runs the mover in a daemon.
#pragma once

#include <boost/asio/io_context.hpp>
#include <thread>

#include "store/node/mover/mover.h"
#include "transport/stream.h"

namespace kv {

/// A mover on its own thread, so that copying and verifying take no time from the node's I/O threads.
/// Thread safety: one thread makes and destroys it; the other calls are safe from any.
class MoverThread {
 public:
  MoverThread(Clock& clock, LockedStore& store, const HotRoots& hot_roots, const ClusterBoard& board, MoveBoard& moves,
              MoverConfig config, Mover::Tell tell);
  ~MoverThread();  ///< Takes one step at most; cancels a put in progress.

  void leave();
  void set_limits(std::uint64_t bytes_per_second, std::size_t copy_uses);  ///< As in MoverConfig.
  bool has_left() const { return mover_.has_left(); }

 private:
  asio::io_context context_{1};
  Mover mover_;
  std::thread thread_;
};

}  // namespace kv
