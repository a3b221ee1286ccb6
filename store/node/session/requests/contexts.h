// store/node/session/requests/contexts.h: creates, lists, extends and deletes prefixes that are kept by name.
#pragma once

#include <cstdint>
#include <string>

#include "store/node/session/core/session_core.h"
#include "store/node/session/core/space_door.h"
#include "store/store.h"

namespace kv {

/// Carries the request out, and answers. The contexts are those of the tenant that the policy assigns to the client, or
/// without an owner; the client cannot choose. A list takes the store's lock once for kContextsPerAnswer contexts.
void answer_context(SessionCore& session, SpaceDoor& door, const SessionCore::Frame& frame);

std::uint64_t wall_us();  ///< Microseconds since 1970 by the wall clock, the unit of a context's times.

/// A line of the log.
std::string context_news_text(const ContextDesk::News& news);

}  // namespace kv
