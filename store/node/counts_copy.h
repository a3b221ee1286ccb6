// store/node/counts_copy.h: what the Store's policy has counted, copied without holding the Store for long.
#pragma once

#include "store/node/locked_store.h"
#include "store/yield_counts.h"

namespace kv {

/// `with_before`: what was counted before a restart, too. Class by class of hints, each under a lock of its own: 20 KB
/// at a time. What is counted in between is an error of some uses; a unit that changes in between makes all of it void.
/// unit 0: nothing is counted.
YieldCounts copy_counts(LockedStore& store, bool with_before);

}  // namespace kv
