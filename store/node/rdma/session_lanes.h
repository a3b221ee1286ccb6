// store/node/rdma/session_lanes.h: one session's lanes: queue pairs to the client's, over which blocks move by RDMA.
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

/// Lane i is on the node's device i modulo their number, at the address that the device has when it is connected. While
/// that device cannot be used, the lane is refused; but a session that would have none gets it on another device,
/// unless such a lane has been of no use before: not every device reaches every client. A lane that broke is of no use
/// until the client offers it again: only the client can end its own queue pair, and until it has, packets on their way
/// still land. The lane after the last, message_lane(), carries small requests, their answers and the few blocks that
/// go with one. It is on the device of lane 0, and lane 0's keys are good for it. Thread safety: none; on the executor
/// of the session.
class SessionLanes {
 public:
  struct Listener {
    /// Told once of each lane that broke, and why.
    std::function<void(std::uint32_t lane, error_code why)> on_broken;
    std::function<void(std::span<const std::byte> message)> on_message;  ///< As VerbsMessages has it.
  };
  SessionLanes(std::shared_ptr<VerbsThread> thread, asio::any_io_executor executor, Listener listener);
  ~SessionLanes();

  const VerbsConfig& config() const { return thread_->node().config(); }
  SlowCalls& verifiers() const { return thread_->node().verifiers(); }
  std::uint32_t message_lane() const { return config().lane_count_max; }

  struct Offer {
    std::uint32_t lane = 0;
    verbs::QueuePairAddress peer;
    std::uint32_t message_count = 0;  ///< Not 0 for the message lane, and only there.
  };
  struct Answer {
    std::uint32_t lane = 0;
    std::optional<verbs::QueuePairAddress> end;
    std::string why;  ///< Why not.
    std::uint32_t message_count = 0;
  };
  /// Makes each lane anew. `done` is called later, on the executor, unless that ends before; by then the lanes that
  /// have an end are connected. Requires lane numbers up to message_lane(), and that none is in progress.
  void connect(std::vector<Offer> offers, std::function<void(std::vector<Answer>)> done);
  bool is_connecting() const { return is_connecting_; }

  std::uint32_t up() const;  ///< Bit i: lane i can be used.

  /// False: what is sent now has to go another way.
  bool has_room_for_message() const { return message_lane_ && message_lane_->has_room(); }
  bool has_sent_messages() const { return !message_lane_ || message_lane_->is_idle(); }  ///< All of them.
  std::uint32_t message_count_max() const { return message_count_max_; }  ///< As agreed: requests without an answer.
  using Cargo = MessageCargo;
  static constexpr std::uint32_t kCargoStretchesMax = 16;
  std::vector<verbs::Stretch> stretches_before_message(std::span<const Placement> placements,
                                                       std::span<const RemoteSlice> region) const;
  /// False: it has to go another way. Requires room, if there is cargo.
  bool send_message(std::span<const std::byte> message, Cargo cargo);

  using Outcome = MoveOutcome;
  /// Moves every slot, striped over the lanes of `lanes` that are up (at least one). `ended` is called once, on the
  /// executor, perhaps before move() returns. `owner` is held as long as a device may touch the slots, which after a
  /// failure is longer; it also names the moves for stop(). Slots lie in the arena.
  void move(verbs::Direction direction, std::span<const Placement> placements, std::span<const RemoteSlice> region,
            std::uint32_t lanes, Owner owner, std::function<void(const Outcome&)> ended);
  /// Nothing more of these moves is begun; they end with kCancelled unless all had been.
  void stop(OwnerId owner);
  void fail_all();  ///< Ends all lanes and their moves.

 private:
  struct Lane;
  struct Moving;
  struct Attempt;

  void make(Attempt& attempt);
  void connect_made(std::shared_ptr<std::vector<Attempt>> attempts, std::function<void(std::vector<Answer>)> done);
  void sweep();  ///< Takes note of lanes that have broken.
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
  std::shared_ptr<verbs::VerbsMessages> message_lane_;  ///< Null: none.
  std::shared_ptr<DeviceLoop> message_loop_;            ///< Then null too.
  std::uint32_t message_count_max_ = 0;
  std::uint32_t turn_ = 0;  ///< Which lane the next move begins with.
  bool is_connecting_ = false;
  bool may_substitute_ = true;                                  ///< Use another device than that of a lane.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  ///< For what comes back from another thread.
};

}  // namespace kv
