// client/link/session/link_regions.h: the memory that one session has lent to its node.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "client/link/call.h"
#include "client/link/link_lanes.h"

namespace kv {

/// Lent over a stream that passes descriptors as a memfd, which the node maps; over any other by RDMA, if the session
/// has lanes; or not at all.
///   1. All regions that are lent, or about to be, are together no larger than the node's region_bytes_max.
///   2. A region is named to the node, by its handle, only from the node's answer on until take_back().
///   3. A region that is taken back is let go here at once, even while the node is being asked: its memory must not be
///      unmapped later on this thread.
/// Nothing is waited for: a call that finds memory not lent yet, or the lanes broken, goes inline.
/// Thread safety: none; on the client's executor. Belongs to its session.
class LinkRegions {
 public:
  class Listener {
   public:
    virtual void lend_ended() = 0;  ///< A kPending was decided.

   protected:
    ~Listener() = default;
  };
  enum class State : std::uint8_t {
    kNotNow,   ///< By RDMA: devices are being opened, memory registered, lanes connected. Calls go inline.
    kPending,  ///< The node is being asked; Listener::lend_ended() follows.
    kYes,
    kRefused
  };

  LinkRegions(CallSession& session, Listener& listener, bool by_memfd);
  ~LinkRegions();

  /// From now on by RDMA; nullptr: no longer. The lanes outlive this, or are taken away before.
  void set_lanes(LinkLanes* lanes) { lanes_ = lanes; }

  /// Asks for `region` to be lent if it was not.
  State lend(const std::shared_ptr<LentMemory::Region>& region);
  std::uint32_t handle(const LentMemory::Region& region) const;  ///< Requires that it is lent.
  /// Lanes that are up and reach `region`. Bit i: lane i. 0 without RDMA.
  std::uint32_t lanes_for(const LentMemory::Region& region) const;
  void take_back(const LentMemory::Region& region);  ///< Nothing if it was not lent.
  bool has_any() const;                              ///< Lent now.

 private:
  class AddCall;

  State lend_by_verbs(const std::shared_ptr<LentMemory::Region>& region);
  State add(const std::shared_ptr<LentMemory::Region>& region);
  AddCall* find(const LentMemory::Region& region) const;
  void remove(AddCall& lent);

  CallSession& session_;
  Listener& listener_;
  const bool by_memfd_;
  LinkLanes* lanes_ = nullptr;
  std::vector<std::unique_ptr<AddCall>> lent_;
  std::uint64_t bytes_ = 0;  ///< Of those that are kYes or kPending.
};

}  // namespace kv
