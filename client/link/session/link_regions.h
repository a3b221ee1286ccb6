// client/link/session/link_regions.h: the memory that one session has lent to its node.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "client/link/call.h"
#include "client/link/link_lanes.h"

namespace kv {

/// Lent as a memfd, which the node maps, over a stream that passes descriptors; else by RDMA, if there are lanes.
///   1. All regions lent, or being lent, together are at most the node's region_bytes_max.
///   2. A region's handle is sent to the node only from the node's answer on until take_back().
///   3. A region taken back is released here at once, even during a request: this thread must not unmap it later.
/// Calls do not wait: if memory is not lent yet, or the lanes are broken, they go inline.
/// Thread safety: none; on the client's executor. Belongs to its session.
class LinkRegions {
 public:
  enum class State : std::uint8_t {
    kNotNow,   ///< By RDMA: devices, registration or lanes are not ready. Calls go inline.
    kPending,  ///< The node is being asked; CallSession::lend_ended() follows.
    kYes,
    kRefused
  };

  LinkRegions(CallSession& session, bool by_memfd);
  ~LinkRegions();

  /// Switches to RDMA; nullptr: ends it. The lanes outlive this, or are removed before.
  void set_lanes(LinkLanes* lanes) { lanes_ = lanes; }

  /// Lends `region` if it is not lent yet.
  State lend(const std::shared_ptr<LentMemory::Region>& region);
  std::uint32_t handle(const LentMemory::Region& region) const;  ///< Requires a lent region.
  /// Lanes that are up and reach `region`. Bit i: lane i. 0 without RDMA.
  std::uint32_t lanes_for(const LentMemory::Region& region) const;
  void take_back(const LentMemory::Region& region);  ///< Has no effect if it is not lent.
  bool has_any() const;

 private:
  class AddCall;

  State lend_by_verbs(const std::shared_ptr<LentMemory::Region>& region);
  State add(const std::shared_ptr<LentMemory::Region>& region);
  AddCall* find(const LentMemory::Region& region) const;
  void remove(AddCall& lent);

  CallSession& session_;
  const bool by_memfd_;
  LinkLanes* lanes_ = nullptr;
  std::vector<std::unique_ptr<AddCall>> lent_;
  std::uint64_t bytes_ = 0;  ///< Of regions in kYes or kPending.
};

}  // namespace kv
