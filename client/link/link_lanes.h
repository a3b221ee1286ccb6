// client/link/link_lanes.h: one session's lanes: queue pairs through which its node writes and reads lent memory, and
// one for small requests and their answers.
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

/// Lane i is on the client's device i modulo their number. Made when memory is first to be lent, and made again some
/// time after they broke, while calls go inline. The lane after the last of the node's carries messages, and blocks
/// right before them. When that one breaks the session ends, since nobody knows which of the requests on it arrived.
///   1. The node reaches memory through a lane that is up, and through no other.
///   2. A lane that was cut writes nothing from then on, whatever the node does: this is how memory is taken back from
///   a
///      node that cannot be trusted to have stopped. That holds for a lane that is just being connected too: the node
///      may have it up before this side knows.
///   3. One attempt to connect is under way at a time. From the node's answer on its queue pairs may be up there.
/// Thread safety: none; on the client's executor. Queue pairs are made and connected on another thread, which then has
/// the attempt's lanes to itself. Belongs to its session.
class LinkLanes {
 public:
  class Listener {
   public:
    virtual void message_came(std::span<const std::byte> message) = 0;  ///< May destroy the lanes.
    virtual void messages_broke(error_code why) = 0;                    ///< Likewise.
    /// Whether the lane for messages is worth a try: perhaps it broke a short while ago, on another session.
    virtual bool may_try_messages() const = 0;

   protected:
    ~Listener() = default;
  };

  /// `message_count_max` 0: no lane for messages. `session` and `listener` outlive the lanes.
  LinkLanes(CallSession& session, Listener& listener, std::uint32_t lane_count_max, std::uint32_t message_count_max);
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
  Listener& listener_;
  ClientShared& shared_;  ///< The session's.
  const std::uint32_t lane_count_max_, message_count_max_;
  std::vector<std::shared_ptr<Lane>> lanes_;  ///< Null or up. As many as are wanted, from the first attempt on.
  std::shared_ptr<Lane> message_lane_;        ///< Null or up.

  enum class Attempt : std::uint8_t {
    kNone,
    kOffered,  ///< Queue pairs are being made, or the node is being asked.
    kAnswered  ///< They are being connected on another thread; the node may have them up.
  };
  Attempt attempt_state_ = Attempt::kNone;
  std::vector<std::shared_ptr<Lane>> attempt_;  ///< Being connected.
  std::unique_ptr<ConnectCall> connect_;
  BackOff back_off_;
  std::string why_;
  Lifeline lifeline_;  ///< For what comes back from the other thread.
};

}  // namespace kv
