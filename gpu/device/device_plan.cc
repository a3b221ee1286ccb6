#include "gpu/device/device_plan.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "base/assert.h"

namespace kv {
namespace {

using Kind = Operation::Kind;

int shift_of(std::int64_t block_tokens) {
  const auto value = static_cast<std::uint64_t>(block_tokens);
  return std::has_single_bit(value) ? std::countr_zero(value) : -1;
}

/// Bytes of a row that are contiguous from feature 0 on, repeating.
std::int64_t run_bytes(const Place& place) {
  const std::int64_t unit = element_bytes(place.element);
  if (place.feature.low.extent > 1 && place.feature.low.stride_bytes != unit) return unit;
  const std::int64_t low = place.feature.low.extent * unit;
  const bool continues = place.feature.high.extent > 1 && place.feature.high.stride_bytes == low;
  return continues ? low * place.feature.high.extent : low;
}

/// The widest power of two that divides every address of the place, given its components' bases.
std::int64_t alignment_of(const Place& place, const Bases& side, std::int64_t layer_count) {
  std::uint64_t bits = 16;
  for (std::int64_t layer = 0; place.component >= 0 && layer < layer_count; ++layer) {
    bits |= reinterpret_cast<std::uintptr_t>(side.base(layer, place.component));
  }
  bits |= static_cast<std::uint64_t>(place.block_stride_bytes);
  const auto add = [&](const Digit& digit) {
    if (digit.extent > 1) bits |= static_cast<std::uint64_t>(digit.stride_bytes);
  };
  add(place.token.low), add(place.token.high), add(place.head.low), add(place.head.high), add(place.feature.high);
  return std::int64_t{1} << std::countr_zero(bits);
}

int vec_bytes_of(const PermutePlan& plan, const Part& part, int vec_bytes_max) {
  std::int64_t bytes = std::gcd(run_bytes(part.to), run_bytes(part.from));
  bytes = std::gcd(bytes, alignment_of(part.to, plan.to, plan.layer_count));
  bytes = std::gcd(bytes, alignment_of(part.from, plan.from, plan.layer_count));
  return static_cast<int>(std::min<std::int64_t>(std::gcd(bytes, std::int64_t{16}), vec_bytes_max));
}

bool is_token_contiguous(const Place& place) {
  return place.token.low.extent > 1 && place.token.low.stride_bytes == element_bytes(place.element);
}
bool is_feature_contiguous(const Place& place) { return run_bytes(place) > element_bytes(place.element); }

/// Whether `count` neighbouring values of `place` are one access of their size, or whole ones of 16 bytes.
bool has_wide_values(const PermutePlan& plan, const Place& place, const Bases& side, std::int64_t count) {
  const std::int64_t bytes = place.element == Element::kE2M1x2 ? count / 2 : count * element_bytes(place.element);
  return run_bytes(place) % bytes == 0 &&
         alignment_of(place, side, plan.layer_count) % std::min<std::int64_t>(bytes, 16) == 0;
}

/// The same for neighbouring tokens. Only the device has the ids: it checks each group for neighbours.
bool has_wide_tokens(const PermutePlan& plan, const Place& place, const Bases& side, std::int64_t count) {
  Place start = place;
  start.token = {};
  const Digit& low = place.feature.low;
  const std::int64_t bytes = std::min<std::int64_t>(count * element_bytes(place.element), 16);
  return alignment_of(start, side, plan.layer_count) % bytes == 0 && (low.extent == 1 || low.stride_bytes % bytes == 0);
}

/// Whether shifts alone turn rows into addresses.
bool is_simple(const PermutePlan& plan, const Part& part) {
  const auto is_side_simple = [](const Bases& side, const Rows& rows, const Place& place) {
    return shift_of(side.block_tokens) >= 0 && place.token.high.extent == 1 &&
           (!rows.is_blocks() || rows.block_tokens == side.block_tokens);
  };
  return is_side_simple(plan.to, plan.to_rows, part.to) && is_side_simple(plan.from, plan.from_rows, part.from);
}

/// Whether a component goes through tiles: its tokens are contiguous on one side, its features are not on both, and it
/// has enough columns for a tile. (A scale per token has one column.)
bool is_transposed(const Part& part) {
  constexpr std::int64_t kColumnsEnough = 16;
  const bool to_tokens = is_token_contiguous(part.to), from_tokens = is_token_contiguous(part.from);
  if (part.heads * part.values < kColumnsEnough) return false;
  return (to_tokens && (from_tokens || is_feature_contiguous(part.from))) ||
         (from_tokens && is_feature_contiguous(part.to));
}

/// Marks the sides of a tile with accesses of 16 bytes; a cast reads eight numbers.
void widen_tile(const PermutePlan& plan, DevicePart& device) {
  const Part& part = device.part;
  const bool is_cast = part.kind == Kind::kCast;
  const auto is_wide = [&](const Place& place, const Bases& side, std::int64_t count) {
    if (is_token_contiguous(place)) return has_wide_tokens(plan, place, side, count);
    return part.values % count == 0 && has_wide_values(plan, place, side, count);
  };
  device.has_wide_to = is_wide(part.to, plan.to, 16 / element_bytes(part.to.element));
  device.has_wide_from = is_wide(part.from, plan.from, is_cast ? 8 : 16 / element_bytes(part.from.element));
}

/// Whether feature tiles are smaller than a 32-byte sector (x-packed K), so that a warp would waste half of it.
bool has_small_tiles(const Place& place) {
  const std::int64_t bytes = run_bytes(place);
  return bytes < 32 && place.token.low.extent > 1 && place.token.low.stride_bytes == bytes;
}
/// Whether the next token's row of a head begins where this one's ends, so that two can be written as one.
bool has_rows_side_by_side(const Place& place) {
  return place.token.low.extent > 1 && place.token.low.stride_bytes == run_bytes(place) &&
         place.feature.extent() * element_bytes(place.element) == run_bytes(place);
}

/// Decides how threads lie over pieces and rows, given the pieces of a head.
void spread_threads(DevicePart& device, std::int64_t pieces) {
  constexpr int kWarpShift = 5;
  const Part& part = device.part;
  const int lane_shift = part.kind == Kind::kQuantise ? quantise_lane_shift(part.values_per_scale) : 0;
  if (has_small_tiles(part.to) || has_small_tiles(part.from)) {
    const int span_shift = std::max(2, lane_shift);  // threads of a group stay side by side
    if (part.heads * pieces % (std::int64_t{1} << span_shift) == 0)
      device.span_shift = span_shift, device.row_shift = kWarpShift - span_shift;
    return;
  }
  // Small rows of codes with even smaller rows of scales: a warp takes as many tokens of one head as it can.
  const int shift = shift_of(pieces);
  if (part.values_per_scale > 0 && shift >= 0 && shift < kWarpShift &&
      (has_rows_side_by_side(part.to) || has_rows_side_by_side(part.from))) {
    device.span_shift = shift, device.row_shift = kWarpShift - shift;
  }
}

/// Values per access, for casts, quantisation, rotation and compressed rows.
void widen_values(const PermutePlan& plan, DevicePart& device, int vec_bytes_max) {
  const Part& part = device.part;
  const std::int64_t group = part.kind == Kind::kQuantise ? part.values_per_scale : part.values;
  for (const int count : {8, 4}) {
    const bool is_allowed = vec_bytes_max == 16 || (vec_bytes_max == 8 && count == 4);
    if (is_allowed && group % count == 0 && has_wide_values(plan, part.to, plan.to, count) &&
        has_wide_values(plan, part.from, plan.from, count)) {
      device.vec_bytes = 2 * count;
      break;
    }
  }
  if (device.vec_bytes == 8) device.vec_bytes = 4;  // vec_bytes counts bytes of codes
}

DevicePart device_part(const PermutePlan& plan, const Part& part, int vec_bytes_max) {
  DevicePart device{.part = part};
  if (part.from.component < 0) return device;  // computed, not moved
  switch (part.kind) {
    case Kind::kCopy:
      device.vec_bytes = vec_bytes_of(plan, part, vec_bytes_max);
      device.body = DeviceBody::kCopy;
      if (device.vec_bytes == 16 && is_simple(plan, part)) device.body = DeviceBody::kWideCopy;
      if (is_transposed(part) && device.vec_bytes == element_bytes(part.to.element)) {
        device.body = DeviceBody::kTranspose;
        if (vec_bytes_max == 16) widen_tile(plan, device);
      } else {
        spread_threads(device, part.to.feature.extent() * element_bytes(part.to.element) / device.vec_bytes);
      }
      break;
    case Kind::kRotate: {
      const std::int64_t pairs = plan.operation.rotation.rotary_size / 2;
      device.body = DeviceBody::kRotate;
      widen_values(plan, device, vec_bytes_max);
      const bool is_wide =
          device.vec_bytes == 16 && part.values_per_scale == 0 && pairs % 8 == 0 && part.values % 8 == 0;
      device.vec_bytes = is_wide ? 16 : 1;
      break;
    }
    case Kind::kCast:
      if (is_transposed(part)) {
        device.body = DeviceBody::kTranspose;
        if (vec_bytes_max == 16) widen_tile(plan, device);
        break;
      }
      [[fallthrough]];
    case Kind::kDequantise: {
      device.body = DeviceBody::kCast;
      widen_values(plan, device, vec_bytes_max);
      const std::int64_t width = device.vec_bytes == 4 ? 4 : 8, accesses = (part.values + width - 1) / width;
      while (device.vec_bytes > 1 && device.access_count * width < kHeldValues &&
             accesses % (2 * device.access_count) == 0)
        device.access_count *= 2;
      spread_threads(device, accesses / device.access_count);
      break;
    }
    case Kind::kQuantise:
      device.body = DeviceBody::kQuantise;
      widen_values(plan, device, vec_bytes_max);
      // Two small groups per thread, half a row apart, share the cost of finding the row.
      if (part.values_per_scale <= kHeldValues && part.values / part.values_per_scale % 2 == 0) device.access_count = 2;
      spread_threads(device, quantise_pieces(device));
      break;
  }
  return device;
}

/// A row of a compressed cache: up to two accesses of eight elements for a thread, or one element.
DevicePart keep_part(const PermutePlan& plan, const Part& part, int vec_bytes_max) {
  DevicePart device{.part = part};
  if (part.from.component < 0) return device;
  // (With two numbers in a byte, a row's values are its bytes here.)
  if (part.to.element != Element::kE2M1x2) widen_values(plan, device, vec_bytes_max);
  device.vec_bytes = device.vec_bytes == 16 ? 16 : 1;
  if (device.vec_bytes == 16 && part.values % kHeldValues == 0) device.access_count = 2;
  return device;
}

/// Whole blocks between two equal layouts, dense in each component, are rows of bytes: wide accesses in any layout.
bool make_opaque(PermutePlan& plan) {
  if (!plan.to_rows.is_blocks() || !plan.from_rows.is_blocks() || plan.to.block_tokens != plan.from.block_tokens ||
      plan.to_rows.block_tokens != plan.to.block_tokens || plan.from_rows.block_tokens != plan.to.block_tokens) {
    return false;
  }
  const std::int64_t tokens = plan.to.block_tokens;
  if (plan.row_count % tokens != 0) return false;  // the last block is cut: some of its bytes stay
  for (int i = 0; i < plan.part_count; ++i) {
    const Part& part = plan.parts[i];
    const std::int64_t unit = element_bytes(part.to.element);
    const std::int64_t bytes = tokens * part.heads * part.to.feature.extent() * unit;
    const bool is_dense =
        part.to.token.last_offset() + part.to.head.last_offset() + part.to.feature.last_offset() + unit == bytes;
    if (part.kind != Kind::kCopy || !is_dense || part.to.token != part.from.token || part.to.head != part.from.head ||
        part.to.feature != part.from.feature) {
      return false;
    }
  }
  for (int i = 0; i < plan.part_count; ++i) {
    Part& part = plan.parts[i];
    const std::int64_t bytes = tokens * part.heads * part.to.feature.extent() * element_bytes(part.to.element);
    for (Place* place : {&part.to, &part.from}) {
      place->element = Element::kByte;
      place->token = place->head = {};
      place->feature = {{bytes, 1}, {}};
    }
    part.heads = 1;
    part.values = bytes;
  }
  plan.row_count /= tokens;
  for (Bases* side : {&plan.to, &plan.from}) side->block_tokens = 1, side->slot_count /= tokens;
  plan.to_rows.block_tokens = plan.from_rows.block_tokens = 1;
  return true;
}

/// Checks the kernel's assumptions, which it does not check itself.
void check_parts(const DevicePlan& launch, const PermutePlan& plan) {
  KV_ASSERT(launch.part_count >= 0 && launch.part_count <= kRoleCount);
  for (int i = 0; i < launch.part_count; ++i) {
    const DevicePart& device = launch.parts[i];
    const Part& part = device.part;
    KV_ASSERT(part.to.component >= 0 && part.to.component < plan.to.width);
    KV_ASSERT(part.from.component < plan.from.width);  // -1: a compressed cache's log count has no source
    KV_ASSERT(std::has_single_bit(static_cast<unsigned>(device.vec_bytes)) && device.vec_bytes <= 16);
    KV_ASSERT(part.heads >= 1 && part.values >= 1);
    if (device.body == DeviceBody::kWideCopy || device.body == DeviceBody::kCopy) continue;
    // Indices within a row have 32 bits in the other bodies, as does the number of pieces of all heads.
    KV_ASSERT(part.heads * part.values <= std::numeric_limits<std::int32_t>::max());
    KV_ASSERT(device.access_count >= 1 && device.access_count <= kHeldValues / 4);
  }
}

template <class MakePart>
std::vector<DevicePlan> split_by_layers(const PermutePlan& plan, MakePart make_part) {
  const auto rows_shift = [](const Rows& rows) { return rows.is_blocks() ? shift_of(rows.block_tokens) : 0; };
  DevicePlan common{};
  common.to_rows = plan.to_rows;
  common.from_rows = plan.from_rows;
  common.row_count = plan.row_count;
  common.to_block_tokens = plan.to.block_tokens;
  common.from_block_tokens = plan.from.block_tokens;
  common.to_slot_count = plan.to.slot_count;
  common.from_slot_count = plan.from.slot_count;
  common.to_shift = shift_of(plan.to.block_tokens);
  common.from_shift = shift_of(plan.from.block_tokens);
  common.to_rows_shift = rows_shift(plan.to_rows);
  common.from_rows_shift = rows_shift(plan.from_rows);
  common.to_width = static_cast<int>(plan.to.width);
  common.from_width = static_cast<int>(plan.from.width);
  common.part_count = plan.part_count;
  common.operation = plan.operation;
  for (int i = 0; i < plan.part_count; ++i) common.parts[i] = make_part(plan, plan.parts[i]);
  check_parts(common, plan);
  const std::int64_t layers_max = kDeviceBasesMax / (plan.to.width + plan.from.width);
  KV_ASSERT(layers_max >= 1);  // a layer's pointers travel together
  std::vector<DevicePlan> launches;
  for (std::int64_t first = 0; first < plan.layer_count; first += layers_max) {
    DevicePlan& launch = launches.emplace_back(common);
    launch.layer_count = std::min(layers_max, plan.layer_count - first);
    KV_ASSERT(launch.layer_count * (plan.to.width + plan.from.width) <= kDeviceBasesMax);
    const auto copy = [&](const Bases& side, std::byte** to) {
      std::copy_n(side.bases + first * side.width, launch.layer_count * side.width, to);
    };
    copy(plan.to, launch.bases);
    copy(plan.from, launch.bases + launch.layer_count * plan.to.width);
  }
  return launches;
}

}  // namespace

std::vector<DevicePlan> make_device_plans(const PermutePlan& original, int vec_bytes_max) {
  PermutePlan plan = original;
  make_opaque(plan);
  return split_by_layers(
      plan, [&](const PermutePlan& whole, const Part& part) { return device_part(whole, part, vec_bytes_max); });
}

std::vector<DevicePlan> make_device_keep_plans(const PermutePlan& plan, int vec_bytes_max) {
  return split_by_layers(
      plan, [&](const PermutePlan& whole, const Part& part) { return keep_part(whole, part, vec_bytes_max); });
}

}  // namespace kv
