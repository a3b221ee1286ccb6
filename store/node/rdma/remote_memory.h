// store/node/rdma/remote_memory.h: shared by a session and its lanes: client memory, moves, blocks with messages.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/owner.h"
#include "transport/verbs/verbs_mover.h"

namespace kv {

/// A slice of memory that the client has registered with its devices. Adjoining slices form a region.
struct RemoteSlice {
  std::uint64_t offset = 0;  ///< In the region.
  std::uint64_t address = 0, bytes = 0;
  std::vector<std::uint32_t> rkeys;  ///< By lane; lanes beyond have no key.
};

/// A region that RDMA can reach.
struct RemoteMemory {
  std::vector<RemoteSlice> slices;
  std::uint32_t reach = 0;  ///< Bit i: lane i has keys for the region.
};

/// A slot, and its place in a region.
struct Placement {
  std::span<std::byte> slot;
  std::uint64_t region_offset = 0;  ///< The slot's whole length lies in the region, as checked before.
};

/// How the moves of one call ended.
struct MoveOutcome {
  error_code error;
  std::uint32_t broken = 0;  ///< Bit i: lane i broke during the call.
};

/// Slots sent to the client right before a message, and their owner; see VerbsMessages.
struct MessageCargo {
  std::vector<verbs::Stretch> stretches;
  Owner owner;
};

}  // namespace kv
