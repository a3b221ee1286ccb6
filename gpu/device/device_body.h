// gpu/device/device_body.h: the work of a block of threads of a kernel. Called by CUDA kernels (gpu/cuda/permute.cu)
// and by tests on the host, thread after thread, which prove the kernels' arithmetic without a device.
//
// Copies are bound by HBM. Neighbouring threads take neighbouring vectors of a row; each has four rows in flight.
//
//     device_rows.h       rows to addresses, and the share of each thread
//     device_values.h     eight or four numbers of a row in one access
//     device_tile.h       transpositions
//     device_rotate.h     turned keys
//     device_quantise.h   dynamic scales
//     device_keep.h       compressed caches
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/device/device_keep.h"
#include "gpu/device/device_plan.h"
#include "gpu/device/device_quantise.h"
#include "gpu/device/device_rotate.h"
#include "gpu/device/device_rows.h"
#include "gpu/device/device_tile.h"
#include "gpu/device/device_values.h"

namespace kv::device {

template <int kBytes, bool kIsSimple, class Plan>
constexpr void copy_rows(const Plan& plan, const DevicePart& device, std::int64_t layer, const Worker& worker) {
  constexpr int kInFlight = 4;
  const Part& part = device.part;
  const std::int64_t unit = element_bytes(part.to.element);
  const std::int64_t vecs = part.to.feature.extent() * unit / kBytes;  // in a head's row
  const std::int64_t item_count = part.heads * vecs;
  const Share share = share_of(item_count, worker, device.span_shift, device.row_shift);
  // A narrow row has one slice: the pieces of further ones begin beyond its end.
  for (std::int64_t item = share.item + worker.slice * share.item_step; item < item_count;
       item += worker.slice_count * share.item_step) {
    const std::int64_t head = item / vecs;
    const std::int64_t feature = (item - head * vecs) * (kBytes / unit);
    std::byte* to =
        plan.to_base(layer, part.to.component) + part.to.head.offset(head) + part.to.feature.offset(feature);
    const std::byte* from =
        plan.from_base(layer, part.from.component) + part.from.head.offset(head) + part.from.feature.offset(feature);
    const std::int64_t step = share.row_step;
    for (std::int64_t row = share.row; row < plan.row_count; row += step * kInFlight) {
      std::int64_t to_offsets[kInFlight] = {};
      Vec<kBytes> values[kInFlight] = {};
      for (int i = 0; i < kInFlight; ++i) {
        to_offsets[i] = -1;
        if (row + i * step >= plan.row_count) continue;
        const std::int64_t from_offset = row_offset<kIsSimple>(plan, false, part.from, row + i * step);
        if (from_offset < 0) continue;
        to_offsets[i] = row_offset<kIsSimple>(plan, true, part.to, row + i * step);
        values[i] = load<Vec<kBytes>>(from + from_offset);
      }
      for (int i = 0; i < kInFlight; ++i) {
        if (to_offsets[i] >= 0) store(to + to_offsets[i], values[i]);
      }
    }
  }
}

/// Multiplies an access's values from `start` on by their scales.
template <int kWidth, class Plan>
constexpr void apply_scales(const Plan& plan, const Part& part, const HeadRow& rows, std::uint32_t start,
                            float* values) {
  const auto values_per_scale = static_cast<std::uint32_t>(part.values_per_scale);
  const auto scale = [&](std::uint32_t index) {
    return load_value(part.scales, rows.scales, index / values_per_scale) * plan.operation.global_scale;
  };
  if (values_per_scale % kWidth == 0) {  // neighbours share one
    const float common = scale(start);
    for (int i = 0; i < kWidth; ++i) values[i] *= common;
    return;
  }
  for (std::uint32_t i = 0; i < kWidth; ++i) values[i] *= scale(start + i);
}

/// Pieces of a head's row, each for a thread of cast_rows(): a piece's accesses lie this many accesses apart.
constexpr std::uint32_t cast_pieces(const DevicePart& device) {
  const auto values = static_cast<std::uint32_t>(device.part.values);
  const std::uint32_t width = device.vec_bytes == 4 ? 4 : 8;
  return (values + width - 1) / width / static_cast<std::uint32_t>(device.access_count);
}

/// Several accesses of one row of one head: all are read before the first write, so that they overlap.
template <int kWidth, class Plan>
constexpr void cast_piece(const Plan& plan, const DevicePart& device, const HeadRow& rows, std::uint32_t piece) {
  constexpr int kHeld = kHeldValues / kWidth;
  const Part& part = device.part;
  const std::uint32_t pieces = cast_pieces(device);
  float held[kHeld][kWidth] = {};
  for_each_index<kHeld>([&](int j) {
    if (j >= device.access_count) return;
    const std::uint32_t start = (piece + static_cast<std::uint32_t>(j) * pieces) * kWidth;
    const std::uint32_t at = part.from.element == Element::kE2M1x2 ? start / 2 : start;
    load_values<kWidth>(part.from.element, rows.from + axis_offset(part.from.feature, at), held[j]);
  });
  for_each_index<kHeld>([&](int j) {
    if (j >= device.access_count) return;
    const std::uint32_t start = (piece + static_cast<std::uint32_t>(j) * pieces) * kWidth;
    float* values = held[j];
    if (part.kind == Operation::Kind::kDequantise) {
      apply_scales<kWidth>(plan, part, rows, start, values);
    } else if (part.from_scale != 1.0F) {
      for (int k = 0; k < kWidth; ++k) values[k] *= part.from_scale;
    }
    if (part.to_scale != 1.0F) {
      for (int k = 0; k < kWidth; ++k) values[k] /= part.to_scale;
    }
    std::byte* const at = rows.to + axis_offset(part.to.feature, start);
    store_values<kWidth>(part.to.element, at, values, !has_nan<kWidth>(values));
  });
}

/// The same where neighbouring values do not form an access: one at a time.
template <class Plan>
constexpr void cast_each(const Plan& plan, const Part& part, const HeadRow& rows, std::uint32_t piece) {
  const auto end = static_cast<std::uint32_t>(part.values);
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
  for (std::uint32_t i = piece * kEight; i < end && i < (piece + 1) * kEight; ++i) {
    float value = load_value(part.from, rows.from, i);
    if (part.kind == Operation::Kind::kDequantise) {
      apply_scales<1>(plan, part, rows, i, &value);
    } else {
      value *= part.from_scale;
    }
    store_code(part.to, rows.to, i, encode_slowly(part.to.element, value / part.to_scale));
  }
}

template <class Plan>
constexpr void cast_rows(const Plan& plan, const DevicePart& device, std::int64_t layer, const Worker& worker) {
  const Part& part = device.part;
  const std::uint32_t pieces = cast_pieces(device);
  for_each_item(
      plan.row_count, part.heads * pieces, worker,
      [&](std::int64_t item, std::int64_t row) __attribute__((always_inline)) {
        const auto index = static_cast<std::uint32_t>(item);
        const std::uint32_t head = index / pieces;
        const HeadRow rows = head_row(plan, part, layer, row, head);
        if (!rows.to) return;
        if (device.vec_bytes == 16) return cast_piece<8>(plan, device, rows, index - head * pieces);
        if (device.vec_bytes == 4) return cast_piece<4>(plan, device, rows, index - head * pieces);
        cast_each(plan, part, rows, index - head * pieces);
      },
      device.span_shift, device.row_shift);
}

/// Shared memory of a body; most need none.
struct NoScratch {};
template <DeviceBody body>
struct ScratchOf {
  using Type = NoScratch;
};
template <>
struct ScratchOf<DeviceBody::kTranspose> {
  using Type = TileScratch;
};
template <>
struct ScratchOf<DeviceBody::kRotate> {
  using Type = TurnScratch;
};

/// One thread's share of a component and layer, in bodies without barriers.
template <DeviceBody body, class Plan>
constexpr void move_rows(const Plan& plan, const DevicePart& device, std::int64_t layer, const Worker& worker) {
  if constexpr (body == DeviceBody::kCast) {
    cast_rows(plan, device, layer, worker);
  } else if constexpr (body == DeviceBody::kQuantise) {
    quantise_rows(plan, device, layer, worker);
  } else if constexpr (body == DeviceBody::kWideCopy) {
    copy_rows<16, true>(plan, device, layer, worker);
  } else {
    switch (device.vec_bytes) {
      case 16: return copy_rows<16, false>(plan, device, layer, worker);
      case 8: return copy_rows<8, false>(plan, device, layer, worker);
      case 4: return copy_rows<4, false>(plan, device, layer, worker);
      case 2: return copy_rows<2, false>(plan, device, layer, worker);
      default: return copy_rows<1, false>(plan, device, layer, worker);
    }
  }
}

/// The whole work of a block of threads in a launch whose parts are all of `body`. A Block has its place in the grid:
///     index, count          among the blocks that share the rows
///     share, share_count    among those that share the (component, layer) pairs
///     slice, slice_count    among those that share the pieces of a row
///     together(step)        runs step(worker) on each thread, then a barrier
///     alone(step)           the same without the barrier
template <DeviceBody body, class Plan, class Scratch, class Block>
constexpr void run_block(const Plan& plan, [[maybe_unused]] Scratch& scratch, const Block& block) {
  const std::int64_t share_end = plan.part_count * plan.layer_count;
  const auto for_each_share = [&](auto&& visit) {
    for (std::int64_t share = block.share; share < share_end; share += block.share_count) {
      const auto part = static_cast<std::uint32_t>(share) / static_cast<std::uint32_t>(plan.layer_count);
      visit(plan.parts[part], share - part * plan.layer_count);
    }
  };
  if constexpr (body == DeviceBody::kTranspose) {
    for_each_share([&](const DevicePart& device, std::int64_t layer) __attribute__((always_inline)) {
      switch (element_bytes(device.part.to.element)) {
        case 1: return transpose_rows<std::uint8_t>(plan, device, layer, scratch, block);
        case 2: return transpose_rows<std::uint16_t>(plan, device, layer, scratch, block);
        default: return transpose_rows<std::uint32_t>(plan, device, layer, scratch, block);
      }
    });
  } else if constexpr (body == DeviceBody::kRotate) {
    const std::int64_t each = turn_rows_at_once(plan.operation.rotation);
    for (std::int64_t row = block.index * each; row < plan.row_count; row += block.count * each) {
      const std::int64_t count = plan.row_count - row < each ? plan.row_count - row : each;
      block.together([&](const Worker& worker)
                         __attribute__((always_inline)) { find_turns(plan, row, count, scratch, worker); });
      for_each_share([&](const DevicePart& device, std::int64_t layer) __attribute__((always_inline)) {
        block.alone([&](const Worker& worker) __attribute__((always_inline)) {
          turn_keys(plan, device, layer, row, count, scratch, worker);
        });
      });
      block.together([](const Worker&) {});  // before the next rows reuse the turns
    }
  } else {
    for_each_share([&](const DevicePart& device, std::int64_t layer) __attribute__((always_inline)) {
      block.alone([&](const Worker& worker)
                      __attribute__((always_inline)) { move_rows<body>(plan, device, layer, worker); });
    });
  }
}

/// The same for rows of a compressed cache.
template <class Plan, class Block>
constexpr void run_keep_block(const Plan& plan, const KeepRow* rows, std::int64_t row_count, KeepScratch& scratch,
                              const Block& block) {
  for (std::int64_t row = block.index * kKeepRows; row < row_count; row += block.count * kKeepRows) {
    const std::int64_t count = row_count - row < kKeepRows ? row_count - row : kKeepRows;
    block.together([&](const Worker& worker)
                       __attribute__((always_inline)) { load_keep_rows(rows + row, count, scratch, worker); });
    block.together([&](const Worker& worker)
                       __attribute__((always_inline)) { check_keep_rows(plan, count, scratch, worker); });
    for (std::int64_t share = block.share; share < plan.part_count * plan.layer_count; share += block.share_count) {
      const std::int64_t part = share / plan.layer_count;
      block.alone([&](const Worker& worker) __attribute__((always_inline)) {
        keep_rows(plan, plan.parts[part], share - part * plan.layer_count, scratch, count, worker);
      });
    }
    block.together([](const Worker&) {});  // before the next rows reuse the scratch
  }
}

}  // namespace kv::device
