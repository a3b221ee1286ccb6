// gpu/device/device_keep.h: rows of a compressed cache (gpu/compress.h). A block of threads reads 64 of them at once
// into shared memory, checks each once, and then moves them in every component and layer of its share.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "gpu/compress.h"
#include "gpu/device/device_rows.h"
#include "gpu/device/device_values.h"

namespace kv::device {

inline constexpr int kKeepRows = 64;
inline constexpr int kKeepWords = sizeof(KeepRow) / sizeof(std::uint64_t);
static_assert(sizeof(KeepRow) == kKeepWords * sizeof(std::uint64_t) && alignof(KeepRow) == alignof(std::uint64_t));

struct KeepScratch {
  KeepRow rows[kKeepRows];
  bool is_within[kKeepRows];
};

/// Whether a row's slot, tokens and head exist. If not, it is skipped in every component, even the log count.
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

/// First step: the rows as words, so that neighbouring threads read neighbouring words.
inline constexpr void load_keep_rows(const KeepRow* rows, std::int64_t count, KeepScratch& scratch,
                                     const Worker& worker) {
  const auto* from = static_cast<const std::uint64_t*>(static_cast<const void*>(rows));
  auto* to = static_cast<std::uint64_t*>(static_cast<void*>(scratch.rows));
  for (std::int64_t i = worker.thread; i < count * kKeepWords; i += worker.thread_count) to[i] = from[i];
}
template <class Plan>
constexpr void check_keep_rows(const Plan& plan, std::int64_t count, KeepScratch& scratch, const Worker& worker) {
  for (std::int64_t i = worker.thread; i < count; i += worker.thread_count)
    scratch.is_within[i] = is_within(plan, scratch.rows[i]);
}

/// Values of one access of a row of `token_count` tokens: the token's, or the mean in token order.
template <bool kIsWide, class Plan>
constexpr void keep_values(const Plan& plan, const Part& part, const KeepRow& row, std::byte* to, const std::byte* from,
                           std::int64_t feature) {
  const auto token = [&](std::int64_t i) {
    return from + token_offset(part.from, block_token(plan, false, row.token + i));
  };
  const auto count = static_cast<float>(row.token_count);
  if constexpr (kIsWide) {
    std::byte* const at = to + axis_offset(part.to.feature, static_cast<std::uint32_t>(feature));
    const std::int64_t offset = axis_offset(part.from.feature, static_cast<std::uint32_t>(feature));
    if (row.token_count == 1) return copy_eight(part.to.element, at, token(0) + offset);
    float sums[kEight] = {}, values[kEight] = {};
    for (std::int64_t i = 0; i < row.token_count; ++i) {
      load_eight(part.from.element, token(i) + offset, values);
      for (int k = 0; k < kEight; ++k) sums[k] += values[k];
    }
    for (int k = 0; k < kEight; ++k) sums[k] /= count;
    store_eight(part.to.element, at, sums);
  } else {
    if (row.token_count == 1) return store_code(part.to, to, feature, load_code(part.from, token(0), feature));
    float sum = 0.0F;
    for (std::int64_t i = 0; i < row.token_count; ++i) sum += load_value(part.from, token(i), feature);
    store_code(part.to, to, feature, encode_slowly(part.to.element, sum / count));
  }
}

/// One thread's share of a component and layer: up to two accesses of a row, half a row apart.
template <class Plan>
constexpr void keep_rows(const Plan& plan, const DevicePart& device, std::int64_t layer, const KeepScratch& scratch,
                         std::int64_t count, const Worker& worker) {
  const Part& part = device.part;
  const bool is_wide = device.vec_bytes == 16;
  const std::int64_t pieces = part.values / (is_wide ? kEight * device.access_count : 1);
  const Worker here{worker.thread, worker.thread_count, 0, 1, 0, 1};
  for_each_item(count, pieces, here, [&](std::int64_t piece, std::int64_t index) {
    if (!scratch.is_within[index]) return;
    const KeepRow& row = scratch.rows[index];
    std::byte* to = plan.to_base(layer, part.to.component) + token_offset(part.to, block_token(plan, true, row.slot));
    if (part.role == Role::kLogCount) {
      // Nearly all rows need the logarithm of 1, and a double's takes long on a device.
      return store(to, row.token_count == 1 ? 0.0F : static_cast<float>(log(static_cast<double>(row.token_count))));
    }
    const std::byte* from =
        plan.from_base(layer, part.from.component) + axis_offset(part.from.head, static_cast<std::uint32_t>(row.head));
    if (!is_wide) return keep_values<false>(plan, part, row, to, from, piece);
    for (int i = 0; i < device.access_count; ++i)
      keep_values<true>(plan, part, row, to, from, (piece + i * pieces) * kEight);
  });
}

}  // namespace kv::device
