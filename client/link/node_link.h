// client/link/node_link.h: the sessions with one node: connect, back off, break, prepare each call and pick its
// session.
#pragma once

#include <boost/asio/cancellation_signal.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/link/link_session.h"

namespace kv {

/// One node, as the client sees it.
///   1. start() never waits. The call ends by its deadline, whatever the node does.
///   2. Connecting is driven by calls: nothing is tried while nobody asks. After a failure nothing is tried for a
///   random
///      part of the back-off, which doubles up to backoff_max until the node has answered something.
///   3. After breaker_failures failures in a row (missed deadlines, failed connects, lost sessions) calls end at once
///      for breaker_open; then one call goes through as a probe, and what becomes of it closes or opens the breaker.
///   4. All that was agreed with a node - handles of namespaces and regions, leases, lanes - belongs to the session
///      where it was agreed, and ends with it. A session of another life of the node, which may have the same id, is
///      retired as soon as a newer one is met.
/// Thread safety: none; on the client's executor.
class NodeLink : public std::enable_shared_from_this<NodeLink> {
 public:
  NodeLink(std::shared_ptr<ClientShared> shared, NodeConfig config, Endpoint endpoint);
  ~NodeLink();

  /// Starts `call`, whose preparation (connection, namespace, region) is made first if it is missing. May end the call
  /// before it returns.
  void start(Call& call, TimePoint deadline);
  void close();  ///< Ends everything, now and for ever.

  struct LendState {
    std::size_t lent = 0, pending = 0;  ///< Sessions that have it; that may have it soon.
  };
  /// Lends `region` to all sessions, and connects those that are missing.
  LendState lend(const std::shared_ptr<LentMemory::Region>& region);
  void take_back(const LentMemory::Region& region);  ///< Before its memory is given up.
  NodeStatus status() const;

  // From sessions and calls.
  void session_up(LinkSession& session);
  void session_ended(LinkSession& session, error_code why, std::string text);
  void retire(LinkSession& session);
  void retired_ended(LinkSession& session);
  void pump();  ///< Sends what can be sent by now.
  /// True if the call goes on. `session`: where it was answered, or nullptr.
  bool retry(Call& call, error_code why, LinkSession* session);
  void open_ended(std::uint32_t space, error_code why, const std::string& text);
  void call_ended(const Call& call);
  void unqueue(const Call& call);
  /// The lane for messages broke, and its session with it. It is tried again after a pause that grows, so that a fabric
  /// that carries no messages does not cost one session after the other.
  void messages_broke();
  bool may_try_messages() const { return shared_->clock.now() >= next_messages_; }

 private:
  struct Slot;
  enum class Prepared { kReady, kWait, kNoRoom, kFailed, kNotLent, kTooLarge };

  Prepared prepare(Call& call, LinkSession*& session);
  LinkSession* pick(const Call& call) const;
  /// Whether a session that is up has the namespace open, or is opening it.
  bool is_opened_somewhere(std::uint32_t space) const;
  void connect_missing();
  static asio::awaitable<void> connect(std::shared_ptr<NodeLink> self, Slot& slot, std::uint64_t attempt);
  void connect_failed(Slot& slot, error_code why, std::string text);
  void failure();
  void back_off();
  bool breaker_is_open() const { return failures_in_row_ >= shared_->config.breaker_failures; }

  std::shared_ptr<ClientShared> shared_;
  const NodeConfig config_;
  const Endpoint endpoint_;
  std::vector<std::unique_ptr<Slot>> slots_;           ///< connections_per_node.
  std::vector<std::shared_ptr<LinkSession>> retired_;  ///< Out of use, with unfinished business.
  std::vector<Call*> waiting_;                         ///< In order of start.
  bool pumping_ = false, pump_again_ = false, closed_ = false;

  std::string node_id_;
  std::size_t up_count_ = 0, connecting_count_ = 0;
  TimePoint next_attempt_{}, next_messages_{};
  Duration backoff_{}, messages_backoff_{};
  std::size_t failures_in_row_ = 0;
  TimePoint breaker_until_{};
  const Call* probe_ = nullptr;

  std::uint64_t calls_ = 0, failures_ = 0, timeouts_ = 0, connects_ = 0;
  error_code last_error_;
  std::string last_error_text_;
};

}  // namespace kv
