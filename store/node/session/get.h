// store/node/session/get.h: one get: blocks leave.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/event.h"
#include "store/node/session/block_path.h"
#include "store/node/session/get_in_progress.h"
#include "store/node/session/read_ahead.h"
#include "store/node/session/session_core.h"
#include "store/node/session/space_handles.h"
#include "store/node/session/store_guards.h"

namespace kv {

struct GetOrder {
  std::uint64_t request_id = 0;
  TimePoint deadline = TimePoint::max();  ///< Of the client: for what is on disk.
  Store::GetOptions options;
  std::vector<std::uint64_t> segment_ends;  ///< Where each segment of a block ends, the last at block_bytes.
  std::size_t block_count = 0;              ///< Named by the request.
  std::size_t first_block = 0;              ///< Those before it are pinned and not sent. Inline, in one segment.
  TraceContext trace = {};
};

/// On entry a block is pinned in the arena, or lies on disk. It goes inline straight from its slot, is copied into the
/// client's region, or is moved there by RDMA; what was on disk goes from where it was read to, and never by RDMA,
/// since no device knows that memory. On exit the client was told of the block (a GetPart with its checksums) and the
/// pin is gone.
///   1. A block is pinned until no copy, move or queued frame touches it (Window).
///   2. The client is told of parts in order, and of none before its bytes are where they belong.
///   3. The answer's last frame says how many blocks were sent: all that the client was told of, unless the get failed.
///   4. Of a get whose bytes follow its answer, at most a window and what is queued are pinned: a slow reader keeps no
///      more from being evicted.
/// Thread safety: none; on the session's executor.
class Get final : public GetInProgress, public std::enable_shared_from_this<Get> {
 public:
  Get(std::shared_ptr<SessionCore> session, const OpenSpace& space, GetOrder order, BlockPath path);
  ~Get() override;

  /// "" or what is wrong with the segments that a request names.
  static std::string check_segments(std::span<const std::uint64_t> ends, std::uint64_t block_bytes);

  /// Pins the longest prefix, or the first window of it. Errors: of Store::pin_prefix; then nothing else may be called.
  error_code pin(std::span<const BlockHash> hashes);
  /// The get came as a message: its blocks go right before the answer, which is made at once, if both are small and
  /// lanes are up. False: it goes on as others do.
  bool send_with_answer(MessageAnswers& messages);
  /// Sends all of it and finishes, if that needs no waiting. False: call deliver().
  bool send_at_once();

  asio::awaitable<void> deliver() override;

 private:
  /// A block ready to go: in the arena, or read from disk.
  struct ReadyBlock {
    std::span<const std::byte> bytes;
    std::span<const std::uint64_t> checksums;
    Owner owner;  ///< Of what was read from disk. nullptr: the arena.
  };
  /// Some blocks of one segment, all going the same way.
  struct Part {
    std::size_t segment = 0, first = 0, count = 0;
    Path way = Path::kInline;
    std::uint64_t move = 0;        ///< By RDMA, until it ends.
    std::weak_ptr<Window> window;  ///< Of the move.
  };

  // GetInProgress
  bool is_moving() const override { return move_count_ > 0; }
  void stop_moves() override;
  LeaseId unused_lease() const override;
  void answer(std::uint32_t broken) override;

  error_code pin_window(std::span<const BlockHash> hashes);
  bool deliver_some();
  void deliver_all() {
    while (deliver_some()) {
    }
  }
  asio::awaitable<void> deliver_pinned();
  asio::awaitable<void> read_from_disk();
  void complete();
  void end_segment();
  Part next_part() const;
  bool copy(const Part& part);
  std::vector<Placement> placements(const Part& part) const;
  void begin_move(Part& part);
  void move_ended(std::uint64_t move, std::uint64_t bytes, const MoveOutcome& outcome);
  void tell_of_parts();
  void tell_of(const Part& part);
  void write_sums(const Part& part, std::uint64_t* sums) const;

  bool is_stopped() const { return is_cancelled_ || outcome_.error || met_hole_; }
  bool has_undelivered() const;
  std::uint64_t segment_begin(std::size_t i) const { return i == 0 ? 0 : order_.segment_ends[i - 1]; }
  std::uint64_t segment_bytes(std::size_t i) const { return order_.segment_ends[i] - segment_begin(i); }

  /// Of the first `count`, those that are sent.
  std::size_t sent_of(std::size_t count) const { return count - std::min(count, order_.first_block); }

  const std::uint64_t block_bytes_;
  GetOrder order_;

  std::vector<BlockHash> hashes_;  ///< Only if some blocks are on disk, or in windows.
  bool has_more_windows_ = false;
  std::vector<ReadyBlock> blocks_;  ///< In order, as far as they are ready.
  bool is_complete_ = true;         ///< No more will be.
  bool goes_at_once_ = false;       ///< All of it is queued, whatever is queued already.

  std::size_t segment_ = 0, block_ = 0;  ///< Next to deliver.
  std::deque<Part> parts_;               ///< Begun and not told of yet: their marks go out in order.
  std::uint64_t move_last_ = 0;
  std::size_t move_count_ = 0;      ///< That have not ended.
  std::uint64_t moving_bytes_ = 0;  ///< Of them.
  std::uint64_t read_bytes_ = 0;    ///< Read from disk and not told of.
};

}  // namespace kv
