#include "gpu/device/device_plan.h"

#include <algorithm>
#include <bit>
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

/// Eight neighbouring values of `place` are one access of their size.
bool has_wide_values(const PermutePlan& plan, const Place& place, const Bases& side) {
  const std::int64_t bytes = place.element == Element::kE2M1x2 ? 4 : 8 * element_bytes(place.element);
  return run_bytes(place) % bytes == 0 &&
         alignment_of(place, side, plan.layer_count) % std::min<std::int64_t>(bytes, 16) == 0;
}

bool is_blocks(const Rows& rows) { return rows.kind == Rows::Kind::kBlocks32 || rows.kind == Rows::Kind::kBlocks64; }

/// Row to address by shifts alone.
bool is_simple(const PermutePlan& plan, const Part& part) {
  const auto is_side_simple = [](const Bases& side, const Rows& rows, const Place& place) {
    return shift_of(side.block_tokens) >= 0 && place.token.high.extent == 1 &&
           (!is_blocks(rows) || rows.block_tokens == side.block_tokens);
  };
  return is_side_simple(plan.to, plan.to_rows, part.to) && is_side_simple(plan.from, plan.from_rows, part.from);
}

DevicePart device_part(const PermutePlan& plan, const Part& part, int vec_bytes_max) {
  DevicePart device{.part = part};
  switch (part.kind) {
    case Kind::kCopy: {
      device.vec_bytes = vec_bytes_of(plan, part, vec_bytes_max);
      const bool is_transposed = (is_token_contiguous(part.to) && is_feature_contiguous(part.from)) ||
                                 (is_token_contiguous(part.from) && is_feature_contiguous(part.to));
      const std::int64_t unit = element_bytes(part.to.element);
      device.body = DeviceBody::kCopy;
      if (is_transposed && device.vec_bytes == unit) {
        device.body = is_simple(plan, part) ? DeviceBody::kSimpleTranspose : DeviceBody::kTranspose;
      }
      if (device.vec_bytes == 16 && is_simple(plan, part)) device.body = DeviceBody::kWideCopy;
      break;
    }
    case Kind::kRotate: device.body = DeviceBody::kRotate; break;
    case Kind::kQuantise:
    case Kind::kCast:
    case Kind::kDequantise: {
      const bool is_quantise = part.kind == Kind::kQuantise;
      device.body = is_quantise ? DeviceBody::kQuantise : DeviceBody::kCast;
      const bool is_wide = vec_bytes_max == 16 && (!is_quantise || part.values_per_scale % 8 == 0) &&
                           has_wide_values(plan, part.to, plan.to) && has_wide_values(plan, part.from, plan.from);
      device.vec_bytes = is_wide ? 16 : 1;
      break;
    }
  }
  return device;
}

/// Whole blocks between two equal layouts, dense in each component, are rows of bytes: wide accesses whatever the
/// layout.
bool make_opaque(PermutePlan& plan) {
  if (!is_blocks(plan.to_rows) || !is_blocks(plan.from_rows) || plan.to.block_tokens != plan.from.block_tokens ||
      plan.to_rows.block_tokens != plan.to.block_tokens || plan.from_rows.block_tokens != plan.to.block_tokens) {
    return false;
  }
  const std::int64_t tokens = plan.to.block_tokens;
  if (plan.row_count % tokens != 0) return false;  // the last block is cut: not all of its bytes are to be moved
  for (int i = 0; i < plan.part_count; ++i) {
    const Part& part = plan.parts[i];
    const auto last = [](const Axis& axis) {
      return (axis.low.extent - 1) * axis.low.stride_bytes + (axis.high.extent - 1) * axis.high.stride_bytes;
    };
    const std::int64_t unit = element_bytes(part.to.element);
    const std::int64_t bytes = tokens * part.heads * part.to.feature.extent() * unit;
    const bool is_dense = last(part.to.token) + last(part.to.head) + last(part.to.feature) + unit == bytes;
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

}  // namespace

std::vector<DevicePlan> make_device_plans(const PermutePlan& original, int vec_bytes_max) {
  PermutePlan plan = original;
  make_opaque(plan);
  DevicePlan common{.to_rows = plan.to_rows,
                    .from_rows = plan.from_rows,
                    .row_count = plan.row_count,
                    .to_block_tokens = plan.to.block_tokens,
                    .from_block_tokens = plan.from.block_tokens,
                    .to_slot_count = plan.to.slot_count,
                    .from_slot_count = plan.from.slot_count,
                    .to_shift = shift_of(plan.to.block_tokens),
                    .from_shift = shift_of(plan.from.block_tokens),
                    .to_width = static_cast<int>(plan.to.width),
                    .from_width = static_cast<int>(plan.from.width),
                    .part_count = plan.part_count,
                    .parts = {},
                    .operation = plan.operation,
                    .bases = {}};
  for (int i = 0; i < plan.part_count; ++i) common.parts[i] = device_part(plan, plan.parts[i], vec_bytes_max);
  // A kernel trusts the plan and looks at nothing again: what it would read or write beyond is asserted here.
  KV_ASSERT(plan.part_count >= 0 && plan.part_count <= kRoleCount);
  for (int i = 0; i < plan.part_count; ++i) {
    const DevicePart& device = common.parts[i];
    KV_ASSERT(device.part.to.component >= 0 && device.part.to.component < plan.to.width);
    KV_ASSERT(device.part.from.component < plan.from.width);  // -1: the log count of a compressed cache has no source
    KV_ASSERT(std::has_single_bit(static_cast<unsigned>(device.vec_bytes)) && device.vec_bytes <= 16);
  }
  const std::int64_t layers_max = kDeviceBasesMax / (plan.to.width + plan.from.width);
  KV_ASSERT(layers_max >= 1);  // a layer's pointers travel together
  std::vector<DevicePlan> launches;
  for (std::int64_t first = 0; first < plan.layer_count; first += layers_max) {
    DevicePlan& launch = launches.emplace_back(common);
    launch.layer_count = std::min(layers_max, plan.layer_count - first);
    const auto copy = [&](const Bases& side, std::byte** to) {
      std::copy_n(side.bases + first * side.width, launch.layer_count * side.width, to);
    };
    copy(plan.to, launch.bases);
    copy(plan.from, launch.bases + launch.layer_count * plan.to.width);
    KV_ASSERT(launch.layer_count * (plan.to.width + plan.from.width) <= kDeviceBasesMax);
  }
  return launches;
}

}  // namespace kv
