// client/link/link_lanes.h: one session's lanes: queue pairs through which its node writes and reads lent memory, and
// one for small requests and their answers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "client/link/verbs_lender.h"
#include "transport/verbs/verbs_messages.h"

namespace kv {

class LinkSession;
struct ClientShared;

/// Lane i is on the client's device i modulo their number. Made when memory is first to be lent, and made again some
/// time after they broke, while calls go inline. The lane after the last of the node's carries messages, and blocks
/// right before them. When it breaks the session ends, since nobody knows which of the requests on
/// it arrived.
///   1. The node reaches memory through a lane that is up, and through no other.
///   2. What is cut writes nothing from then on, whatever the node does: this is how memory is taken back from a node
///      that cannot be trusted to have stopped. That holds for what is just being connected too: the node may have it
///      up before this side knows.
/// Thread safety: none; on the client's executor. Belongs to its session.
class LinkLanes {
 public:
  /// `message_count_max` 0: no lane for messages.
  LinkLanes(std::shared_ptr<ClientShared> shared, LinkSession& session, std::uint32_t lane_count_max,
            std::uint32_t message_count_max);
  ~LinkLanes();

  /// Begins to connect the lanes that are not up, if it is time.
  void connect_missing();
  std::uint32_t up() const;  ///< Bit i: lane i.
  /// Of those that are up, lanes through which the node can reach `memory`. Bit i: lane i.
  std::uint32_t reaching(const verbs::RegisteredMemory& memory) const;
  /// By lane, for RegionAddRequest; 0 where the lane's device does not have `memory`. Requires that some lane was up.
  std::vector<std::uint32_t> rkeys(const verbs::RegisteredMemory& memory, std::size_t slice) const;
  void cut(std::uint32_t lanes);  ///< Bit i: lane i. They are connected again after a while.
  void cut_all();                 ///< That of messages too: for good.
  /// Requests without an answer that the lane for messages may have; 0: it is not up.
  std::uint32_t message_count() const;
  bool send_message(std::span<const std::byte> message);  ///< False: it has to go another way.
  const std::string& why() const { return why_; }         ///< Why not all are up. Empty: they are, or were not tried.

 private:
  struct Lane;
  struct MessageLoop;
  class Connect;

  bool cut_attempt(std::uint32_t lanes);
  void send_offers();
  void drop_without_pair();
  void connect_to_answers();
  void attempt_ended();
  void back_off();
  static void make_pair(Lane& lane);
  bool wants_messages() const;
  void begin_messages(std::shared_ptr<Lane> lane);

  std::shared_ptr<ClientShared> shared_;
  LinkSession& session_;
  std::uint32_t lane_count_max_, message_count_max_;
  std::vector<std::shared_ptr<Lane>> lanes_;    ///< Null or up. As many as are wanted, from the first attempt on.
  std::shared_ptr<Lane> message_lane_;          ///< Null or up.
  std::vector<std::shared_ptr<Lane>> attempt_;  ///< Being connected.
  std::unique_ptr<Connect> connect_;
  bool is_connecting_ = false;  ///< `attempt_` goes on.
  bool is_answered_ = false;    ///< And its queue pairs are connected, or about to be, on another thread.
  TimePoint next_attempt_{};
  Duration backoff_{};
  std::string why_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  ///< For what comes back from another thread.
};

}  // namespace kv
