#include "store/node/pool/pool_thread.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "store/node/thread_border.h"

namespace kv {

PoolThread::PoolThread(Clock& clock, LockedStore& store, const ClusterBoard& cluster, PoolBoard& board,
                       PoolConfig config)
    : pool_(context_.get_executor(), socket_network(), clock, store, cluster, board, std::move(config)) {
  asio::co_spawn(context_, pool_.run(), BorderOf{NodeThread::kPool});
  thread_ = std::thread([this] { run_within_border(NodeThread::kPool, context_); });
}

void PoolThread::set_period(Duration period) {
  asio::post(context_, [this, period] { pool_.set_period(period); });
}

PoolThread::~PoolThread() {
  asio::post(context_, [this] { pool_.stop(); });
  thread_.join();
}

}  // namespace kv
