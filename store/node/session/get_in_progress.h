// store/node/session/get_in_progress.h: what a session knows of a get of either kind, while it is carried out.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/assert.h"
#include "store/node/session/region_table.h"
#include "store/node/session/session_core.h"

namespace kv {

/// A prefix that leaves (Get), or blocks that stand alone (SetGet). Thread safety: none; on the session's executor.
class GetInProgress {
 public:
  virtual ~GetInProgress() = default;

  /// Sends as fast as the disk gives and the client takes, until all has been sent or the get is stopped.
  virtual asio::awaitable<void> deliver() = 0;
  /// Sends the last frame and lets go of the region. Once, after deliver().
  virtual void finish() = 0;
  virtual void cancel() = 0;       ///< What was begun still lands, then the last frame goes out.
  virtual void cancel_late() = 0;  ///< The same for get_timeout.

  virtual std::uint64_t request_id() const = 0;
  virtual TimePoint began() const = 0;
  virtual bool is_cancelled() const = 0;
  virtual bool is_inline() const = 0;  ///< Its bytes follow its answer.
  virtual bool uses(const Region& region) const = 0;
};

/// Counts a get until its last byte has left, and observes then how long that took.
struct GetInFlight {
  GetInFlight(std::shared_ptr<SessionCore> s, TimePoint b, FrameType t = FrameType::kGet)
      : session(std::move(s)), began(b), type(t) {
    ++session->sending_count;
  }
  ~GetInFlight() {
    KV_ASSERT(session->sending_count > 0);
    --session->sending_count;
    if (is_pinned) session->node.metrics.observe_verb(type, session->node.clock.now() - began, has_failed);
  }
  GetInFlight(const GetInFlight&) = delete;
  GetInFlight& operator=(const GetInFlight&) = delete;

  std::shared_ptr<SessionCore> session;
  TimePoint began;
  FrameType type;
  bool is_pinned = false;   ///< The request was not refused.
  bool has_failed = false;  ///< Some of it did not leave.
};

}  // namespace kv
