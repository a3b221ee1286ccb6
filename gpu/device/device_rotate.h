// gpu/device/device_rotate.h: turning keys to other positions.
//
// Angles are computed and reduced in double, for which devices have few units: each is made once per row, kept in
// shared memory, and used by all heads, and by all layers of a block's share.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "gpu/device/device_rows.h"
#include "gpu/device/device_values.h"
#include "gpu/row_math.h"

namespace kv::device {

inline constexpr int kTurnEntries = 1024;  // two rows of the largest rotation, sixteen of 64 pairs
static_assert(kTurnEntries * 2 >= kRotarySizeMax);

/// The turns of some rows, entry row * pairs + pair.
struct TurnScratch {
  static constexpr std::uint32_t kPitch = kTurnEntries / 8 + 1;

  float cosines[8 * kPitch];
  float sines[8 * kPitch];

  /// Place of an entry: neighbouring threads take eight entries each, so each step of all threads is one row.
  static constexpr std::uint32_t at(std::uint32_t entry) { return (entry & 7) * kPitch + (entry >> 3); }
};

/// Rows that a block takes at once: those whose turns fit. One difference for all rows is one row of turns; a block
/// still takes only some rows, to leave blocks for all processors.
constexpr std::int64_t turn_rows_at_once(const Rotation& rotation) { return kTurnEntries / (rotation.rotary_size / 2); }

/// The turn of pair `pair` by `delta` positions. As a float, an angle of 2^20 radians is off by 2^-5: hence the double.
/// Half turns, not radians, which saves the device its own reduction by pi.
template <class Rotation>
constexpr void find_turn(const Rotation& rotation, std::int64_t delta, std::int64_t pair, float* cosine, float* sine) {
  constexpr double kHalfTurnsOfRadian = 0.31830988618379067153776752674503;
  const double turns = static_cast<double>(delta) * rotation.frequencies[pair] * (kHalfTurnsOfRadian / 2);
  const double rest = (turns - rint(turns)) * 2;  // in half turns, from -1 to 1
#if defined(__CUDA_ARCH__)
  sincospif(static_cast<float>(rest), sine, cosine);
#else
  const auto angle = static_cast<float>(rest / kHalfTurnsOfRadian);
  *cosine = cosf(angle);
  *sine = sinf(angle);
#endif
}

/// Fills the turns of `count` rows from `row` on.
template <class Plan>
constexpr void find_turns(const Plan& plan, std::int64_t row, std::int64_t count, TurnScratch& scratch,
                          const Worker& worker) {
  const auto& rotation = plan.operation.rotation;
  const auto pairs = static_cast<std::uint32_t>(rotation.rotary_size / 2);
  const std::uint32_t entries = rotation.deltas ? static_cast<std::uint32_t>(count) * pairs : pairs;
  for (auto i = static_cast<std::uint32_t>(worker.thread); i < entries; i += worker.thread_count) {
    const std::int64_t delta = rotation.deltas ? rotation.deltas[row + i / pairs] : rotation.delta;
    find_turn(rotation, delta, i % pairs, &scratch.cosines[TurnScratch::at(i)], &scratch.sines[TurnScratch::at(i)]);
  }
}

/// Codes that share a scale per head get a new one, since a turned pair may be 1.4 times as large as its larger part. A
/// thread takes a head and computes it twice, so that it need not hold the values.
template <class Plan>
constexpr void requantise_turned_row(const Plan& plan, const Part& part, const HeadRow& rows, std::int64_t delta,
                                     const TurnScratch& scratch, std::uint32_t turns) {
  const Operation& operation = plan.operation;
  const Rotation& rotation = operation.rotation;
  if (delta == 0 && part.to.element == part.from.element && part.scales.element == part.from_scales.element) {
    for (std::int64_t i = 0; i < part.values; ++i) store_code(part.to, rows.to, i, load_code(part.from, rows.from, i));
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
      const std::uint32_t at = TurnScratch::at(turns + static_cast<std::uint32_t>(i));
      take(pair.first, a * scratch.cosines[at] - b * scratch.sines[at]);
      take(pair.second, b * scratch.cosines[at] + a * scratch.sines[at]);
    }
    for (std::int64_t i = rotation.rotary_size; i < part.values; ++i) take(i, value(i));
  };
  float amax = 0.0F;
  for_each_value([&](std::int64_t, float turned) { amax = larger_magnitude(amax, turned); });
  const float scale = scale_for(operation.scale_rule, amax, part.to.element, operation.global_scale);
  const std::uint32_t code = encode_element(part.scales.element, scale);
  const float kept = decode_element(part.scales.element, code) * operation.global_scale;
  for_each_value([&](std::int64_t feature, float turned) {
    store_code(part.to, rows.to, feature, encode_slowly(part.to.element, divide_by_scale(turned, kept)));
  });
  store_code(part.scales, rows.scales, 0, code);  // last: it may overwrite the old scale
}

/// Values that do not turn keep their bits, unless the two sides differ in format.
constexpr void pass_value(const Part& part, const HeadRow& rows, bool keeps_codes, std::int64_t feature) {
  const float value = load_value(part.from, rows.from, feature) * part.from_scale / part.to_scale;
  store_code(part.to, rows.to, feature,
             keeps_codes ? load_code(part.from, rows.from, feature) : encode_slowly(part.to.element, value));
}
constexpr void pass_eight(const Part& part, const HeadRow& rows, bool keeps_codes, std::int64_t feature) {
  std::byte* to = rows.to + axis_offset(part.to.feature, static_cast<std::uint32_t>(feature));
  const std::byte* from = rows.from + axis_offset(part.from.feature, static_cast<std::uint32_t>(feature));
  if (keeps_codes) return copy_eight(part.to.element, to, from);
  float values[kEight] = {};
  load_eight(part.from.element, from, values);
  for (int i = 0; i < kEight; ++i) values[i] = values[i] * part.from_scale / part.to_scale;
  store_eight(part.to.element, to, values);
}

/// Eight pairs in four accesses: eight values of the turning part's first half, and the eight at the same place of the
/// second. Partners are at equal places in NeoX's order, neighbours in GPT-J's.
constexpr void turn_sixteen(const Part& part, const Rotation& rotation, const HeadRow& rows, std::int64_t chunk,
                            const TurnScratch& scratch, std::uint32_t turns) {
  const auto first = static_cast<std::uint32_t>(chunk * kEight);
  const auto second = first + static_cast<std::uint32_t>(rotation.rotary_size / 2);
  float a[kEight] = {}, b[kEight] = {};
  load_eight(part.from.element, rows.from + axis_offset(part.from.feature, first), a);
  load_eight(part.from.element, rows.from + axis_offset(part.from.feature, second), b);
  if (part.from_scale != 1.0F) {
    for (int i = 0; i < kEight; ++i) a[i] *= part.from_scale, b[i] *= part.from_scale;
  }
  const auto turn = [&](float& left, float& right, std::uint32_t pair) {
    const float x = left, y = right;
    const std::uint32_t at = TurnScratch::at(turns + pair);
    left = x * scratch.cosines[at] - y * scratch.sines[at];
    right = y * scratch.cosines[at] + x * scratch.sines[at];
  };
  if (rotation.style == RopeStyle::kNeox) {
    for (int i = 0; i < kEight; ++i) turn(a[i], b[i], first + static_cast<std::uint32_t>(i));
  } else {
    for (int i = 0; i < kEight / 2; ++i) {
      turn(a[2 * i], a[2 * i + 1], first / 2 + static_cast<std::uint32_t>(i));
      turn(b[2 * i], b[2 * i + 1], second / 2 + static_cast<std::uint32_t>(i));
    }
  }
  if (part.to_scale != 1.0F) {
    for (int i = 0; i < kEight; ++i) a[i] /= part.to_scale, b[i] /= part.to_scale;
  }
  store_eight(part.to.element, rows.to + axis_offset(part.to.feature, first), a);
  store_eight(part.to.element, rows.to + axis_offset(part.to.feature, second), b);
}

template <class Plan>
constexpr void turn_keys(const Plan& plan, const DevicePart& device, std::int64_t layer, std::int64_t first,
                         std::int64_t count, const TurnScratch& scratch, const Worker& worker) {
  const Part& part = device.part;
  const Rotation& rotation = plan.operation.rotation;
  const std::int64_t pairs = rotation.rotary_size / 2;
  const bool is_wide = device.vec_bytes == 16, is_scaled = part.values_per_scale > 0;
  const bool keeps_codes = part.to.element == part.from.element && part.to_scale == part.from_scale;
  // Pieces of a head: first those that turn.
  const std::int64_t turning = is_scaled ? 1 : is_wide ? pairs / kEight : pairs;
  const std::int64_t rest = is_scaled ? 0 : (part.values - 2 * pairs) / (is_wide ? kEight : 1);
  const Worker here{worker.thread, worker.thread_count, 0, 1, 0, 1};
  for_each_item(count, part.heads * (turning + rest), here, [&](std::int64_t item, std::int64_t index) {
    const auto items = static_cast<std::uint32_t>(turning + rest);
    const std::uint32_t head = static_cast<std::uint32_t>(item) / items;
    const std::int64_t piece = static_cast<std::uint32_t>(item) - head * items;
    const HeadRow rows = head_row(plan, part, layer, first + index, head);
    if (!rows.to) return;
    const std::int64_t delta = rotation.deltas ? rotation.deltas[first + index] : rotation.delta;
    const auto turns = static_cast<std::uint32_t>(rotation.deltas ? index * pairs : 0);  // this row's first entry
    if (is_scaled) return requantise_turned_row(plan, part, rows, delta, scratch, turns);
    if (is_wide) {
      if (piece >= turning) return pass_eight(part, rows, keeps_codes, 2 * pairs + (piece - turning) * kEight);
      if (delta != 0) return turn_sixteen(part, rotation, rows, piece, scratch, turns);
      pass_eight(part, rows, keeps_codes, piece * kEight);
      return pass_eight(part, rows, keeps_codes, pairs + piece * kEight);
    }
    if (piece >= turning) return pass_value(part, rows, keeps_codes, pairs + piece);
    const RotaryPair pair = rotary_pair(rotation.style, piece, rotation.rotary_size);
    if (delta == 0) {
      pass_value(part, rows, keeps_codes, pair.first);
      return pass_value(part, rows, keeps_codes, pair.second);
    }
    const float a = load_value(part.from, rows.from, pair.first) * part.from_scale;
    const float b = load_value(part.from, rows.from, pair.second) * part.from_scale;
    const std::uint32_t at = TurnScratch::at(turns + static_cast<std::uint32_t>(piece));
    const float left = a * scratch.cosines[at] - b * scratch.sines[at];
    const float right = b * scratch.cosines[at] + a * scratch.sines[at];
    store_code(part.to, rows.to, pair.first, encode_slowly(part.to.element, left / part.to_scale));
    store_code(part.to, rows.to, pair.second, encode_slowly(part.to.element, right / part.to_scale));
  });
}

}  // namespace kv::device
