// store/node/rdma/remote_memory.h: what a session and its lanes say to each other: memory of the client's, moves into
// and out of it, and what goes along with a message.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/owner.h"
#include "base/result.h"
#include "transport/verbs/verbs_mover.h"

namespace kv {

/// A slice of memory that the client has registered with its devices. Adjoining slices make a region.
struct RemoteSlice {
  std::uint64_t offset = 0;  ///< In the region.
  std::uint64_t address = 0, bytes = 0;
  std::vector<std::uint32_t> rkeys;  ///< By lane; a lane beyond has none.
};

/// A region that is reached by RDMA.
struct RemoteMemory {
  std::vector<RemoteSlice> slices;
  std::uint32_t reach = 0;  ///< Bit i: lane i has keys for it.
};

/// Which slots go where in a region, or come from there.
struct Placement {
  std::span<std::byte> slot;
  std::uint64_t region_offset = 0;  ///< The slot's length from there lies in the region: checked before.
};

/// How the moves of one call ended.
struct MoveOutcome {
  error_code error;
  std::uint32_t broken = 0;  ///< Bit i: lane i broke under it.
};

/// Slots on their way to the client right before a message, and what keeps them; see VerbsMessages.
struct MessageCargo {
  std::vector<verbs::Stretch> stretches;
  Owner owner;
};

}  // namespace kv
