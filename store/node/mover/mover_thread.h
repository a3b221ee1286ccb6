// store/node/mover/mover_thread.h: the mover at work in a daemon.
#pragma once

#include <boost/asio/io_context.hpp>
#include <thread>

#include "store/node/mover/mover.h"
#include "transport/stream.h"

namespace kv {

/// A mover on a thread of its own: what it copies and verifies takes no time of the node's I/O threads.
/// Thread safety: one thread makes and destroys it; the rest from any.
class MoverThread {
 public:
  MoverThread(Clock& clock, LockedStore& store, const HotRoots& hot_roots, const ClusterBoard& board, MoveBoard& moves,
              MoverConfig config, Mover::Tell tell);
  ~MoverThread();  ///< Within the step that is under way; a put is cancelled.

  void leave();
  void set_limits(std::uint64_t bytes_per_second, std::size_t copy_uses);  ///< As MoverConfig.
  bool has_left() const { return mover_.has_left(); }

 private:
  asio::io_context context_{1};
  Mover mover_;
  std::thread thread_;
};

}  // namespace kv
