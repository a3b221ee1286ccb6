// gpu/host/host_turn.h: turning keys on the host, several at a time, where their features lie side by side as fp32 or
// bf16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/plans/permute_plan.h"

namespace kv {

/// Cosine and sine of each pair's angle: the same for all heads, components and layers of rows of one difference.
struct TurnTable {
  bool is_identity = true;  ///< A difference of 0: the row bypasses arithmetic.
  std::int64_t delta = 0;   ///< Of the angles below; 0: there are none yet.
  float cosines[kRotarySizeMax / 2];
  float sines[kRotarySizeMax / 2];
};

/// Whether turn_dense_rows() can turn the component: without scales, from one element to the same.
bool is_dense_turn(const Part& part, const Rotation& rotation);

/// All heads of rows of one difference, which follow one another in a block on both sides; features that do not turn
/// are copied. Pointers are to the first row in head 0. Every bit is that of compute_row() (gpu/host/host_rows.h).
void turn_dense_rows(const Part& part, const Rotation& rotation, const TurnTable& turn, std::int64_t row_count,
                     std::byte* to, const std::byte* from, bool is_streaming);

}  // namespace kv
