// gpu/host/host_rows.h: the computing body of permute() on the host: one row of one component, through float.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/host/host_turn.h"
#include "gpu/plans/permute_plan.h"

namespace kv {

/// For one rotation in all of a call: rows of one difference, such as those of a module, share the angles.
void fill_turn_table(TurnTable& table, const Rotation& rotation, std::int64_t row);

/// Casts, quantises, dequantises or turns all heads of a row. Pointers are to its first element in head 0.
void compute_row(const Part& part, const Operation& operation, const TurnTable& turn, std::byte* to,
                 const std::byte* from, std::byte* to_scales, const std::byte* from_scales);

}  // namespace kv
