// gpu/swap.h: whole blocks between one layout in two memories, the device's and the host's for instance. Nothing is
// permuted, so copies of contiguous bytes do, as few and as large as the layout lets them be: the copy engine's work.
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
/// Errors: kMismatch: the layouts differ in more than how many blocks they have and where they lie, or a block's bytes
/// are not contiguous (a slice of heads): relayout() moves those; kBadRequest: a block that is not there.
Result<CopyList> plan_swap(const BoundLayout& to, const BoundLayout& from,
                           std::span<const std::int64_t> pairs);  ///< pairs [n][2]

/// The copies, here and now. Requires host memory.
void run_copies(const CopyList& copies);

}  // namespace kv
