// store/node/threads/worker_thread.h: runs the mover, the exchange or the warmer in a daemon.
#pragma once

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <thread>
#include <utility>

#include "store/node/threads/thread_border.h"

namespace kv {

namespace asio = boost::asio;

/// A Worker has a coroutine run(), which returns after stop(). Here it has a thread of its own, so that it takes no
/// time from the node's I/O threads. Thread safety: one thread makes and destroys it; post() from any.
template <class Worker>
class WorkerThread {
 public:
  /// `arguments`: the Worker's behind its executor.
  template <class... Arguments>
  explicit WorkerThread(NodeThread name, Arguments&&... arguments)
      : worker_(context_.get_executor(), std::forward<Arguments>(arguments)...) {
    asio::co_spawn(context_, worker_.run(), BorderOf{name});
    thread_ = std::thread([this, name] { run_within_border(name, context_); });
  }
  ~WorkerThread() { stop(); }
  /// Waits for the Worker: the mover takes one step at most, the exchange one round of questions, the warmer one block.
  /// On the thread that made this; again: nothing.
  void stop() {
    if (!thread_.joinable()) return;
    post([](Worker& worker) { worker.stop(); });
    thread_.join();
  }
  Worker& worker() { return worker_; }  ///< For calls that any thread may make.
  /// Calls call(worker) on the thread.
  template <class Call>
  void post(Call call) {
    asio::post(context_, [this, call = std::move(call)] { call(worker_); });
  }

 private:
  asio::io_context context_{1};
  Worker worker_;
  std::thread thread_;
};

}  // namespace kv
