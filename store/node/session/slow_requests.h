// store/node/session/slow_requests.h: what the slow log is told of a request.
#pragma once

#include <cstddef>
#include <cstdint>

#include "store/node/session/session_core.h"
#include "store/node/session/space_handles.h"

namespace kv {

class SpaceDoor;

/// Filled in as a transfer goes on: nothing that has to be allocated or looked up.
struct TransferDetails {
  SpaceId space{};
  std::optional<NamespaceId> space_name = {};  ///< With `space`; none: it is about no namespace.
  FrameType verb{};
  std::size_t block_count = 0;  ///< Named by the request.
  std::uint64_t moved_bytes = 0;
  TraceContext trace = {};
  RequestPhases phases = {};
  Duration RequestPhases::*rest =
      nullptr;  ///< What the time was spent on that was not measured. nullptr: nothing known.
};

/// A request took so long: into the log. Call it only if it is slow.
void tell_slow(SessionCore& session, const TransferDetails& details, Duration took, bool has_failed);
/// Of a request that was over when it had been served. Reads its table once more.
TransferDetails details_of(const SessionCore::Frame& frame, SpaceDoor& door, const RequestPhases& phases);

}  // namespace kv
