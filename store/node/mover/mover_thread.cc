#include "store/node/mover/mover_thread.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <utility>

namespace kv {

MoverThread::MoverThread(Clock& clock, LockedStore& store, const HotRoots& hot_roots, const ClusterBoard& board,
                         MoveBoard& moves, MoverConfig config, Mover::Tell tell)
    : mover_(context_.get_executor(), socket_network(), clock, store, hot_roots, board, moves, std::move(config),
             std::move(tell)) {
  // An exception of run() is a bug. It leaves the thread and ends the process, as in a session.
  asio::co_spawn(context_, mover_.run(), [](std::exception_ptr error) {
    if (error) std::rethrow_exception(error);
  });
  thread_ = std::thread([this] { context_.run(); });
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
