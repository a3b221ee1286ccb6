// store/node/counts_copy.h: copies the Store's policy counts without holding the Store for long.
#pragma once

#include "store/node/locked_store.h"
#include "store/policy/yield_counts.h"

namespace kv {

/// `with_before`: includes counts from before a restart. Copies class by class of hints, 20 KB under one lock. Changes
/// in between cost some uses; a change of the unit voids the copy. unit 0: no counts.
YieldCounts copy_counts(LockedStore& store, bool with_before);

}  // namespace kv
