// store/node/: kvstore-node, the daemon around one Store. Start here.
//
// Serves sessions on I/O threads, moves bytes between clients and the arena, and runs the disk tier, RDMA, metrics and
// the log. The Store decides which blocks stay (store/store.h). Rooms, from the top; each includes only those below it
// (docs/architecture.md has the arrows):
//   daemon/          main.cc: the command line; daemon.h builds the parts, and takes them down on a signal
//   mover/, exchange/    clients of other nodes: hand blocks to joining nodes, or on leaving; learn with others
//   listen/          server.h: I/O threads, listeners, and the sessions on them; admin.h: metrics and options over HTTP
//   live/            options changed while the node serves
//   jobs/            what was learned and named contexts, kept over a restart; contexts brought from disk to memory
//   session/         session.h: one client's connection; requests/: what a client may ask
//   events/, status/  what people and tools ask; options/: every option, where it was given, and --autotune
//   session/core/    what all requests share; session/tables/: what is bounded for the whole node
//   access/          rights: certificates, the policy in force, the log of operators' acts, erasing a tenant
//   membership/      the cluster's members; rdma/: RDMA devices, kept open, and sessions' lanes
//   disk_worker/     the disk tier at work: writing, reading and loading
//   disk/            the disk tier's disk, striped; rocks/: one directory on RocksDB; files/: what lies beside RocksDB's
//   (store/node)     locked_store.h: the only access to the Store; metrics.h: counters; hot_roots.h: blocks that many
//                    matches begin with; counts_copy.h: a copy of what was learned
//   policy/          the policy file, and the table of rights
//   machine/         this machine's resources: NUMA nodes, limits, disks
//   log/, threads/   the form, the writer and the limits of log lines; the edge of a thread
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "store/node/listen/handshake_rate.h"
#include "store/node/session/core/session_table.h"
#include "store/node/session/session.h"
#include "transport/slow_calls.h"
#include "transport/stream.h"

namespace kv {

struct ServerConfig {
  std::size_t threads = 1;
  std::chrono::microseconds busy_poll{0};  ///< Spin this long after the last event before sleeping.
  SessionTableConfig sessions;
  /// For connections that have not yet proved an identity: their number, the share of one address, and their time.
  SessionTableConfig handshakes{.count_max = 256, .peer_share_max = 0.5};
  Duration handshake_timeout = 5s;
  double handshakes_per_second = 0;  ///< At most half from one address; 0: unlimited.
};

/// One io_context for each I/O thread. A session lives on one of them; new sessions are dealt out in turn.
///   1. Members of an I/O thread are touched on that thread only.
///   2. After stop() all sessions are gone, and this server's code has finished.
/// Thread safety: all calls from one thread, except begin_verbs(), set_limits() and stalled_for(): any.
class Server {
 public:
  Server(NodeContext& node, ServerConfig config);
  ~Server();  ///< Stops at once unless already stopped.

  /// Starts to accept on `endpoint`. Returns it with the actual port. Errors: those of Network::listen.
  Result<Endpoint> listen(Network& network, const Endpoint& endpoint);
  void start();
  /// New sessions use RDMA from now on. Any thread, before stop(); `verbs` outlives this.
  void begin_verbs(VerbsNode& verbs);
  /// Any thread.
  void set_limits(const SessionTableConfig& sessions, std::size_t handshakes_max, double handshakes_per_second);
  /// How long ago the I/O thread that is furthest behind last took new work. Zero once stop() has begun.
  Duration stalled_for() const;
  /// Stops accepting, lets running transfers end for up to `timeout`, ends all sessions and joins the threads.
  void stop(Duration timeout);

 private:
  struct Thread;

  static asio::awaitable<void> come_round(Thread& thread);
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
  std::atomic<std::size_t> session_count_{0};  ///< Including connections in a handshake.
  SessionTable table_;
  SessionTable handshakes_;  ///< Connections without a proved identity yet.
  HandshakeRate handshake_rate_;
  SlowCalls handshakers_;  ///< Calculate for handshakes, at lower priority than sessions.
  std::atomic<bool> stopping_{false};
  HandshakeCounts own_counts_;  ///< Without node_.security.
};

}  // namespace kv
