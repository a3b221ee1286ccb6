// store/node/server.h: I/O threads, listeners and the sessions on them.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "store/node/session/session.h"
#include "store/node/session/session_table.h"
#include "transport/stream.h"

namespace kv {

struct ServerConfig {
  std::size_t threads = 1;
  std::chrono::microseconds busy_poll{0};  ///< Spin this long after the last event before sleeping.
  SessionTableConfig sessions;
};

/// One io_context per I/O thread; a session lives on one of them, dealt out in turn. Thread safety: all calls from one
/// thread.
class Server {
 public:
  Server(NodeContext& node, ServerConfig config);
  ~Server();  ///< Stops if that was not done.

  /// Starts to accept on `endpoint`. Returns it with its real port. Errors: of Network::listen.
  Result<Endpoint> listen(Network& network, const Endpoint& endpoint);
  void start();  ///< Starts the threads.
  /// From now on sessions have RDMA. Any thread, before stop(); `verbs` outlives this.
  void begin_verbs(VerbsNode& verbs);
  /// Stops accepting, lets running transfers end for up to `timeout`, ends all sessions and joins the threads.
  void stop(Duration timeout);

 private:
  struct Thread;

  asio::awaitable<void> accept(Listener& listener, Thread& thread);
  void run_thread(Thread& thread);

  NodeContext& node_;
  ServerConfig config_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::atomic<std::uint64_t> session_last_{0};
  std::atomic<std::size_t> session_count_{0};
  SessionTable table_;
  std::atomic<bool> stopping_{false};
};

}  // namespace kv
