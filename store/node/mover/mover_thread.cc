#include "store/node/mover/mover_thread.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "store/node/thread_border.h"

namespace kv {

MoverThread::MoverThread(Clock& clock, LockedStore& store, const HotRoots& hot_roots, const ClusterBoard& board,
                         MoveBoard& moves, MoverConfig config, Mover::Tell tell)
    : mover_(context_.get_executor(), socket_network(), clock, store, hot_roots, board, moves, std::move(config),
             std::move(tell)) {
  asio::co_spawn(context_, mover_.run(), BorderOf{NodeThread::kMover});
  thread_ = std::thread([this] { run_within_border(NodeThread::kMover, context_); });
}

MoverThread::~MoverThread() {
  asio::post(context_, [this] { mover_.stop(); });
  thread_.join();
}

void MoverThread::set_limits(std::uint64_t bytes_per_second, std::size_t copy_uses) {
  asio::post(context_, [=, this] { mover_.set_limits(bytes_per_second, copy_uses); });
}

void MoverThread::leave() {
  asio::post(context_, [this] { mover_.leave(); });
}

}  // namespace kv
