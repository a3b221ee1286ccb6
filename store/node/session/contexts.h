// store/node/session/contexts.h: the answer to who creates, lists, extends or deletes prefixes that are kept by name.
#pragma once

#include <cstdint>
#include <string>

#include "store/node/session/session_core.h"
#include "store/node/session/space_door.h"
#include "store/store.h"

namespace kv {

/// Carries the request out, and answers. Whose contexts these are is not the client's to say: they are those of the
/// tenant that the policy gives it, or of nobody. A list is one look into the store for kContextsPerAnswer of them.
void answer_context(SessionCore& session, SpaceDoor& door, const SessionCore::Frame& frame);

std::uint64_t wall_us();  ///< Microseconds since 1970, by the wall clock: what a context's times are told in.

/// A line of the log.
std::string context_news_text(const Store::ContextNews& news);

}  // namespace kv
