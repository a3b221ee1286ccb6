// gpu/swap.h: whole blocks between two memories of one layout, such as the device's and the host's. Copies of
// contiguous bytes suffice, as few and as large as the layout allows: the copy engine's work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "gpu/layout.h"

namespace kv {

/// Copies of bytes[i] from from[i] to to[i].
struct CopyList {
  std::vector<void*> to;
  std::vector<const void*> from;
  std::vector<std::size_t> bytes;
};

/// The copies that take block pairs[i][0] of `from` to block pairs[i][1] of `to`, in every layer and component; a pair
/// with a negative block is skipped. Neighbours on both sides (blocks in a row; K and V; layers) become one copy.
/// Errors: kMismatch: the layouts differ in more than block count and addresses, or a block's bytes are not contiguous
/// (a slice of heads): relayout() moves those; kBadRequest: a block out of range.
Result<CopyList> plan_swap(const BoundLayout& to, const BoundLayout& from,
                           std::span<const std::int64_t> pairs);  ///< pairs [n][2]

}  // namespace kv
