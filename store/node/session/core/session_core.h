// store/node/session/core/session_core.h: shared by the parts of one session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "store/node/access/access.h"
#include "store/node/access/audit.h"
#include "store/node/log/request_phases.h"
#include "store/node/session/core/node_context.h"
#include "store/node/session/core/replies.h"
#include "transport/frames/frame_reader.h"
#include "transport/frames/frame_writer.h"
#include "transport/stream.h"

namespace kv {

/// Access of requests and transfers to the node and the client. They hold it by shared_ptr: a device may use slots, and
/// the writer borrow them, for longer than the session serves. Only Session derives from it.
/// Thread safety: none; on the executor.
class SessionCore : public std::enable_shared_from_this<SessionCore> {
 public:
  using Frame = FrameReader::Frame;

  SessionCore(NodeContext& n, SessionId i, std::unique_ptr<Stream> s, asio::any_io_executor e)
      : node(n),
        id(i),
        executor(std::move(e)),
        stream(std::move(s)),
        writer(*stream, executor),
        replies(n.metrics, writer),
        access(n.access) {}
  virtual ~SessionCore() = default;
  SessionCore(const SessionCore&) = delete;
  SessionCore& operator=(const SessionCore&) = delete;

  /// Ends the session as soon as running copies have ended.
  virtual void terminate(SessionEnd why) = 0;
  /// The reader waited for our own work: the client does not count as slow.
  virtual void was_kept_waiting() = 0;
  virtual void job_begun() = 0;  ///< Both called only by SessionJob.
  virtual void job_ended() = 0;

  template <class Make>
  void warn(LogKind kind, Make&& make) {
    node.log.warn(kind, node.clock.now(), [&] {
      return fmt::format("session {} of '{}' ({}): {}", static_cast<std::uint64_t>(id), identity, stream->peer(),
                         make());
    });
  }
  /// An error as the last answer to `frame`.
  void refuse(const Frame& frame, const Failure& failure) { refuse(frame, failure.code, failure.text); }
  void refuse(const Frame& frame, error_code code, const std::string& message) {
    replies.refuse(frame.header.type, frame.header.request_id, code, message);
  }

  /// Refuses a request that the policy denies to the peer.
  void deny(const Frame& frame, Right right, const std::string& why) {
    node.metrics.request_denied(right);
    warn(LogKind::kDenied, [&] { return why; });
    refuse(frame, Errc::kPermissionDenied, why);
  }

  NodeContext& node;
  const SessionId id;
  const asio::any_io_executor executor;
  const std::unique_ptr<Stream> stream;
  FrameWriter writer;
  Replies replies;
  PeerAccess access;
  Audit audit;
  std::string identity;  ///< The client's name for itself at hello; printable.
  RequestPhases phases;  ///< Of the request being served, if it completes while served.
  bool is_ending = false;
  std::size_t sending_count = 0;  ///< Gets whose bytes have not all left.
};

/// A coroutine or call that still uses the session's memory, slots or lanes: the session waits for its end.
class SessionJob {
 public:
  explicit SessionJob(std::shared_ptr<SessionCore> session) : session_(std::move(session)) { session_->job_begun(); }
  ~SessionJob() { end(); }
  void end() {  ///< Ends early, for objects that another thread may destroy.
    if (const auto session = std::exchange(session_, nullptr)) session->job_ended();
  }
  SessionJob(SessionJob&&) noexcept = default;  ///< Handed to a coroutine, to count from before its beginning.
  SessionJob& operator=(SessionJob&&) = delete;

 private:
  std::shared_ptr<SessionCore> session_;
};

/// A verified table of the frame, or nullptr after refusing the request.
template <class Table>
const Table* read_request(SessionCore& session, const FrameReader::Frame& frame) {
  const auto* table = read_table<Table>(frame.table);
  if (table == nullptr) {
    session.refuse(frame, Errc::kBadRequest,
                   std::string(frame_type_name(frame.header.type)) + ": the table fails verification");
  }
  return table;
}

}  // namespace kv
