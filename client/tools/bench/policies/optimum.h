// client/tools/bench/policies/optimum.h: the most hits that any cache of a size could have had.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "client/tools/bench/policies/block_trace.h"

namespace kv {

/// Belady's optimum for prefixes: knows all requests, and after each keeps those blocks that are used soonest again,
/// whether they were here or are new. A block is used no later than those behind it, and of blocks used at once the
/// deeper ones go first: so leaf ends go, and what is kept are prefixes. Blocks that are not used again are not stored.
/// `done` counts requests. Memory: some 16 bytes a reference. Cost: O(log capacity) a reference.
CacheTotals optimum(const BlockTrace& trace, std::uint64_t capacity, std::atomic<std::uint64_t>& done);

}  // namespace kv
