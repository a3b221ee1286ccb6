// store/replay/optimum.h: the most hits that any cache of a size could have.
#pragma once

#include <atomic>
#include <cstdint>

#include "store/replay/block_trace.h"

namespace kv {

/// Belady's optimum for prefixes: with knowledge of all requests, keeps the blocks with the soonest next uses, old and
/// new ones alike. A block is used no later than those behind it, and among blocks used at once the deeper ones go
/// first: so leaf ends go, and prefixes stay. Blocks without a further use are not stored. `done` counts requests.
/// Memory: some 16 bytes a reference. Cost: O(log capacity) a reference.
CacheTotals optimum(const BlockTrace& trace, std::uint64_t capacity, std::atomic<std::uint64_t>& done);

}  // namespace kv
