// gpu/device/device_quantise.h: dynamic scales. Neighbouring threads take a group of values that share a scale, read
// them side by side, find the largest magnitude by shuffles, and write codes from the values in their registers.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "gpu/device/device_rows.h"
#include "gpu/device/device_values.h"
#include "gpu/row_math.h"

namespace kv::device {

inline constexpr std::uint32_t kInfinityBits = 0x7F800000;

/// Magnitudes of floats are in the order of their bits; infinity and NaN do not count (see larger_magnitude()).
constexpr std::uint32_t magnitude_bits(float value) { return std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFF; }
constexpr std::uint32_t larger_finite(std::uint32_t largest, float value) {
  const std::uint32_t bits = magnitude_bits(value);
  return bits < kInfinityBits && bits > largest ? bits : largest;
}

/// The largest magnitude among a group's neighbouring threads. On a host `of_all` reads the whole group.
template <class OfAll>
constexpr std::uint32_t share_largest([[maybe_unused]] std::uint32_t largest, [[maybe_unused]] int lane_count,
                                      [[maybe_unused]] const Worker& worker, [[maybe_unused]] OfAll of_all) {
#if defined(__CUDA_ARCH__)
  const unsigned first = static_cast<unsigned>(worker.thread % 32 / lane_count * lane_count);
  const unsigned lanes = (lane_count == 32 ? ~0U : (1U << lane_count) - 1) << first;
  for (int distance = lane_count / 2; distance > 0; distance /= 2) {
    // The intrinsic, not its instruction: it tells the compiler that all threads must meet here.
    const std::uint32_t other = __shfl_xor_sync(lanes, largest, distance);
    largest = other > largest ? other : largest;
  }
  return largest;
#else
  return of_all();
#endif
}

/// Computes the scale of a group; its first thread writes it. Returns the factor that readers will multiply by.
template <class Plan>
constexpr float write_scale(const Plan& plan, const Part& part, const HeadRow& rows, std::uint32_t group,
                            std::uint32_t lane, std::uint32_t largest) {
  const Operation& operation = plan.operation;
  const float amax = std::bit_cast<float>(largest);
  const float scale = scale_for(operation.scale_rule, amax, part.to.element, operation.global_scale);
  const std::uint32_t code = encode_one(part.scales.element, scale);
  if (lane == 0) store_code(part.scales, rows.scales, group, code);
  return decode_one(part.scales.element, code) * operation.global_scale;
}

/// The host's replacement for the device's shuffles.
constexpr std::uint32_t largest_of_group(const Part& part, const HeadRow& rows, std::uint32_t start,
                                         std::uint32_t end) {
  std::uint32_t all = 0;
  for (std::uint32_t i = start; i < end; ++i)
    all = larger_finite(all, load_value(part.from, rows.from, i) * part.from_scale);
  return all;
}

/// One thread's share of a group: kWidth values an access. The first kHeldValues stay in registers between the search
/// for the largest and the division; those of longer groups are read again.
template <int kWidth, class Plan>
constexpr void quantise_group(const Plan& plan, const Part& part, const HeadRow& rows, std::uint32_t group,
                              std::uint32_t lane, int lane_count, const Worker& worker) {
  constexpr int kHeld = kHeldValues / kWidth;
  const auto values_per_scale = static_cast<std::uint32_t>(part.values_per_scale);
  const std::uint32_t start = group * values_per_scale, end = start + values_per_scale;
  const std::uint32_t mine = start + lane * kWidth, step = static_cast<std::uint32_t>(lane_count) * kWidth;
  const auto load_some = [&](std::uint32_t i, float* some) {
    load_values<kWidth>(part.from.element, rows.from + axis_offset(part.from.feature, i), some);
    if (part.from_scale != 1.0F) {
      for (int k = 0; k < kWidth; ++k) some[k] *= part.from_scale;
    }
  };
  float held[kHeld][kWidth] = {};
  for_each_index<kHeld>([&](int j) {
    if (mine + j * step < end) load_some(mine + j * step, held[j]);
  });
  std::uint32_t largest = 0;
  for_each_index<kHeld>([&](int j) {
    if (mine + j * step >= end) return;
    for (int k = 0; k < kWidth; ++k) {
      const std::uint32_t bits = magnitude_bits(held[j][k]);
      largest = bits > largest ? bits : largest;
    }
  });
  bool is_plain = largest < kInfinityBits;  // without NaN and infinity: nearly always
  if (!is_plain) {
    largest = 0;
    for_each_index<kHeld>([&](int j) {
      for (int k = 0; k < kWidth; ++k) largest = larger_finite(largest, held[j][k]);
    });
  }
  for (std::uint32_t i = mine + kHeld * step; i < end; i += step) {
    float some[kWidth] = {};
    load_some(i, some);
    for (int k = 0; k < kWidth; ++k) largest = larger_finite(largest, some[k]);
  }
  largest = share_largest(largest, lane_count, worker, [&] { return largest_of_group(part, rows, start, end); });
  const float kept = write_scale(plan, part, rows, group, lane, largest);
  is_plain = is_plain && kept == kept;
  const auto store_some = [&](std::uint32_t i, float* some, bool is_some_plain) {
    if (kept == 0.0F) {  // as in divide_by_scale(); for the whole group
      for (int k = 0; k < kWidth; ++k) some[k] = 0.0F;
    } else {
      for (int k = 0; k < kWidth; ++k) some[k] /= kept;
    }
    const std::uint32_t at = part.to.element == Element::kE2M1x2 ? i / 2 : i;
    store_values<kWidth>(part.to.element, rows.to + axis_offset(part.to.feature, at), some, is_some_plain);
  };
  for_each_index<kHeld>([&](int j) {
    if (mine + j * step < end) store_some(mine + j * step, held[j], is_plain);
  });
  for (std::uint32_t i = mine + kHeld * step; i < end; i += step) {
    float some[kWidth] = {};
    load_some(i, some);
    store_some(i, some, false);
  }
}

/// The same where neighbouring values do not form an access: one at a time, or two that share a byte, read twice.
template <class Plan>
constexpr void quantise_group_each(const Plan& plan, const Part& part, const HeadRow& rows, std::uint32_t group,
                                   std::uint32_t lane, int lane_count, const Worker& worker) {
  const auto values_per_scale = static_cast<std::uint32_t>(part.values_per_scale);
  const std::uint32_t start = group * values_per_scale, end = start + values_per_scale;
  const bool is_paired = part.to.element == Element::kE2M1x2;
  const std::uint32_t width = is_paired ? 2 : 1, step = static_cast<std::uint32_t>(lane_count) * width;
  const auto value = [&](std::uint32_t i) { return load_value(part.from, rows.from, i) * part.from_scale; };
  std::uint32_t largest = 0;
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
  for (std::uint32_t i = start + lane * width; i < end; i += step) {
    largest = larger_finite(largest, value(i));
    if (is_paired) largest = larger_finite(largest, value(i + 1));
  }
  largest = share_largest(largest, lane_count, worker, [&] { return largest_of_group(part, rows, start, end); });
  const float kept = write_scale(plan, part, rows, group, lane, largest);
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
  for (std::uint32_t i = start + lane * width; i < end; i += step) {
    const float first = divide_by_scale(value(i), kept);
    if (!is_paired) {
      store_code(part.to, rows.to, i, encode_slowly(part.to.element, first));
    } else {
      const std::uint32_t second = encode_e2m1(divide_by_scale(value(i + 1), kept));
      store_code(part.to, rows.to, i / 2, encode_e2m1(first) | second << 4);
    }
  }
}

/// Threads of a group go through the same rows, so that all of them meet in share_largest().
template <class Plan>
constexpr void quantise_rows(const Plan& plan, const DevicePart& device, std::int64_t layer, const Worker& worker) {
  const Part& part = device.part;
  const int lane_shift = quantise_lane_shift(part.values_per_scale), lane_count = 1 << lane_shift;
  const auto pieces = static_cast<std::uint32_t>(quantise_pieces(device)) >> lane_shift;  // per group, over all threads
  for_each_item(
      plan.row_count, part.heads * pieces << lane_shift, worker,
      [&](std::int64_t item, std::int64_t row) __attribute__((always_inline)) {
        const auto index = static_cast<std::uint32_t>(item);
        const std::uint32_t lane = index & static_cast<std::uint32_t>(lane_count - 1), unit = index >> lane_shift;
        const std::uint32_t head = unit / pieces;
        const HeadRow rows = head_row(plan, part, layer, row, head);
        if (!rows.to) return;
        std::uint32_t group = unit - head * pieces;
        for (int i = 0; i < device.access_count; ++i, group += pieces) {
          if (device.vec_bytes == 16) {
            quantise_group<8>(plan, part, rows, group, lane, lane_count, worker);
          } else if (device.vec_bytes == 4) {
            quantise_group<4>(plan, part, rows, group, lane, lane_count, worker);
          } else {
            quantise_group_each(plan, part, rows, group, lane, lane_count, worker);
          }
        }
      },
      device.span_shift, device.row_shift);
}

}  // namespace kv::device
