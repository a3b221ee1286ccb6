// client/c/gpu_c_layout.cc: kvstore_gpu.h's layouts and caches. Exceptions stop here.
#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "client/c/gpu_c_arguments.h"
#include "gpu/named_layouts.h"
#include "gpu/verified.h"

namespace kv {
namespace {

using c_api::guarded, c_api::read_struct, c_api::refuse, c_api::refuse_value;

static_assert(KVS_FP32 == static_cast<int>(Element::kFp32) && KVS_BYTE == static_cast<int>(Element::kByte));
static_assert(KVS_E2M1X2 == static_cast<int>(Element::kE2M1x2) && KVS_ROLE_COUNT == kRoleCount);
static_assert(KVS_ROPE == static_cast<int>(Role::kRope) && KVS_LOG_COUNT == static_cast<int>(Role::kLogCount));
static_assert(KVS_KEY_SCALE == static_cast<int>(Role::kKeyScale));

constexpr std::size_t kTensorsMax = 64;

/// Libraries' names of elements; the first name of each is the one returned.
struct ElementName {
  std::string_view name;
  Element element;
};
constexpr ElementName kElementNames[] = {
    {"byte", Element::kByte},        {"uint8", Element::kByte},
    {"int8", Element::kInt8},        {"float8_e4m3fn", Element::kE4M3},
    {"e4m3", Element::kE4M3},        {"e4m3fn", Element::kE4M3},
    {"fp8_e4m3", Element::kE4M3},    {"fp8", Element::kE4M3},  // as in vLLM and SGLang
    {"float8_e5m2", Element::kE5M2}, {"e5m2", Element::kE5M2},
    {"fp8_e5m2", Element::kE5M2},    {"float4_e2m1fn_x2", Element::kE2M1x2},
    {"e2m1x2", Element::kE2M1x2},    {"fp4", Element::kE2M1x2},
    {"nvfp4", Element::kE2M1x2},     {"float16", Element::kFp16},
    {"half", Element::kFp16},        {"fp16", Element::kFp16},
    {"bfloat16", Element::kBf16},    {"bf16", Element::kBf16},
    {"float32", Element::kFp32},     {"float", Element::kFp32},
    {"fp32", Element::kFp32},
};

std::string up_to(int most) { return "from 0 to " + std::to_string(most); }

/// Elements are numbered without gaps from KVS_BYTE to KVS_FP32.
Element read_element(const char* field, int element) {
  if (element < KVS_BYTE || element > KVS_FP32) refuse_value(field, element, up_to(KVS_FP32));
  return static_cast<Element>(element);
}

// The caller frees the result by the function of its kind. A cache has a copy of its layout: either may go first.
template <class Made, class Handle>
void give(Checked<Made> made, Handle** to) {
  if (!made) refuse(KVS_BAD_REQUEST, made.error().text);
  *to = new Handle{*std::move(made)};
}

/// Runs `body` if all that it needs is given; the result is null until it succeeds.
template <class Handle, class Body>
int make(Handle** result, std::initializer_list<const void*> needed, Body body) {
  return guarded([&] {
    if (result == nullptr) refuse(KVS_BAD_REQUEST, "the result pointer is NULL");
    *result = nullptr;
    if (std::ranges::count(needed, nullptr) > 0) refuse(KVS_BAD_REQUEST, "a pointer is NULL");
    body();
  });
}

Tensor read_tensor(const kvs_tensor& from) {
  if (from.axes == nullptr || from.shape == nullptr || from.roles == nullptr) {
    refuse(KVS_BAD_REQUEST, "tensors: axes, shape or roles is NULL");
  }
  Tensor to;
  to.axes = from.axes;
  // Before reading the shape, which has as many numbers as there are letters.
  if (to.axes.size() > 9) refuse(KVS_BAD_REQUEST, "tensors: axes: more letters than there are axes");
  to.element = read_element("tensors: element", from.element);
  if (from.role_count > kRoleCount) refuse(KVS_BAD_REQUEST, "tensors: more roles than there are");
  if (from.shares < 0 || from.shares > static_cast<std::int64_t>(kTensorsMax)) {
    refuse(KVS_BAD_REQUEST, "tensors: shares: there is no such allocation");
  }
  to.shape.assign(from.shape, from.shape + to.axes.size());
  if (from.strides != nullptr) to.strides.assign(from.strides, from.strides + to.axes.size());
  for (std::size_t i = 0; i < from.role_count; ++i) {
    if (from.roles[i] < 0 || from.roles[i] >= kRoleCount) {
      refuse_value("tensors: roles", from.roles[i], up_to(kRoleCount - 1));
    }
    to.roles.push_back(static_cast<Role>(from.roles[i]));
  }
  // Counted from 1: 0 in a zeroed struct means an allocation of its own.
  to.allocation = static_cast<int>(from.shares) - 1;
  to.offset_bytes = from.offset_bytes;
  return to;
}

std::size_t allocation_count(const Layout& layout) {
  return static_cast<std::size_t>(layout.tensor_count) *
         static_cast<std::size_t>(layout.has_all_layers_in_tensor ? 1 : layout.layer_count);
}

/// The fault of an allocation, or empty.
std::string find_problem(const Layout& layout, int tensor, const void* memory, const std::uint64_t* bytes) {
  if (memory == nullptr) return "is NULL";
  const auto needed = static_cast<std::uint64_t>(layout.tensor_bytes(tensor));
  if (bytes != nullptr && *bytes < needed) {
    return "has " + std::to_string(*bytes) + " bytes, the layout reaches over " + std::to_string(needed);
  }
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  // Such a size is a mistake in the layout; the kernels' 64-bit offsets would wrap to existing memory.
  if (address > std::numeric_limits<std::uintptr_t>::max() - needed) return "reaches beyond the end of memory";
  for (const Component& each : layout.components) {
    if (each.tensor == tensor && address % static_cast<std::uintptr_t>(element_bytes(each.element)) != 0) {
      return "is not aligned to elements of type " + std::string(element_name(each.element));
    }
  }
  return "";
}

}  // namespace
}  // namespace kv

using namespace kv;

int kvs_element_named(const char* name, int* element) {
  return guarded([&] {
    if (name == nullptr || element == nullptr) refuse(KVS_BAD_REQUEST, "a pointer is NULL");
    std::string_view asked = name;
    constexpr std::string_view kTorch = "torch.";
    if (asked.starts_with(kTorch)) asked.remove_prefix(kTorch.size());
    for (const ElementName& each : kElementNames) {
      if (each.name == asked) return void(*element = static_cast<int>(each.element));
    }
    refuse(KVS_NOT_FOUND, "name: no element is called " + std::string(name));
  });
}

const char* kvs_element_name(int element) {
  for (const ElementName& each : kElementNames) {
    if (static_cast<int>(each.element) == element) return each.name.data();
  }
  return nullptr;
}

int kvs_layout_named(const char* name, const kvs_cache_shape* given, kvs_layout** layout) {
  return make(layout, {}, [&] {
    if (name == nullptr) refuse(KVS_BAD_REQUEST, "name is NULL");
    const auto from = read_struct(given);
    const CacheShape shape{.block_count = from.block_count,
                           .block_tokens = from.block_tokens,
                           // A zeroed struct means one head (a latent cache) and one layer.
                           .heads = from.heads == 0 ? 1 : from.heads,
                           .key_size = from.key_size,
                           .value_size = from.value_size,
                           .layer_count = from.layer_count == 0 ? 1 : from.layer_count,
                           .element = read_element("element", from.element),
                           .value_element = read_element("value_element", from.value_element)};
    if (auto made = layouts::named(name, shape)) return give(*std::move(made), layout);
    refuse(KVS_NOT_FOUND, "name: no layout is called " + std::string(name));
  });
}

int kvs_layout_from_tensors(const char* name, const kvs_tensor* tensors, size_t count, int64_t layer_count,
                            kvs_layout** layout) {
  return make(layout, {name, tensors}, [&] {
    if (count > kTensorsMax) refuse(KVS_TOO_LARGE, "tensors: more than 64");
    std::vector<Tensor> list;
    for (std::size_t i = 0; i < count; ++i) list.push_back(read_tensor(tensors[i]));
    give(make_layout(name, list, layer_count), layout);
  });
}

int kvs_layout_with_scales(const kvs_layout* cache, kvs_layout** layout) {
  return make(layout, {cache}, [&] { give(layouts::with_token_head_scales(cache->layout), layout); });
}

int kvs_layout_store_block(const kvs_layout* cache, int64_t head_groups, int64_t block_count, int64_t block_tokens,
                           kvs_layout** layout) {
  return make(layout, {cache}, [&] {
    const std::int64_t tokens = block_tokens == 0 ? cache->layout.block_tokens : block_tokens;
    give(layouts::store_block(cache->layout, head_groups, block_count, tokens), layout);
  });
}

int kvs_layout_slice_heads(const kvs_layout* layout, int64_t first, int64_t count, kvs_layout** slice) {
  return make(slice, {layout}, [&] { give(slice_heads(layout->layout, first, count), slice); });
}

void kvs_layout_free(kvs_layout* layout) { delete layout; }

int kvs_layout_describe(const kvs_layout* layout, kvs_layout_info* info) {
  return guarded([&] {
    if (layout == nullptr) refuse(KVS_BAD_REQUEST, "layout is NULL");
    kvs_layout_info out = KVS_LAYOUT_INFO_INIT;
    out.block_count = layout->layout.block_count;
    out.block_tokens = layout->layout.block_tokens;
    out.layer_count = layout->layout.layer_count;
    out.allocation_count = allocation_count(layout->layout);
    out.block_bytes = static_cast<std::uint64_t>(dense_block_bytes(layout->layout));
    c_api::write_struct(out, info);
  });
}

int kvs_layout_allocation_bytes(const kvs_layout* layout, size_t allocation, uint64_t* bytes) {
  return guarded([&] {
    if (layout == nullptr || bytes == nullptr) refuse(KVS_BAD_REQUEST, "a pointer is NULL");
    if (allocation >= allocation_count(layout->layout)) {
      refuse(KVS_BAD_REQUEST,
             "allocation: " + std::to_string(allocation) + " of " + std::to_string(allocation_count(layout->layout)));
    }
    const std::size_t tensor = allocation % static_cast<std::size_t>(layout->layout.tensor_count);
    *bytes = static_cast<std::uint64_t>(layout->layout.tensor_bytes(static_cast<int>(tensor)));
  });
}

int kvs_layout_text(const kvs_layout* layout, char* text, size_t capacity, size_t* length) {
  return guarded([&]() -> int {
    if (layout == nullptr) refuse(KVS_BAD_REQUEST, "layout is NULL");
    return c_api::write_text(to_string(layout->layout), text, capacity, length);
  });
}

int kvs_cache_bind(const kvs_layout* layout, void* const* allocations, const uint64_t* bytes, size_t count,
                   kvs_cache** cache) {
  return make(cache, {layout, allocations}, [&] {
    // With another count, allocations cannot be told apart: bind_layout() then reports the right number.
    for (std::size_t i = 0; i < count && count == allocation_count(layout->layout); ++i) {
      const auto tensor = static_cast<int>(i % static_cast<std::size_t>(layout->layout.tensor_count));
      const std::string problem =
          find_problem(layout->layout, tensor, allocations[i], bytes == nullptr ? nullptr : bytes + i);
      if (!problem.empty()) refuse(KVS_BAD_REQUEST, "allocation " + std::to_string(i) + " " + problem);
    }
    give(bind_layout(layout->layout, {allocations, count}), cache);
  });
}

int kvs_cache_slice_layers(const kvs_cache* cache, int64_t first, int64_t count, kvs_cache** slice) {
  return make(slice, {cache}, [&] {
    const std::int64_t layers = cache->bound.layout.layer_count;
    if (first < 0 || count < 1 || first > layers || count > layers - first) {
      refuse(KVS_BAD_REQUEST, std::to_string(count) + " layers from " + std::to_string(first) + " on are not within " +
                                  std::to_string(layers));
    }
    *slice = new kvs_cache{slice_layers(cache->bound, first, count)};
  });
}

int kvs_cache_slice_heads(const kvs_cache* cache, int64_t first, int64_t count, kvs_cache** slice) {
  return make(slice, {cache}, [&] { give(slice_heads(cache->bound, first, count), slice); });
}

void kvs_cache_free(kvs_cache* cache) { delete cache; }
