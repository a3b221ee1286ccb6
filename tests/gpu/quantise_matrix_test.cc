// Groups D and E of the matrix: static casts and dynamic quantisation, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>

#include "tests/gpu/backend.h"
#include "tests/gpu/matrix.h"

namespace kv {
namespace {

using Kind = Operation::Kind;

/// Values that conversions get wrong first, then random ones.
void fill_numbers(TestCache& cache, std::mt19937_64& random) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> special = {std::numeric_limits<float>::quiet_NaN(),
                                      kInfinity,
                                      -kInfinity,
                                      -0.0F,
                                      0.0F,
                                      1e-7F,
                                      -6e-8F,
                                      1e-38F,
                                      500.0F,
                                      -60000.0F,
                                      1e30F,
                                      1.0625F,
                                      1.1875F,
                                      -1.0625F,
                                      0.5F,
                                      1.5F,
                                      2.5F,
                                      -2.5F,
                                      63.5F,
                                      127.5F,
                                      -128.5F,
                                      448.0F,
                                      464.0F,
                                      0.0009F,
                                      0.001953125F};
  std::size_t next = 0;
  for (const Component& each : cache.layout().components) {
    for (std::int64_t layer = 0; layer < cache.layout().layer_count; ++layer) {
      for (std::int64_t slot = 0; slot < cache.layout().slot_count(); ++slot) {
        for (std::int64_t head = 0; head < each.heads(); ++head) {
          for (std::int64_t f = 0; f < each.features(); ++f) {
            const float number = random() % 4 == 0 ? special[next++ % special.size()]
                                                   : std::normal_distribution<float>(0.0F, 3.0F)(random);
            cache.set(layer, each.role, slot, head, f, number);
          }
        }
      }
    }
  }
}

class CastMatrixTest : public MatrixTest {
 protected:
  /// from -> to under `operation`, checked element by element against the definition.
  void expect_cast(TestCache& to, TestCache& from, const Rows& to_rows, std::int64_t count,
                   const Operation& operation) {
    TestCache want = to;
    for (const Component& each : to.layout().components) {
      const auto role = static_cast<std::size_t>(each.role);
      for (std::int64_t layer = 0; layer < to.layout().layer_count; ++layer) {
        for (std::int64_t row = 0; row < count; ++row) {
          if (to_rows.slot(row) < 0) continue;
          for (std::int64_t head = 0; head < each.heads(); ++head) {
            for (std::int64_t f = 0; f < each.features(); ++f) {
              const float value = from.value(layer, each.role, row, head, f);
              want.set(layer, each.role, to_rows.slot(row), head, f,
                       value * operation.from_scale[role] / operation.to_scale[role]);
            }
          }
        }
      }
    }
    ASSERT_TRUE(backend().permute(to, to_rows, from, Rows::range(), count, operation));
    ASSERT_TRUE(same_bytes(to, want));
  }
};

TEST_P(CastMatrixTest, StaticScalesRoundAndSaturateBothWays) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE(seed_text(seed));
  std::mt19937_64 random(seed);
  for (const NamedMaker& maker : copy_layouts()) {
    const std::string name = maker.name;
    if (!name.starts_with("L1 ") && !name.starts_with("L2 ") && !name.starts_with("L7") && !name.starts_with("L9") &&
        !name.starts_with("L11")) {
      continue;
    }
    for (const Element wide : {Element::kFp16, Element::kBf16, Element::kFp32}) {
      for (const Element narrow : {Element::kE4M3, Element::kE5M2, Element::kInt8}) {
        for (const float scale : {1.0F, 0.5F, 0.013F}) {
          SCOPED_TRACE(name + " " + std::string(element_name(wide)) + " to " + std::string(element_name(narrow)) +
                       " scale " + std::to_string(scale));
          CacheShape shape{.block_count = 2,
                           .block_tokens = 16,
                           .heads = 2,
                           .key_size = 64,
                           .value_size = 64,
                           .layer_count = 2,
                           .element = narrow};
          if (name.starts_with("L11")) shape.heads = 1;
          const Layout quantised = maker.make(shape).value();
          shape.element = wide;
          const Layout plain = maker.make(shape).value();
          const auto slots = random_slots(random, 20, quantised.slot_count(), true);
          TestCache numbers(dense_rows(plain, 20));
          fill_numbers(numbers, random);
          TestCache cache(quantised);
          Operation down(Kind::kCast);
          std::ranges::fill(down.to_scale, scale);
          ASSERT_NO_FATAL_FAILURE(expect_cast(cache, numbers, Rows::slots(slots.data()), 20, down));
          TestCache codes(dense_rows(quantised, 20));
          codes.fill_random(random);
          TestCache back(plain);
          Operation up(Kind::kCast);
          std::ranges::fill(up.from_scale, scale);
          ASSERT_NO_FATAL_FAILURE(expect_cast(back, codes, Rows::slots(slots.data()), 20, up));
        }
      }
    }
  }
}

TEST_P(CastMatrixTest, KeysAndValuesHaveScalesOfTheirOwn) {
  CacheShape shape{.block_count = 2, .heads = 1, .key_size = 8, .element = Element::kE4M3};
  TestCache cache(layouts::nhd(shape).value());
  shape.element = Element::kFp16;
  TestCache rows(dense_rows(layouts::nhd(shape).value(), 1));
  for (std::int64_t f = 0; f < 8; ++f) rows.set(0, Role::kKey, 0, 0, f, 3.3F), rows.set(0, Role::kValue, 0, 0, f, 3.3F);
  Operation cast(Kind::kCast);
  cast.to_scale[static_cast<int>(Role::kKey)] = 0.5F;
  ASSERT_TRUE(backend().permute(cache, Rows::range(5), rows, Rows::range(), 1, cast));
  EXPECT_EQ(cache.code(0, Role::kKey, 5, 0, 3), 0x4D);
  EXPECT_EQ(cache.code(0, Role::kValue, 5, 0, 3),
            encode_element(Element::kE4M3, decode_element(Element::kFp16, encode_element(Element::kFp16, 3.3F))));
}

KV_INSTANTIATE_MATRIX(CastMatrixTest);

/// How one quantised component should come out: the definitions of the formats, written out once more.
struct Expected {
  std::vector<float> scales;  ///< as readers see them
  std::vector<std::uint32_t> codes;
};
Expected quantise(const std::vector<float>& values, ScaleRule rule, Element element, std::size_t group, float global) {
  Expected result;
  for (std::size_t start = 0; start < values.size(); start += group) {
    float amax = 0;
    for (std::size_t i = start; i < start + group; ++i) amax = std::fmax(amax, std::fabs(values[i]));
    float scale = 0;
    if (rule == ScaleRule::kTokenHead) scale = std::max(amax / (element == Element::kInt8 ? 127.0F : 448.0F), 1e-6F);
    if (rule == ScaleRule::kTile) scale = std::max(amax / 448.0F, FLT_MIN);
    if (rule == ScaleRule::kIndexer || rule == ScaleRule::kIndexerPowerOfTwo) scale = std::max(amax, 1e-4F) / 448.0F;
    if (rule == ScaleRule::kIndexerPowerOfTwo) scale = std::exp2(std::ceil(std::log2(scale)));
    if (rule == ScaleRule::kNvfp4) {
      scale = decode_element(Element::kE4M3, encode_element(Element::kE4M3, amax / (6.0F * global)));
    }
    result.scales.push_back(scale);
    for (std::size_t i = start; i < start + group; ++i) {
      const float divisor = rule == ScaleRule::kNvfp4 ? scale * global : scale;
      const float quotient = divisor == 0 ? 0 : values[i] / divisor;
      result.codes.push_back(rule == ScaleRule::kNvfp4 ? encode_small(kE2M1Format, quotient)
                                                       : encode_element(element, quotient));
    }
  }
  return result;
}

struct DynamicCase {
  const char* name;
  Layout quantised;
  Layout plain;
  ScaleRule rule;
  std::vector<std::pair<Role, Role>> scaled;  ///< component, its scales
  float global = 1.0F;
};

std::vector<DynamicCase> dynamic_cases(Element wide) {
  CacheShape shape{.block_count = 3, .block_tokens = 16, .heads = 3, .key_size = 64, .layer_count = 2, .element = wide};
  const CacheShape latent{.block_count = 3,
                          .block_tokens = 16,
                          .key_size = 512,
                          .value_size = 64,
                          .layer_count = 2,
                          .element = Element::kBf16};
  const auto of = [&](Element element) {
    CacheShape quantised = shape;
    quantised.element = element;
    return quantised;
  };
  const std::vector<std::pair<Role, Role>> both = {{Role::kKey, Role::kKeyScale}, {Role::kValue, Role::kValueScale}};
  Layout index_rows =
      layouts::ragged(
          {.block_count = 1, .block_tokens = 48, .heads = 1, .key_size = 128, .layer_count = 2, .element = wide})
          .value();
  index_rows.components = {index_rows.components[0]};
  index_rows.components[0].role = Role::kIndexKey;
  const Layout plain = layouts::nhd(shape).value();
  const CacheShape index{.block_count = 3, .block_tokens = 16, .key_size = 128, .layer_count = 2};
  return {
      {"NHD int8 side", layouts::with_token_head_scales(layouts::nhd(of(Element::kInt8)).value()).value(), plain,
       ScaleRule::kTokenHead, both},
      {"NHD e4m3 side", layouts::with_token_head_scales(layouts::nhd(of(Element::kE4M3)).value()).value(), plain,
       ScaleRule::kTokenHead, both},
      {"HND int8 side", layouts::with_token_head_scales(layouts::hnd(of(Element::kInt8)).value()).value(), plain,
       ScaleRule::kTokenHead, both},
      {"NHD e4m3 inline", layouts::inline_scales_nhd(of(Element::kE4M3)).value(), plain, ScaleRule::kTokenHead, both},
      {"ds_mla",
       layouts::ds_mla(latent).value(),
       layouts::mla(latent).value(),
       ScaleRule::kTile,
       {{Role::kLatent, Role::kLatentScale}}},
      {"indexer",
       layouts::indexer(index).value(),
       index_rows,
       ScaleRule::kIndexer,
       {{Role::kIndexKey, Role::kIndexScale}}},
      {"indexer ue8m0",
       layouts::indexer(index).value(),
       index_rows,
       ScaleRule::kIndexerPowerOfTwo,
       {{Role::kIndexKey, Role::kIndexScale}}},
      {"NVFP4", layouts::nvfp4(shape, layouts::ScaleOrder::kLinear).value(), plain, ScaleRule::kNvfp4, both, 0.01F},
      {"NVFP4 swizzled", layouts::nvfp4(shape, layouts::ScaleOrder::kSwizzledValues).value(), plain, ScaleRule::kNvfp4,
       both, 0.01F}};
}

class DynamicMatrixTest : public MatrixTest {
 protected:
  static std::uint32_t code_at(const TestCache& cache, std::int64_t layer, Role role, std::int64_t slot,
                               std::int64_t head, std::int64_t value) {
    if (cache.layout().find(role)->element != Element::kE2M1x2) return cache.code(layer, role, slot, head, value);
    return cache.code(layer, role, slot, head, value / 2) >> (value % 2 * 4) & 15;
  }
};

TEST_P(DynamicMatrixTest, EveryGroupGetsItsScaleAndGoesBackThroughIt) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE(seed_text(seed));
  std::mt19937_64 random(seed);
  for (const Element wide : {Element::kBf16, Element::kFp16}) {
    for (const DynamicCase& each : dynamic_cases(wide)) {
      SCOPED_TRACE(std::string(each.name) + " from " + std::string(element_name(wide)));
      constexpr std::int64_t kRows = 20;
      TestCache rows(dense_rows(each.plain, kRows));
      for (const Component& part : rows.layout().components) {
        for (std::int64_t layer = 0; layer < 2; ++layer) {
          for (std::int64_t row = 0; row < kRows; ++row) {
            for (std::int64_t head = 0; head < part.heads(); ++head) {
              for (std::int64_t f = 0; f < part.features(); ++f) {
                float number = std::normal_distribution<float>(0.0F, 0.3F)(random);
                if (row == 3) number = 0.0F;
                if (row == 5) number = f == 7 ? 250.0F : number;  // one outlier
                rows.set(layer, part.role, row, head, f, number);
              }
            }
          }
        }
      }
      TestCache cache(each.quantised);
      const auto slots = random_slots(random, kRows, cache.layout().slot_count(), true);
      Operation down(Kind::kQuantise);
      down.scale_rule = each.rule;
      down.global_scale = each.global;
      ASSERT_TRUE(backend().permute(cache, Rows::slots(slots.data()), rows, Rows::range(), kRows, down));
      TestCache back(dense_rows(each.plain, kRows));
      Operation up(Kind::kDequantise);
      up.global_scale = each.global;
      ASSERT_TRUE(backend().permute(back, Rows::range(), cache, Rows::slots(slots.data()), kRows, up));
      for (const auto& [role, scale_role] : each.scaled) {
        const Component& part = *rows.layout().find(role);
        const auto group = static_cast<std::size_t>(part.features() / cache.layout().find(scale_role)->features());
        for (std::int64_t layer = 0; layer < 2; ++layer) {
          for (std::int64_t row = 0; row < kRows; ++row) {
            const std::int64_t slot = slots[static_cast<std::size_t>(row)];
            if (slot < 0) continue;
            for (std::int64_t head = 0; head < part.heads(); ++head) {
              std::vector<float> values;
              for (std::int64_t f = 0; f < part.features(); ++f)
                values.push_back(rows.value(layer, role, row, head, f));
              const Element element = cache.layout().find(role)->element;
              const Expected want = quantise(values, each.rule, element, group, each.global);
              for (std::size_t s = 0; s < want.scales.size(); ++s) {
                ASSERT_EQ(cache.value(layer, scale_role, slot, head, static_cast<std::int64_t>(s)), want.scales[s]);
              }
              for (std::int64_t f = 0; f < part.features(); ++f) {
                const std::uint32_t code = want.codes[static_cast<std::size_t>(f)];
                ASSERT_EQ(code_at(cache, layer, role, slot, head, f), code)
                    << role_name(role) << " row " << row << " f " << f;
                const float scale = want.scales[static_cast<std::size_t>(f) / group] * each.global;
                const float number =
                    (element == Element::kE2M1x2 ? decode_small(kE2M1Format, code) : decode_element(element, code)) *
                    scale;
                ASSERT_EQ(back.code(layer, role, row, head, f), encode_element(part.element, number));
              }
            }
          }
        }
      }
      if (const Component* rope = cache.layout().find(Role::kRope)) {  // never quantised
        for (std::int64_t row = 0; row < kRows; ++row) {
          const std::int64_t slot = slots[static_cast<std::size_t>(row)];
          if (slot < 0) continue;
          for (std::int64_t f = 0; f < rope->features(); ++f) {
            ASSERT_EQ(cache.code(1, Role::kRope, slot, 0, f), rows.code(1, Role::kRope, row, 0, f));
          }
        }
      }
    }
  }
}

TEST_P(DynamicMatrixTest, QuantisingLeavesOtherSlotsAlone) {
  for (const DynamicCase& each : dynamic_cases(Element::kBf16)) {
    SCOPED_TRACE(each.name);
    TestCache cache(each.quantised);
    TestCache rows(dense_rows(each.plain, 2));
    std::ranges::fill(rows.memory()[0], std::byte{0});
    const std::vector<std::int64_t> slots = {17, 40};
    Operation down(Kind::kQuantise);
    down.scale_rule = each.rule;
    TestCache want = cache;
    ASSERT_TRUE(backend().permute(cache, Rows::slots(slots.data()), rows, Rows::range(), 2, down));
    copy_elements(want, Rows::slots(slots.data()), cache, Rows::slots(slots.data()), 2);
    ASSERT_TRUE(same_bytes(cache, want));
  }
}

TEST_P(DynamicMatrixTest, GoldenRowOfFourBitValues) {
  const CacheShape shape{.block_count = 1, .block_tokens = 16, .heads = 1, .key_size = 16, .element = Element::kFp32};
  TestCache rows(dense_rows(layouts::nhd(shape).value(), 1));
  for (std::int64_t f = 0; f < 16; ++f) {
    rows.set(0, Role::kKey, 0, 0, f, 0.1F * static_cast<float>(f) - 0.7F);
    rows.set(0, Role::kValue, 0, 0, f, 0.0F);
  }
  TestCache cache(layouts::nvfp4(shape, layouts::ScaleOrder::kLinear).value());
  Operation down(Kind::kQuantise);
  down.scale_rule = ScaleRule::kNvfp4;
  down.global_scale = 0.01F;
  ASSERT_TRUE(backend().permute(cache, Rows::range(), rows, Rows::range(), 1, down));
  EXPECT_EQ(cache.code(0, Role::kKeyScale, 0, 0, 0), 0x55);
  const std::vector<std::uint32_t> golden = {0xEF, 0xDE, 0xBC, 0x0A, 0x32, 0x54, 0x66, 0x77};
  for (std::size_t i = 0; i < golden.size(); ++i) {
    EXPECT_EQ(cache.code(0, Role::kKey, 0, 0, static_cast<std::int64_t>(i)), golden[i]) << i;
  }
}

TEST_P(DynamicMatrixTest, GoldenScalesOfTokenHeadAndIndexer) {
  const CacheShape shape{.block_count = 1, .heads = 1, .key_size = 4, .element = Element::kFp32};
  TestCache rows(dense_rows(layouts::nhd(shape).value(), 1));
  for (const Role role : {Role::kKey, Role::kValue}) {
    rows.set(0, role, 0, 0, 0, 1.27F), rows.set(0, role, 0, 0, 1, -2.54F);
    rows.set(0, role, 0, 0, 2, 0.0F), rows.set(0, role, 0, 0, 3, 0.0F);
  }
  CacheShape bytes = shape;
  bytes.element = Element::kInt8;
  TestCache cache(layouts::with_token_head_scales(layouts::nhd(bytes).value()).value());
  ASSERT_TRUE(backend().permute(cache, Rows::range(), rows, Rows::range(), 1, Operation(Kind::kQuantise)));
  EXPECT_EQ(cache.code(0, Role::kKey, 0, 0, 0), 64);  // 63.5 to even; truncation would give 63
  EXPECT_EQ(cache.code(0, Role::kKey, 0, 0, 1), 0x81);
  const DynamicCase indexer = dynamic_cases(Element::kBf16)[6];
  TestCache keys(dense_rows(indexer.plain, 1));
  std::ranges::fill(keys.memory()[0], std::byte{0});
  keys.set(0, Role::kIndexKey, 0, 0, 9, 3.0F);
  TestCache index(indexer.quantised);
  Operation down(Kind::kQuantise);
  down.scale_rule = ScaleRule::kIndexerPowerOfTwo;
  ASSERT_TRUE(backend().permute(index, Rows::range(), keys, Rows::range(), 1, down));
  EXPECT_EQ(index.value(0, Role::kIndexScale, 0, 0, 0), 0.0078125F);
}

TEST_P(DynamicMatrixTest, AnInfinitySaturatesAndLeavesItsRowReadable) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Element element : {Element::kInt8, Element::kE4M3}) {
    CacheShape shape{.block_count = 1, .heads = 1, .key_size = 4, .element = Element::kFp32};
    TestCache rows(dense_rows(layouts::nhd(shape).value(), 1));
    for (const Role role : {Role::kKey, Role::kValue}) {
      rows.set(0, role, 0, 0, 0, kInfinity), rows.set(0, role, 0, 0, 1, -kInfinity);
      rows.set(0, role, 0, 0, 2, 2.0F), rows.set(0, role, 0, 0, 3, -1.0F);
    }
    shape.element = element;
    TestCache cache(layouts::with_token_head_scales(layouts::nhd(shape).value()).value());
    ASSERT_TRUE(backend().permute(cache, Rows::range(), rows, Rows::range(), 1, Operation(Kind::kQuantise)));
    const float largest = element_max(element);
    EXPECT_EQ(cache.value(0, Role::kKeyScale, 0, 0, 0), 2.0F / largest);
    EXPECT_EQ(cache.value(0, Role::kKey, 0, 0, 0), largest);
    EXPECT_LE(cache.value(0, Role::kKey, 0, 0, 1), -largest);  // int8 reaches to -128
    EXPECT_EQ(cache.value(0, Role::kKey, 0, 0, 2), largest);
    EXPECT_NEAR(cache.value(0, Role::kKey, 0, 0, 3), -largest / 2, 1);
  }
}

/// Codes are never left without the scales that they need, nor get others, unless the caller names just them.
TEST_P(DynamicMatrixTest, ScalesAreNotLostQuietly) {
  const CacheShape bytes{.block_count = 1, .heads = 1, .key_size = 16, .element = Element::kInt8};
  CacheShape wide = bytes;
  wide.element = Element::kBf16;
  const Layout bare = layouts::nhd(bytes).value(), numbers = layouts::nhd(wide).value();
  const Layout scaled = layouts::with_token_head_scales(bare).value();
  const auto outcome = [&](const Layout& to, const Layout& from, Kind kind, RoleMask roles = kAllRoles) {
    TestCache rows(dense_rows(from, 1)), cache(to);
    return backend().permute(cache, Rows::range(), rows, Rows::range(), 1, Operation(kind, roles));
  };
  EXPECT_EQ(outcome(bare, numbers, Kind::kQuantise).error(), Errc::kMismatch) << "no scales in the target";
  EXPECT_EQ(outcome(scaled, scaled, Kind::kQuantise).error(), Errc::kMismatch) << "codes, not numbers";
  EXPECT_EQ(outcome(numbers, bare, Kind::kDequantise).error(), Errc::kMismatch) << "no scales in the source";
  EXPECT_EQ(outcome(scaled, scaled, Kind::kDequantise).error(), Errc::kMismatch) << "readers would scale again";
  EXPECT_EQ(outcome(bare, scaled, Kind::kCopy).error(), Errc::kMismatch);
  EXPECT_EQ(outcome(numbers, scaled, Kind::kCast).error(), Errc::kMismatch);
  EXPECT_TRUE(outcome(scaled, scaled, Kind::kCopy));
  EXPECT_TRUE(outcome(scaled, numbers, Kind::kQuantise));
  EXPECT_TRUE(outcome(numbers, scaled, Kind::kDequantise));
  const RoleMask codes = role_bit(Role::kKey) | role_bit(Role::kValue);
  EXPECT_TRUE(outcome(bare, scaled, Kind::kCopy, codes)) << "by name";
  EXPECT_TRUE(outcome(numbers, scaled, Kind::kCast, codes)) << "by name";
  const auto why = explain_mismatch(bare, scaled, Operation());
  ASSERT_TRUE(why);
  EXPECT_NE(why->text.find("K scale"), std::string::npos) << why->text;
}

KV_INSTANTIATE_MATRIX(DynamicMatrixTest);

}  // namespace
}  // namespace kv
