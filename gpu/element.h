// gpu/element.h: the number formats of caches, and their exact conversion from and to float.
//
// constexpr integer arithmetic throughout, so that host and device give the same bits: the NaNs of conversion
// instructions differ between generations of hardware. (Without NaN, gpu/device/device_values.h uses instructions.)
// Round to nearest, ties to even; 8-bit and 4-bit formats saturate (infinity too), fp16 and bf16 overflow to infinity.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>

namespace kv {

/// Format of one stored element. kE2M1x2 is two 4-bit values in a byte, the even one in the low half: addressed, copied
/// and counted as one element of one byte. kByte is only ever copied.
enum class Element : std::uint8_t { kByte, kInt8, kE4M3, kE5M2, kE2M1x2, kFp16, kBf16, kFp32 };

constexpr std::int64_t element_bytes(Element element) {
  switch (element) {
    case Element::kFp16:
    case Element::kBf16: return 2;
    case Element::kFp32: return 4;
    default: return 1;
  }
}

constexpr std::string_view element_name(Element element) {
  constexpr std::string_view kNames[] = {"byte", "int8", "e4m3", "e5m2", "e2m1x2", "fp16", "bf16", "fp32"};
  return kNames[static_cast<std::size_t>(element)];
}

/// Largest magnitude of a quantised element, to which a dynamic scale maps the largest value.
constexpr float element_max(Element element) {
  switch (element) {
    case Element::kInt8: return 127.0F;
    case Element::kE4M3: return 448.0F;
    case Element::kE5M2: return 57344.0F;
    case Element::kE2M1x2: return 6.0F;
    case Element::kFp16: return 65504.0F;
    default: return std::numeric_limits<float>::max();
  }
}

/// An IEEE-like format of 1 sign bit, `exponent_bits` and `mantissa_bits`. A magnitude that rounds above `max_code`
/// becomes `overflow_code`; NaN becomes `nan_code` without a sign.
struct SmallFloat {
  int exponent_bits;
  int mantissa_bits;
  std::uint32_t max_code;
  std::uint32_t overflow_code;
  std::uint32_t nan_code;

  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  constexpr int sign_shift() const { return exponent_bits + mantissa_bits; }
};
inline constexpr SmallFloat kFp16Format{5, 10, 0x7BFF, 0x7C00, 0x7FFF};
inline constexpr SmallFloat kE4M3Format{4, 3, 0x7E, 0x7E, 0x7F};  // without infinity: 0x7F is NaN, 0x7E is 448
inline constexpr SmallFloat kE5M2Format{5, 2, 0x7B, 0x7B, 0x7F};  // 0x7C is infinity, never written
inline constexpr SmallFloat kE2M1Format{2, 1, 7, 7, 7};           // without infinity and NaN

/// `value` in `format`, rounded to nearest even.
constexpr std::uint32_t encode_small(SmallFloat format, float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return format.nan_code;
  const std::uint32_t sign = (bits >> 31) << format.sign_shift();
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  const int exponent_min = 1 - format.bias();
  const int below = exponent < exponent_min ? exponent_min - exponent : 0;
  const int shift = 23 - format.mantissa_bits + below;
  if (shift > 24) return sign;  // less than half of the least subnormal
  const std::uint32_t mantissa = (magnitude & 0x7FFFFF) | 0x800000;
  const std::uint32_t half = std::uint32_t{1} << (shift - 1);
  const std::uint32_t kept = mantissa >> shift;
  const std::uint32_t rest = mantissa & ((half << 1) - 1);
  const std::uint32_t rounded = kept + ((rest > half || (rest == half && (kept & 1) != 0)) ? 1 : 0);
  // A normal number's leading bit adds 1 to the exponent field, as does a carry out of rounding.
  const std::uint32_t field = below > 0 ? 0 : static_cast<std::uint32_t>(exponent - exponent_min);
  const std::uint32_t code = rounded + (field << format.mantissa_bits);
  return sign | (code > format.max_code ? format.overflow_code : code);
}

/// The exact value of `code`. Codes above max_code are infinity or NaN.
constexpr float decode_small(SmallFloat format, std::uint32_t code) {
  const std::uint32_t magnitude = code & ((std::uint32_t{1} << format.sign_shift()) - 1);
  const std::uint32_t sign = (code >> format.sign_shift()) << 31;
  const std::uint32_t mantissa = magnitude & ((std::uint32_t{1} << format.mantissa_bits) - 1);
  const std::uint32_t field = magnitude >> format.mantissa_bits;
  const int mantissa_shift = 23 - format.mantissa_bits;
  if (magnitude > format.max_code) {
    const bool is_infinite = mantissa == 0;
    return std::bit_cast<float>(sign | 0x7F800000 | (is_infinite ? 0 : 0x400000 | (mantissa << mantissa_shift)));
  }
  if (field == 0) {
    const int exponent = 1 - format.bias() - format.mantissa_bits;  // of the least subnormal: never below fp32's own
    const float unit = std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
    const float value = static_cast<float>(mantissa) * unit;
    return sign != 0 ? -value : value;
  }
  const auto exponent_field = field + static_cast<std::uint32_t>(127 - format.bias());
  return std::bit_cast<float>(sign | (exponent_field << 23) | (mantissa << mantissa_shift));
}

constexpr std::uint32_t encode_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return 0x7FFF;  // a single NaN: the one a sum keeps depends on the compiler
  return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
}

/// A single NaN here too: devices make 0x7FFFFFFF of an invalid operation, hosts 0x7FC00000 or 0xFFC00000.
constexpr std::uint32_t encode_fp32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return (bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FFFFFFF : bits;
}

constexpr std::uint32_t encode_int8(float value) {
  if (value != value) return 0;
  const float clamped = value < -128.0F ? -128.0F : value > 127.0F ? 127.0F : value;
  constexpr float kRounder = 12582912.0F;  // 1.5 * 2^23: adding it leaves no bits below the unit, rounded to even
  const float rounded = (clamped + kRounder) - kRounder;
  return static_cast<std::uint32_t>(static_cast<std::int32_t>(rounded)) & 0xFF;
}

constexpr SmallFloat small_format(Element element) {
  switch (element) {
    case Element::kE4M3: return kE4M3Format;
    case Element::kE5M2: return kE5M2Format;
    default: return kFp16Format;
  }
}

/// `value` in the low bytes of the result. Requires: an element that is one number (not kByte, not kE2M1x2).
constexpr std::uint32_t encode_element(Element element, float value) {
  switch (element) {
    case Element::kInt8: return encode_int8(value);
    case Element::kE4M3:
    case Element::kE5M2:
    case Element::kFp16:
      return encode_small(small_format(element), value);  // one body for three: a kernel inlines it eight times
    case Element::kBf16: return encode_bf16(value);
    default: return encode_fp32(value);
  }
}

constexpr float decode_element(Element element, std::uint32_t code) {
  switch (element) {
    case Element::kInt8: return static_cast<float>(static_cast<std::int8_t>(code));
    case Element::kE4M3:
    case Element::kE5M2:
    case Element::kFp16:
      return decode_small(small_format(element), code);  // one body for three: a kernel inlines it eight times
    case Element::kBf16: return std::bit_cast<float>(code << 16);
    default: return std::bit_cast<float>(code);
  }
}

/// A code at its place in memory; little endian, as on every supported engine's machine.
inline std::uint32_t load_code(const std::byte* at, Element element) {
  std::uint32_t code = 0;
  std::memcpy(&code, at, static_cast<std::size_t>(element_bytes(element)));
  return code;
}
inline void store_code(std::byte* at, Element element, std::uint32_t code) {
  std::memcpy(at, &code, static_cast<std::size_t>(element_bytes(element)));
}

constexpr bool is_number(Element element) { return element != Element::kByte && element != Element::kE2M1x2; }

}  // namespace kv
