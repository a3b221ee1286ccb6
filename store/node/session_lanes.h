// store/node/session_lanes.h: one session's lanes: queue pairs to the client's, over which blocks move by RDMA.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "store/node/verbs_node.h"

namespace kv {

/// A slice of memory that the client has registered with its devices. Adjoining slices make a region.
struct RemoteSlice {
  std::uint64_t offset = 0;  ///< In the region.
  std::uint64_t address = 0, bytes = 0;
  std::vector<std::uint32_t> rkeys;  ///< By lane; a lane beyond has none.
};

/// Which slots go where in a region, or come from there.
struct Placement {
  std::span<std::byte> slot;
  std::uint64_t region_offset = 0;  ///< The slot's length from there lies in the region: checked before.
};

/// Lane i is on the node's device i modulo their number. A lane that broke is of no use until the client offers it
/// again: only the client can end its own queue pair, and until it has, packets on their way still land.
/// Thread safety: none; on the executor of the session.
class SessionLanes {
 public:
  /// `on_broken` is told once of each lane that broke, and why: for the log.
  using OnBroken = std::function<void(std::uint32_t lane, error_code why)>;
  SessionLanes(std::shared_ptr<VerbsThread> thread, asio::any_io_executor executor, OnBroken on_broken);
  ~SessionLanes();

  struct Offer {
    std::uint32_t lane = 0;
    verbs::QueuePairAddress peer;
  };
  struct Answer {
    std::uint32_t lane = 0;
    std::optional<verbs::QueuePairAddress> end;
    std::string why;  ///< Why not.
  };
  /// Makes each lane anew. `done` is called later, on the executor, unless that ends before; by then the lanes that
  /// have an end are connected. Requires lane numbers below lane_count_max, and that none is in progress.
  void connect(std::vector<Offer> offers, std::function<void(std::vector<Answer>)> done);
  bool is_connecting() const { return is_connecting_; }

  std::uint32_t up() const;  ///< Bit i: lane i can be used.

  /// How the moves of one call ended.
  struct Outcome {
    error_code error;
    std::uint32_t broken_lanes = 0;  ///< Bit i: lane i broke under it.
  };
  /// Moves every slot, striped over the lanes of `lanes` that are up (at least one). `ended` is called once, on the
  /// executor, perhaps before move() returns. `owner` is held as long as a device may touch the slots, which after a
  /// failure is longer; it also names the moves for stop(). Slots lie in the arena.
  void move(verbs::Direction direction, std::span<const Placement> placements, std::span<const RemoteSlice> region,
            std::uint32_t lanes, std::shared_ptr<const void> owner, std::function<void(const Outcome&)> ended);
  /// Nothing more of these moves is begun; they end with kCancelled unless all had been.
  void stop(const void* owner);
  void fail_all();  ///< Ends all lanes and their moves.

 private:
  struct Lane;
  struct Moving;

  void sweep();  ///< Takes note of lanes that have broken.
  std::vector<verbs::Stretch> stretches(const Placement& placement, std::span<const RemoteSlice> region,
                                        std::size_t lane) const;
  static asio::awaitable<void> move_on(std::shared_ptr<verbs::VerbsMover> mover, verbs::Direction direction,
                                       std::vector<verbs::Stretch> stretches, TimePoint deadline,
                                       std::shared_ptr<Moving> moving, std::uint32_t lane);

  std::shared_ptr<VerbsThread> thread_;
  asio::any_io_executor executor_;
  OnBroken on_broken_;
  std::vector<Lane> lanes_;
  std::uint32_t turn_ = 0;  ///< Which lane the next move begins with.
  bool is_connecting_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  ///< For what comes back from another thread.
};

}  // namespace kv
