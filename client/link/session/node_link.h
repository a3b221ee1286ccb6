// client/link/session/node_link.h: the sessions with one node: connects, backs off, breaks, prepares calls, picks
// sessions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/back_off.h"
#include "client/link/breaker.h"
#include "client/link/call.h"
#include "client/link/ping_call.h"
#include "client/link/session/connect_attempt.h"
#include "client/link/session/link_session.h"
#include "client/types/node_status.h"

namespace kv {

/// One node, from the client's view.
///   1. start() never waits. The call ends by its deadline, whatever the node does; an at_once call ends at once while
///      all connections are down.
///   2. Calls drive connecting: without calls the link does not connect. After a failure it pauses for a random part of
///      the back-off, which doubles up to backoff_max until the node has answered.
///   3. After breaker_failures failures in a row (missed deadlines, failed connects, lost sessions) calls end at once
///      for breaker_open; then one call goes through as a probe, whose outcome closes or reopens the breaker. The probe
///      is a ping if the node has stand-ins (probe()), else the caller's call.
///   4. Everything agreed with a node - handles of namespaces and regions, leases, lanes - belongs to its session, and
///      ends with it. A session with another life of the node, perhaps of the same id, is retired for a newer one.
///   5. A session that has not ended is in a connection or in retired_.
/// Thread safety: none; on the client's executor. close() comes before the destructor.
class NodeLink final : private LinkSession::Listener, private ConnectAttempt::Listener {
 public:
  NodeLink(std::shared_ptr<ClientShared> shared, NodeConfig config, Endpoint endpoint);
  ~NodeLink();

  /// Starts `call` after preparing its connection, namespace and region as needed. The call may have ended on return.
  void start(Call& call, TimePoint deadline);
  /// Starts the preparation of a first call in `space`, without waiting.
  void prepare_space(std::uint32_t space);
  void close();  ///< Ends all calls and sessions, permanently.

  /// The breaker is open: calls would end at once, or be probes.
  bool is_away() const { return is_counted_away_; }
  /// No connection is up, and the last one broke or the last attempt failed: the process, or the way to it, is gone.
  bool is_down() const { return up_count_ == 0 && connect_back_off_.pause() > Duration::zero(); }
  bool is_connecting() const { return connecting_count_ > 0; }
  /// Pings the node to learn whether it is back, instead of risking one of the caller's calls. Has no effect while a
  /// ping is in progress or not due.
  void probe();

  struct LendState {
    std::size_t lent = 0, pending = 0;  ///< Sessions with the region; sessions that may get it soon.
  };
  /// Lends `region` to all sessions, and connects those that are missing.
  LendState lend(const std::shared_ptr<LentMemory::Region>& region);
  void take_back(const LentMemory::Region& region);  ///< Before its memory is released.
  NodeStatus status() const;
  const NodeConfig& config() const { return config_; }
  /// Then memory can be lent without RDMA. (Simulated nodes: perhaps.)
  bool is_on_this_host() const {
    return endpoint_.scheme == Endpoint::Scheme::kUnix || endpoint_.scheme == Endpoint::Scheme::kSim;
  }
  const std::string& node_id() const { return node_id_; }  ///< From its latest hello; empty before.

 private:
  /// One connection: empty, being made, or up.
  struct Connection {
    std::shared_ptr<ConnectAttempt> attempt;  ///< Null unless being made.
    std::shared_ptr<LinkSession> session;     ///< With an attempt: waiting for hello.
    bool is_empty() const { return !attempt && !session; }
    bool is_up() const { return !attempt && session; }
  };
  enum class Prepared : std::uint8_t { kReady, kWait, kNoRoom, kFailed, kNotLent, kTooLarge };

  // LinkSession::Listener
  std::string refuses(const LinkTerms& terms) const override;
  void session_up(LinkSession& session) override;
  void session_ended(LinkSession& session, error_code why, std::string text) override;
  void retired_ended(LinkSession& session) override;
  void session_silent(LinkSession& session) override { retire(session); }
  void open_ended(std::uint32_t space, error_code why, const std::string& text) override;
  void pump() override;  ///< Sends the calls that are ready.
  /// The message lane broke, and its session with it. The next try comes after a growing pause,
  /// so that a fabric that cannot carry messages does not cost session after session.
  void messages_broke() override { messages_back_off_.failed(shared_->clock.now()); }
  bool may_try_messages() const override { return messages_back_off_.is_due(shared_->clock.now()); }
  // CallOwner
  bool try_again(Call& call, error_code why, CallSession& session) override;
  void call_ended(const Call& call, bool is_answered) override;
  void call_destroyed(const Call& call) override { unqueue(call); }
  // ConnectAttempt::Listener
  void connected(ConnectAttempt& attempt, std::unique_ptr<Stream> stream) override;
  void connect_failed(ConnectAttempt& attempt, error_code why, std::string text) override;

  Prepared prepare(Call& call, LinkSession*& session);
  LinkSession* pick(const Call& call);
  /// nullptr: the session has ended.
  LinkSession* find(const CallSession* session) const;
  Connection* find_connection(const ConnectAttempt& attempt);
  /// Whether a session that is up has the namespace open, or is opening it.
  bool is_opened_somewhere(std::uint32_t space) const;
  void unqueue(const Call& call);
  void connect_missing();
  void failed_to_connect(Connection& connection, error_code why, std::string text);
  void retire(LinkSession& session);
  error_code why_not_connected() const;
  void note_error(error_code why, std::string text);
  void failure();
  void count_away();

  std::shared_ptr<ClientShared> shared_;
  const NodeConfig config_;
  const Endpoint endpoint_;
  std::vector<Connection> connections_;                ///< connections_per_node; never moved.
  std::vector<std::shared_ptr<LinkSession>> retired_;  ///< Out of use, with unfinished business.
  std::vector<Call*> waiting_;                         ///< In order of start.
  bool pumping_ = false, pump_again_ = false, closed_ = false;

  std::string node_id_;
  std::size_t up_count_ = 0, connecting_count_ = 0;  ///< Connections.
  BackOff connect_back_off_, messages_back_off_;
  Breaker breaker_;
  bool is_counted_away_ = false;  ///< In ClientShared::away_count.
  PingCall probe_;

  std::uint64_t calls_ = 0, failures_ = 0, timeouts_ = 0, connects_ = 0, openings_ = 0;
  error_code last_error_;
  std::string last_error_text_;
};

}  // namespace kv
