// store/node/session/core/session_rdma.h: a session's side of RDMA. All knowledge of lanes in this folder is here.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/owner.h"
#include "store/node/rdma/session_lanes.h"
#include "store/node/session/core/message_answers.h"
#include "store/node/session/core/session_core.h"
#include "transport/wire_generated.h"

namespace kv {

/// The memory that a get or put refers to.
struct RegionTarget {
  std::uint32_t region = 0;                ///< 0: the stream, where bytes follow.
  std::span<const std::uint64_t> offsets;  ///< In the region, one per hash.
  std::uint32_t reach = 0;                 ///< For RDMA: bit i allows lane i.
  /// For a set: each block's length, or its maximum. Empty: all blocks have one length.
  std::span<const std::uint32_t> lengths = {};
};
template <class Request>
RegionTarget target_of(const Request& request) {
  RegionTarget target{request.region(), numbers_of(request.offsets()), request.lanes()};
  if constexpr (requires { request.rooms(); }) target.lengths = numbers_of(request.rooms());
  if constexpr (requires { request.block_bytes(); }) target.lengths = numbers_of(request.block_bytes());
  return target;
}

/// Connects lanes when the client asks, reports which are up, and moves blocks over them. `reach` is a set of lanes:
/// bit i is lane i. To other code it is an opaque value from the wire.
///   1. Without RDMA on this node, and after end(), all lanes are down and moves are impossible.
/// Thread safety: none; on the session's executor.
class SessionRdma final : public MessageChannel {
 public:
  using Frame = SessionCore::Frame;
  using MessageHandler = std::function<void(std::span<const std::byte> message)>;

  /// `thread`: of the thread that the session's executor runs on; nullptr: without RDMA.
  SessionRdma(SessionCore& session, std::shared_ptr<VerbsThread> thread, MessageHandler on_message);

  bool is_offered() const { return lanes_ != nullptr; }
  bool takes_messages() const;  ///< For hello.
  std::uint32_t width() const;  ///< For hello: the maximum of lanes.

  void on_connect(const Frame& frame);
  /// The memory of a region lent for RDMA, or nullopt after refusing the request.
  std::optional<RemoteMemory> read_memory(const Frame& frame, const wire::RegionAddRequest& request);

  std::uint32_t up(std::uint32_t reach) const { return lanes_ ? reach & lanes_->up() : 0; }
  /// The lanes of `reach` that are down, although the client believes them up; sent with every last frame.
  std::uint32_t broken(std::uint32_t reach) const { return lanes_ ? reach & ~lanes_->up() : 0; }

  /// As SessionLanes::move. Requires up(reach) != 0.
  void move(verbs::Direction direction, std::span<const Placement> placements, const RemoteMemory& memory,
            std::uint32_t reach, Owner owner, std::function<void(const MoveOutcome&)> ended);
  void stop(OwnerId owner) {
    if (lanes_) lanes_->stop(owner);
  }
  /// Runs a slow `call` on another thread, then `then` here. Requires is_offered().
  void verify(std::function<void()> call, std::function<void()> then);

  // Messages.
  bool has_room() const override { return lanes_ && lanes_->has_room_for_message(); }
  std::uint32_t message_count_max() const override { return lanes_ ? lanes_->message_count_max() : 0; }
  void send_message(std::span<const std::byte> message, MessageCargo cargo) override;
  bool has_sent_messages() const { return !lanes_ || lanes_->has_sent_messages(); }
  /// The stretches of blocks right before a message; nullopt: too many, or the client lacks a key for that lane.
  std::optional<std::vector<verbs::Stretch>> cargo(std::span<const Placement> placements, const RemoteMemory& memory,
                                                   std::uint32_t reach) const;
  static constexpr std::size_t kCargoBlocksMax = SessionLanes::kCargoStretchesMax;

  void fail_all();  ///< Ends all moves: those to a dead client would go on until their devices notice.
  void end() {
    fail_all();  // while lanes_ exists, since broken lanes are reported through it
    lanes_.reset();
  }

 private:
  void on_broken(std::uint32_t lane, error_code why);
  void answer_connect(std::uint64_t request_id, const std::vector<SessionLanes::Answer>& answers);

  SessionCore& session_;
  std::unique_ptr<SessionLanes> lanes_;            ///< nullptr: without RDMA.
  std::map<std::uint32_t, std::string> refusals_;  ///< By lane: the reason, as in the log; empty: it was connected.
};

}  // namespace kv
