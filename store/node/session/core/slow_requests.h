// store/node/session/core/slow_requests.h: a request's entry in the slow log.
#pragma once

#include <cstddef>
#include <cstdint>

#include "store/node/session/core/session_core.h"
#include "store/node/session/tables/space_handles.h"

namespace kv {

class SpaceDoor;

/// Filled in during a transfer, so limited to fields without allocation or lookup.
struct TransferDetails {
  SpaceId space{};
  std::optional<NamespaceId> space_name = {};  ///< With `space`; nullopt: the request is not about a namespace.
  FrameType type{};
  std::size_t block_count = 0;  ///< Named in the request.
  std::uint64_t moved_bytes = 0;
  TraceContext trace = {};
  RequestPhases phases = {};
  Duration RequestPhases::*rest = nullptr;  ///< The phase that gets unmeasured time, if known.
};

/// Logs a slow request. Call only if is_slow().
void tell_slow(SessionCore& session, const TransferDetails& details, Duration took, bool has_failed);
/// For a request that completed while served. Reads its table once more.
TransferDetails details_of(const SessionCore::Frame& frame, SpaceDoor& door, const RequestPhases& phases);

}  // namespace kv
