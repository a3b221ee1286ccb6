#include "gpu/named_layouts.h"

#include <array>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kv::layouts {
namespace {

Element value_element(const CacheShape& shape) {
  return shape.value_element == Element::kByte ? shape.element : shape.value_element;
}
std::int64_t value_size(const CacheShape& shape) { return shape.value_size == 0 ? shape.key_size : shape.value_size; }

std::int64_t per_bytes(Element element, std::int64_t bytes) { return bytes / element_bytes(element); }

/// The contiguous tensor with these axes of `shape`, heads of `size` features; axis c holds K and V.
Tensor tensor_of(const CacheShape& shape, std::string_view axes, std::int64_t size, Element element,
                 std::vector<Role> roles) {
  Tensor tensor{axes, {}, {}, element, std::move(roles)};
  for (const char axis : axes) {
    tensor.shape.push_back(axis == 'b'   ? shape.block_count
                           : axis == 't' ? shape.block_tokens
                           : axis == 'h' ? shape.heads
                           : axis == 'l' ? shape.layer_count
                           : axis == 'c' ? 2
                                         : size);
  }
  return tensor;
}

/// K and V alike in one allocation each.
Checked<Layout> apart(const char* name, const CacheShape& s, std::string_view axes) {
  const std::array<Tensor, 2> tensors = {tensor_of(s, axes, s.key_size, s.element, {Role::kKey}),
                                         tensor_of(s, axes, value_size(s), value_element(s), {Role::kValue})};
  return make_layout(name, tensors, s.layer_count);
}

Checked<Layout> joint(const char* name, const CacheShape& s, std::string_view axes) {
  if (value_size(s) != s.key_size || value_element(s) != s.element) {
    return Flaw{std::string(name) + ": feature axis: one tensor holds K and V, so they must have one size and element"};
  }
  const Tensor tensor = tensor_of(s, axes, s.key_size, s.element, {Role::kKey, Role::kValue});
  return make_layout(name, {&tensor, 1}, s.layer_count);
}

/// For strides computed here: make_layout()'s check, before they can overflow.
std::optional<Flaw> find_excess(const char* name, std::initializer_list<std::int64_t> extents) {
  if (is_product_within(kReachBytesMax, extents)) return std::nullopt;
  return Flaw{std::string(name) + ": extents are negative, or make more than 2^56 bytes"};
}
/// Features of a row of K and of V; huge if that overflows.
std::int64_t row_size(const CacheShape& shape) {
  const bool is_sound = shape.key_size >= 0 && value_size(shape) >= 0 && shape.key_size < kReachBytesMax &&
                        value_size(shape) < kReachBytesMax;
  return is_sound ? shape.key_size + value_size(shape) : std::numeric_limits<std::int64_t>::max();
}

}  // namespace

Checked<Layout> nhd(const CacheShape& s) { return apart("NHD", s, "bthf"); }
Checked<Layout> hnd(const CacheShape& s) { return apart("HND", s, "bhtf"); }
Checked<Layout> slot_pool(const CacheShape& s) { return apart("slot pool", s, "bthf"); }
Checked<Layout> batched(const CacheShape& s) { return apart("batched", s, "bhtf"); }
Checked<Layout> ragged(const CacheShape& s) { return apart("ragged", s, "thf"); }
Checked<Layout> joint_nhd(const CacheShape& s) { return joint("joint NHD", s, "bcthf"); }
Checked<Layout> joint_hnd(const CacheShape& s) { return joint("joint HND", s, "bchtf"); }
Checked<Layout> kv_first_nhd(const CacheShape& s) { return joint("kv-first NHD", s, "cbthf"); }
Checked<Layout> kv_first_hnd(const CacheShape& s) { return joint("kv-first HND", s, "cbhtf"); }
Checked<Layout> packed_hnd(const CacheShape& s) { return joint("packed HND", s, "bhtcf"); }
Checked<Layout> packed_nhd(const CacheShape& s) { return joint("packed NHD", s, "bthcf"); }
Checked<Layout> cross_layer(const CacheShape& s) { return joint("cross-layer", s, "blchtf"); }
Checked<Layout> chunk(const CacheShape& s) { return joint("chunk", s, "bchtf"); }

Checked<Layout> x_packed(const CacheShape& s) {
  // 16 bytes, a GPU thread's read: x is 8 for 16-bit elements. V's tokens are contiguous for the product with V.
  const std::int64_t x = per_bytes(s.element, 16);
  if (s.key_size % x != 0)
    return Flaw{"x-packed: feature axis: " + std::to_string(s.key_size) + " is no multiple of x"};
  const std::array<Tensor, 2> tensors = {
      Tensor{"bhFtf", {s.block_count, s.heads, s.key_size / x, s.block_tokens, x}, {}, s.element, {Role::kKey}},
      tensor_of(s, "bhft", value_size(s), value_element(s), {Role::kValue})};
  return make_layout("x-packed", tensors, s.layer_count);
}

Checked<Layout> fractal_nz(const CacheShape& s) {
  if (s.block_tokens % 16 != 0)
    return Flaw{"NZ: token axis: " + std::to_string(s.block_tokens) + " is no multiple of 16"};
  for (const auto& [element, size] : {std::pair(s.element, s.key_size), std::pair(value_element(s), value_size(s))}) {
    if (size % per_bytes(element, 32) != 0) {
      return Flaw{"NZ: feature axis: " + std::to_string(size) + " " + std::string(element_name(element)) +
                  " are not whole fractals of 32 bytes"};
    }
  }
  const auto fractals = [&](std::int64_t size, Element element, Role role) {
    const std::int64_t x = per_bytes(element, 32);  // H*D/X fractals, and D % X == 0: a fractal lies within one head
    return Tensor{"bhFtf", {s.block_count, s.heads, size / x, s.block_tokens, x}, {}, element, {role}};
  };
  const std::array<Tensor, 2> tensors = {fractals(s.key_size, s.element, Role::kKey),
                                         fractals(value_size(s), value_element(s), Role::kValue)};
  return make_layout("NZ", tensors, s.layer_count);
}

Checked<Layout> head_folded(const CacheShape& s) {
  const std::array<Tensor, 3> tensors = {tensor_of(s, "btf", s.key_size, s.element, {Role::kKey}),
                                         tensor_of(s, "btf", value_size(s), value_element(s), {Role::kValue}),
                                         tensor_of(s, "btf", 1, Element::kFp32, {Role::kLogCount})};
  return make_layout("head-folded", tensors, s.layer_count);
}

Checked<Layout> mla(const CacheShape& s) {
  if (auto flaw = find_excess("MLA", {row_size(s), s.block_tokens, 4})) return *std::move(flaw);
  // One allocation with two parts: each entry has the latent, then the rope part.
  const std::int64_t width = s.key_size + s.value_size;
  const std::vector<std::int64_t> strides = {s.block_tokens * width, width, 1};
  const std::array<Tensor, 2> tensors = {
      Tensor{"btf", {s.block_count, s.block_tokens, s.key_size}, strides, s.element, {Role::kLatent}},
      Tensor{"btf",
             {s.block_count, s.block_tokens, s.value_size},
             strides,
             s.element,
             {Role::kRope},
             0,
             s.key_size * element_bytes(s.element)}};
  return make_layout("MLA", tensors, s.layer_count);
}

Checked<Layout> mla_split(const CacheShape& s) {
  const std::array<Tensor, 2> tensors = {tensor_of(s, "btf", s.key_size, s.element, {Role::kLatent}),
                                         tensor_of(s, "btf", s.value_size, value_element(s), {Role::kRope})};
  return make_layout("MLA split", tensors, s.layer_count);
}

Checked<Layout> ds_mla(const CacheShape& s) {
  // 512 + 16 + 128 bytes: fixed by the kernels that read it, whatever the shape's sizes.
  constexpr std::int64_t kEntryBytes = 656;
  if (auto flaw = find_excess("ds_mla", {s.block_tokens, kEntryBytes})) return *std::move(flaw);
  const auto part = [&](Element element, std::int64_t size, Role role, std::int64_t offset) {
    const std::int64_t entry = per_bytes(element, kEntryBytes);
    return Tensor{"btf",
                  {s.block_count, s.block_tokens, size},
                  {s.block_tokens * entry, entry, 1},
                  element,
                  {role},
                  // The first part makes the allocation, the others share it.
                  offset == 0 ? -1 : 0,
                  offset};
  };
  const std::array<Tensor, 3> tensors = {part(Element::kE4M3, 512, Role::kLatent, 0),
                                         part(Element::kFp32, 4, Role::kLatentScale, 512),
                                         part(Element::kBf16, 64, Role::kRope, 528)};
  return make_layout("ds_mla", tensors, s.layer_count);
}

Checked<Layout> indexer(const CacheShape& s) {
  if (auto flaw = find_excess("indexer", {s.block_tokens, row_size(s), 4})) return *std::move(flaw);
  const std::int64_t block_bytes = s.block_tokens * (s.key_size + 4);
  // Strides are in elements: here of 4 bytes, while block_bytes counts the keys' single bytes.
  const std::array<Tensor, 2> tensors = {Tensor{"btf",
                                                {s.block_count, s.block_tokens, s.key_size},
                                                {block_bytes, s.key_size, 1},
                                                Element::kE4M3,
                                                {Role::kIndexKey}},
                                         Tensor{"bt",
                                                {s.block_count, s.block_tokens},
                                                {block_bytes / 4, 1},
                                                Element::kFp32,
                                                {Role::kIndexScale},
                                                0,
                                                s.block_tokens * s.key_size}};
  if (block_bytes % 4 != 0) return Flaw{"indexer: block axis: its scales would not be aligned to 4 bytes"};
  return make_layout("indexer", tensors, s.layer_count);
}

Checked<Layout> nvfp4(const CacheShape& s, ScaleOrder order) {
  if (s.key_size % 16 != 0 || value_size(s) % 16 != 0) return Flaw{"NVFP4: feature axis: a scale covers 16 values"};
  const auto row = [&](std::int64_t size, Element element, Role role) {
    return tensor_of(s, "bhtf", size, element, {role});
  };
  std::array<Tensor, 4> tensors = {row(s.key_size / 2, Element::kE2M1x2, Role::kKey),
                                   row(value_size(s) / 2, Element::kE2M1x2, Role::kValue),
                                   row(s.key_size / 16, Element::kE4M3, Role::kKeyScale),
                                   row(value_size(s) / 16, Element::kE4M3, Role::kValueScale)};
  if (order == ScaleOrder::kLinear) return make_layout("NVFP4", tensors, s.layer_count);
  if (s.block_tokens % 4 != 0 || value_size(s) % 64 != 0) {
    return Flaw{"NVFP4 swizzled: token axis must be a multiple of 4, V's feature axis of 64"};
  }
  // V's scales alone are swizzled: four tokens of one scale lie together, in the order of the kernel's multiplications.
  tensors[3] = {"bhTft",
                {s.block_count, s.heads, s.block_tokens / 4, value_size(s) / 16, 4},
                {},
                Element::kE4M3,
                {Role::kValueScale}};
  return make_layout("NVFP4 swizzled", tensors, s.layer_count);
}

Checked<Layout> with_token_head_scales(Layout cache) {
  for (const auto& [role, scale] :
       {std::pair(Role::kKey, Role::kKeyScale), std::pair(Role::kValue, Role::kValueScale)}) {
    const Component* data = cache.find(role);
    if (!data || cache.find(scale))
      return Flaw{cache.name + ": needs " + std::string(role_name(role)) + " without scales"};
    const std::int64_t heads = data->heads();
    if (auto flaw = find_excess("scales", {cache.block_count, cache.block_tokens, heads, 4})) return *std::move(flaw);
    const std::int64_t block_bytes = cache.block_tokens * heads * 4;
    // Scales get a separate allocation, since the cache's own has no room.
    cache.components.push_back({.role = scale,
                                .element = Element::kFp32,
                                .tensor = cache.tensor_count++,
                                .layer_stride_bytes = cache.block_count * block_bytes,
                                .block_stride_bytes = block_bytes,
                                .token = {{cache.block_tokens, heads * 4}, {}},
                                .head = {{heads, 4}, {}},
                                .feature = {}});
  }
  cache.name += " with scales";
  if (auto flaw = find_flaw(cache)) return *std::move(flaw);
  return cache;
}

Checked<Layout> inline_scales_nhd(const CacheShape& s) {
  if (auto flaw = find_excess("inline scales", {s.block_tokens, s.heads, row_size(s), 8})) return *std::move(flaw);
  std::vector<Tensor> tensors;
  for (const bool is_key : {true, false}) {
    const std::int64_t size = is_key ? s.key_size : value_size(s);
    const std::int64_t row = size + 4;
    const Element element = is_key ? s.element : value_element(s);
    if (element_bytes(element) != 1 || size % 4 != 0) {
      return Flaw{"inline scales: feature axis: a multiple of 4 elements of one byte is needed"};
    }
    tensors.push_back({"bthf",
                       {s.block_count, s.block_tokens, s.heads, size},
                       {s.block_tokens * s.heads * row, s.heads * row, row, 1},
                       element,
                       {is_key ? Role::kKey : Role::kValue}});
    tensors.push_back({"bth",
                       {s.block_count, s.block_tokens, s.heads},
                       {s.block_tokens * s.heads * row / 4, s.heads * row / 4, row / 4},
                       Element::kFp32,
                       {is_key ? Role::kKeyScale : Role::kValueScale},
                       // Each lies behind its row, in the allocation of its keys or values.
                       is_key ? 0 : 1,
                       size});
  }
  return make_layout("inline scales NHD", tensors, s.layer_count);
}

Checked<Layout> store_block(const Layout& cache, std::int64_t head_groups, std::int64_t block_count,
                            std::optional<std::int64_t> tokens) {
  const std::int64_t block_tokens = tokens.value_or(cache.block_tokens);
  Layout block{.name = "store block",
               .block_tokens = block_tokens,
               .block_count = block_count,
               .layer_count = cache.layer_count,
               .tensor_count = 1,
               .has_all_layers_in_tensor = true,
               .components = {}};
  std::int64_t layer_bytes = 0;  // of one head group
  for (const Component& each : cache.components) {
    if (head_groups < 1 || each.heads() % head_groups != 0) {
      return Flaw{"store block: " + std::string(role_name(each.role)) + ": head axis: " + std::to_string(each.heads()) +
                  " heads do not make " + std::to_string(head_groups) + " groups"};
    }
    const std::int64_t unit = element_bytes(each.element);
    if (auto flaw = find_excess("store block", {block_tokens, each.heads(), each.features(), unit, cache.layer_count,
                                                kRoleCount, block_count})) {
      return *std::move(flaw);
    }
    const std::int64_t heads = each.heads() / head_groups;
    // A group's stride follows once all components are counted: below.
    block.components.push_back({.role = each.role,
                                .element = each.element,
                                .tensor = 0,
                                .offset_bytes = layer_bytes,
                                .token = {{block_tokens, heads * each.features() * unit}, {}},
                                .head = {{heads, each.features() * unit}, {head_groups, 0}},
                                .feature = {{each.features(), unit}, {}}});
    layer_bytes += block_tokens * heads * each.features() * unit;
  }
  for (Component& each : block.components) {
    each.layer_stride_bytes = layer_bytes;
    each.head.high.stride_bytes = head_groups == 1 ? 0 : layer_bytes * cache.layer_count;
    each.block_stride_bytes = layer_bytes * cache.layer_count * head_groups;
  }
  if (auto flaw = find_flaw(block)) return *std::move(flaw);
  return block;
}

std::int64_t store_block_bytes(const Layout& store_block) { return store_block.components.front().block_stride_bytes; }

std::optional<Checked<Layout>> named(std::string_view name, const CacheShape& shape) {
  static constexpr std::pair<std::string_view, Checked<Layout> (*)(const CacheShape&)> kMakers[] = {
      {"nhd", nhd},
      {"hnd", hnd},
      {"joint_nhd", joint_nhd},
      {"joint_hnd", joint_hnd},
      {"kv_first_nhd", kv_first_nhd},
      {"kv_first_hnd", kv_first_hnd},
      {"packed_nhd", packed_nhd},
      {"packed_hnd", packed_hnd},
      {"x_packed", x_packed},
      {"fractal_nz", fractal_nz},
      {"cross_layer", cross_layer},
      {"head_folded", head_folded},
      {"mla", mla},
      {"mla_split", mla_split},
      {"ds_mla", ds_mla},
      {"indexer", indexer},
      {"nvfp4", [](const CacheShape& of) { return nvfp4(of, ScaleOrder::kLinear); }},
      {"nvfp4_swizzled", [](const CacheShape& of) { return nvfp4(of, ScaleOrder::kSwizzledValues); }},
      {"inline_scales_nhd", inline_scales_nhd},
      {"slot_pool", slot_pool},
      {"batched", batched},
      {"ragged", ragged},
      {"chunk", chunk},
  };
  for (const auto& [known, make] : kMakers) {
    if (known == name) return make(shape);
  }
  return std::nullopt;
}

}  // namespace kv::layouts
