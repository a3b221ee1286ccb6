// store/node/session/transfers/get_in_progress.h: shared by both kinds of gets: their pins, their stop and their end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/assert.h"
#include "base/event.h"
#include "base/result.h"
#include "store/node/session/core/region_table.h"
#include "store/node/session/core/session_core.h"
#include "store/node/session/core/slow_requests.h"
#include "store/node/session/tables/space_handles.h"
#include "store/node/session/tables/table_budget.h"
#include "store/node/session/transfers/block_path.h"
#include "store/node/store_guards.h"

namespace kv {

/// What both kinds of gets ask for.
struct GetOrder {
  template <class Request>
  GetOrder(std::uint64_t id, const Request& request, const NodeContext& node)
      : request_id(id),
        block_count(hashes_of(request.hashes()).size()),
        lease(LeaseId(request.lease())),
        disk(node.disk_worker != nullptr && request.max_tier() >= 2 && node.disk_worker->can_read()),
        trace(trace_of(request.trace())) {
    if (request.deadline_us() > 0) deadline = node.clock.now() + time_of(request.deadline_us());
  }
  std::uint64_t request_id;
  std::size_t block_count;                ///< Named in the request.
  LeaseId lease;                          ///< 0: none.
  bool disk;                              ///< Also blocks on disk,
  TimePoint deadline = TimePoint::max();  ///< and the client's time for these.
  TraceContext trace;
};

/// Counts a get until its last byte has left, and then records its duration.
struct GetInFlight {
  GetInFlight(std::shared_ptr<SessionCore> s, TimePoint b, FrameType t) : session(std::move(s)), began(b), type(t) {
    ++session->sending_count;
  }
  ~GetInFlight() {
    KV_ASSERT(session->sending_count > 0);
    --session->sending_count;
    if (!is_pinned) return;
    const Duration took = session->node.clock.now() - began;
    session->node.metrics.observe_request(type, took, has_failed);
    if (session->node.slow.is_slow(took)) tell_slow(*session, about, took, has_failed);
  }
  GetInFlight(const GetInFlight&) = delete;
  GetInFlight& operator=(const GetInFlight&) = delete;

  std::shared_ptr<SessionCore> session;
  TimePoint began;
  FrameType type;
  TransferDetails about;    ///< For the slow log.
  bool is_pinned = false;   ///< The request was accepted.
  bool has_failed = false;  ///< Some bytes did not leave.
};

/// Sends a prefix (Get), or the blocks of a set (SetGet).
///   1. A block is pinned until the last copy, move or queued frame with it has ended (Window).
///   2. There is one last frame, the answer or an error, and it ends this get.
///   3. A stopped get still waits for its devices' moves under way.
/// Thread safety: none; on the session's executor.
class GetInProgress {
 public:
  virtual ~GetInProgress() { KV_ASSERT(wake_ == nullptr); }
  GetInProgress(const GetInProgress&) = delete;
  GetInProgress& operator=(const GetInProgress&) = delete;

  /// Sends as fast as the disk and the client allow, until the get is complete or stopped.
  virtual asio::awaitable<void> deliver() = 0;
  /// Sends the last frame and releases the region. Once, after deliver().
  void finish();
  void cancel();       ///< Moves under way still land, then the last frame goes out.
  void cancel_late();  ///< The same for get_timeout.

  void keep(RequestRoom room) { room_ = std::move(room); }

  std::uint64_t request_id() const { return order_.request_id; }
  TimePoint began() const { return began_; }
  bool is_cancelled() const { return is_cancelled_; }
  bool is_inline() const { return is_inline_; }  ///< Its bytes follow its answer.
  bool uses(const Region& region) const { return path_.uses(region); }

 protected:
  /// A block ready to go: in the arena, or read from disk.
  struct ReadyBlock {
    std::uint32_t index = 0;  ///< Of its hash in the request.
    std::span<const std::byte> bytes;
    std::span<const std::uint64_t> checksums;
    Owner owner;  ///< Of a block from disk. Empty: the arena.
  };
  /// Blocks pinned together, and the get while it is in flight: the pins end first.
  struct Window {
    Window(std::shared_ptr<GetInFlight> g, LockedStore& store, PinnedPrefix pinned)
        : get(std::move(g)), pins(store, std::move(pinned)) {}
    std::shared_ptr<GetInFlight> get;
    PinnedPrefixGuard pins;
  };
  static constexpr std::size_t kMarkBytes = 4 << 20;  ///< Copied between two marks: 0.25 ms, then others get a turn.

  GetInProgress(std::shared_ptr<SessionCore> session, const OpenSpace& space, FrameType type, const GetOrder& order,
                BlockPath path);

  virtual bool is_moving() const = 0;
  virtual void stop_moves() = 0;
  /// A lease of the client for an unpinned window, which would have taken it over; LeaseId{}: none.
  virtual LeaseId unused_lease() const = 0;
  /// The last frame of a successful get, with the lanes that broke.
  virtual void answer(std::uint32_t broken) = 0;

  /// Records whether the first window was pinned. If not, the get is refused, and is not in flight.
  error_code first_pinned(error_code error);
  /// The queue length at which a get waits with its next frame; more would keep a cancel from being read.
  std::uint64_t ahead_bytes_max() const;
  /// Whether so many bytes are sent right away: a coroutine would cost more.
  bool goes_at_once(std::uint64_t bytes) const;
  /// For a frame with the bytes of these blocks: keeps them in place until they have left. Also called if the session
  /// ends first, which fails the get.
  std::function<void(bool)> kept(std::span<const ReadyBlock> blocks) const;
  /// For an announced part.
  void count_bytes(Path way, std::uint64_t bytes) {
    in_flight_->about.moved_bytes += bytes;
    node_.metrics.add_bytes_out(way, bytes);
  }
  /// memcpy() in pieces that fit a core's second-level cache.
  static void copy_in_pieces(std::span<std::byte> to, std::span<const std::byte> from);

  const std::shared_ptr<SessionCore> session_;
  NodeContext& node_;
  const SpaceId space_;
  const NamespaceId space_name_;
  const FrameType type_;
  const GetOrder order_;
  BlockPath path_;
  const TimePoint began_;
  const bool is_inline_;

  std::shared_ptr<GetInFlight> in_flight_;
  std::shared_ptr<Window> window_;  ///< The newest; older ones live until their blocks have left.
  MoveOutcome outcome_;             ///< Of failed moves.
  bool is_cancelled_ = false;
  bool is_late_ = false;   ///< It exceeded get_timeout.
  bool met_hole_ = false;  ///< The region's memory was removed after it was lent.
  Event* wake_ = nullptr;  ///< Set while it waits for the disk or for moves.
  RequestRoom room_;

 private:
  std::optional<Failure> why_unfinished() const;
};

}  // namespace kv
