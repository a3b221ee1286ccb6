// gpu/device/device_values.h: numbers of a row: eight neighbouring ones in one or two accesses, or one at a time.
//
// gpu/element.h defines the result of every conversion, bit for bit. Device instructions, at a fifth of the cost,
// replace it except for NaN, which they encode differently from device to device.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "gpu/element.h"
#include "gpu/plans/permute_plan.h"

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
template <>
struct alignas(4) Vec<4> {
  std::uint32_t words[1];
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

/// encode_small() for kE2M1Format, which a device runs sixteen times per 8 bytes of a target. The sum of the magnitude
/// and 2^22, 2^23 or 2^24 is rounded, to even, at the code's last bit for that magnitude.
constexpr std::uint32_t encode_e2m1(float value, bool is_plain = false) {
  constexpr std::uint32_t kOne = 0x3F800000, kSix = 0x40C00000, kToRounder = 0x0B000000;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  std::uint32_t magnitude = bits & 0x7FFFFFFF;
  const std::uint32_t sign = !is_plain && magnitude > 0x7F800000 ? 0 : bits >> 28 & 8;  // NaN is 6, without a sign
  magnitude = magnitude < kSix ? magnitude : kSix;
  std::uint32_t exponent = magnitude & 0x7F800000;  // below 1 the code has the same last bit as at 1
  exponent = exponent > kOne ? exponent : kOne;
  const float sum = std::bit_cast<float>(magnitude) + std::bit_cast<float>(exponent + kToRounder);
  return ((std::bit_cast<std::uint32_t>(sum) + (exponent >> 22) + 2) & 7) | sign;
}
/// The value of the code that begins at bit `at` of a word.
constexpr float decode_e2m1(std::uint32_t word, int at = 0) {
  constexpr float kUnbias = 0x1p126F;  // rebias from 1 to a float's 127; subnormals come out right
  const std::uint32_t magnitude = at < 22 ? word << (22 - at) : word >> (at - 22);
  return std::bit_cast<float>((word << (28 - at) & 0x80000000) | (magnitude & 0x01C00000)) * kUnbias;
}

/// Bytes from a row's first value to value `index`; with two in a byte, to their byte.
constexpr std::int64_t value_offset(const Place& place, std::int64_t index) {
  return place.feature.offset(place.element == Element::kE2M1x2 ? index / 2 : index);
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
/// Rounded to nearest even, saturating, in the low byte. Not NaN. By a sum, since conversions to integers are slow.
constexpr std::uint32_t encode_one_int8(float value) {
  constexpr float kRounder = 12582912.0F;  // 1.5 * 2^23: the unit is the last bit
  const float clamped = fminf(fmaxf(value, -128.0F), 127.0F);
  return std::bit_cast<std::uint32_t>(clamped + kRounder);
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

#if defined(__CUDACC__)
/// A separate function for rare numbers keeps the kernels short.
__attribute__((noinline)) constexpr std::uint32_t encode_slowly(Element element, float value) {
  return encode_element(element, value);
}
#else
constexpr std::uint32_t encode_slowly(Element element, float value) { return encode_element(element, value); }
#endif

/// encode_element() and decode_element() of a scale.
constexpr std::uint32_t encode_one(Element element, float value) {
  if (element == Element::kFp32) return encode_fp32(value);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  if (element == Element::kE4M3 && value == value) return encode_pair_fp8<true>(value, 0.0F) & 0xFF;
#endif
  return encode_slowly(element, value);
}
constexpr float decode_one(Element element, std::uint32_t code) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  if (element == Element::kE4M3) {
    float values[2];
    decode_pair_fp8<true>(code, values);
    return values[0];
  }
#endif
  return decode_element(element, code);
}

/// A number at its place; with two in a byte, the one that `index` names.
constexpr float load_value(const Place& place, const std::byte* row, std::int64_t index) {
  const std::byte* at = row + value_offset(place, index);
  switch (element_bytes(place.element)) {
    case 4: return load<float>(at);
    case 2: return decode_element(place.element, load<std::uint16_t>(at));
    default: break;
  }
  const std::uint32_t code = load<std::uint8_t>(at);
  if (place.element == Element::kE2M1x2) return decode_e2m1(index % 2 == 0 ? code : code >> 4);
  return decode_one(place.element, code);
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

/// Unrolled: registers have no addresses, so an array whose index is unknown at compile time lies in memory.
template <int kCount, class Step>
constexpr void for_each_index(Step step) {
  [&]<int... kIndices>(std::integer_sequence<int, kIndices...>) { (step(kIndices), ...); }
  (std::make_integer_sequence<int, kCount>());
}

template <int kCount>
constexpr bool has_nan(const float* values) {
  bool has = false;
  for (int i = 0; i < kCount; ++i) has = has || values[i] != values[i];
  return has;
}

/// Bytes of two words by the digits of kSelector, the lowest byte first: 0 to 3 of `low`, 4 to 7 of `high`.
template <std::uint32_t kSelector>
constexpr std::uint32_t permute_bytes(std::uint32_t low, std::uint32_t high) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(low, high, kSelector);
#else
  const std::uint64_t both = std::uint64_t{high} << 32 | low;
  std::uint32_t word = 0;
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t from = kSelector >> (4 * i) & 7;
    word |= (static_cast<std::uint32_t>(both >> (8 * from)) & 0xFF) << (8 * i);
  }
  return word;
#endif
}

/// kCount one-byte codes as words, each as from encode_element(), the low one first. `is_plain`: without NaN.
template <int kCount>
constexpr void encode_bytes(Element element, const float* values, std::uint32_t* words,
                            [[maybe_unused]] bool is_plain) {
#if defined(__CUDA_ARCH__)
  if (is_plain) {
    if (element == Element::kInt8) {
      for (int i = 0; i < kCount; i += 4) {
        const std::uint32_t low = permute_bytes<0x0040>(encode_one_int8(values[i]), encode_one_int8(values[i + 1]));
        const std::uint32_t high =
            permute_bytes<0x0040>(encode_one_int8(values[i + 2]), encode_one_int8(values[i + 3]));
        words[i / 4] = permute_bytes<0x5410>(low, high);
      }
      return;
    }
#if __CUDA_ARCH__ >= 890
    const auto encode = [&](auto encode_pair) {
      for (int i = 0; i < kCount; i += 4)
        words[i / 4] = encode_pair(values[i], values[i + 1]) | encode_pair(values[i + 2], values[i + 3]) << 16;
    };
    if (element == Element::kE4M3)
      return encode([](float low, float high) { return encode_pair_fp8<true>(low, high); });
    return encode([](float low, float high) { return encode_pair_fp8<false>(low, high); });
#else
    for (int i = 0; i < kCount / 4; ++i) words[i] = 0;
    for (int i = 0; i < kCount; ++i)
      words[i / 4] |= encode_small(small_format(element), values[i]) << (i % 4 * 8);  // kept inline
    return;
#endif
  }
#endif
  for (int i = 0; i < kCount / 4; ++i) words[i] = 0;
  for (int i = 0; i < kCount; ++i) words[i / 4] |= encode_slowly(element, values[i]) << (i % 4 * 8);
}
template <int kCount>
constexpr void encode_halves(Element element, const float* values, std::uint32_t* words,
                             [[maybe_unused]] bool is_plain) {
#if defined(__CUDA_ARCH__)
  if (is_plain) {
    if (element == Element::kBf16) {
      for (int i = 0; i < kCount / 2; ++i) words[i] = encode_pair_bf16(values[2 * i], values[2 * i + 1]);
    } else {
      for (int i = 0; i < kCount / 2; ++i) words[i] = encode_pair_fp16(values[2 * i], values[2 * i + 1]);
    }
    return;
  }
#endif
  for (int i = 0; i < kCount / 2; ++i) {
    words[i] = encode_slowly(element, values[2 * i]) | encode_slowly(element, values[2 * i + 1]) << 16;
  }
}
template <int kCount>
constexpr void decode_bytes(Element element, const std::uint32_t* words, float* values) {
  if (element == Element::kInt8) {
    for (int i = 0; i < kCount; ++i) {
      values[i] = static_cast<float>(static_cast<std::int32_t>(words[i / 4] << (24 - i % 4 * 8)) >> 24);
    }
    return;
  }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  if (element == Element::kE4M3) {
    for (int i = 0; i < kCount / 2; ++i) decode_pair_fp8<true>(words[i / 2] >> (i % 2 * 16) & 0xFFFF, values + 2 * i);
  } else {
    for (int i = 0; i < kCount / 2; ++i) decode_pair_fp8<false>(words[i / 2] >> (i % 2 * 16) & 0xFFFF, values + 2 * i);
  }
#else
  for (int i = 0; i < kCount; ++i) values[i] = decode_element(element, words[i / 4] >> (i % 4 * 8) & 0xFF);
#endif
}
template <int kCount>
constexpr void decode_halves(Element element, const std::uint32_t* words, float* values) {
  if (element == Element::kBf16) {
    for (int i = 0; i < kCount / 2; ++i) {
      values[2 * i] = std::bit_cast<float>(words[i] << 16);
      values[2 * i + 1] = std::bit_cast<float>(words[i] & 0xFFFF0000);
    }
    return;
  }
#if defined(__CUDA_ARCH__)
  for (int i = 0; i < kCount; ++i) values[i] = decode_fp16(words[i / 2] >> (i % 2 * 16) & 0xFFFF);
#else
  for (int i = 0; i < kCount; ++i) values[i] = decode_element(element, words[i / 2] >> (i % 2 * 16) & 0xFFFF);
#endif
}

/// Four or eight neighbouring values, in one access where they are 16 bytes or fewer.
template <int kCount>
constexpr void load_values(Element element, const std::byte* at, float* values) {
  static_assert(kCount == 4 || kCount == 8);
  if (element_bytes(element) == 4) {
    for (int i = 0; i < kCount; i += 4) {
      const auto vec = load<Vec<16>>(at + 4 * i);
      for (int k = 0; k < 4; ++k) values[i + k] = std::bit_cast<float>(vec.words[k]);
    }
  } else if (element_bytes(element) == 2) {
    const auto vec = load<Vec<2 * kCount>>(at);
    decode_halves<kCount>(element, vec.words, values);
  } else if (element == Element::kE2M1x2) {
    const std::uint32_t word = kCount == 8 ? load<std::uint32_t>(at) : load<std::uint16_t>(at);
    for (int i = 0; i < kCount; ++i) values[i] = decode_e2m1(word, 4 * i);
  } else {
    const auto vec = load<Vec<kCount>>(at);
    decode_bytes<kCount>(element, vec.words, values);
  }
}
template <int kCount>
constexpr void store_values(Element element, std::byte* at, const float* values, bool is_plain) {
  static_assert(kCount == 4 || kCount == 8);
  if (element_bytes(element) == 4) {
    for (int i = 0; i < kCount; i += 4) {
      Vec<16> vec{};
      for (int k = 0; k < 4; ++k) vec.words[k] = encode_fp32(values[i + k]);
      store(at + 4 * i, vec);
    }
  } else if (element_bytes(element) == 2) {
    Vec<2 * kCount> vec{};
    encode_halves<kCount>(element, values, vec.words, is_plain);
    store(at, vec);
  } else if (element == Element::kE2M1x2) {
    std::uint32_t word = 0;
    if (is_plain) {
      for (int i = 0; i < kCount; ++i) word |= encode_e2m1(values[i], true) << (4 * i);
    } else {
      for (int i = 0; i < kCount; ++i) word |= encode_e2m1(values[i]) << (4 * i);
    }
    if constexpr (kCount == 8) {
      store(at, word);
    } else {
      store(at, static_cast<std::uint16_t>(word));
    }
  } else {
    Vec<kCount> vec{};
    encode_bytes<kCount>(element, values, vec.words, is_plain);
    store(at, vec);
  }
}

constexpr void load_eight(Element element, const std::byte* at, float* values) {
  load_values<kEight>(element, at, values);
}
constexpr void store_eight(Element element, std::byte* at, const float* values) {
  store_values<kEight>(element, at, values, !has_nan<kEight>(values));
}
/// Eight neighbouring elements of any format.
constexpr void copy_eight(Element element, std::byte* to, const std::byte* from) {
  switch (element_bytes(element)) {
    case 4: store(to, load<Vec<16>>(from)), store(to + 16, load<Vec<16>>(from + 16)); return;
    case 2: return store(to, load<Vec<16>>(from));
    default: return store(to, load<Vec<8>>(from));
  }
}

}  // namespace kv::device
