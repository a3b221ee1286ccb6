// gpu/host_rows.h: the computing body of permute() on the host: one row of one component, through float.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/permute_plan.h"

namespace kv {

/// Cosine and sine of each pair's angle for one row: the same for all its heads, components and layers.
struct TurnTable {
  bool is_identity = true;  ///< A difference of 0: the row bypasses arithmetic.
  float cosines[kRotarySizeMax / 2];
  float sines[kRotarySizeMax / 2];
};
void fill_turn_table(TurnTable& table, const Rotation& rotation, std::int64_t row);

/// Casts, quantises, dequantises or turns all heads of a row. Pointers are to its first element in head 0.
void compute_row(const Part& part, const Operation& operation, const TurnTable& turn, std::byte* to,
                 const std::byte* from, std::byte* to_scales, const std::byte* from_scales);

}  // namespace kv
