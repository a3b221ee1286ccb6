// gpu/device/device_values.h: numbers of a row as a thread takes them: eight neighbouring ones in one or two accesses,
// or one at a time.
//
// gpu/element.h says what every conversion gives, bit for bit. Compiled for a device that has an instruction for one,
// that is used for what is not NaN: eight values cost a fifth of the integer arithmetic. NaN goes the long way, since
// which NaN an instruction makes differs between devices.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "gpu/element.h"
#include "gpu/permute_plan.h"

namespace kv::device {

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

/// What encode_small() and decode_small() give for kE2M1Format, of which a device that has no instruction for them does
/// sixteen for each 8 bytes of a target. A tie goes to the even code: down at 0.25, up at 0.75.
constexpr std::uint32_t encode_e2m1(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const float magnitude = std::bit_cast<float>(bits & 0x7FFFFFFF);
  if (magnitude != magnitude) return kE2M1Format.nan_code;
  std::uint32_t code = bits >> 31 << 3;
  code += magnitude > 0.25F ? 1 : 0;
  code += magnitude >= 0.75F ? 1 : 0;
  code += magnitude > 1.25F ? 1 : 0;
  code += magnitude >= 1.75F ? 1 : 0;
  code += magnitude > 2.5F ? 1 : 0;
  code += magnitude >= 3.5F ? 1 : 0;
  code += magnitude > 5.0F ? 1 : 0;
  return code;
}
constexpr float decode_e2m1(std::uint32_t code) {
  constexpr float kUnbias = 0x1p126F;  // its exponents are biased by 1, those of a float by 127; subnormals come right
  return std::bit_cast<float>((code & 8) << 28 | (code & 7) << 22) * kUnbias;
}

/// Bytes from a row's first value to value `index`; of two in a byte, to the byte.
constexpr std::int64_t value_offset(const Place& place, std::int64_t index) {
  return place.feature.offset(place.element == Element::kE2M1x2 ? index / 2 : index);
}

/// A number at its place; of two in a byte, the one that `index` names.
constexpr float load_value(const Place& place, const std::byte* row, std::int64_t index) {
  const std::byte* at = row + value_offset(place, index);
  switch (element_bytes(place.element)) {
    case 4: return load<float>(at);
    case 2: return decode_element(place.element, load<std::uint16_t>(at));
    default: break;
  }
  const std::uint32_t code = load<std::uint8_t>(at);
  if (place.element == Element::kE2M1x2) return decode_e2m1(index % 2 == 0 ? code & 15 : code >> 4);
  return decode_element(place.element, code);
}
constexpr void store_code(const Place& place, std::byte* row, std::int64_t feature, std::uint32_t code) {
  std::byte* at = row + place.feature.offset(feature);
  switch (element_bytes(place.element)) {
    case 4: return store(at, code);
    case 2: return store(at, static_cast<std::uint16_t>(code));
    default: return store(at, static_cast<std::uint8_t>(code));
  }
}
constexpr std::uint32_t load_code(const Place& place, const std::byte* row, std::int64_t feature) {
  const std::byte* at = row + place.feature.offset(feature);
  switch (element_bytes(place.element)) {
    case 4: return load<std::uint32_t>(at);
    case 2: return load<std::uint16_t>(at);
    default: return load<std::uint8_t>(at);
  }
}

inline constexpr int kEight = 8;  ///< Values that a thread takes together: 16 bytes of the 16-bit elements.

constexpr bool has_nan(const float* values) {
  bool has = false;
  for (int i = 0; i < kEight; ++i) has = has || values[i] != values[i];
  return has;
}

#if defined(__CUDA_ARCH__)
/// Two numbers as two neighbouring codes, `low` in the low half. Not NaN.
constexpr std::uint32_t encode_pair_bf16(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
constexpr std::uint32_t encode_pair_fp16(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
constexpr float decode_fp16(std::uint32_t code) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<std::uint16_t>(code)));
  return value;
}
/// Rounded to nearest even, saturating.
constexpr std::uint32_t encode_one_int8(float value) {
  std::int32_t code;
  asm("cvt.rni.s32.f32 %0, %1;" : "=r"(code) : "f"(value));
  code = code < -128 ? -128 : code > 127 ? 127 : code;
  return static_cast<std::uint32_t>(code) & 0xFF;
}
#if __CUDA_ARCH__ >= 890
template <bool kIsE4M3>
constexpr std::uint32_t encode_pair_fp8(float low, float high) {
  std::uint16_t pair;
  if constexpr (kIsE4M3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  }
  return pair;
}
template <bool kIsE4M3>
constexpr void decode_pair_fp8(std::uint32_t pair, float* values) {
  std::uint32_t halves;
  if constexpr (kIsE4M3) {
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(pair)));
  } else {
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(pair)));
  }
  values[0] = decode_fp16(halves & 0xFFFF);
  values[1] = decode_fp16(halves >> 16);
}
#endif
#endif

/// Eight codes as words, as encode_element() has each. The low element first.
constexpr void encode_eight_bytes(Element element, const float* values, std::uint32_t* words) {
  words[0] = words[1] = 0;
#if defined(__CUDA_ARCH__)
  if (!has_nan(values)) {
    if (element == Element::kInt8) {
      for (int i = 0; i < kEight; ++i) words[i / 4] |= encode_one_int8(values[i]) << (i % 4 * 8);
      return;
    }
#if __CUDA_ARCH__ >= 890
    if (element == Element::kE4M3) {
      for (int i = 0; i < 4; ++i)
        words[i / 2] |= encode_pair_fp8<true>(values[2 * i], values[2 * i + 1]) << (i % 2 * 16);
    } else {
      for (int i = 0; i < 4; ++i)
        words[i / 2] |= encode_pair_fp8<false>(values[2 * i], values[2 * i + 1]) << (i % 2 * 16);
    }
    return;
#endif
  }
#endif
  for (int i = 0; i < kEight; ++i) words[i / 4] |= encode_element(element, values[i]) << (i % 4 * 8);
}
constexpr void encode_eight_halves(Element element, const float* values, std::uint32_t* words) {
#if defined(__CUDA_ARCH__)
  if (!has_nan(values)) {
    if (element == Element::kBf16) {
      for (int i = 0; i < 4; ++i) words[i] = encode_pair_bf16(values[2 * i], values[2 * i + 1]);
    } else {
      for (int i = 0; i < 4; ++i) words[i] = encode_pair_fp16(values[2 * i], values[2 * i + 1]);
    }
    return;
  }
#endif
  for (int i = 0; i < 4; ++i) {
    words[i] = encode_element(element, values[2 * i]) | encode_element(element, values[2 * i + 1]) << 16;
  }
}
constexpr void decode_eight_bytes(Element element, const std::uint32_t* words, float* values) {
  if (element == Element::kInt8) {
    for (int i = 0; i < kEight; ++i) {
      values[i] = static_cast<float>(static_cast<std::int32_t>(words[i / 4] << (24 - i % 4 * 8)) >> 24);
    }
    return;
  }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  if (element == Element::kE4M3) {
    for (int i = 0; i < 4; ++i) decode_pair_fp8<true>(words[i / 2] >> (i % 2 * 16) & 0xFFFF, values + 2 * i);
  } else {
    for (int i = 0; i < 4; ++i) decode_pair_fp8<false>(words[i / 2] >> (i % 2 * 16) & 0xFFFF, values + 2 * i);
  }
#else
  for (int i = 0; i < kEight; ++i) values[i] = decode_element(element, words[i / 4] >> (i % 4 * 8) & 0xFF);
#endif
}
constexpr void decode_eight_halves(Element element, const std::uint32_t* words, float* values) {
  if (element == Element::kBf16) {
    for (int i = 0; i < 4; ++i) {
      values[2 * i] = std::bit_cast<float>(words[i] << 16);
      values[2 * i + 1] = std::bit_cast<float>(words[i] & 0xFFFF0000);
    }
    return;
  }
#if defined(__CUDA_ARCH__)
  for (int i = 0; i < kEight; ++i) values[i] = decode_fp16(words[i / 2] >> (i % 2 * 16) & 0xFFFF);
#else
  for (int i = 0; i < kEight; ++i) values[i] = decode_element(element, words[i / 2] >> (i % 2 * 16) & 0xFFFF);
#endif
}

/// Eight neighbouring values in one or two accesses.
constexpr void load_eight(Element element, const std::byte* at, float* values) {
  if (element_bytes(element) == 4) {
    const auto low = load<Vec<16>>(at), high = load<Vec<16>>(at + 16);
    for (int i = 0; i < 4; ++i) {
      values[i] = std::bit_cast<float>(low.words[i]);
      values[i + 4] = std::bit_cast<float>(high.words[i]);
    }
  } else if (element_bytes(element) == 2) {
    const auto vec = load<Vec<16>>(at);
    decode_eight_halves(element, vec.words, values);
  } else if (element == Element::kE2M1x2) {
    const auto word = load<std::uint32_t>(at);
    for (int i = 0; i < kEight; ++i) values[i] = decode_e2m1(word >> (4 * i) & 15);
  } else {
    const auto vec = load<Vec<8>>(at);
    decode_eight_bytes(element, vec.words, values);
  }
}
constexpr void store_eight(Element element, std::byte* at, const float* values) {
  if (element_bytes(element) == 4) {
    Vec<16> low{}, high{};
    for (int i = 0; i < 4; ++i) {
      low.words[i] = encode_fp32(values[i]);
      high.words[i] = encode_fp32(values[i + 4]);
    }
    store(at, low);
    store(at + 16, high);
  } else if (element_bytes(element) == 2) {
    Vec<16> vec{};
    encode_eight_halves(element, values, vec.words);
    store(at, vec);
  } else if (element == Element::kE2M1x2) {
    std::uint32_t word = 0;
    for (int i = 0; i < kEight; ++i) word |= encode_e2m1(values[i]) << (4 * i);
    store(at, word);
  } else {
    Vec<8> vec{};
    encode_eight_bytes(element, values, vec.words);
    store(at, vec);
  }
}

}  // namespace kv::device
