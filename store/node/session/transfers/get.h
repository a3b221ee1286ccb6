// store/node/session/transfers/get.h: one get: blocks leave.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/event.h"
#include "store/node/session/core/session_core.h"
#include "store/node/session/transfers/block_path.h"
#include "store/node/session/transfers/get_in_progress.h"
#include "store/node/session/transfers/read_ahead.h"

namespace kv {

/// The error in a request's own fields, if there is one.
Failure check_request(const wire::GetRequest& request, const OpenSpace& space, const NodeContext& node);

/// On entry a block is pinned in the arena, or lies on disk. It is sent inline straight from its slot, copied into the
/// client's region, or moved there by RDMA; a block from disk leaves from its read buffer, which is not registered for
/// RDMA. On exit it was announced to the client (a GetPart with its checksums) and its pin is gone.
///   1. A block is pinned until the last copy, move or queued frame with it has ended (Window).
///   2. Parts are announced in order, each after its bytes are in place.
///   3. The answer's last frame has the number of blocks sent: all those announced, unless the get failed.
///   4. While inline bytes follow, at most a window and the queued bytes are pinned: a slow reader keeps only these.
/// Thread safety: none; on the session's executor.
class Get final : public GetInProgress, public std::enable_shared_from_this<Get> {
 public:
  /// Requires check_request().
  Get(std::shared_ptr<SessionCore> session, const OpenSpace& space, std::uint64_t request_id,
      const wire::GetRequest& request, BlockPath path);
  ~Get() override;

  /// Pins the longest prefix, or the first window of it. Errors: of Store::pin_prefix; the get is then unusable.
  error_code pin(std::span<const BlockHash> hashes);
  /// For a get that came as a message: sends the blocks right before the answer, made at once, if both are small and
  /// lanes are up. False: it continues like other gets.
  bool send_with_answer(MessageAnswers& messages);
  /// Sends everything and finishes, if that needs no waiting. False: call deliver().
  bool send_at_once();

  asio::awaitable<void> deliver() override;

 private:
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
  bool is_streamed() const { return segment_ends_.size() == 1; }
  std::uint64_t segment_begin(std::size_t i) const { return i == 0 ? 0 : segment_ends_[i - 1]; }
  std::uint64_t segment_bytes(std::size_t i) const { return segment_ends_[i] - segment_begin(i); }

  /// How many of the first `count` blocks are sent.
  std::size_t sent_of(std::size_t count) const { return count - std::min(count, first_block_); }

  const std::uint64_t block_bytes_;
  std::vector<std::uint64_t> segment_ends_;  ///< End offset of each segment of a block, the last at block_bytes.
  const std::size_t first_block_;            ///< Earlier blocks are pinned but not sent.

  std::vector<BlockHash> hashes_;  ///< Only if some blocks are on disk, or in windows.
  bool has_more_windows_ = false;
  std::vector<ReadyBlock> blocks_;  ///< In order, as far as ready.
  bool is_complete_ = true;         ///< blocks_ is final.
  bool is_at_once_ = false;         ///< Everything is queued, even beyond the queue's bound.

  std::size_t segment_ = 0, block_ = 0;  ///< Next to deliver.
  std::deque<Part> parts_;               ///< Begun and not yet announced: their marks go out in order.
  std::uint64_t move_last_ = 0;
  std::size_t move_count_ = 0;      ///< Still under way.
  std::uint64_t moving_bytes_ = 0;  ///< In these moves.
  std::uint64_t read_bytes_ = 0;    ///< Read from disk and not yet announced.
};

}  // namespace kv
