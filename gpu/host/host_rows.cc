#include "gpu/host/host_rows.h"

#include <cmath>
#include <numbers>

#include "base/assert.h"
#include "gpu/row_math.h"

namespace kv {
namespace {

using Kind = Operation::Kind;

void load_values(const Place& place, const std::byte* row, std::int64_t count, float* values) {
  if (place.element == Element::kE2M1x2) {
    for (std::int64_t i = 0; i < count; i += 2) {
      const std::uint32_t code = load_code(row + place.feature.offset(i / 2), place.element);
      // Two values a byte, the earlier one in the low half.
      values[i] = decode_small(kE2M1Format, code & 15);
      values[i + 1] = decode_small(kE2M1Format, code >> 4);
    }
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    // One by one: features may lie anywhere. This path computes; plain copies go through CopyNest.
    values[i] = decode_element(place.element, load_code(row + place.feature.offset(i), place.element));
  }
}

void store_values(const Place& place, std::byte* row, std::int64_t count, const float* values) {
  if (place.element == Element::kE2M1x2) {
    for (std::int64_t i = 0; i < count; i += 2) {
      const std::uint32_t low = encode_small(kE2M1Format, values[i]);
      store_code(row + place.feature.offset(i / 2), place.element, low | encode_small(kE2M1Format, values[i + 1]) << 4);
    }
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    store_code(row + place.feature.offset(i), place.element, encode_element(place.element, values[i]));
  }
}

/// The whole row at once; a device shares it between threads (gpu/device/device_quantise.h), with equal results.
void quantise(const Part& part, const Operation& operation, float* values, std::byte* scales) {
  for (std::int64_t start = 0; start < part.values; start += part.values_per_scale) {
    float* group = values + start;
    float amax = 0.0F;
    for (std::int64_t i = 0; i < part.values_per_scale; ++i) amax = larger_magnitude(amax, group[i]);
    // Rounded to its element and read back, so that values are divided by the scale that readers get.
    const float scale = scale_for(operation.scale_rule, amax, part.to.element, operation.global_scale);
    const std::uint32_t code = encode_element(part.scales.element, scale);
    store_code(scales + part.scales.feature.offset(start / part.values_per_scale), part.scales.element, code);
    const float kept = decode_element(part.scales.element, code) * operation.global_scale;
    for (std::int64_t i = 0; i < part.values_per_scale; ++i) group[i] = divide_by_scale(group[i], kept);
  }
}

void dequantise(const Part& part, const Place& place, const Operation& operation, float* values,
                const std::byte* scales) {
  for (std::int64_t start = 0; start < part.values; start += part.values_per_scale) {
    const std::byte* at = scales + place.feature.offset(start / part.values_per_scale);
    const float scale = decode_element(place.element, load_code(at, place.element)) * operation.global_scale;
    for (std::int64_t i = 0; i < part.values_per_scale; ++i) values[start + i] *= scale;
  }
}

void turn_values(const Rotation& rotation, const TurnTable& table, float* values) {
  for (std::int64_t i = 0; i < rotation.rotary_size / 2; ++i) {
    const auto [first, second] = rotary_pair(rotation.style, i, rotation.rotary_size);
    const float a = values[first];
    const float b = values[second];
    values[first] = a * table.cosines[i] - b * table.sines[i];
    values[second] = b * table.cosines[i] + a * table.sines[i];
  }
}

}  // namespace

void fill_turn_table(TurnTable& table, const Rotation& rotation, std::int64_t row) {
  const std::int64_t delta = rotation.deltas ? rotation.deltas[row] : rotation.delta;
  table.is_identity = delta == 0;
  if (table.is_identity || delta == table.delta) return;
  table.delta = delta;
  KV_ASSERT(rotation.rotary_size >= 2 && rotation.rotary_size <= kRotarySizeMax && rotation.frequencies);
  for (std::int64_t i = 0; i < rotation.rotary_size / 2; ++i) {
    // In double and reduced first: as a float, an angle of 2^20 radians is off by 2^-5.
    const double angle = std::remainder(static_cast<double>(delta) * rotation.frequencies[i], 2 * std::numbers::pi);
    table.cosines[i] = static_cast<float>(std::cos(angle));
    table.sines[i] = static_cast<float>(std::sin(angle));
  }
}

void compute_row(const Part& part, const Operation& operation, const TurnTable& turn, std::byte* to,
                 const std::byte* from, std::byte* to_scales, const std::byte* from_scales) {
  float values[kHeadFeaturesMax];
  KV_ASSERT(part.values >= 1 && part.values <= kHeadFeaturesMax && part.kind != Kind::kCopy);
  KV_ASSERT(part.values_per_scale == 0 || part.values % part.values_per_scale == 0);
  KV_ASSERT(part.kind != Kind::kQuantise || to_scales);
  KV_ASSERT(part.kind != Kind::kDequantise || from_scales);
  // Values that do not turn keep their bits: NaN payloads and infinities that our own encoding would not write.
  const bool is_requantised = part.kind == Kind::kRotate && part.values_per_scale > 0;
  const std::int64_t turned = turn.is_identity ? 0 : operation.rotation.rotary_size;
  const bool keeps_codes = part.kind == Kind::kRotate && part.to.element == part.from.element &&
                           (is_requantised ? turned == 0 && part.scales.element == part.from_scales.element
                                           : part.to_scale == part.from_scale);
  const std::int64_t computed = keeps_codes ? turned : part.values;
  for (std::int64_t head = 0; head < part.heads; ++head) {
    const std::byte* source = from + part.from.head.offset(head);
    std::byte* target = to + part.to.head.offset(head);
    for (std::int64_t i = computed; i < part.values; ++i) {
      store_code(target + part.to.feature.offset(i), part.to.element,
                 load_code(source + part.from.feature.offset(i), part.from.element));
    }
    // The computed part: values, scales, turns, in a device's order, since each step rounds.
    load_values(part.from, source, computed, values);
    if (part.kind == Kind::kDequantise) {
      dequantise(part, part.scales, operation, values, from_scales + part.scales.head.offset(head));
    } else if (is_requantised) {
      if (keeps_codes) {  // all values, and so their scale
        store_code(to_scales + part.scales.head.offset(head), part.scales.element,
                   load_code(from_scales + part.from_scales.head.offset(head), part.from_scales.element));
        continue;
      }
      dequantise(part, part.from_scales, operation, values, from_scales + part.from_scales.head.offset(head));
    } else {
      for (std::int64_t i = 0; i < computed; ++i) values[i] *= part.from_scale;
    }
    if (part.kind == Kind::kRotate && turned > 0) turn_values(operation.rotation, turn, values);
    if (part.kind == Kind::kQuantise || is_requantised) {
      quantise(part, operation, values, to_scales + part.scales.head.offset(head));
    } else {
      for (std::int64_t i = 0; i < computed; ++i) values[i] /= part.to_scale;
    }
    store_values(part.to, target, computed, values);
  }
}

}  // namespace kv
