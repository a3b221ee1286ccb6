// gpu/device/device_body.h: what one thread of a kernel does. CUDA kernels call these (gpu/cuda/permute.cu); so do
// tests on the host, thread after thread, which is how the kernels' arithmetic is proven where there is no device.
//
// A launch is a grid of blocks of threads for each (component, layer) pair: `y` tells the pair, `x` which rows. Bound
// by HBM for copies. Threads that are neighbours take neighbouring vectors of a row; each has four rows in flight.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "gpu/compress.h"
#include "gpu/device/device_plan.h"
#include "gpu/row_math.h"

namespace kv::device {

/// Where a thread is in its grid.
struct Worker {
  int thread = 0;
  int thread_count = 1;
  std::int64_t block = 0;
  std::int64_t block_count = 1;
};

template <int kBytes>
struct alignas(kBytes) Vec {
  unsigned char bytes[kBytes];
};
template <>
struct alignas(16) Vec<16> {
  std::uint32_t words[4];
};
template <>
struct alignas(8) Vec<8> {
  std::uint32_t words[2];
};

/// Typed access to memory of another type, which must be aligned for it. (A struct of its size is one instruction.)
template <class T>
constexpr T load(const std::byte* at) {
  return *static_cast<const T*>(static_cast<const void*>(at));
}
template <class T>
constexpr void store(std::byte* at, T value) {
  *static_cast<T*>(static_cast<void*>(at)) = value;
}

/// Whether the block of the source that holds `row` did not verify.
template <class Plan>
constexpr bool is_refused(const Plan& plan, std::int64_t row) {
  if constexpr (Plan::kHasVerdicts) {
    return plan.verdicts[plan.from_shift >= 0 ? row >> plan.from_shift : row / plan.from_block_tokens] != 0;
  }
  return false;
}

/// Where row `row` lies on a side, from the component's base; negative: skip it.
template <class Plan>
constexpr std::int64_t row_offset(const Plan& plan, bool is_to, const Place& place, std::int64_t row) {
  const std::int64_t slot = is_to ? plan.to_rows.slot(row) : plan.from_rows.slot(row);
  if (slot < 0 || slot >= (is_to ? plan.to_slot_count : plan.from_slot_count)) return -1;
  if (!is_to && is_refused(plan, row)) return -1;
  const int shift = is_to ? plan.to_shift : plan.from_shift;
  const std::int64_t tokens = is_to ? plan.to_block_tokens : plan.from_block_tokens;
  const std::int64_t block = shift >= 0 ? slot >> shift : slot / tokens;
  return block * place.block_stride_bytes + place.token.offset(slot - block * tokens);
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
  for (std::int64_t item = is_narrow ? worker.thread % item_count : worker.thread; item < item_count;
       item += worker.thread_count) {
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

/// A number at its place; of two in a byte, the one that `index` names.
template <class Place>
constexpr float load_value(const Place& place, const std::byte* row, std::int64_t index) {
  const std::byte* at = row + place.feature.offset(place.element == Element::kE2M1x2 ? index / 2 : index);
  switch (element_bytes(place.element)) {
    case 4: return load<float>(at);
    case 2: return decode_element(place.element, load<std::uint16_t>(at));
    default: break;
  }
  const std::uint32_t code = load<std::uint8_t>(at);
  if (place.element == Element::kE2M1x2) return decode_small(kE2M1Format, index % 2 == 0 ? code & 15 : code >> 4);
  return decode_element(place.element, code);
}
template <class Place>
constexpr void store_code(const Place& place, std::byte* row, std::int64_t feature, std::uint32_t code) {
  std::byte* at = row + place.feature.offset(feature);
  switch (element_bytes(place.element)) {
    case 4: return store(at, code);
    case 2: return store(at, static_cast<std::uint16_t>(code));
    default: return store(at, static_cast<std::uint8_t>(code));
  }
}
template <class Place>
constexpr std::uint32_t load_code(const Place& place, const std::byte* row, std::int64_t feature) {
  const std::byte* at = row + place.feature.offset(feature);
  switch (element_bytes(place.element)) {
    case 4: return load<std::uint32_t>(at);
    case 2: return load<std::uint16_t>(at);
    default: return load<std::uint8_t>(at);
  }
}

/// Eight neighbouring values in one or two accesses.
template <class Place>
constexpr void load_eight(const Place& place, const std::byte* at, float* values) {
  if (element_bytes(place.element) == 4) {
    const auto low = load<Vec<16>>(at), high = load<Vec<16>>(at + 16);
    for (int i = 0; i < 4; ++i) {
      values[i] = std::bit_cast<float>(low.words[i]);
      values[i + 4] = std::bit_cast<float>(high.words[i]);
    }
  } else if (element_bytes(place.element) == 2) {
    const auto vec = load<Vec<16>>(at);
    for (int i = 0; i < 8; ++i) values[i] = decode_element(place.element, vec.words[i / 2] >> (i % 2 * 16) & 0xFFFF);
  } else {
    const auto vec = load<Vec<8>>(at);
    for (int i = 0; i < 8; ++i) values[i] = decode_element(place.element, vec.words[i / 4] >> (i % 4 * 8) & 0xFF);
  }
}
template <class Place>
constexpr void store_eight(const Place& place, std::byte* at, const float* values) {
  if (element_bytes(place.element) == 4) {
    Vec<16> low{}, high{};
    for (int i = 0; i < 4; ++i) {
      low.words[i] = encode_fp32(values[i]);
      high.words[i] = encode_fp32(values[i + 4]);
    }
    store(at, low);
    store(at + 16, high);
  } else if (element_bytes(place.element) == 2) {
    Vec<16> vec{};
    for (int i = 0; i < 8; ++i) vec.words[i / 2] |= encode_element(place.element, values[i]) << (i % 2 * 16);
    store(at, vec);
  } else {
    Vec<8> vec{};
    for (int i = 0; i < 8; ++i) vec.words[i / 4] |= encode_element(place.element, values[i]) << (i % 4 * 8);
    store(at, vec);
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
  const std::int64_t to = row_offset(plan, true, part.to, row);
  const std::int64_t from = row_offset(plan, false, part.from, row);
  if (to < 0 || from < 0) return {};
  HeadRow rows{plan.to_base(layer, part.to.component) + to + part.to.head.offset(head),
               plan.from_base(layer, part.from.component) + from + part.from.head.offset(head), nullptr};
  if (part.values_per_scale > 0) {
    const bool is_to = part.kind != Operation::Kind::kDequantise;
    std::byte* base = is_to ? plan.to_base(layer, part.scales.component) : plan.from_base(layer, part.scales.component);
    rows.scales = base + row_offset(plan, is_to, part.scales, row) + part.scales.head.offset(head);
    if (part.kind == Operation::Kind::kRotate) {
      rows.from_scales = plan.from_base(layer, part.from_scales.component) +
                         row_offset(plan, false, part.from_scales, row) + part.from_scales.head.offset(head);
    }
  }
  return rows;
}

template <class Plan>
constexpr void cast_rows(const Plan& plan, const DevicePart& device, std::int64_t layer, const Worker& worker) {
  const Part& part = device.part;
  const std::int64_t chunks = (part.values + 7) / 8;
  for_each_item(plan.row_count, part.heads * chunks, worker, [&](std::int64_t item, std::int64_t row) {
    const HeadRow rows = head_row(plan, part, layer, row, item / chunks);
    if (!rows.to) return;
    const std::int64_t start = item % chunks * 8;
    const std::int64_t count = part.values - start < 8 ? part.values - start : 8;
    float values[8] = {};
    if (device.vec_bytes == 16) {
      load_eight(part.from, rows.from + part.from.feature.offset(start), values);
    } else {
      for (int i = 0; i < 8; ++i) {
        if (i < count) values[i] = load_value(part.from, rows.from, start + i);
      }
    }
    for (int i = 0; i < 8; ++i) {
      if (part.kind == Operation::Kind::kDequantise) {
        const std::int64_t group = (start + (i < count ? i : 0)) / part.values_per_scale;
        values[i] *= load_value(part.scales, rows.scales, group) * plan.operation.global_scale;
      } else {
        values[i] *= part.from_scale;
      }
      values[i] /= part.to_scale;
    }
    if (device.vec_bytes == 16) {
      store_eight(part.to, rows.to + part.to.feature.offset(start), values);
    } else {
      for (int i = 0; i < 8; ++i) {
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
    const HeadRow rows = head_row(plan, part, layer, row, item / items);
    if (!rows.to) return;
    const std::int64_t delta = rotation.deltas ? rotation.deltas[row] : rotation.delta;
    const std::int64_t index = item % items;
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

template <class Plan>
constexpr void quantise_rows(const Plan& plan, const DevicePart& device, std::int64_t layer, const Worker& worker) {
  const Part& part = device.part;
  const Operation& operation = plan.operation;
  const std::int64_t groups = part.values / part.values_per_scale;
  for_each_item(plan.row_count, part.heads * groups, worker, [&](std::int64_t item, std::int64_t row) {
    const HeadRow rows = head_row(plan, part, layer, row, item / groups);
    if (!rows.to) return;
    const std::int64_t start = item % groups * part.values_per_scale;
    const std::int64_t end = start + part.values_per_scale;
    float amax = 0.0F;
    for (std::int64_t i = start; i < end; ++i) {
      amax = larger_magnitude(amax, load_value(part.from, rows.from, i) * part.from_scale);
    }
    const float scale = scale_for(operation.scale_rule, amax, part.to.element, operation.global_scale);
    const std::uint32_t code = encode_element(part.scales.element, scale);
    store_code(part.scales, rows.scales, item % groups, code);
    const float kept = decode_element(part.scales.element, code) * operation.global_scale;
    const auto quantised = [&](std::int64_t i) {
      return divide_by_scale(load_value(part.from, rows.from, i) * part.from_scale, kept);
    };
    for (std::int64_t i = start; i < end; ++i) {
      if (part.to.element != Element::kE2M1x2) {
        store_code(part.to, rows.to, i, encode_element(part.to.element, quantised(i)));
      } else if (i % 2 == 0) {
        store_code(part.to, rows.to, i / 2,
                   encode_small(kE2M1Format, quantised(i)) | encode_small(kE2M1Format, quantised(i + 1)) << 4);
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
