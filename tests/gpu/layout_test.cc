#include "gpu/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gpu/named_layouts.h"
#include "tests/gpu/test_cache.h"

namespace kv {
namespace {

/// The cache of the golden offsets: 7 blocks of 16 tokens, 4 heads of 64.
CacheShape golden_shape(Element element = Element::kFp16) {
  return {.block_count = 7, .block_tokens = 16, .heads = 4, .key_size = 64, .element = element};
}
constexpr std::int64_t kSlot = 39;  // block 2, offset 7
constexpr std::int64_t kHead = 2;
constexpr std::int64_t kAtFeature = 27;

/// Bytes from the allocation's start to an element.
std::int64_t byte_offset(const Layout& layout, Role role, std::int64_t slot = kSlot, std::int64_t head = kHead,
                         std::int64_t feature = kAtFeature, std::int64_t layer = 0) {
  const Component& component = *layout.find(role);
  return component.offset_bytes + layer * component.layer_stride_bytes +
         slot / layout.block_tokens * component.block_stride_bytes +
         component.token.offset(slot % layout.block_tokens) + component.head.offset(head) +
         component.feature.offset(feature);
}
std::int64_t element_offset(const Layout& layout, Role role, std::int64_t head = kHead,
                            std::int64_t feature = kAtFeature, std::int64_t layer = 0) {
  return byte_offset(layout, role, kSlot, head, feature, layer) / element_bytes(layout.find(role)->element);
}

TEST(LayoutTest, GoldenOffsetsOfRowLayouts) {
  const CacheShape shape = golden_shape();
  EXPECT_EQ(element_offset(*layouts::nhd(shape), Role::kKey), 10139);
  EXPECT_EQ(element_offset(*layouts::nhd(shape), Role::kValue), 10139);
  EXPECT_EQ(element_offset(*layouts::hnd(shape), Role::kKey), 10715);
  EXPECT_EQ(element_offset(*layouts::joint_nhd(shape), Role::kKey), 18331);
  EXPECT_EQ(element_offset(*layouts::joint_nhd(shape), Role::kValue), 22427);
  EXPECT_EQ(element_offset(*layouts::joint_hnd(shape), Role::kValue), 23003);
  EXPECT_EQ(element_offset(*layouts::kv_first_nhd(shape), Role::kValue), 38811);
  EXPECT_EQ(element_offset(*layouts::packed_hnd(shape), Role::kKey), 21403);
  EXPECT_EQ(element_offset(*layouts::packed_hnd(shape), Role::kValue), 21467);
  EXPECT_EQ(element_offset(*layouts::packed_nhd(shape), Role::kValue), 20315);
}

TEST(LayoutTest, GoldenOffsetsOfTiledLayouts) {
  EXPECT_EQ(element_offset(*layouts::x_packed(golden_shape()), Role::kKey), 10683);
  EXPECT_EQ(element_offset(*layouts::x_packed(golden_shape(Element::kInt8)), Role::kKey), 10619);
  EXPECT_EQ(element_offset(*layouts::x_packed(golden_shape()), Role::kValue), 10679);
  EXPECT_EQ(element_offset(*layouts::fractal_nz(golden_shape()), Role::kKey), 10619);
  EXPECT_EQ(element_offset(*layouts::fractal_nz(golden_shape(Element::kInt8)), Role::kKey), 10491);
}

TEST(LayoutTest, GoldenOffsetsOfCrossLayerAndHeadFolded) {
  CacheShape shape = golden_shape();
  EXPECT_EQ(element_offset(*layouts::head_folded(shape), Role::kKey, 0), 2523);
  shape.layer_count = 5;
  EXPECT_EQ(element_offset(*layouts::cross_layer(shape), Role::kValue, kHead, kAtFeature, 3), 113115);
}

TEST(LayoutTest, GoldenOffsetsOfQuantisedLayouts) {
  const Layout swizzled = *layouts::nvfp4(golden_shape(), layouts::ScaleOrder::kSwizzledValues);
  EXPECT_EQ(byte_offset(swizzled, Role::kKey, kSlot, kHead, kAtFeature / 2), 5357);
  EXPECT_EQ(byte_offset(swizzled, Role::kKeyScale, kSlot, kHead, kAtFeature / 16), 669);
  EXPECT_EQ(byte_offset(swizzled, Role::kValueScale, kSlot, kHead, kAtFeature / 16), 663);
  const Layout linear = *layouts::nvfp4(golden_shape(), layouts::ScaleOrder::kLinear);
  EXPECT_EQ(byte_offset(linear, Role::kValueScale, kSlot, kHead, kAtFeature / 16), 669);
}

TEST(LayoutTest, GoldenOffsetsOfLatentAttention) {
  const CacheShape shape{.block_count = 7, .key_size = 512, .value_size = 64};
  EXPECT_EQ(element_offset(*layouts::mla(shape), Role::kRope, 0, 530 - 512), 22994);
  const Layout packed = *layouts::ds_mla(shape);
  EXPECT_EQ(byte_offset(packed, Role::kLatent, kSlot, 0, 300), 25884);
  EXPECT_EQ(byte_offset(packed, Role::kLatentScale, kSlot, 0, 300 / 128), 26104);
  EXPECT_EQ(byte_offset(packed, Role::kRope, kSlot, 0, 10), 26132);
  const Layout indexer = *layouts::indexer({.block_count = 7, .block_tokens = 64, .key_size = 128});
  EXPECT_EQ(byte_offset(indexer, Role::kIndexKey, 70, 0, 5), 9221);
  EXPECT_EQ(byte_offset(indexer, Role::kIndexScale, 70, 0, 0), 16664);
}

/// Each element of every component of every named layout has bytes of its own, and the last ends the allocation.
TEST(LayoutTest, ElementsOfAllComponentsNeverOverlap) {
  const CacheShape shape{.block_count = 3, .block_tokens = 16, .heads = 3, .key_size = 64, .layer_count = 2};
  CacheShape bytes = shape;
  bytes.element = Element::kInt8;
  const CacheShape latent{.block_count = 3, .block_tokens = 4, .key_size = 512, .value_size = 64, .layer_count = 2};
  const std::vector<Layout> all = {*layouts::nhd(shape),
                                   *layouts::hnd(shape),
                                   *layouts::joint_nhd(shape),
                                   *layouts::joint_hnd(shape),
                                   *layouts::kv_first_nhd(shape),
                                   *layouts::kv_first_hnd(shape),
                                   *layouts::packed_hnd(shape),
                                   *layouts::packed_nhd(shape),
                                   *layouts::x_packed(shape),
                                   *layouts::fractal_nz(shape),
                                   *layouts::mla(latent),
                                   *layouts::mla_split(latent),
                                   *layouts::ds_mla(latent),
                                   *layouts::indexer(latent),
                                   *layouts::slot_pool(shape),
                                   *layouts::cross_layer(shape),
                                   *layouts::head_folded(shape),
                                   *layouts::nvfp4(shape, layouts::ScaleOrder::kLinear),
                                   *layouts::nvfp4(shape, layouts::ScaleOrder::kSwizzledValues),
                                   *layouts::with_token_head_scales(*layouts::nhd(bytes)),
                                   *layouts::inline_scales_nhd(bytes),
                                   *layouts::batched(shape),
                                   *layouts::ragged(shape),
                                   *layouts::chunk(shape),
                                   *layouts::store_block(*layouts::nhd(shape), 3, 4),
                                   *layouts::store_block(*layouts::ds_mla(latent), 1, 2)};
  for (const Layout& layout : all) {
    SCOPED_TRACE(to_string(layout));
    for (int tensor = 0; tensor < layout.tensor_count; ++tensor) {
      std::vector<char> is_used(static_cast<std::size_t>(layout.tensor_bytes(tensor)));
      for (const Component& each : layout.components) {
        if (each.tensor != tensor) continue;
        for (std::int64_t layer = 0; layer < (layout.has_all_layers_in_tensor ? layout.layer_count : 1); ++layer) {
          for (std::int64_t slot = 0; slot < layout.slot_count(); ++slot) {
            for (std::int64_t head = 0; head < each.heads(); ++head) {
              for (std::int64_t feature = 0; feature < each.features(); ++feature) {
                const std::int64_t offset = byte_offset(layout, each.role, slot, head, feature, layer);
                for (std::int64_t i = 0; i < element_bytes(each.element); ++i) {
                  char& used = is_used.at(static_cast<std::size_t>(offset + i));
                  ASSERT_EQ(used, 0) << role_name(each.role) << " slot " << slot << " head " << head << " f "
                                     << feature;
                  used = 1;
                }
              }
            }
          }
        }
      }
      EXPECT_EQ(std::count(is_used.begin(), is_used.end(), 0), 0) << "tensor " << tensor << " has holes";
    }
  }
}

TEST(LayoutTest, StoreBlockKeepsEachHeadGroupTogether) {
  const CacheShape shape{.block_count = 1, .block_tokens = 16, .heads = 8, .key_size = 128, .layer_count = 3};
  const Layout block = *layouts::store_block(*layouts::nhd(shape), 4, 10);
  EXPECT_EQ(layouts::store_block_bytes(block), 2 * 3 * 16 * 8 * 128 * 2);
  const std::int64_t token_bytes = 2 * 128 * 2;  // two heads of a group
  EXPECT_EQ(byte_offset(block, Role::kKey, 1, 0, 0), token_bytes);
  EXPECT_EQ(byte_offset(block, Role::kValue, 0, 0, 0), 16 * token_bytes);
  EXPECT_EQ(byte_offset(block, Role::kKey, 0, 0, 0, 1), 2 * 16 * token_bytes);
  EXPECT_EQ(byte_offset(block, Role::kKey, 0, 2, 0), 3 * 2 * 16 * token_bytes);
  EXPECT_EQ(byte_offset(block, Role::kKey, 16, 0, 0), layouts::store_block_bytes(block));
}

TEST(LayoutTest, SlicedHeadsLieWhereTheyLayInTheWhole) {
  const CacheShape shape{.block_count = 3, .heads = 8, .key_size = 16};
  const Layout block = *layouts::store_block(*layouts::nhd(shape), 4, 3);
  for (const auto& [first, count] : {std::pair(0, 8), std::pair(2, 2), std::pair(5, 1), std::pair(4, 4)}) {
    const Layout slice = *slice_heads(block, first, count);
    ASSERT_EQ(slice.find(Role::kValue)->heads(), count);
    for (int head = 0; head < count; ++head) {
      EXPECT_EQ(byte_offset(slice, Role::kValue, 17, head, 3), byte_offset(block, Role::kValue, 17, first + head, 3));
    }
  }
  const auto across = slice_heads(block, 1, 2);
  ASSERT_FALSE(across);
  EXPECT_EQ(across.error().text,
            "store block: K: head axis: 2 heads from 1 on are neither within one group of 2 nor whole groups");
  EXPECT_FALSE(slice_heads(block, 6, 4));
}

TEST(LayoutTest, RawShapesAndStridesDescribeAView) {
  // Half the heads of a fused [T, 3, H, D] projection: rows are strided, heads inside them are not.
  const std::array<Tensor, 2> views = {Tensor{"thf", {5, 4, 8}, {96, 8, 1}, Element::kFp16, {Role::kKey}},
                                       Tensor{"thf", {5, 4, 8}, {96, 8, 1}, Element::kFp16, {Role::kValue}, 0, 32 * 2}};
  const Layout layout = make_layout("fused", views).value();
  EXPECT_EQ(layout.block_tokens, 5);
  EXPECT_EQ(byte_offset(layout, Role::kKey, 2, 1, 3), (2 * 96 + 8 + 3) * 2);
  EXPECT_EQ(byte_offset(layout, Role::kValue, 2, 1, 3), (2 * 96 + 32 + 8 + 3) * 2);
  EXPECT_EQ(to_string(layout),
            "fused: 1 blocks of 5 tokens, 1 layers, 1 allocations a layer\n"
            "  K fp16 @0+0  block 0  token 5:192  head 4:16  feature 8:2\n"
            "  V fp16 @0+64  block 0  token 5:192  head 4:16  feature 8:2\n");
}

std::string flaw_of(const Tensor& tensor, std::int64_t layer_count = 1) {
  const auto layout = make_layout("mine", std::span(&tensor, 1), layer_count);
  return layout ? "" : layout.error().text;
}

TEST(LayoutTest, FlawsNameTheAxis) {
  using R = std::vector<Role>;
  const R key = {Role::kKey};
  EXPECT_EQ(flaw_of({"bthf", {2, 4, 8}, {}, Element::kBf16, key}),
            "mine: tensor 0 (bthf): the shape has 3 axes, \"bthf\" names 4");
  EXPECT_EQ(flaw_of({"bthz", {2, 4, 8, 8}, {}, Element::kBf16, key}),
            "mine: tensor 0 (bthz): axis 'z' is none of blctThHfF");
  EXPECT_EQ(flaw_of({"btht", {2, 4, 8, 8}, {}, Element::kBf16, key}), "mine: tensor 0 (btht): axis 't' is named twice");
  EXPECT_EQ(flaw_of({"bthf", {2, 4, 0, 8}, {}, Element::kBf16, key}),
            "mine: tensor 0 (bthf): axis 'h': extent 0 is not positive");
  EXPECT_EQ(flaw_of({"bcthf", {2, 3, 4, 2, 8}, {}, Element::kBf16, {Role::kKey, Role::kValue}}),
            "mine: tensor 0 (bcthf): axis 'c': extent 3, but 2 roles");
  EXPECT_EQ(flaw_of({"lbthf", {3, 2, 4, 2, 8}, {}, Element::kBf16, key}, 2),
            "mine: tensor 0 (lbthf): axis 'l': 3 layers, expected 2");
  EXPECT_EQ(flaw_of({"bthf", {2, 4, 2, 8}, {64, 8, 8, 1}, Element::kBf16, key}),
            "mine: K: token axis: stride of 16 bytes steps into the 32 bytes within it");
  EXPECT_EQ(flaw_of({"bthf", {2, 4, 2, 8}, {32, 16, 8, 1}, Element::kBf16, key}),
            "mine: K: block axis: stride of 64 bytes steps into the 128 bytes within it");
  EXPECT_EQ(flaw_of({"bthf", {2, 4, 2, 8}, {-64, 16, 8, 1}, Element::kBf16, key}),
            "mine: tensor 0 (bthf): axis 'b': stride -64 is negative or reaches beyond 2^56 bytes");
  Layout layout = *layouts::nhd(golden_shape());
  layout.components[1].token.low.extent = 8;
  EXPECT_EQ(find_flaw(layout)->text, "NHD: V: token axis: digits cover 8 times 1 tokens, a block has 16");
  layout = *layouts::nhd(golden_shape());
  layout.components[0].head.low.stride_bytes = 129;
  EXPECT_EQ(find_flaw(layout)->text, "NHD: K: head axis: stride of 129 bytes is no multiple of the element's 2");
}

/// Components that share an allocation may lie between one another, but not over one another.
TEST(LayoutTest, ComponentsThatLieOverOneAnotherAreRefused) {
  const auto tensors = [](std::int64_t value_offset, std::vector<std::int64_t> strides) {
    return std::vector<Tensor>{{.axes = "bthf", .shape = {4, 16, 2, 8}, .strides = strides, .roles = {Role::kKey}},
                               {.axes = "bthf",
                                .shape = {4, 16, 2, 8},
                                .strides = strides,
                                .roles = {Role::kValue},
                                .allocation = 0,
                                .offset_bytes = value_offset}};
  };
  const std::vector<std::int64_t> apart = {256, 16, 8, 1}, beside = {512, 32, 16, 1};
  EXPECT_TRUE(make_layout("one after the other", tensors(4 * 16 * 2 * 8 * 2, apart)));
  EXPECT_TRUE(make_layout("in one row", tensors(8 * 2, beside)));
  for (const std::int64_t offset : {0, 2, 16, 4 * 16 * 2 * 8 * 2 - 2}) {
    const auto layout = make_layout("mine", tensors(offset, apart));
    ASSERT_FALSE(layout) << offset;
    EXPECT_EQ(layout.error().text, "mine: V at offset " + std::to_string(offset) + " lies over K at offset 0");
  }
  EXPECT_FALSE(make_layout("in one row", tensors(8 * 2 - 2, beside)));
  EXPECT_TRUE(make_layout("in one row", tensors(8 * 2 + 512 * 2, beside))) << "K's of block 1 beside V's of block 0";
}

/// Against a look at every byte.
TEST(LayoutTest, WhichComponentsOverlapIsExact) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE(seed_text(seed));
  std::mt19937_64 random(seed);
  int refused = 0, taken = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::vector<Tensor> tensors(2);
    std::vector<std::vector<bool>> bytes(2);
    for (std::size_t t = 0; t < 2; ++t) {
      Tensor& tensor = tensors[t];
      tensor.axes = "bthf";
      tensor.element = random() % 2 == 0 ? Element::kBf16 : Element::kInt8;
      tensor.roles = {t == 0 ? Role::kKey : Role::kValue};
      tensor.shape = {2, 3, static_cast<std::int64_t>(1 + random() % 3), static_cast<std::int64_t>(1 + random() % 4)};
      tensor.strides.resize(4);
      std::int64_t stride = static_cast<std::int64_t>(1 + random() % 2);
      for (const std::size_t axis : {std::size_t{3}, std::size_t{2}, std::size_t{1}, std::size_t{0}}) {
        tensor.strides[axis] = stride;
        stride = stride * tensor.shape[axis] + static_cast<std::int64_t>(random() % 12);
      }
      if (t == 1) tensor.allocation = 0, tensor.offset_bytes = static_cast<std::int64_t>(2 * (random() % 60));
      if (!make_layout("alone", std::vector<Tensor>{{.axes = tensor.axes,
                                                     .shape = tensor.shape,
                                                     .strides = tensor.strides,
                                                     .element = tensor.element,
                                                     .roles = tensor.roles}}))
        break;
      bytes[t].resize(4096);
      const std::int64_t unit = element_bytes(tensor.element);
      for (std::int64_t at = 0; at < 2 * 3 * tensor.shape[2] * tensor.shape[3]; ++at) {
        std::int64_t rest = at, offset = 0;
        for (const std::size_t axis : {std::size_t{3}, std::size_t{2}, std::size_t{1}, std::size_t{0}}) {
          offset += rest % tensor.shape[axis] * tensor.strides[axis];
          rest /= tensor.shape[axis];
        }
        for (std::int64_t byte = 0; byte < unit; ++byte)
          bytes[t].at(static_cast<std::size_t>(tensor.offset_bytes + offset * unit + byte)) = true;
      }
    }
    if (bytes[1].empty()) continue;
    bool do_overlap = false;
    for (std::size_t byte = 0; byte < bytes[0].size(); ++byte)
      do_overlap = do_overlap || (bytes[0][byte] && bytes[1][byte]);
    const auto layout = make_layout("mine", tensors);
    ASSERT_EQ(layout.has_value(), !do_overlap) << i << ": " << (layout ? to_string(*layout) : layout.error().text);
    ++(do_overlap ? refused : taken);
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(taken, 1000);
}

TEST(LayoutTest, NamedLayoutsRefuseShapesTheyCannotHold) {
  const CacheShape shape{.block_count = 2, .block_tokens = 16, .heads = 2, .key_size = 64, .value_size = 32};
  EXPECT_EQ(layouts::packed_hnd(shape).error().text,
            "packed HND: feature axis: one tensor holds K and V, so they must have one size and element");
  EXPECT_EQ(layouts::fractal_nz({.block_count = 2, .block_tokens = 8}).error().text,
            "NZ: token axis: 8 is no multiple of 16");
  EXPECT_EQ(layouts::fractal_nz({.block_count = 2, .key_size = 80, .element = Element::kInt8}).error().text,
            "NZ: feature axis: 80 int8 are not whole fractals of 32 bytes");
  EXPECT_EQ(layouts::store_block(*layouts::nhd({.block_count = 2, .heads = 6}), 4, 1).error().text,
            "store block: K: head axis: 6 heads do not make 4 groups");
  EXPECT_TRUE(layouts::nhd(shape));
}

TEST(LayoutTest, SizesThatOverflowAreFlawsLikeOthers) {
  constexpr std::int64_t kHuge[] = {std::int64_t{1} << 31,
                                    std::int64_t{1} << 55,
                                    std::int64_t{1} << 62,
                                    std::numeric_limits<std::int64_t>::max(),
                                    -1,
                                    std::numeric_limits<std::int64_t>::min()};
  const auto linear = [](const CacheShape& shape) { return layouts::nvfp4(shape, layouts::ScaleOrder::kLinear); };
  const auto swizzled = [](const CacheShape& s) { return layouts::nvfp4(s, layouts::ScaleOrder::kSwizzledValues); };
  using namespace layouts;
  const std::vector<std::function<Checked<Layout>(const CacheShape&)>> makers = {
      nhd,      hnd,        joint_nhd,   joint_hnd,   kv_first_nhd, kv_first_hnd, packed_hnd,       packed_nhd,
      x_packed, fractal_nz, head_folded, mla,         mla_split,    ds_mla,       indexer,          slot_pool,
      batched,  ragged,     chunk,       cross_layer, linear,       swizzled,     inline_scales_nhd};
  const Layout sound = *nhd({.block_count = 2, .heads = 4, .element = Element::kInt8});
  for (const std::int64_t huge : kHuge) {
    for (const std::int64_t other : kHuge) {
      const CacheShape shapes[] = {
          {.block_count = huge, .block_tokens = other},
          {.block_count = 2, .block_tokens = huge, .heads = other},
          {.block_count = 2, .heads = huge, .key_size = other},
          {.block_count = huge, .key_size = huge, .value_size = other},
          {.block_count = other, .value_size = huge, .element = Element::kInt8},
          {.block_count = huge, .layer_count = other},
      };
      for (const CacheShape& shape : shapes) {
        for (const auto& make : makers) {
          const auto layout = make(shape);  // which of these a layout can hold is its own affair: no overflow is not
          EXPECT_FALSE(layout && find_flaw(*layout));
        }
      }
      EXPECT_FALSE(store_block(sound, huge, other));
      EXPECT_FALSE(store_block(sound, 1, huge, other));
      EXPECT_FALSE(slice_heads(sound, huge, other));
      const Tensor strided{"bt", {2, 2}, {huge, other}, Element::kFp32, {Role::kKey}};
      EXPECT_FALSE(make_layout("strided", {&strided, 1})) << huge << ' ' << other;
    }
    EXPECT_FALSE(nhd({.block_count = 2, .layer_count = huge}));
  }
}

TEST(LayoutTest, BindingTakesOnePointerForEachAllocation) {
  std::vector<std::byte> memory(1);
  std::array<void*, 4> pointers;
  pointers.fill(memory.data());
  const CacheShape shape{.block_count = 2, .layer_count = 2};
  EXPECT_TRUE(bind_layout(*layouts::nhd(shape), pointers));
  EXPECT_EQ(bind_layout(*layouts::cross_layer(shape), pointers).error().text,
            "cross-layer: 4 pointers for 1 allocations");
  const BoundLayout bound = *bind_layout(*layouts::cross_layer(shape), std::span(pointers).first(1));
  EXPECT_EQ(bound.base(1, 0) - memory.data(), 2 * 16 * 128 * 2);
  EXPECT_EQ(slice_layers(bound, 1, 1).base(0, 1), bound.base(1, 1));
}

TEST(LayoutTest, HeadsOfABoundLayoutAreTheSameHeadsInTheSamePlace) {
  for (const auto& make : {layouts::nhd, layouts::x_packed, layouts::cross_layer}) {
    const Layout layout = *make({.block_count = 3, .heads = 6, .key_size = 32, .layer_count = 2});
    std::vector<std::vector<std::byte>> memory;
    std::vector<void*> pointers;
    for (int i = 0; i < layout.tensor_count * (layout.has_all_layers_in_tensor ? 1 : 2); ++i) {
      pointers.push_back(memory.emplace_back(static_cast<std::size_t>(layout.tensor_bytes(0))).data());
    }
    const BoundLayout whole = *bind_layout(layout, pointers);
    const BoundLayout part = *slice_heads(whole, 2, 3);
    for (std::int64_t layer = 0; layer < 2; ++layer) {
      for (std::size_t c = 0; c < 2; ++c) {
        for (std::int64_t head = 0; head < 3; ++head) {
          EXPECT_EQ(part.address(layer, c, 21, head, 7), whole.address(layer, c, 21, 2 + head, 7)) << layout.name;
        }
      }
    }
    EXPECT_FALSE(slice_heads(whole, 4, 3));
  }
}

}  // namespace
}  // namespace kv
