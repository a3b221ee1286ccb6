// gpu/row_math.h: row arithmetic for host and devices: constexpr, without library calls of differing rounding.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "gpu/element.h"
#include "gpu/operation.h"

namespace kv {

/// The least power of two that is not below `value`. Requires a positive normal number.
constexpr float power_of_two_ceiling(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return std::bit_cast<float>((bits + 0x7FFFFF) & 0xFF800000);
}

/// The scale for values whose largest magnitude is `amax`, before it is rounded to its element.
constexpr float scale_for(ScaleRule rule, float amax, Element element, float global_scale) {
  const float largest = element_max(element);
  const auto at_least = [](float value, float least) { return value > least ? value : least; };
  switch (rule) {
    case ScaleRule::kTokenHead: return at_least(amax / largest, 1e-6F);
    case ScaleRule::kTile: return at_least(amax / largest, std::numeric_limits<float>::min());
    case ScaleRule::kIndexer: return at_least(amax, 1e-4F) / largest;
    case ScaleRule::kIndexerPowerOfTwo: return power_of_two_ceiling(at_least(amax, 1e-4F) / largest);
    case ScaleRule::kNvfp4: return amax / (largest * global_scale);
  }
  return 1.0F;
}

/// value / scale; 0 for a scale that rounded to 0.
constexpr float divide_by_scale(float value, float scale) { return scale == 0.0F ? 0.0F : value / scale; }

/// The larger magnitude. NaN and infinity do not count, or one bad value would spoil its neighbours' scale.
constexpr float larger_magnitude(float amax, float value) {
  const float magnitude = value < 0.0F ? -value : value;
  return magnitude > amax && magnitude <= std::numeric_limits<float>::max() ? magnitude : amax;
}

/// Features of the pair `index` of a rotation of size `rotary_size`.
struct RotaryPair {
  std::int64_t first;
  std::int64_t second;
};
constexpr RotaryPair rotary_pair(RopeStyle style, std::int64_t index, std::int64_t rotary_size) {
  if (style == RopeStyle::kNeox) return {index, index + rotary_size / 2};
  return {2 * index, 2 * index + 1};
}

}  // namespace kv
