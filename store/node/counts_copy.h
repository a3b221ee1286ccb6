// store/node/counts_copy.h: copies the Store's policy counts without holding the Store for long.
#pragma once

#include "store/node/locked_store.h"
#include "store/yield_counts.h"

namespace kv {

/// `with_before`: includes counts from before a restart. Each class of hints is copied under its own lock, 20 KB at a
/// time. Counts that change in between cause an error of some uses; a unit that changes in between voids the copy. unit
/// 0: no counts.
YieldCounts copy_counts(LockedStore& store, bool with_before);

}  // namespace kv
