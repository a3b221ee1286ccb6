// store/node/session/misses.h: the answer to who asks why a chain ends where it does.
#pragma once

#include <span>

#include "store/node/session/session_core.h"
#include "store/node/session/space_handles.h"

namespace kv {

/// Answers a match that has `why` set. What it tells of other namespaces: of those with the same `tenant` in their
/// record; to who may read the node's counters, and belongs to no tenant, of all. What a salt is it never tells.
/// Cost: a look into each namespace, kSpacesPerCall of them under one lock, kSpacesLookedAt at most.
void answer_why(SessionCore& session, const SessionCore::Frame& frame, const OpenSpace& space,
                std::span<const BlockHash> hashes);

}  // namespace kv
