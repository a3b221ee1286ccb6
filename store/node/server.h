// store/node/: kvstore-node, the daemon around one Store. Start here.
//
// Accepts sessions, serves them on I/O threads, moves bytes between clients and the arena, and keeps the disk tier,
// RDMA, metrics and the log going. What is kept and what goes is the Store's decision (store/store.h); how bytes travel
// is the transport's. Files, in reading order:
//   main.cc          puts the parts together, and takes them apart when a signal comes
//   config.h         every option; option_table.h: one row for each, and how a row is read
//   server.h         I/O threads, listeners, and the sessions on them
//   security.h       certificates, how long they last, handshakes; reads them and the policy again
//   access/          who may do what: the policy, the table of rights, the log of operators' acts
//   session/         one client's connection: its requests, its transfers, what it may use
//   locked_store.h   the one door to the Store
//   hot_roots.h      which blocks many matches begin with: clients keep them on every node
//   membership/      who else belongs to the cluster
//   mover/           hands blocks to nodes that join, or on leaving; a client of theirs
//   spill/           the disk tier at work: who writes, reads and loads
//   disk/            the disk tier's disk, on RocksDB
//   learned_keeper.h what the policy has learned, kept over a restart; counts_copy.h: a copy of it
//   context_keeper.h named contexts, kept over a restart; context_warmer.h: brought from disk to memory
//   rdma/            RDMA devices, opened and kept open
//   metrics.h        what is counted
//   admin.h          metrics and readiness over HTTP, and the options
//   live/            options changed while the node serves
//   machine/         what this machine has and allows: NUMA nodes, limits, disks; --autotune
//   log_format.h     what a line of the log looks like
//   log_limit.h      how many lines a client can cause
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "store/node/handshake_rate.h"
#include "store/node/session/session.h"
#include "store/node/session/session_table.h"
#include "transport/slow_calls.h"
#include "transport/stream.h"

namespace kv {

struct ServerConfig {
  std::size_t threads = 1;
  std::chrono::microseconds busy_poll{0};  ///< Spin this long after the last event before sleeping.
  SessionTableConfig sessions;
  /// Of connections that have not proved who they are: how many, how many of them from one address, and for how long.
  SessionTableConfig handshakes{.count_max = 256, .peer_share_max = 0.5};
  Duration handshake_timeout = 5s;
  double handshakes_per_second = 0;  ///< Half of them from one address; 0: no bound.
};

/// One io_context for each I/O thread. A session lives on one of them; new sessions are dealt out in turn.
///   1. What belongs to an I/O thread is touched on that thread only.
///   2. After stop() no session is left, and nothing of this server is called any more.
/// Thread safety: all calls from one thread, but begin_verbs() and set_limits() from any.
class Server {
 public:
  Server(NodeContext& node, ServerConfig config);
  ~Server();  ///< Stops at once if that was not done.

  /// Starts to accept on `endpoint`. Returns it with its real port. Errors: those of Network::listen.
  Result<Endpoint> listen(Network& network, const Endpoint& endpoint);
  void start();  ///< Starts the threads.
  /// From now on new sessions have RDMA. Any thread, before stop(); `verbs` outlives this.
  void begin_verbs(VerbsNode& verbs);
  /// Any thread.
  void set_limits(const SessionTableConfig& sessions, std::size_t handshakes_max, double handshakes_per_second);
  /// Stops accepting, lets running transfers end for up to `timeout`, ends all sessions and joins the threads.
  void stop(Duration timeout);

 private:
  struct Thread;

  asio::awaitable<void> accept(Listener& listener, Thread& home);
  void take_in(Thread& thread, std::unique_ptr<Stream> stream);
  void begin_handshake(Thread& thread, std::unique_ptr<Stream> stream);
  asio::awaitable<void> shake_hands(Thread& thread, std::unique_ptr<Stream> stream,
                                    std::shared_ptr<SessionTable::Seat> seat);
  void begin_session(Thread& thread, std::unique_ptr<Stream> stream, std::shared_ptr<SessionTable::Seat> seat);
  void refuse(Stream& stream, Thread& thread, const std::string& peer, SessionTable::Refusal refusal);
  void run_thread(Thread& thread);
  void end_sessions(std::chrono::steady_clock::time_point until, void (*end)(Session&));
  HandshakeCounts& counts() { return node_.security == nullptr ? own_counts_ : node_.security->handshakes; }

  NodeContext& node_;
  ServerConfig config_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::atomic<std::uint64_t> session_last_{0};
  std::atomic<std::size_t> session_count_{0};  ///< Connections that shake hands too.
  SessionTable table_;
  SessionTable handshakes_;  ///< Who has not proved who they are yet.
  HandshakeRate handshake_rate_;
  SlowCalls handshakers_;  ///< Calculate for those, behind what sessions need.
  std::atomic<bool> stopping_{false};
  HandshakeCounts own_counts_;  ///< Where nobody looks at them.
};

}  // namespace kv
