#include "gpu/layout.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "base/assert.h"

namespace kv {
namespace {

constexpr std::array<std::string_view, kRoleCount> kRoleNames = {
    "K", "V", "latent", "rope", "index key", "K scale", "V scale", "latent scale", "index scale", "log count"};

/// A step through memory with its name, for messages.
struct Step {
  std::string_view what;
  Digit digit;
};

/// Every digit of a component with more than one index, layers and blocks included. An index outside this list has no
/// step: without an axis for layers each layer is a separate allocation.
std::vector<Step> steps_of(const Layout& layout, const Component& component) {
  std::vector<Step> steps = {{"feature axis", component.feature.low},
                             {"feature axis, high digit", component.feature.high},
                             {"head axis", component.head.low},
                             {"head axis, high digit", component.head.high},
                             {"token axis", component.token.low},
                             {"token axis, high digit", component.token.high},
                             {"block axis", {layout.block_count, component.block_stride_bytes}}};
  if (layout.has_all_layers_in_tensor) {
    steps.push_back({"layer axis", {layout.layer_count, component.layer_stride_bytes}});
  }
  return steps;
}

std::string number(std::int64_t value) { return std::to_string(value); }

std::optional<std::string> find_flaw(const Layout& layout, const Component& component) {
  if (component.tensor < 0 || component.tensor >= layout.tensor_count) {
    return "tensor " + number(component.tensor) + " of " + number(layout.tensor_count);
  }
  if (component.offset_bytes < 0 || component.offset_bytes > kReachBytesMax) {
    return "offset of " + number(component.offset_bytes) + " bytes is not from 0 to 2^56";
  }
  const std::int64_t unit = element_bytes(component.element);
  auto steps = steps_of(layout, component);
  for (const auto& [what, digit] : steps) {
    if (digit.extent < 1) return std::string(what) + ": extent " + number(digit.extent) + " is not positive";
  }
  // The product is checked before it is computed: both extents are a caller's numbers.
  if (!is_product_within(layout.block_tokens, {component.token.low.extent, component.token.high.extent}) ||
      component.token.extent() != layout.block_tokens) {
    return "token axis: digits cover " + number(component.token.low.extent) + " times " +
           number(component.token.high.extent) + " tokens, a block has " + number(layout.block_tokens);
  }
  // A digit with one value never takes its step, and engines leave arbitrary strides there.
  std::erase_if(steps, [](const Step& step) { return step.digit.extent == 1; });
  if (component.offset_bytes % unit != 0) {
    return "offset of " + number(component.offset_bytes) + " bytes is no multiple of the element's " + number(unit);
  }
  for (const auto& [what, digit] : steps) {
    if (digit.stride_bytes % unit != 0) {
      return std::string(what) + ": stride of " + number(digit.stride_bytes) +
             " bytes is no multiple of the element's " + number(unit);
    }
  }
  // Inner steps first. Sound means nested: each step passes everything within it, so no two elements share a byte.
  // Stricter than needed, but all known engines' layouts are nested.
  std::ranges::stable_sort(steps, {}, [](const Step& step) { return step.digit.stride_bytes; });
  std::int64_t span = unit;  // bytes covered by the digits so far; the next one must step past them
  for (const auto& [what, digit] : steps) {
    if (digit.stride_bytes < span) {
      return std::string(what) + ": stride of " + number(digit.stride_bytes) + " bytes steps into the " + number(span) +
             " bytes within it";
    }
    // Far below 2^63, so that code which adds an offset to these steps, kernels included, need not check for overflow.
    if (!is_product_within(kReachBytesMax - span, {digit.extent - 1, digit.stride_bytes})) {
      return std::string(what) + ": " + number(digit.extent) + " steps of " + number(digit.stride_bytes) +
             " bytes reach beyond 2^56 bytes";
    }
    span += (digit.extent - 1) * digit.stride_bytes;
  }
  return std::nullopt;
}

/// Possible distances of two components' bytes: the sum of a stride times any whole number from `least` to `most`, over
/// all strides. The second component's strides count negatively.
struct Apart {
  std::int64_t stride_bytes = 0, least = 0, most = 0;
};

/// Whether some choice makes the distance 0. A component's own strides are nested, so each level leaves hardly more
/// than one number to try; `tries` bounds adversarial strides.
bool can_meet(std::span<const Apart> strides, std::int64_t distance, int& tries) {
  if (strides.empty()) return distance == 0;
  // Gives up with "no overlap": only a layout built to be hard gets here, and it harms its maker alone.
  if (--tries < 0) return false;
  std::int64_t rest_least = 0, rest_most = 0;
  for (const Apart& each : strides.subspan(1)) {
    rest_least += each.least * each.stride_bytes;
    rest_most += each.most * each.stride_bytes;
  }
  const Apart& first = strides.front();
  const auto floor_div = [&](std::int64_t a) { return a / first.stride_bytes - (a % first.stride_bytes < 0 ? 1 : 0); };
  // Only numbers that leave a distance within the remaining strides' reach.
  const std::int64_t begin = std::max(first.least, -floor_div(distance + rest_most));
  const std::int64_t end = std::min(first.most, floor_div(-distance - rest_least));
  for (std::int64_t i = begin; i <= end; ++i) {
    if (can_meet(strides.subspan(1), distance + i * first.stride_bytes, tries)) return true;
  }
  return false;
}

/// Whether the two share a byte. Requires: each is sound by itself.
bool overlap(const Layout& layout, const Component& a, const Component& b) {
  std::vector<Apart> strides;
  const auto add = [&](const Digit& digit, bool is_first) {
    if (digit.extent == 1) return;
    // Steps of one length are merged: interleaved K and V share most steps, and the search would try each combination.
    auto found = std::ranges::find(strides, digit.stride_bytes, &Apart::stride_bytes);
    if (found == strides.end()) found = strides.insert(strides.end(), {.stride_bytes = digit.stride_bytes});
    (is_first ? found->most : found->least) += (is_first ? 1 : -1) * (digit.extent - 1);
  };
  for (const bool is_first : {true, false}) {
    const Component& component = is_first ? a : b;
    for (const auto& [what, digit] : steps_of(layout, component)) add(digit, is_first);
    // An element's own bytes, as a digit with a stride of one byte.
    add({element_bytes(component.element), 1}, is_first);
  }
  std::ranges::sort(strides, std::greater(), &Apart::stride_bytes);
  int tries = 100'000;
  return can_meet(strides, a.offset_bytes - b.offset_bytes, tries);
}

/// The digits of one tensor by axis letter, strides in bytes.
class Letters {
 public:
  /// nullopt, or the flaw.
  std::optional<std::string> read(const Tensor& tensor) {
    const std::size_t rank = tensor.axes.size();
    if (tensor.shape.size() != rank) {
      return "the shape has " + std::to_string(tensor.shape.size()) + " axes, \"" + std::string(tensor.axes) +
             "\" names " + std::to_string(rank);
    }
    if (!tensor.strides.empty() && tensor.strides.size() != rank) {
      return "there are " + std::to_string(tensor.strides.size()) + " strides for " + std::to_string(rank) + " axes";
    }
    const std::int64_t unit = element_bytes(tensor.element);
    std::int64_t contiguous = unit;
    for (std::size_t i = rank; i-- > 0;) {
      const std::size_t place = kKnown.find(tensor.axes[i]);
      const std::string axis = "axis '" + std::string(1, tensor.axes[i]) + "'";
      if (place == kKnown.npos) return axis + " is none of " + std::string(kKnown);
      if (is_present_[place]) return axis + " is named twice";
      if (tensor.shape[i] < 1) return axis + ": extent " + number(tensor.shape[i]) + " is not positive";
      if (!tensor.strides.empty() && !is_product_within(kReachBytesMax, {tensor.strides[i], unit})) {
        return axis + ": stride " + number(tensor.strides[i]) + " is negative or reaches beyond 2^56 bytes";
      }
      if (tensor.strides.empty() && !is_product_within(kReachBytesMax, {contiguous, tensor.shape[i]})) {
        return axis + ": extent " + number(tensor.shape[i]) + " makes a tensor of more than 2^56 bytes";
      }
      is_present_[place] = true;
      digits_[place] = {tensor.shape[i], tensor.strides.empty() ? contiguous : tensor.strides[i] * unit};
      if (tensor.strides.empty()) contiguous *= tensor.shape[i];
    }
    return std::nullopt;
  }

  bool has(char letter) const { return is_present_[kKnown.find(letter)]; }
  Digit digit(char letter) const { return digits_[kKnown.find(letter)]; }
  Axis axis(char low, char high) const {
    // An axis written with its high letter alone has one digit.
    if (!has(low)) return {digit(high), {}};
    return {digit(low), digit(high)};
  }

 private:
  static constexpr std::string_view kKnown = "blctThHfF";
  std::array<Digit, kKnown.size()> digits_{};
  std::array<bool, kKnown.size()> is_present_{};
};

std::string digits_text(const Axis& axis) {
  std::string text = number(axis.low.extent) + ":" + number(axis.low.stride_bytes);
  if (axis.high.extent != 1) text += " x " + number(axis.high.extent) + ":" + number(axis.high.stride_bytes);
  return text;
}

}  // namespace

std::string_view role_name(Role role) { return kRoleNames[static_cast<std::size_t>(role)]; }

const Component* Layout::find(Role role) const {
  const auto found = std::ranges::find(components, role, &Component::role);
  return found == components.end() ? nullptr : &*found;
}

std::int64_t Layout::tensor_bytes(int tensor) const {
  std::int64_t bytes = 0;
  for (const Component& each : components) {
    if (each.tensor != tensor) continue;
    const std::int64_t layers = has_all_layers_in_tensor ? (layer_count - 1) * each.layer_stride_bytes : 0;
    bytes = std::max(bytes, each.offset_bytes + layers + (block_count - 1) * each.block_stride_bytes +
                                each.token.last_offset() + each.head.last_offset() + each.feature.last_offset() +
                                element_bytes(each.element));
  }
  return bytes;
}

Checked<Layout> make_layout(std::string name, std::span<const Tensor> tensors, std::int64_t layer_count) {
  Layout layout{.name = std::move(name), .layer_count = layer_count, .components = {}};
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    const auto flaw = [&](const std::string& why) {
      return Flaw{layout.name + ": tensor " + std::to_string(i) + " (" + std::string(tensor.axes) + "): " + why};
    };
    Letters letters;
    if (const auto problem = letters.read(tensor)) return flaw(*problem);
    if (tensor.roles.empty() || static_cast<std::int64_t>(tensor.roles.size()) != letters.digit('c').extent) {
      return flaw("axis 'c': extent " + number(letters.digit('c').extent) + ", but " +
                  std::to_string(tensor.roles.size()) + " roles");
    }
    if (tensor.allocation >= layout.tensor_count) {
      return flaw("allocation " + std::to_string(tensor.allocation) + " belongs to no earlier tensor");
    }
    if (tensor.offset_bytes < 0 || tensor.offset_bytes > kReachBytesMax) {
      return flaw("offset of " + number(tensor.offset_bytes) + " bytes is not from 0 to 2^56");
    }
    if (!is_product_within(kReachBytesMax, {letters.digit('t').extent, letters.digit('T').extent})) {
      return flaw("axis 't': more than 2^56 tokens");
    }
    const std::int64_t block_count = letters.digit('b').extent;
    const std::int64_t block_tokens = letters.axis('t', 'T').extent();
    if (i == 0) {
      layout.block_count = block_count;
      layout.block_tokens = block_tokens;
      layout.has_all_layers_in_tensor = letters.has('l');
    }
    if (block_count != layout.block_count) {
      return flaw("axis 'b': " + number(block_count) + " blocks, tensor 0 has " + number(layout.block_count));
    }
    if (letters.has('l') != layout.has_all_layers_in_tensor) return flaw("axis 'l' must be in all tensors or in none");
    if (letters.has('l') && letters.digit('l').extent != layer_count) {
      return flaw("axis 'l': " + number(letters.digit('l').extent) + " layers, expected " + number(layer_count));
    }
    // Counted, not looked up: allocations are numbered by their first tensors, and callers bind them in that order.
    const int allocation = tensor.allocation < 0 ? layout.tensor_count++ : tensor.allocation;
    for (std::size_t c = 0; c < tensor.roles.size(); ++c) {
      if (layout.find(tensor.roles[c])) return flaw(std::string(role_name(tensor.roles[c])) + " is there already");
      layout.components.push_back(
          {.role = tensor.roles[c],
           .element = tensor.element,
           .tensor = allocation,
           .offset_bytes = tensor.offset_bytes + static_cast<std::int64_t>(c) * letters.digit('c').stride_bytes,
           .layer_stride_bytes = letters.digit('l').stride_bytes,
           .block_stride_bytes = letters.digit('b').stride_bytes,
           .token = letters.axis('t', 'T'),
           .head = letters.axis('h', 'H'),
           .feature = letters.axis('f', 'F')});
    }
  }
  // Checks the part that letters.read() cannot: how components lie to one another.
  if (auto problem = find_flaw(layout)) return *std::move(problem);
  return layout;
}

std::optional<Flaw> find_flaw(const Layout& layout) {
  const auto flaw = [&](const std::string& why) { return Flaw{layout.name + ": " + why}; };
  if (layout.components.empty()) return flaw("no components");
  if (layout.layer_count < 1 || layout.layer_count > kLayersMax) {
    return flaw("layer axis: extent " + number(layout.layer_count) + " is not from 1 to " + number(kLayersMax));
  }
  for (const Component& component : layout.components) {
    if (const auto problem = find_flaw(layout, component)) {
      return flaw(std::string(role_name(component.role)) + ": " + *problem);
    }
  }
  for (std::size_t i = 0; i < layout.components.size(); ++i) {
    const Component& component = layout.components[i];
    // Each pair once.
    for (const Component& other : std::span(layout.components).first(i)) {
      if (component.tensor != other.tensor || !overlap(layout, component, other)) continue;
      return flaw(std::string(role_name(component.role)) + " at offset " + number(component.offset_bytes) +
                  " lies over " + std::string(role_name(other.role)) + " at offset " + number(other.offset_bytes));
    }
  }
  return std::nullopt;
}

std::string to_string(const Layout& layout) {
  std::string text = layout.name + ": " + number(layout.block_count) + " blocks of " + number(layout.block_tokens) +
                     " tokens, " + number(layout.layer_count) + " layers, " + std::to_string(layout.tensor_count) +
                     (layout.has_all_layers_in_tensor ? " allocations for all layers" : " allocations a layer") + "\n";
  for (const Component& each : layout.components) {
    text += "  " + std::string(role_name(each.role)) + " " + std::string(element_name(each.element)) + " @" +
            std::to_string(each.tensor) + "+" + number(each.offset_bytes);
    if (layout.has_all_layers_in_tensor) text += "  layer " + number(each.layer_stride_bytes);
    text += "  block " + number(each.block_stride_bytes) + "  token " + digits_text(each.token) + "  head " +
            digits_text(each.head) + "  feature " + digits_text(each.feature) + "\n";
  }
  return text;
}

Checked<Layout> slice_heads(const Layout& layout, std::int64_t first, std::int64_t count) {
  Layout slice = layout;
  for (Component& each : slice.components) {
    // A latent, or scales that all heads share: every rank needs them whole.
    if (each.heads() == 1 && std::ranges::any_of(layout.components, [](const auto& c) { return c.heads() > 1; }))
      continue;
    const std::string range = number(count) + " heads from " + number(first) + " on";
    const auto flaw = [&](const std::string& why) {
      return Flaw{layout.name + ": " + std::string(role_name(each.role)) + ": head axis: " + range + why};
    };
    if (first < 0 || count < 1 || count > each.heads() - first) return flaw(" are not within " + number(each.heads()));
    const std::int64_t group = each.head.low.extent;
    each.offset_bytes += each.head.offset(first);
    // A part of one group, or whole groups: only these leave even steps.
    if (first % group + count <= group) {
      each.head = {{count, each.head.low.stride_bytes}, {}};
    } else if (first % group == 0 && count % group == 0) {
      each.head.high.extent = count / group;
    } else {
      return flaw(" are neither within one group of " + number(group) + " nor whole groups");
    }
  }
  return slice;
}

std::byte* BoundLayout::address(std::int64_t layer, std::size_t component, std::int64_t slot, std::int64_t head,
                                std::int64_t feature) const {
  const Component& each = layout.components[component];
  return base(layer, component) + slot / layout.block_tokens * each.block_stride_bytes +
         each.token.offset(slot % layout.block_tokens) + each.head.offset(head) + each.feature.offset(feature);
}

Checked<BoundLayout> bind_layout(Layout layout, std::span<void* const> tensors) {
  const bool is_whole = layout.has_all_layers_in_tensor;
  const auto wanted = static_cast<std::size_t>(layout.tensor_count * (is_whole ? 1 : layout.layer_count));
  if (tensors.size() != wanted) {
    return Flaw{layout.name + ": " + std::to_string(tensors.size()) + " pointers for " + std::to_string(wanted) +
                " allocations"};
  }
  BoundLayout bound{std::move(layout), {}};
  for (std::int64_t layer = 0; layer < bound.layout.layer_count; ++layer) {
    for (const Component& each : bound.layout.components) {
      const std::int64_t tensor = each.tensor + (is_whole ? 0 : layer * bound.layout.tensor_count);
      auto* start = static_cast<std::byte*>(tensors[static_cast<std::size_t>(tensor)]);
      bound.bases.push_back(start + each.offset_bytes + (is_whole ? layer * each.layer_stride_bytes : 0));
    }
  }
  return bound;
}

Checked<BoundLayout> slice_heads(const BoundLayout& bound, std::int64_t first, std::int64_t count) {
  auto layout = slice_heads(bound.layout, first, count);
  if (!layout) return layout.error();
  BoundLayout slice{*std::move(layout), bound.bases};
  const std::size_t width = slice.layout.components.size();
  for (std::size_t i = 0; i < slice.bases.size(); ++i) {
    // By the difference: a base already includes its component's offset.
    slice.bases[i] += slice.layout.components[i % width].offset_bytes - bound.layout.components[i % width].offset_bytes;
  }
  return slice;
}

BoundLayout slice_layers(const BoundLayout& bound, std::int64_t first, std::int64_t count) {
  KV_ASSERT(first >= 0 && count >= 1 && count <= bound.layout.layer_count);
  KV_ASSERT(first <= bound.layout.layer_count - count);  // not as a sum, which may wrap
  BoundLayout slice{bound.layout, {}};
  const auto width = static_cast<std::ptrdiff_t>(bound.layout.components.size());
  slice.bases.assign(bound.bases.begin() + first * width, bound.bases.begin() + (first + count) * width);
  slice.layout.layer_count = count;
  return slice;
}

}  // namespace kv
