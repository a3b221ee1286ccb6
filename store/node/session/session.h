// store/node/session/: one client of a node, from hello to the end of its connection. Start here.
//
// Depends on frames, the store and the disk tier; opens no sockets, files or devices itself. RDMA is confined to
// session_rdma.h. Files, in reading order:
//   session.h               lives, reads frames, ends
//   dispatcher.h            requests, each to its part; and those in flight
//   core/greeting.h         hello: who the client is
//   core/session_core.h     shared by its parts: the client's stream, answers, the node (node_context.h), its limits
//                           (session_limits.h)
//   transfers/get.h         blocks of a chain leave, set_get.h: those of a set; get_in_progress.h is the common base
//   transfers/put.h         blocks enter; put_order.h: what was offered, verification.h: what RDMA brought
//   transfers/block_path.h  how blocks travel: in the stream, through shared memory, by RDMA
//   core/region_table.h     memory that the client lends; tables/lent_regions.h bounds it for the whole node
//   transfers/read_ahead.h  blocks that lie on disk; prefetch.h brings some before a request for them
//   core/space_door.h       namespaces; tables/space_handles.h has the numbers by which clients refer to them
//   requests/lookups.h      requests without block transfers; drops.h those that erase
//   requests/questions.h    what people and tools ask; the answers are those of the admin port
//   requests/misses.h       why a chain is not found
//   requests/contexts.h     prefixes that are kept by name
//   core/slow_requests.h    a request's entry in the slow log
//   core/replies.h          how answers leave; message_answers.h those to requests that came by RDMA's SEND
//   core/session_rdma.h     lanes, and memory that is reached by RDMA
//   core/session_table.h    the node's sessions by peer, and which one makes room for a new one
//   tables/table_budget.h   bounds the memory of all sessions for large requests
//   core/request_kinds.h    classes of request types
//   core/session_wire.h     how tables are read and built
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/clock.h"
#include "base/event.h"
#include "store/node/session/core/message_answers.h"
#include "store/node/session/core/node_context.h"
#include "store/node/session/core/session_core.h"
#include "store/node/session/core/session_rdma.h"
#include "store/node/session/core/session_table.h"
#include "store/node/session/dispatcher.h"
#include "transport/frames/frame_reader.h"
#include "transport/stream.h"

namespace kv {

/// Reads frames, hands the requests to its dispatcher, and ends overdue work. The peer's input is untrusted.
///   1. The stream is closed only after the last copy into or out of the session's regions: a client that sees the end
///      of the stream may reuse the memory it lent; RDMA memory, once it has ended its own queue pairs.
///   2. Memory held for a session is bounded by SessionLimits (Dispatcher, and the parts' own bounds).
///   3. When run() returns, all of the session is gone from the store, except pins still used by a device.
/// greet() establishes the client's identity, SpaceDoor its visible namespaces.
/// Thread safety: none; all calls on the executor.
class Session final : public SessionCore {
 public:
  /// `verbs`: of the thread that the executor runs on; nullptr: without RDMA.
  Session(NodeContext& node, SessionId id, std::unique_ptr<Stream> stream, asio::any_io_executor executor,
          std::shared_ptr<VerbsThread> verbs = nullptr);
  ~Session() override;
  /// Before run(): its place among the node's sessions, which it leaves when it ends. The table outlives it.
  void sit(SessionTable& table, std::shared_ptr<SessionTable::Seat> seat);

  /// Serves until the peer leaves, breaks a rule or terminate() is called; then the session's resources are released.
  asio::awaitable<void> run();
  void terminate(SessionEnd why) override;
  void terminate_if_idle(SessionEnd why = SessionEnd::kDrained);  ///< Unless a transfer is in progress.

  // Of SessionCore, for its parts.
  void was_kept_waiting() override;
  void job_begun() override { ++job_count_; }
  void job_ended() override;

 private:
  using Frame = FrameReader::Frame;

  static asio::awaitable<void> write(std::shared_ptr<Session> self, SessionJob job);
  asio::awaitable<void> read();
  void reading_failed(error_code error);
  bool follows_rules(const Frame& frame);  ///< False after an error: the session is over.
  bool on_hello(const Frame& frame);       ///< The same.
  void on_message(std::span<const std::byte> message);
  void request_came();
  void room_is_wanted();
  std::size_t queued_bytes_max() const;

  void watch();  ///< Runs periodically: ends overdue work.
  bool reads_too_slowly(TimePoint now);
  bool sends_too_slowly(TimePoint now);
  void close_stream();
  bool is_idle() const;  ///< Ending it costs the client nothing.
  void make_room();
  std::shared_ptr<Session> self() { return std::static_pointer_cast<Session>(shared_from_this()); }

  FrameReader reader_;
  SessionRdma rdma_;
  MessageAnswers messages_;
  Dispatcher dispatcher_;

  TableBudget::Account table_room_;  ///< Of reader_.
  std::uint64_t wanted_in_frame_ = 0;
  TimePoint wanted_since_{};

  std::unique_ptr<Alarm> alarm_;
  std::size_t job_count_ = 0;
  Event jobs_done_;
  SessionTable* table_ = nullptr;
  std::shared_ptr<SessionTable::Seat> seat_;
  TimePoint last_request_{}, idle_told_{};
  TimePoint certificate_end_ = TimePoint::max();  ///< Of the client's.
  bool is_greeted_ = false;
  SessionEnd end_ = SessionEnd::kPeerClosed;

  struct Progress {
    std::uint64_t bytes = 0;
    TimePoint since{};
  } read_progress_, write_progress_;  ///< In write_progress_, `bytes` must have left by `since` + write_timeout.
};

}  // namespace kv
