#include "gpu/plans/permute_plan.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/assert.h"

namespace kv {
namespace {

using Kind = Operation::Kind;

std::optional<Role> scale_role(Role role) {
  switch (role) {
    case Role::kKey: return Role::kKeyScale;
    case Role::kValue: return Role::kValueScale;
    case Role::kLatent: return Role::kLatentScale;
    case Role::kIndexKey: return Role::kIndexScale;
    default: return std::nullopt;
  }
}
bool is_scale(Role role) {
  return role == Role::kKeyScale || role == Role::kValueScale || role == Role::kLatentScale ||
         role == Role::kIndexScale;
}

std::int64_t value_count(const Component& component) {
  return component.features() * (component.element == Element::kE2M1x2 ? 2 : 1);
}

/// The kind for one component. Scales are copied with their rows, unless written or consumed by the operation.
Kind kind_for(const Operation& operation, const Component& to, const Component& from, bool to_scaled,
              bool from_scaled) {
  if (operation.kind == Kind::kQuantise && to_scaled) return Kind::kQuantise;
  if (operation.kind == Kind::kDequantise && from_scaled) return Kind::kDequantise;
  if (operation.kind == Kind::kRotate && (to.role == Role::kKey || to.role == Role::kRope)) return Kind::kRotate;
  const auto index = static_cast<int>(to.role);
  const bool is_scaled = operation.from_scale[index] != 1.0F || operation.to_scale[index] != 1.0F;
  if (operation.kind == Kind::kCopy || (to.element == from.element && !is_scaled)) return Kind::kCopy;
  return Kind::kCast;
}

/// Codes without their scales are unreadable. Callers who want just the codes name the roles without the scales'.
std::optional<std::string> find_scale_problem(Kind kind, const Operation& operation, std::optional<Role> scale,
                                              const Component* to_scales, const Component* from_scales) {
  const bool is_turned = kind == Kind::kRotate && (to_scales != nullptr || from_scales != nullptr);
  if (is_turned && (to_scales == nullptr || from_scales == nullptr))
    return "turned between codes with scales and numbers without: quantise or dequantise by a call of its own";
  if (is_turned && (to_scales->features() != from_scales->features() || to_scales->heads() != from_scales->heads()))
    return "the two sides' scales differ in heads or features";
  if (kind == Kind::kQuantise && from_scales != nullptr) return "the source has scales already: dequantise it first";
  if (kind == Kind::kDequantise && to_scales != nullptr) return "the target has scales: copy, or quantise anew";
  if (from_scales == nullptr || kind == Kind::kDequantise || to_scales != nullptr) return std::nullopt;
  if ((operation.roles & role_bit(*scale)) == 0) return std::nullopt;
  return "the target has no " + std::string(role_name(*scale)) + ": dequantise, or name the roles to move without it";
}

/// The obstacle to moving `from` to `to` by part.kind, after the axis's name; or nullopt.
std::optional<std::string> find_problem(const Part& part, const Component& to, const Component& from,
                                        const Component* scales, const Rotation& rotation) {
  const auto differ = [](const char* axis, std::int64_t a, std::int64_t b) {
    return std::string(axis) + " axis: " + std::to_string(b) + " go to " + std::to_string(a);
  };
  if (to.heads() != from.heads()) return differ("head", to.heads(), from.heads());
  if (value_count(to) != value_count(from)) return differ("feature", value_count(to), value_count(from));
  if (part.kind == Kind::kCopy) {
    if (to.element == from.element) return std::nullopt;
    return std::string(element_name(from.element)) + " is copied to " + std::string(element_name(to.element)) +
           ": a cast is needed";
  }
  if (part.values > kHeadFeaturesMax)
    return "feature axis: at most " + std::to_string(kHeadFeaturesMax) + " can be computed on";
  const bool is_scaled = part.values_per_scale > 0;
  for (const Element element : {to.element, from.element}) {
    if (!is_number(element) && !(is_scaled && part.kind != Kind::kRotate && element == Element::kE2M1x2)) {
      return "elements of type " + std::string(element_name(element)) + " cannot be computed on";
    }
  }
  if (is_scaled) {
    if (scales->heads() != to.heads()) return differ("scales' head", scales->heads(), to.heads());
    if (part.values % scales->features() != 0) return differ("scales' feature", scales->features(), part.values);
  }
  if (part.kind == Kind::kRotate) {
    if (part.values_per_scale > 0 && part.values_per_scale != part.values)
      return "scales' feature axis: only keys with one scale a head can be turned";
    const std::int64_t size = rotation.rotary_size;
    if (size < 2 || size % 2 != 0 || size > part.values || size > kRotarySizeMax || !rotation.frequencies) {
      return "feature axis: " + std::to_string(size) + " of " + std::to_string(part.values) + " cannot be turned";
    }
  }
  return std::nullopt;
}

}  // namespace

const Component* scales_of(const Layout& layout, Role role) {
  const auto scale = scale_role(role);
  return scale ? layout.find(*scale) : nullptr;
}

Place place_of(const Layout& layout, const Component& component) {
  KV_ASSERT(&component >= layout.components.data() && &component < layout.components.data() + layout.components.size());
  return {component.element,
          static_cast<int>(&component - layout.components.data()),
          component.block_stride_bytes,
          component.token,
          component.head,
          component.feature};
}

Bases bases_of(const BoundLayout& bound) {
  KV_ASSERT(bound.bases.size() == static_cast<std::size_t>(bound.layout.layer_count) * bound.layout.components.size());
  return {bound.bases.data(), static_cast<std::int64_t>(bound.layout.components.size()), bound.layout.block_tokens,
          bound.layout.slot_count()};
}

Checked<PermutePlan> plan_parts(const Layout& to, const Layout& from, const Operation& operation) {
  PermutePlan plan;
  plan.operation = operation;
  plan.layer_count = to.layer_count;
  const std::string names = from.name + " to " + to.name + ": ";
  if (to.layer_count != from.layer_count) {
    return Flaw{names + "layer axis: " + std::to_string(from.layer_count) + " go to " + std::to_string(to.layer_count)};
  }
  const bool turns_codes = operation.kind == Kind::kRotate && (operation.roles & role_bit(Role::kKey)) != 0 &&
                           to.find(Role::kKeyScale) != nullptr;
  bool has_scaled = false;
  for (const Component& target : to.components) {
    if ((operation.roles & role_bit(target.role)) == 0) continue;
    // Written together with their codes.
    if (operation.kind == Kind::kQuantise && is_scale(target.role)) continue;
    if (turns_codes && target.role == Role::kKeyScale) continue;
    const auto flaw = [&](const std::string& why) {
      return Flaw{names + std::string(role_name(target.role)) + ": " + why};
    };
    const Component* source = from.find(target.role);
    if (!source) return flaw("the source has none");
    const auto scale = scale_role(target.role);
    const Component* to_scales = scales_of(to, target.role);
    const Component* from_scales = scales_of(from, target.role);
    const auto index = static_cast<int>(target.role);
    Part part{.role = target.role,
              .kind = kind_for(operation, target, *source, to_scales != nullptr, from_scales != nullptr),
              .heads = target.heads(),
              .values = value_count(target),
              .to = place_of(to, target),
              .from = place_of(from, *source),
              .scales = {},
              .from_scale = operation.from_scale[index],
              .to_scale = operation.to_scale[index]};
    // Scales are read when dequantising, and written otherwise.
    const Component* scales = part.kind == Kind::kDequantise ? from_scales : to_scales;
    if (const auto problem = find_scale_problem(part.kind, operation, scale, to_scales, from_scales))
      return flaw(*problem);
    const bool is_scaled = part.kind == Kind::kQuantise || part.kind == Kind::kDequantise ||
                           (part.kind == Kind::kRotate && to_scales != nullptr);
    has_scaled = has_scaled || is_scaled;
    if (is_scaled) part.values_per_scale = part.values / std::max<std::int64_t>(scales->features(), 1);
    if (const auto problem = find_problem(part, target, *source, scales, operation.rotation)) return flaw(*problem);
    // Other rules make scales beyond e4m3, and every number becomes zero or the largest.
    if (part.kind == Kind::kQuantise && target.element == Element::kE2M1x2 && operation.scale_rule != ScaleRule::kNvfp4)
      return flaw("4-bit floats take scales by the rule of NVFP4 alone");
    if (is_scaled) part.scales = place_of(part.kind == Kind::kDequantise ? from : to, *scales);
    if (is_scaled && part.kind == Kind::kRotate) part.from_scales = place_of(from, *from_scales);
    KV_ASSERT(plan.part_count < kRoleCount);  // a layout has each role at most once
    plan.parts[plan.part_count++] = part;
  }
  if (operation.kind == Kind::kQuantise && !has_scaled) return Flaw{names + "no scales to quantise by in the target"};
  if (operation.kind == Kind::kDequantise && !has_scaled) return Flaw{names + "no scales in the source"};
  if (plan.part_count == 0) return Flaw{names + "nothing to move"};
  return plan;
}

Checked<PermutePlan> make_plan(const BoundLayout& to, const Rows& to_rows, const BoundLayout& from,
                               const Rows& from_rows, std::int64_t row_count, const Operation& operation) {
  auto plan = plan_parts(to.layout, from.layout, operation);
  if (!plan) return plan;
  plan->to = bases_of(to);
  plan->from = bases_of(from);
  plan->to_rows = to_rows;
  plan->from_rows = from_rows;
  plan->row_count = row_count;
  return plan;
}

}  // namespace kv
