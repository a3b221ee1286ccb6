// gpu/device/device_body.h: what one thread of a kernel does. CUDA kernels call these (gpu/cuda/permute.cu); so do
// tests on the host, thread after thread, which is how the kernels' arithmetic is proven where there is no device.
//
// A launch is a grid of blocks of threads for each (component, layer) pair: `y` tells the pair, `x` which rows. Bound
// by HBM for copies. Threads that are neighbours take neighbouring vectors of a row; each has four rows in flight.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "gpu/compress.h"
#include "gpu/device/device_plan.h"
#include "gpu/device/device_values.h"
#include "gpu/row_math.h"

namespace kv::device {

/// Where a thread is in its grid.
struct Worker {
  int thread = 0;
  int thread_count = 1;
  std::int64_t block = 0;
  std::int64_t block_count = 1;
  int slice = 0;  ///< Of long rows that are copied: blocks share their pieces.
  int slice_count = 1;
};

/// Whether the block of the source that holds `row` did not verify.
template <class Plan>
constexpr bool is_refused(const Plan& plan, std::int64_t row) {
  if constexpr (Plan::kHasVerdicts) {
    return plan.verdicts[plan.from_shift >= 0 ? row >> plan.from_shift : row / plan.from_block_tokens] != 0;
  }
  return false;
}

/// Which slot row `row` has on a side; negative: skip it.
template <class Plan>
constexpr std::int64_t row_slot(const Plan& plan, bool is_to, std::int64_t row) {
  const std::int64_t slot = is_to ? plan.to_rows.slot(row) : plan.from_rows.slot(row);
  if (slot < 0 || slot >= (is_to ? plan.to_slot_count : plan.from_slot_count)) return -1;
  return !is_to && is_refused(plan, row) ? -1 : slot;
}
/// Where a slot lies on a side, from the component's base.
template <class Plan>
constexpr std::int64_t slot_offset(const Plan& plan, bool is_to, const Place& place, std::int64_t slot) {
  const int shift = is_to ? plan.to_shift : plan.from_shift;
  const std::int64_t tokens = is_to ? plan.to_block_tokens : plan.from_block_tokens;
  const std::int64_t block = shift >= 0 ? slot >> shift : slot / tokens;
  return block * place.block_stride_bytes + place.token.offset(slot - block * tokens);
}
/// Where row `row` lies on a side, from the component's base; negative: skip it.
template <class Plan>
constexpr std::int64_t row_offset(const Plan& plan, bool is_to, const Place& place, std::int64_t row) {
  const std::int64_t slot = row_slot(plan, is_to, row);
  return slot < 0 ? -1 : slot_offset(plan, is_to, place, slot);
}

/// Calls visit(item, row) for this thread's share of row_count * item_count: items fastest, `block_count` blocks over
/// rows.
template <class Visit>
constexpr void for_each_item(std::int64_t row_count, std::int64_t item_count, const Worker& worker, Visit visit) {
  const std::int64_t lanes = item_count < worker.thread_count ? worker.thread_count / item_count : 1;
  const std::int64_t lane = item_count < worker.thread_count ? worker.thread / item_count : 0;
  if (lane >= lanes) return;
  const std::int64_t start = item_count < worker.thread_count ? worker.thread % item_count : worker.thread;
  for (std::int64_t item = start; item < item_count; item += worker.thread_count) {
    for (std::int64_t row = worker.block * lanes + lane; row < row_count; row += worker.block_count * lanes)
      visit(item, row);
  }
}

/// row_offset() without a division: block_tokens is a power of two, the token axis has one digit.
template <class Plan>
constexpr std::int64_t simple_row_offset(const Plan& plan, bool is_to, const Place& place, std::int64_t row) {
  const Rows& rows = is_to ? plan.to_rows : plan.from_rows;
  const int shift = is_to ? plan.to_shift : plan.from_shift;
  const std::int64_t mask = (std::int64_t{1} << shift) - 1;
  const bool is_blocks = rows.kind == Rows::Kind::kBlocks32 || rows.kind == Rows::Kind::kBlocks64;
  std::int64_t id = rows.first + row;
  if (rows.kind != Rows::Kind::kRange) {
    const std::int64_t index = (is_blocks ? row >> shift : row) * rows.id_step;
    const bool is_32 = rows.kind == Rows::Kind::kSlots32 || rows.kind == Rows::Kind::kBlocks32;
    id = is_32 ? static_cast<const std::int32_t*>(rows.ids)[index] : static_cast<const std::int64_t*>(rows.ids)[index];
  }
  if (id < 0 || (is_blocks && id > kBlockIdMax) || (!is_to && is_refused(plan, row))) return -1;
  const std::int64_t slot = is_blocks ? (id << shift) + (row & mask) : id;
  if (slot >= (is_to ? plan.to_slot_count : plan.from_slot_count)) return -1;
  return (slot >> shift) * place.block_stride_bytes + (slot & mask) * place.token.low.stride_bytes;
}

template <int kBytes, bool kIsSimple, class Plan>
constexpr void copy_rows(const Plan& plan, const DevicePart& device, std::int64_t layer, const Worker& worker) {
  constexpr int kInFlight = 4;
  const Part& part = device.part;
  const std::int64_t unit = element_bytes(part.to.element);
  const std::int64_t vecs = part.to.feature.extent() * unit / kBytes;  // in a head's row
  const std::int64_t item_count = part.heads * vecs;
  const bool is_narrow = item_count < worker.thread_count;
  const std::int64_t lanes = is_narrow ? worker.thread_count / item_count : 1;
  const std::int64_t lane = is_narrow ? worker.thread / item_count : 0;
  if (lane >= lanes) return;
  const std::int64_t step = worker.block_count * lanes;
  const auto offset_of = [&](bool is_to, const Place& place, std::int64_t row) {
    return kIsSimple ? simple_row_offset(plan, is_to, place, row) : row_offset(plan, is_to, place, row);
  };
  // A narrow row has one slice: the launch gives no more than its pieces fill.
  const std::int64_t first = std::int64_t{worker.slice} * worker.thread_count;
  for (std::int64_t item = first + (is_narrow ? worker.thread % item_count : worker.thread); item < item_count;
       item += std::int64_t{worker.slice_count} * worker.thread_count) {
    const std::int64_t head = item / vecs;
    const std::int64_t feature = (item - head * vecs) * (kBytes / unit);
    std::byte* to =
        plan.to_base(layer, part.to.component) + part.to.head.offset(head) + part.to.feature.offset(feature);
    const std::byte* from =
        plan.from_base(layer, part.from.component) + part.from.head.offset(head) + part.from.feature.offset(feature);
    for (std::int64_t row = worker.block * lanes + lane; row < plan.row_count; row += step * kInFlight) {
      std::int64_t to_offsets[kInFlight] = {};
      Vec<kBytes> values[kInFlight] = {};
      for (int i = 0; i < kInFlight; ++i) {
        to_offsets[i] = -1;
        if (row + i * step >= plan.row_count) continue;
        const std::int64_t from_offset = offset_of(false, part.from, row + i * step);
        if (from_offset < 0) continue;
        to_offsets[i] = offset_of(true, part.to, row + i * step);
        values[i] = load<Vec<kBytes>>(from + from_offset);
      }
      for (int i = 0; i < kInFlight; ++i) {
        if (to_offsets[i] >= 0) store(to + to_offsets[i], values[i]);
      }
    }
  }
}

inline constexpr int kTileTokens = 32;
inline constexpr int kTileFeatures = 64;
inline constexpr int kTilePitch = kTileTokens + 1;  // so that a column is in 32 banks
inline constexpr int kTileElements = kTileFeatures * kTilePitch;

/// One tile of a transposition: tokens from `row`, features from `feature`, of one head.
struct Tile {
  std::int64_t row = 0;
  std::int64_t head = 0;
  std::int64_t feature = 0;
};

/// Moves a tile between memory and `elements`, in the order in which memory is contiguous on that side. The two halves
/// of a transposition: every thread loads, all meet, every thread stores.
template <class T, bool kIsStore, bool kIsSimple, class Plan>
constexpr void move_tile(const Plan& plan, const Part& part, std::int64_t layer, const Tile& tile, T* elements,
                         const Worker& worker) {
  const Place& place = kIsStore ? part.to : part.from;
  const bool tokens_fastest = place.token.low.stride_bytes == static_cast<std::int64_t>(sizeof(T));
  std::byte* base = (kIsStore ? plan.to_base(layer, place.component) : plan.from_base(layer, place.component)) +
                    place.head.offset(tile.head);
  const auto offset_of = [&](bool is_to, const Place& side, std::int64_t row) {
    return kIsSimple ? simple_row_offset(plan, is_to, side, row) : row_offset(plan, is_to, side, row);
  };
  for (int i = worker.thread; i < kTileTokens * kTileFeatures; i += worker.thread_count) {
    const int token = tokens_fastest ? i % kTileTokens : i / kTileFeatures;
    const int feature = tokens_fastest ? i / kTileTokens : i % kTileFeatures;
    if (tile.row + token >= plan.row_count || tile.feature + feature >= place.feature.extent()) continue;
    const std::int64_t offset = offset_of(kIsStore, place, tile.row + token);
    if (offset < 0) continue;
    T& element = elements[feature * kTilePitch + token];
    std::byte* at = base + offset + place.feature.offset(tile.feature + feature);
    if constexpr (kIsStore) {
      if (offset_of(false, part.from, tile.row + token) >= 0) store(at, element);
    } else {
      element = load<T>(at);
    }
  }
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
                           std::int64_t head) {
  const std::int64_t to = row_slot(plan, true, row), from = row_slot(plan, false, row);
  if (to < 0 || from < 0) return {};
  const auto at = [&](bool is_to, const Place& place) {
    const std::byte* base = is_to ? plan.to_base(layer, place.component) : plan.from_base(layer, place.component);
    return base + slot_offset(plan, is_to, place, is_to ? to : from) + place.head.offset(head);
  };
  HeadRow rows{const_cast<std::byte*>(at(true, part.to)), at(false, part.from)};
  if (part.values_per_scale > 0) {
    rows.scales = const_cast<std::byte*>(at(part.kind != Operation::Kind::kDequantise, part.scales));
    if (part.kind == Operation::Kind::kRotate) rows.from_scales = at(false, part.from_scales);
  }
  return rows;
}

/// Multiplies each of `count` values from `start` on by its scale.
template <class Plan>
constexpr void apply_scales(const Plan& plan, const Part& part, const HeadRow& rows, std::int64_t start,
                            std::int64_t count, float* values) {
  const auto scale = [&](std::int64_t index) {
    return load_value(part.scales, rows.scales, index / part.values_per_scale) * plan.operation.global_scale;
  };
  if (part.values_per_scale % kEight == 0) {  // eight neighbours have one
    const float common = scale(start);
    for (int i = 0; i < kEight; ++i) values[i] *= common;
    return;
  }
  for (int i = 0; i < kEight; ++i) values[i] *= scale(start + (i < count ? i : 0));
}

template <class Plan>
constexpr void cast_rows(const Plan& plan, const DevicePart& device, std::int64_t layer, const Worker& worker) {
  const Part& part = device.part;
  const std::int64_t chunks = (part.values + kEight - 1) / kEight;
  for_each_item(plan.row_count, part.heads * chunks, worker, [&](std::int64_t item, std::int64_t row) {
    const auto index = static_cast<std::uint32_t>(item);  // in 64 bits a division costs as much as all the rest
    const std::uint32_t head = index / static_cast<std::uint32_t>(chunks);
    const HeadRow rows = head_row(plan, part, layer, row, head);
    if (!rows.to) return;
    const std::int64_t start = std::int64_t{index - head * static_cast<std::uint32_t>(chunks)} * kEight;
    const std::int64_t count = part.values - start < kEight ? part.values - start : kEight;
    float values[kEight] = {};
    if (device.vec_bytes == 16) {
      load_eight(part.from.element, rows.from + value_offset(part.from, start), values);
    } else {
      for (int i = 0; i < kEight; ++i) {
        if (i < count) values[i] = load_value(part.from, rows.from, start + i);
      }
    }
    if (part.kind == Operation::Kind::kDequantise) {
      apply_scales(plan, part, rows, start, count, values);
    } else if (part.from_scale != 1.0F) {
      for (int i = 0; i < kEight; ++i) values[i] *= part.from_scale;
    }
    if (part.to_scale != 1.0F) {
      for (int i = 0; i < kEight; ++i) values[i] /= part.to_scale;
    }
    if (device.vec_bytes == 16) {
      store_eight(part.to.element, rows.to + value_offset(part.to, start), values);
    } else {
      for (int i = 0; i < kEight; ++i) {
        if (i < count) store_code(part.to, rows.to, start + i, encode_element(part.to.element, values[i]));
      }
    }
  });
}

/// Angle of pair `pair` in row `row`, reduced in double: as a float, 2^20 radians are off by 2^-5.
template <class Rotation>
constexpr float turn_angle(const Rotation& rotation, std::int64_t delta, std::int64_t pair) {
  constexpr double kTurn = 6.283185307179586476925286766559;
  const double angle = static_cast<double>(delta) * rotation.frequencies[pair];
  return static_cast<float>(angle - kTurn * rint(angle / kTurn));
}

/// Codes that share a scale a head: they get a new one, since a turned pair may be 1.4 times as large as its larger
/// part. A thread takes a head. Twice through the same arithmetic, so that it needs no room for the values.
template <class Plan>
constexpr void requantise_turned_rows(const Plan& plan, const DevicePart& device, std::int64_t layer,
                                      const Worker& worker) {
  const Part& part = device.part;
  const Operation& operation = plan.operation;
  const Rotation& rotation = operation.rotation;
  for_each_item(plan.row_count, part.heads, worker, [&](std::int64_t head, std::int64_t row) {
    const HeadRow rows = head_row(plan, part, layer, row, head);
    if (!rows.to) return;
    const std::int64_t delta = rotation.deltas ? rotation.deltas[row] : rotation.delta;
    if (delta == 0 && part.to.element == part.from.element && part.scales.element == part.from_scales.element) {
      for (std::int64_t i = 0; i < part.values; ++i)
        store_code(part.to, rows.to, i, load_code(part.from, rows.from, i));
      return store_code(part.scales, rows.scales, 0, load_code(part.from_scales, rows.from_scales, 0));
    }
    const float old = load_value(part.from_scales, rows.from_scales, 0) * operation.global_scale;
    const auto value = [&](std::int64_t feature) { return load_value(part.from, rows.from, feature) * old; };
    const auto for_each_value = [&](auto&& take) {
      for (std::int64_t i = 0; i < rotation.rotary_size / 2; ++i) {
        const RotaryPair pair = rotary_pair(rotation.style, i, rotation.rotary_size);
        const float a = value(pair.first), b = value(pair.second);
        if (delta == 0) {
          take(pair.first, a);
          take(pair.second, b);
          continue;
        }
        const float angle = turn_angle(rotation, delta, i);
        const float cosine = cosf(angle), sine = sinf(angle);
        take(pair.first, a * cosine - b * sine);
        take(pair.second, b * cosine + a * sine);
      }
      for (std::int64_t i = rotation.rotary_size; i < part.values; ++i) take(i, value(i));
    };
    float amax = 0.0F;
    for_each_value([&](std::int64_t, float turned) { amax = larger_magnitude(amax, turned); });
    const float scale = scale_for(operation.scale_rule, amax, part.to.element, operation.global_scale);
    const std::uint32_t code = encode_element(part.scales.element, scale);
    const float kept = decode_element(part.scales.element, code) * operation.global_scale;
    for_each_value([&](std::int64_t feature, float turned) {
      store_code(part.to, rows.to, feature, encode_element(part.to.element, divide_by_scale(turned, kept)));
    });
    store_code(part.scales, rows.scales, 0, code);  // last: it may lie where the old one does
  });
}

template <class Plan>
constexpr void rotate_rows(const Plan& plan, const DevicePart& device, std::int64_t layer, const Worker& worker) {
  const Part& part = device.part;
  if (part.values_per_scale > 0) return requantise_turned_rows(plan, device, layer, worker);
  const Rotation& rotation = plan.operation.rotation;
  const std::int64_t pairs = rotation.rotary_size / 2;
  const std::int64_t items = part.values - pairs;  // each pair, then each value that does not turn
  const bool keeps_codes = part.to.element == part.from.element && part.to_scale == part.from_scale;
  for_each_item(plan.row_count, part.heads * items, worker, [&](std::int64_t item, std::int64_t row) {
    const std::uint32_t head = static_cast<std::uint32_t>(item) / static_cast<std::uint32_t>(items);
    const HeadRow rows = head_row(plan, part, layer, row, head);
    if (!rows.to) return;
    const std::int64_t delta = rotation.deltas ? rotation.deltas[row] : rotation.delta;
    const std::int64_t index = item - head * items;
    const auto pass = [&](std::int64_t feature) {
      const float value = load_value(part.from, rows.from, feature) * part.from_scale / part.to_scale;
      store_code(part.to, rows.to, feature,
                 keeps_codes ? load_code(part.from, rows.from, feature) : encode_element(part.to.element, value));
    };
    if (index >= pairs) return pass(index + pairs);
    const RotaryPair pair = rotary_pair(rotation.style, index, rotation.rotary_size);
    if (delta == 0) {
      pass(pair.first);
      return pass(pair.second);
    }
    const float angle = turn_angle(rotation, delta, index);
    const float cosine = cosf(angle), sine = sinf(angle);
    const float a = load_value(part.from, rows.from, pair.first) * part.from_scale;
    const float b = load_value(part.from, rows.from, pair.second) * part.from_scale;
    store_code(part.to, rows.to, pair.first, encode_element(part.to.element, (a * cosine - b * sine) / part.to_scale));
    store_code(part.to, rows.to, pair.second, encode_element(part.to.element, (b * cosine + a * sine) / part.to_scale));
  });
}

/// The largest magnitude that any of a group's `lane_count` neighbouring threads has. A host runs threads one after
/// another: there `of_all` looks at the whole group.
template <class OfAll>
constexpr float share_amax([[maybe_unused]] float amax, [[maybe_unused]] int lane_count,
                           [[maybe_unused]] const Worker& worker, [[maybe_unused]] OfAll of_all) {
#if defined(__CUDA_ARCH__)
  const unsigned first = static_cast<unsigned>(worker.thread % 32 / lane_count * lane_count);
  const unsigned lanes = (lane_count == 32 ? ~0U : (1U << lane_count) - 1) << first;
  for (int distance = lane_count / 2; distance > 0; distance /= 2) {
    float other;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, %3;" : "=f"(other) : "f"(amax), "r"(distance), "r"(lanes));
    amax = larger_magnitude(amax, other);
  }
  return amax;
#else
  return of_all();
#endif
}

/// Neighbouring threads take a group of values that share a scale: eight each, side by side in memory, and again beyond
/// those if the group is longer. Lanes of a group go through the same rows, so that all of them meet in share_amax().
template <class Plan>
constexpr void quantise_rows(const Plan& plan, const DevicePart& device, std::int64_t layer, const Worker& worker) {
  const Part& part = device.part;
  const Operation& operation = plan.operation;
  const std::int64_t groups = part.values / part.values_per_scale;
  const int lane_shift = quantise_lane_shift(part.values_per_scale), lane_count = 1 << lane_shift;
  const bool is_wide = device.vec_bytes == 16;
  for_each_item(plan.row_count, part.heads * groups * lane_count, worker, [&](std::int64_t item, std::int64_t row) {
    const auto index = static_cast<std::uint32_t>(item);  // in 64 bits a division costs as much as all the rest
    const std::uint32_t lane = index & static_cast<std::uint32_t>(lane_count - 1), unit = index >> lane_shift;
    const std::uint32_t head = unit / static_cast<std::uint32_t>(groups);
    const std::int64_t group = unit - head * static_cast<std::uint32_t>(groups);
    const HeadRow rows = head_row(plan, part, layer, row, head);
    if (!rows.to) return;
    const std::int64_t start = group * part.values_per_scale;
    const std::int64_t end = start + part.values_per_scale;
    const auto value = [&](std::int64_t i) { return load_value(part.from, rows.from, i) * part.from_scale; };
    const auto load_values = [&](std::int64_t i, float* values) {
      for (int k = 0; k < kEight; ++k) values[k] = 0.0F;
      if (is_wide) {
        load_eight(part.from.element, rows.from + value_offset(part.from, i), values);
        for (int k = 0; k < kEight; ++k) values[k] *= part.from_scale;
        return;
      }
      for (int k = 0; k < kEight; ++k) {
        if (i + k < end) values[k] = value(i + k);
      }
    };
    const std::int64_t mine = start + lane * kEight, step = std::int64_t{lane_count} * kEight;
    float values[kEight] = {};  // this lane's first ones stay in registers; of longer groups the rest is read again
    float amax = 0.0F;
    for (std::int64_t i = mine + step; i < end; i += step) {
      load_values(i, values);
      for (int k = 0; k < kEight; ++k) amax = larger_magnitude(amax, values[k]);
    }
    if (mine < end) load_values(mine, values);
    for (int k = 0; k < kEight && mine < end; ++k) amax = larger_magnitude(amax, values[k]);
    amax = share_amax(amax, lane_count, worker, [&] {
      float all = 0.0F;
      for (std::int64_t i = start; i < end; ++i) all = larger_magnitude(all, value(i));
      return all;
    });
    const float scale = scale_for(operation.scale_rule, amax, part.to.element, operation.global_scale);
    const std::uint32_t code = encode_element(part.scales.element, scale);
    if (lane == 0) store_code(part.scales, rows.scales, group, code);
    const float kept = decode_element(part.scales.element, code) * operation.global_scale;
    for (std::int64_t i = mine; i < end; i += step) {
      if (i != mine) load_values(i, values);
      for (int k = 0; k < kEight; ++k) values[k] = divide_by_scale(values[k], kept);
      if (is_wide) {
        store_eight(part.to.element, rows.to + value_offset(part.to, i), values);
        continue;
      }
      for (int k = 0; k < kEight; ++k) {
        if (i + k >= end) break;
        if (part.to.element != Element::kE2M1x2) {
          store_code(part.to, rows.to, i + k, encode_element(part.to.element, values[k]));
        } else if (k % 2 == 0) {  // a pair has one scale, so both are this lane's
          store_code(part.to, rows.to, (i + k) / 2, encode_e2m1(values[k]) | encode_e2m1(values[k + 1]) << 4);
        }
      }
    }
  });
}

/// Whether all that a row names is there: a row that is not within is skipped in every component, the log count too,
/// which by itself has no heads.
template <class Plan>
constexpr bool is_within(const Plan& plan, const KeepRow& row) {
  if (row.slot < 0 || row.slot >= plan.to_slot_count || row.token < 0 || row.token_count < 1 || row.head < 0 ||
      row.token > plan.from_slot_count - row.token_count) {
    return false;
  }
  for (int i = 0; i < plan.part_count; ++i) {
    if (plan.parts[i].part.role != Role::kLogCount && row.head >= plan.parts[i].part.heads) return false;
  }
  return true;
}

/// One row of a compressed cache (gpu/compress.h): a thread takes a feature, and sums a mean in token order.
template <class Plan>
constexpr void keep_rows(const Plan& plan, const Part& part, std::int64_t layer, const KeepRow* rows,
                         std::int64_t row_count, const Worker& worker) {
  for_each_item(row_count, part.values, worker, [&](std::int64_t feature, std::int64_t index) {
    const KeepRow& row = rows[index];
    const bool is_log = part.role == Role::kLogCount;
    if (!is_within(plan, row)) return;
    std::byte* to = plan.to_base(layer, part.to.component) + part.to.row_offset(row.slot, plan.to_block_tokens);
    if (is_log) return store(to, static_cast<float>(log(static_cast<double>(row.token_count))));
    const std::byte* from = plan.from_base(layer, part.from.component) + part.from.head.offset(row.head);
    const auto token = [&](std::int64_t i) {
      return from + part.from.row_offset(row.token + i, plan.from_block_tokens);
    };
    if (row.token_count == 1) return store_code(part.to, to, feature, load_code(part.from, token(0), feature));
    float sum = 0.0F;
    for (std::int64_t i = 0; i < row.token_count; ++i) sum += load_value(part.from, token(i), feature);
    store_code(part.to, to, feature, encode_element(part.to.element, sum / static_cast<float>(row.token_count)));
  });
}

/// One thread's share of a component and layer. Not for transpositions, whose threads meet between move_tile() and
/// move_tile().
template <DeviceBody body, class Plan>
constexpr void move_rows(const Plan& plan, const DevicePart& device, std::int64_t layer, const Worker& worker) {
  static_assert(body != DeviceBody::kTranspose && body != DeviceBody::kSimpleTranspose);
  if constexpr (body == DeviceBody::kCast) {
    cast_rows(plan, device, layer, worker);
  } else if constexpr (body == DeviceBody::kRotate) {
    rotate_rows(plan, device, layer, worker);
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

}  // namespace kv::device
