#include "gpu/layer_caches/group_quantise.h"

#include <algorithm>
#include <cmath>

#include "base/assert.h"
#include "gpu/element.h"

namespace kv {
namespace {

constexpr float kFp16Max = 65504.0F;

void check(const GroupFormat& format, std::size_t number_count) {
  KV_ASSERT(format.bits == 2 || format.bits == 4 || format.bits == 8);
  KV_ASSERT(format.group_size > 0 && format.group_size % 4 == 0 && number_count % format.group_size == 0);
}

}  // namespace

/// The scale fits fp16 whenever the zero does: the widest range, 131,008, is divided by at least 3 codes.
QuantisedGroups quantise_groups(std::span<const float> numbers, const GroupFormat& format) {
  check(format, numbers.size());
  const auto codes_per_byte = static_cast<std::size_t>(8 / format.bits);
  const auto code_max = static_cast<float>((1 << format.bits) - 1);
  QuantisedGroups groups;
  groups.codes.resize(numbers.size() / codes_per_byte);
  for (std::size_t begin = 0; begin < numbers.size(); begin += format.group_size) {
    const auto group = numbers.subspan(begin, format.group_size);
    const auto [least, greatest] = std::minmax_element(group.begin(), group.end());
    const float min = std::clamp(*least, -kFp16Max, kFp16Max), max = std::clamp(*greatest, -kFp16Max, kFp16Max);
    // Codes are chosen for the stored zero and scale; those for the exact ones would also carry fp16's rounding error.
    groups.zeros.push_back(static_cast<std::uint16_t>(encode_element(Element::kFp16, min)));
    groups.scales.push_back(static_cast<std::uint16_t>(encode_element(Element::kFp16, (max - min) / code_max)));
    const float zero = decode_element(Element::kFp16, groups.zeros.back());
    const float scale = decode_element(Element::kFp16, groups.scales.back());
    for (std::size_t i = 0; i < group.size(); ++i) {
      const float exact = scale > 0 ? (group[i] - zero) / scale : 0;
      const auto code = static_cast<unsigned>(std::clamp(std::nearbyint(exact), 0.0F, code_max));
      const std::size_t index = begin + i;
      groups.codes[index / codes_per_byte] |=
          static_cast<std::uint8_t>(code << (index % codes_per_byte * static_cast<std::size_t>(format.bits)));
    }
  }
  return groups;
}

void dequantise_groups(const QuantisedGroups& groups, const GroupFormat& format, std::span<float> numbers) {
  check(format, numbers.size());
  const auto codes_per_byte = static_cast<std::size_t>(8 / format.bits);
  KV_ASSERT(groups.codes.size() * codes_per_byte == numbers.size());
  KV_ASSERT(groups.zeros.size() == numbers.size() / format.group_size && groups.scales.size() == groups.zeros.size());
  const unsigned mask = (1U << format.bits) - 1;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::size_t group = i / format.group_size;
    const unsigned code =
        groups.codes[i / codes_per_byte] >> (i % codes_per_byte * static_cast<std::size_t>(format.bits)) & mask;
    numbers[i] = decode_element(Element::kFp16, groups.zeros[group]) +
                 static_cast<float>(code) * decode_element(Element::kFp16, groups.scales[group]);
  }
}

}  // namespace kv
