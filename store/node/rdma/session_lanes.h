// store/node/rdma/session_lanes.h: one session's lanes: queue pairs that move blocks by RDMA.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/owner.h"
#include "store/node/rdma/remote_memory.h"
#include "store/node/rdma/verbs_thread.h"
#include "transport/verbs/verbs_messages.h"

namespace kv {

/// Lane i is on the node's device i modulo the device count, at the device's address at the time of connecting. While
/// that device is unusable the lane is refused, unless the session would then have no lane: it gets one on another
/// device, unless such a lane has broken before (not every device reaches every client). A broken lane stays unusable
/// until the client offers it again: only the client can end its own queue pair, and until then packets in flight still
/// land. The lane after the last, message_lane(), carries small requests, their answers and the few blocks sent with an
/// answer. It is on lane 0's device, and lane 0's keys are valid for it. Thread safety: none; on its executor.
class SessionLanes {
 public:
  struct Listener {
    /// Called once for each lane that broke, with the reason.
    std::function<void(std::uint32_t lane, error_code why)> on_broken;
    std::function<void(std::span<const std::byte> message)> on_message;  ///< As in VerbsMessages.
  };
  SessionLanes(std::shared_ptr<VerbsThread> thread, asio::any_io_executor executor, Listener listener);
  ~SessionLanes();

  const VerbsConfig& config() const { return thread_->node().config(); }
  SlowCalls& verifiers() const { return thread_->node().verifiers(); }
  std::uint32_t message_lane() const { return config().lane_count_max; }

  struct Offer {
    std::uint32_t lane = 0;
    verbs::QueuePairAddress peer;
    std::uint32_t message_count = 0;  ///< Above 0 for the message lane only.
  };
  struct Answer {
    std::uint32_t lane = 0;
    std::optional<verbs::QueuePairAddress> end;
    std::string why;  ///< The reason for a refusal.
    std::uint32_t message_count = 0;
  };
  /// Makes each lane anew. `done` is called later on the executor, unless the executor stops first; by then the lanes
  /// that have an end are connected. Requires: lane numbers up to message_lane(), and no connect() in progress.
  void connect(std::vector<Offer> offers, std::function<void(std::vector<Answer>)> done);
  bool is_connecting() const { return is_connecting_; }

  std::uint32_t up() const;

  /// False: use another way to send now.
  bool has_room_for_message() const { return message_lane_ && message_lane_->has_room(); }
  bool has_sent_messages() const { return !message_lane_ || message_lane_->is_idle(); }
  /// Agreed limit of open requests without an answer.
  std::uint32_t message_count_max() const { return message_count_max_; }
  using Cargo = MessageCargo;
  static constexpr std::uint32_t kCargoStretchesMax = 16;
  std::vector<verbs::Stretch> stretches_before_message(std::span<const Placement> placements,
                                                       std::span<const RemoteSlice> region) const;
  /// False: use another way. Requires room if there is cargo.
  bool send_message(std::span<const std::byte> message, Cargo cargo);

  using Outcome = MoveOutcome;
  /// Moves every slot, striped over the lanes in `lanes` that are up (at least one). `ended` is called once on the
  /// executor, perhaps before move() returns. `owner` is held as long as a device may touch the slots, which after a
  /// failure is longer than the call; it also names the moves for stop(). Slots lie in the arena.
  void move(verbs::Direction direction, std::span<const Placement> placements, std::span<const RemoteSlice> region,
            std::uint32_t lanes, Owner owner, std::function<void(const Outcome&)> ended);
  /// Starts no further move of this owner; unless all had started, they end with kCancelled.
  void stop(OwnerId owner);
  void fail_all();

 private:
  struct Lane;
  struct Moving;
  struct Attempt;

  void make(Attempt& attempt);
  void connect_made(std::shared_ptr<std::vector<Attempt>> attempts, std::function<void(std::vector<Answer>)> done);
  void sweep();  ///< Handles lanes that have broken.
  void let_go(const verbs::VerbsMover* mover);
  static std::vector<verbs::Stretch> stretches(const Placement& placement, std::span<const RemoteSlice> region,
                                               std::size_t lane, const verbs::RegisteredMemory& arena);
  static asio::awaitable<void> move_on(std::shared_ptr<verbs::VerbsMover> mover, verbs::Direction direction,
                                       std::vector<verbs::Stretch> stretches, TimePoint deadline,
                                       std::shared_ptr<Moving> moving, std::uint32_t lane);

  std::shared_ptr<VerbsThread> thread_;
  asio::any_io_executor executor_;
  Listener listener_;
  std::vector<Lane> lanes_;
  std::shared_ptr<verbs::VerbsMessages> message_lane_;  ///< Null: not connected.
  std::shared_ptr<DeviceLoop> message_loop_;
  std::uint32_t message_count_max_ = 0;
  std::uint32_t turn_ = 0;  ///< The lane that takes the next block.
  bool is_connecting_ = false;
  bool may_substitute_ = true;                                  ///< Whether a lane may use another device than its own.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  ///< For results that come back from other threads.
};

}  // namespace kv
