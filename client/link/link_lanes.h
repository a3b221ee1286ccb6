// client/link/link_lanes.h: one session's lanes: queue pairs for the node's writes and reads of lent memory, and one
// for small requests and their answers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/back_off.h"
#include "base/clock.h"
#include "client/link/call.h"
#include "client/link/lifeline.h"
#include "client/link/verbs_lender.h"
#include "transport/verbs/verbs_messages.h"

namespace kv {

/// Lane i is on the client's device i modulo their number. Lanes are made when memory is first lent, and remade some
/// time after they broke; meanwhile calls go inline. The lane after the node's last one carries messages, and blocks
/// right before them. When it breaks the session ends, since the fate of its requests is unknown.
///   1. The node reaches memory only through a lane that is up.
///   2. A lane that was cut writes no more, whatever the node does: this takes memory back from a node that may not
///      have stopped. It also holds for a lane being connected, which the node may have up before this side knows.
///   3. One attempt to connect is in progress at a time. From the node's answer on, its queue pairs may be up.
/// Thread safety: none; on the client's executor. Queue pairs are made and connected on another thread, which then owns
/// the attempt's lanes. Belongs to its session.
class LinkLanes {
 public:
  /// `message_count_max` 0: without a message lane. `session` outlives the lanes.
  LinkLanes(CallSession& session, std::uint32_t lane_count_max, std::uint32_t message_count_max);
  ~LinkLanes();

  /// Begins to connect the lanes that are down, if it is time.
  void connect_missing();
  std::uint32_t up() const;  ///< Bit i: lane i.
  /// The lanes that are up and can reach `memory`. Bit i: lane i.
  std::uint32_t reaching(const verbs::RegisteredMemory& memory) const;
  /// By lane, for RegionAddRequest; 0 where the lane's device lacks `memory`. Requires that some lane was up.
  std::vector<std::uint32_t> rkeys(const verbs::RegisteredMemory& memory, std::size_t slice) const;
  void cut(std::uint32_t lanes);  ///< Bit i: lane i. They reconnect after a while.
  void cut_all();                 ///< With the message lane, permanently.
  /// Allowed unanswered requests on the message lane; 0: it is down.
  std::uint32_t message_count() const;
  bool send_message(std::span<const std::byte> message);  ///< False: use another path.
  const std::string& why() const { return why_; }         ///< Why some are down. Empty: all are up, or not tried.

 private:
  struct Lane;
  struct MessageLoop;
  class ConnectCall;

  bool cut_attempt(std::uint32_t lanes);
  void send_offers();
  void drop_without_pair();
  void connect_to_answers();
  void attempt_ended();
  static void make_pair(Lane& lane);
  bool wants_messages() const;
  void begin_messages(std::shared_ptr<Lane> lane);

  CallSession& session_;
  ClientShared& shared_;
  const std::uint32_t lane_count_max_, message_count_max_;
  std::vector<std::shared_ptr<Lane>> lanes_;  ///< Null or up. At full size from the first attempt on.
  std::shared_ptr<Lane> message_lane_;        ///< Null or up.

  enum class Attempt : std::uint8_t {
    kNone,
    kOffered,  ///< Queue pairs are being made, or the node is being asked.
    kAnswered  ///< They are being connected on another thread; the node may have them up.
  };
  Attempt attempt_state_ = Attempt::kNone;
  std::vector<std::shared_ptr<Lane>> attempt_;
  std::unique_ptr<ConnectCall> connect_;
  BackOff back_off_;
  std::string why_;
  Lifeline lifeline_;  ///< For results of the other thread.
};

}  // namespace kv
