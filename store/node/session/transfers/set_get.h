// store/node/session/transfers/set_get.h: one get of a set: blocks that stand alone leave.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/event.h"
#include "store/node/session/core/session_core.h"
#include "store/node/session/transfers/block_path.h"
#include "store/node/session/transfers/get_in_progress.h"
#include "store/node/session/transfers/read_ahead.h"

namespace kv {

/// The error in a request's own fields, if there is one.
Failure check_request(const wire::SetGetRequest& request, const OpenSpace& space, const NodeContext& node);

/// Like Get, for a set. Its blocks are independent, so the request is carried out in windows, one after the other: pin
/// some, send those in memory, then those on disk, release.
///   1. A block is announced once, after its bytes are in place, with its own length.
///   2. A block longer than its room is not sent; the last frame names those.
///   3. At most a window, and the queued blocks of the previous one, are pinned, even for a slow reader.
///   4. A group lies in one window: its blocks are sent only if all are there at one moment. If the disk then fails to
///      supply one, it is reported as unread, and the client gives up the whole group.
/// Thread safety: none; on the session's executor.
class SetGet final : public GetInProgress, public std::enable_shared_from_this<SetGet> {
 public:
  static constexpr std::size_t kLookupsPerLock = 1024;  ///< Of the store: some hundred microseconds.

  /// Requires check_request().
  SetGet(std::shared_ptr<SessionCore> session, const OpenSpace& space, std::uint64_t request_id,
         const wire::SetGetRequest& request, BlockPath path);

  /// Pins the first window. Errors: of Store::pin_set; the get is then unusable.
  error_code pin();
  /// Sends everything and finishes, if that needs no waiting. False: call deliver().
  bool send_at_once();

  asio::awaitable<void> deliver() override;

 private:
  // GetInProgress
  bool is_moving() const override { return is_moving_; }
  void stop_moves() override;
  LeaseId unused_lease() const override { return is_last_window() ? LeaseId{} : order_.lease; }
  void answer(std::uint32_t broken) override;

  error_code pin_window();
  asio::awaitable<void> deliver_ready();
  asio::awaitable<void> read_from_disk();
  std::size_t next_part(Path way) const;
  bool copy(std::span<const ReadyBlock> part);
  asio::awaitable<void> move(std::span<const ReadyBlock> part);
  void tell_of(std::span<const ReadyBlock> part, Path way);

  bool is_stopped() const { return is_cancelled_ || outcome_.error || met_hole_ || session_->writer.is_closed(); }
  bool is_last_window() const { return pinned_ == hashes_.size(); }

  // Copied: the request's frame is gone when this runs.
  std::vector<BlockHash> hashes_;
  std::vector<std::uint32_t> rooms_;         ///< Per hash: bytes available at the client.
  std::vector<std::uint32_t> group_counts_;  ///< As in SetPinning::Options.

  std::size_t window_first_ = 0;   ///< First hash of the newest window.
  std::size_t pinned_ = 0;         ///< Hashes of all windows so far,
  std::size_t pinned_groups_ = 0;  ///< and their groups.
  std::vector<ReadyBlock> ready_;  ///< Of the window.
  std::size_t next_ = 0;           ///< The next of these to send.

  std::uint32_t delivered_ = 0;
  std::vector<std::uint32_t> too_long_, too_long_bytes_, unread_;
  bool is_moving_ = false;
};

}  // namespace kv
