// gpu/plans/permute_plan.h: a call of permute(), checked and flat: the input of the host body and the CUDA kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/layout.h"
#include "gpu/operation.h"
#include "gpu/rows.h"

namespace kv {

struct Place {
  Element element = Element::kByte;
  int component = -1;  ///< Column of the bases table; -1: absent.
  std::int64_t block_stride_bytes = 0;
  Axis token;
  Axis head;
  Axis feature;

  constexpr std::int64_t row_offset(std::int64_t slot, std::int64_t block_tokens) const {
    return slot / block_tokens * block_stride_bytes + token.offset(slot % block_tokens);
  }
};

/// One component of the call, with its scales.
struct Part {
  Role role = Role::kKey;
  Operation::Kind kind = Operation::Kind::kCopy;  ///< For this component: values are not rotated with the keys.
  std::int64_t heads = 0;
  std::int64_t values = 0;  ///< Numbers in one row of one head; twice the features where an element holds two.
  Place to;
  Place from;
  Place scales;                       ///< In `from` for kDequantise, else in `to`.
  Place from_scales;                  ///< kRotate with scales: the codes' present scales.
  std::int64_t values_per_scale = 0;  ///< 0: no scales.
  float from_scale = 1.0F;
  float to_scale = 1.0F;
};

/// One side's addresses: bases[layer * width + component].
struct Bases {
  std::byte* const* bases = nullptr;
  std::int64_t width = 0;
  std::int64_t block_tokens = 0;
  std::int64_t slot_count = 0;

  constexpr std::byte* base(std::int64_t layer, int component) const { return bases[layer * width + component]; }
};

Place place_of(const Layout& layout, const Component& component);  ///< `component` is the layout's own.
Bases bases_of(const BoundLayout& bound);                          ///< Borrows its table.
/// The dynamic scales of the component with this role; null: the layout has none.
const Component* scales_of(const Layout& layout, Role role);

/// Borrows the bases of both layouts and the ids of both Rows.
struct PermutePlan {
  Bases to;
  Bases from;
  Rows to_rows;
  Rows from_rows;
  std::int64_t row_count = 0;
  std::int64_t layer_count = 0;
  int part_count = 0;
  Part parts[kRoleCount];
  Operation operation;
};

Checked<PermutePlan> make_plan(const BoundLayout& to, const Rows& to_rows, const BoundLayout& from,
                               const Rows& from_rows, std::int64_t row_count, const Operation& operation);

/// The part of make_plan() that needs no memory: the components to move, and how.
Checked<PermutePlan> plan_parts(const Layout& to, const Layout& from, const Operation& operation);

}  // namespace kv
