// gpu/device/device_rows.h: a thread's share of pieces and rows. Rows become slots, slots become addresses.
//
// A launch's grid: x shares the rows, y the (component, layer) pairs, z the pieces of long rows. A 64-bit division
// costs a device about a hundred instructions, as much as all the rest, so blocks of 2^n tokens use shifts, and indices
// within a block 32 bits (make_device_plans() asserts that they fit).
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/device/device_plan.h"
#include "gpu/device/device_values.h"

namespace kv::device {

struct Worker {
  int thread = 0;
  int thread_count = 1;
  std::int64_t block = 0;
  std::int64_t block_count = 1;
  int slice = 0;  ///< Of long copied rows, or of a transposition's columns: blocks share their pieces.
  int slice_count = 1;
};

/// Whether the source block of `row` failed verification.
template <class Plan>
constexpr bool is_refused(const Plan& plan, std::int64_t row) {
  if constexpr (Plan::kHasVerdicts) {
    return plan.verdicts[plan.from_shift >= 0 ? row >> plan.from_shift : row / plan.from_block_tokens] != 0;
  }
  return false;
}

/// The slot of row `row` on a side; negative: skip it. kIsSimple: the caller has checked that shifts suffice for ids.
template <bool kIsSimple, class Plan>
constexpr std::int64_t row_slot(const Plan& plan, bool is_to, std::int64_t row) {
  const Rows& rows = is_to ? plan.to_rows : plan.from_rows;
  const int shift = is_to ? plan.to_rows_shift : plan.from_rows_shift;
  std::int64_t slot = 0;
  if (kIsSimple || shift >= 0) {
    slot = rows.first + row;
    if (rows.kind != Rows::Kind::kRange) {
      const std::int64_t index = (row >> shift) * rows.id_step;
      const bool is_32 = rows.kind == Rows::Kind::kSlots32 || rows.kind == Rows::Kind::kBlocks32;
      const std::int64_t id = is_32 ? std::int64_t{static_cast<const std::int32_t*>(rows.ids)[index]}
                                    : static_cast<const std::int64_t*>(rows.ids)[index];
      slot = id;
      if (rows.is_blocks()) {
        if (static_cast<std::uint64_t>(id) > static_cast<std::uint64_t>(kBlockIdMax)) return -1;  // negative ids too
        slot = (id << shift) + (row & ((std::int64_t{1} << shift) - 1));
      }
    }
  } else {
    slot = rows.slot(row);
  }
  const std::int64_t slot_count = is_to ? plan.to_slot_count : plan.from_slot_count;
  if (static_cast<std::uint64_t>(slot) >= static_cast<std::uint64_t>(slot_count)) return -1;
  return !is_to && is_refused(plan, row) ? -1 : slot;
}

/// Axis::offset() in 32 bits.
constexpr std::int64_t axis_offset(const Axis& axis, std::uint32_t index) {
  if (axis.high.extent == 1) return std::int64_t{index} * axis.low.stride_bytes;
  const auto extent = static_cast<std::uint32_t>(axis.low.extent);
  const std::uint32_t high = index / extent;
  return std::int64_t{index - high * extent} * axis.low.stride_bytes + std::int64_t{high} * axis.high.stride_bytes;
}

/// A slot as its block and the token in it.
struct BlockToken {
  std::int64_t block = 0;
  std::uint32_t token = 0;
};
template <class Plan>
constexpr BlockToken block_token(const Plan& plan, bool is_to, std::int64_t slot) {
  const int shift = is_to ? plan.to_shift : plan.from_shift;
  const std::int64_t tokens = is_to ? plan.to_block_tokens : plan.from_block_tokens;
  const std::int64_t block = shift >= 0 ? slot >> shift : slot / tokens;
  return {block, static_cast<std::uint32_t>(slot - block * tokens)};
}
constexpr std::int64_t token_offset(const Place& place, const BlockToken& at) {
  return at.block * place.block_stride_bytes + axis_offset(place.token, at.token);
}

/// Offset of row `row` from the component's base; negative: skip it. kIsSimple: and the token axis has one digit.
template <bool kIsSimple, class Plan>
constexpr std::int64_t row_offset(const Plan& plan, bool is_to, const Place& place, std::int64_t row) {
  const std::int64_t slot = row_slot<kIsSimple>(plan, is_to, row);
  if (slot < 0) return -1;
  if constexpr (!kIsSimple) return token_offset(place, block_token(plan, is_to, slot));
  const int shift = is_to ? plan.to_shift : plan.from_shift;
  const std::int64_t token = slot & ((std::int64_t{1} << shift) - 1);
  return (slot >> shift) * place.block_stride_bytes + token * place.token.low.stride_bytes;
}

/// Both rows of one head, and its scales' row; null: skip.
struct HeadRow {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::byte* scales = nullptr;
  const std::byte* from_scales = nullptr;  ///< kRotate: beside `scales`, which are those of `to`.
};
template <class Plan>
constexpr HeadRow head_row(const Plan& plan, const Part& part, std::int64_t layer, std::int64_t row,
                           std::uint32_t head) {
  const std::int64_t to_slot = row_slot<false>(plan, true, row), from_slot = row_slot<false>(plan, false, row);
  if (to_slot < 0 || from_slot < 0) return {};
  const BlockToken to = block_token(plan, true, to_slot), from = block_token(plan, false, from_slot);
  const auto at = [&](bool is_to, const Place& place) {
    std::byte* base = is_to ? plan.to_base(layer, place.component) : plan.from_base(layer, place.component);
    return base + token_offset(place, is_to ? to : from) + axis_offset(place.head, head);
  };
  HeadRow rows{at(true, part.to), at(false, part.from)};
  if (part.values_per_scale > 0) {
    rows.scales = at(part.kind != Operation::Kind::kDequantise, part.scales);
    if (part.kind == Operation::Kind::kRotate) rows.from_scales = at(false, part.from_scales);
  }
  return rows;
}

/// A thread's share: pieces [item], [item + item_step] ... of rows [row], [row + row_step] ...
struct Share {
  std::int64_t item = 0;
  std::int64_t item_step = 1;
  std::int64_t row = 0;
  std::int64_t row_step = 1;
};
/// Neighbouring threads take neighbouring pieces, and several rows side by side if a row has few pieces. With shifts
/// (see DevicePart): first 2^span_shift pieces of 2^row_shift rows. Requires: 2^span_shift divides item_count.
constexpr Share share_of(std::int64_t item_count, const Worker& worker, int span_shift = 0, int row_shift = 0) {
  if ((worker.thread_count & ((1 << (span_shift + row_shift)) - 1)) != 0) span_shift = row_shift = 0;
  const auto thread = static_cast<std::uint32_t>(worker.thread);
  const std::uint32_t unit = thread >> (span_shift + row_shift);
  const std::uint32_t unit_count = static_cast<std::uint32_t>(worker.thread_count) >> (span_shift + row_shift);
  const std::int64_t span_count = item_count >> span_shift;
  const bool is_narrow = span_count < unit_count;
  const auto spans = static_cast<std::uint32_t>(span_count);
  const std::uint32_t lane_count = is_narrow ? unit_count / spans : 1;
  const std::uint32_t lane = is_narrow ? unit / spans : 0;
  const std::uint32_t span = unit - lane * spans;
  const std::uint32_t within_span = thread & ((1U << span_shift) - 1);
  const std::uint32_t within_rows = thread >> span_shift & ((1U << row_shift) - 1);
  Share share;
  share.item = lane < lane_count ? (std::int64_t{span} << span_shift) + within_span : item_count;
  share.item_step = std::int64_t{unit_count} << span_shift;
  share.row = ((worker.block * lane_count + lane) << row_shift) + within_rows;
  share.row_step = (worker.block_count * lane_count) << row_shift;
  return share;
}

/// Calls visit(item, row) for this thread's share of row_count * item_count.
template <class Visit>
constexpr void for_each_item(std::int64_t row_count, std::int64_t item_count, const Worker& worker, Visit visit,
                             int span_shift = 0, int row_shift = 0) {
  const Share share = share_of(item_count, worker, span_shift, row_shift);
  for (std::int64_t item = share.item; item < item_count; item += share.item_step) {
    for (std::int64_t row = share.row; row < row_count; row += share.row_step) visit(item, row);
  }
}

}  // namespace kv::device
