// client/core/client_leases.h: the leases that a client's matches were granted, until a get or a release ends them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "client/core/owned_chain.h"
#include "client/link/call.h"
#include "client/link/client_shared.h"
#include "client/types/set_types.h"

namespace kv {

struct LeasePart {
  std::size_t node;
  std::weak_ptr<CallSession> session;  ///< The lease is valid only there, and ends with it.
  std::uint64_t id;                    ///< Assigned by the node.
  std::size_t first;                   ///< OwnedChain::first of its part: a node grants one lease per extent.
};
struct LeaseEntry {
  TimePoint until = TimePoint::max();  ///< End of the first part to expire.
  std::vector<LeasePart> parts;
  /// Adds a node's grant; ignores id 0.
  void add(LeasePart part, std::uint64_t lease_us, TimePoint now);
};

/// Bounded in number and time: a scheduler that never releases its leases must not grow this table for ever. Beyond the
/// limit the oldest is forgotten here; at its nodes it still ends by time.
class ClientLeases {
 public:
  Lease keep(LeaseEntry entry, TimePoint now);
  std::vector<LeasePart> take(Lease lease);  ///< Empty: none, or unknown.

 private:
  std::map<std::uint64_t, LeaseEntry> leases_;  ///< In order of grant.
  std::uint64_t last_ = 0;
};

/// Ends a node's part early. Does not wait for the node: if the request is lost with its session, the lease has ended
/// with the session; if the session is full, the lease ends by time.
void end_lease(ClientShared& shared, const LeasePart& part);
/// Ends a lease's parts that the get does not use: the whole lease ends with the get.
void release_unasked(ClientShared& shared, const std::vector<LeasePart>& lease, std::span<const OwnedChain> asked);
/// The id of the part for `chain`; the call must then use the session that granted it. 0: no part.
std::uint64_t use_lease(const std::vector<LeasePart>& parts, const OwnedChain& chain, Call& call);

}  // namespace kv
