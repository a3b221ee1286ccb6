#include "store/node/pool/pool_thread.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <utility>

namespace kv {

PoolThread::PoolThread(Clock& clock, LockedStore& store, const ClusterBoard& cluster, PoolBoard& board,
                       PoolConfig config)
    : pool_(context_.get_executor(), socket_network(), clock, store, cluster, board, std::move(config)) {
  // An exception of run() is a bug. It leaves the thread and ends the process, as in a session.
  asio::co_spawn(context_, pool_.run(), [](std::exception_ptr error) {
    if (error) std::rethrow_exception(error);
  });
  thread_ = std::thread([this] { context_.run(); });
}

void PoolThread::set_period(Duration period) {
  asio::post(context_, [this, period] { pool_.set_period(period); });
}

PoolThread::~PoolThread() {
  asio::post(context_, [this] { pool_.stop(); });
  thread_.join();
}

}  // namespace kv
