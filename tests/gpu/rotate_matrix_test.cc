// Group G of the matrix: keys turned from the positions they were computed at to others, against rotation in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "gpu/rotary.h"
#include "tests/gpu/backend.h"
#include "tests/gpu/matrix.h"

namespace kv {
namespace {

using Kind = Operation::Kind;

/// The step between neighbouring numbers of `element` at `value`.
double ulp_of(Element element, double value) {
  int mantissa_bits = 23, exponent_min = -126;
  if (element == Element::kFp16) mantissa_bits = 10, exponent_min = -14;
  if (element == Element::kBf16) mantissa_bits = 7;
  if (element == Element::kE4M3) mantissa_bits = 3, exponent_min = -6;
  const int exponent = value == 0 ? exponent_min : std::max(std::ilogb(value), exponent_min);
  return std::ldexp(1.0, exponent - mantissa_bits);
}

class RotateMatrixTest : public MatrixTest {
 protected:
  void SetUp() override {
    MatrixTest::SetUp();
    random_.seed(seed_);
  }
  /// Every feature of the turned component within tolerance, everything else bit for bit.
  void expect_turned(const TestCache& got, const Rows& rows, const TestCache& from, std::int64_t row_count, Role turned,
                     const Rotation& rotation) {
    for (const Component& each : got.layout().components) {
      for (std::int64_t row = 0; row < row_count; ++row) {
        const std::int64_t slot = rows.slot(row);
        if (slot < 0) continue;
        const std::int64_t delta = rotation.deltas ? rotation.deltas[row] : rotation.delta;
        const std::int64_t size = each.role == turned && delta != 0 ? rotation.rotary_size : 0;
        for (std::int64_t head = 0; head < each.heads(); ++head) {
          for (std::int64_t f = size; f < each.features(); ++f) {
            ASSERT_EQ(got.code(0, each.role, slot, head, f), from.code(0, each.role, row, head, f)) << f;
          }
          for (std::int64_t i = 0; i < size / 2; ++i) {
            const bool is_neox = rotation.style == RopeStyle::kNeox;
            const std::int64_t first = is_neox ? i : 2 * i;
            const std::int64_t second = is_neox ? i + size / 2 : 2 * i + 1;
            const double a = from.value(0, each.role, row, head, first);
            const double b = from.value(0, each.role, row, head, second);
            const long double angle = static_cast<long double>(delta) * rotation.frequencies[i];
            const double cosine = static_cast<double>(std::cos(angle)), sine = static_cast<double>(std::sin(angle));
            const double slack = std::ldexp(std::fabs(a) + std::fabs(b), -21);
            const double want_first = a * cosine - b * sine, want_second = b * cosine + a * sine;
            const double got_first = got.value(0, each.role, slot, head, first);
            const double got_second = got.value(0, each.role, slot, head, second);
            ASSERT_LE(std::fabs(got_first - want_first), 0.5 * ulp_of(each.element, got_first) + slack) << first;
            ASSERT_LE(std::fabs(got_second - want_second), 0.5 * ulp_of(each.element, got_second) + slack) << second;
          }
        }
      }
    }
  }

  const std::uint64_t seed_ = test_seed();
  std::mt19937_64 random_;
};

TEST_P(RotateMatrixTest, KeysTurnByTheDifferenceAndValuesStay) {
  SCOPED_TRACE(seed_text(seed_));
  for (const NamedMaker& maker : copy_layouts()) {
    const std::string name = maker.name;
    const bool is_latent = name.find("MLA") != std::string::npos;
    if (!is_latent && !name.starts_with("L1 ") && !name.starts_with("L2 ") && !name.starts_with("L7")) continue;
    const Role turned = is_latent ? Role::kRope : Role::kKey;
    for (const Element element : {Element::kBf16, Element::kFp16, Element::kFp32, Element::kE4M3}) {
      for (const std::int64_t size : {64, 32}) {
        for (const RopeStyle style : {RopeStyle::kNeox, RopeStyle::kGptj}) {
          for (const std::int64_t delta : {0, 1, -1, 4095, -4095, 1 << 20}) {
            SCOPED_TRACE(name + " " + std::string(element_name(element)) + " R " + std::to_string(size) + " delta " +
                         std::to_string(delta));
            const CacheShape shape{.block_count = 2,
                                   .block_tokens = 16,
                                   .heads = is_latent ? 1 : 2,
                                   .key_size = is_latent ? 512 : 64,
                                   .value_size = 64,
                                   .element = element};
            const Layout layout = maker.make(shape).value();
            TestCache rows(dense_rows(layout, 6));
            for (const Component& each : rows.layout().components) {
              for (std::int64_t row = 0; row < 6; ++row) {
                for (std::int64_t head = 0; head < each.heads(); ++head) {
                  for (std::int64_t f = 0; f < each.features(); ++f) {
                    rows.set(0, each.role, row, head, f, std::normal_distribution<float>()(random_));
                  }
                }
              }
            }
            TestCache cache(layout);
            const auto slots = random_slots(random_, 6, 32, true);
            const std::vector<double> frequencies = rope_frequencies(10000.0, size);
            const std::vector<std::int64_t> deltas = {delta, 0, -delta, delta / 2, 7, delta};
            Operation turn(Kind::kRotate);
            turn.rotation = {.style = style, .rotary_size = size, .frequencies = frequencies.data(), .delta = delta};
            for (const bool is_per_row : {false, true}) {
              if (is_per_row) turn.rotation.deltas = deltas.data();
              ASSERT_TRUE(backend().permute(cache, Rows::slots(slots.data()), rows, Rows::range(), 6, turn));
              ASSERT_NO_FATAL_FAILURE(expect_turned(cache, Rows::slots(slots.data()), rows, 6, turned, turn.rotation));
            }
          }
        }
      }
    }
  }
}

TEST_P(RotateMatrixTest, ADifferenceOfZeroKeepsEveryBit) {
  SCOPED_TRACE(seed_text(seed_));
  for (const Element element : {Element::kBf16, Element::kFp16, Element::kFp32, Element::kE4M3, Element::kE5M2}) {
    const Layout layout = layouts::nhd({.block_count = 2, .heads = 4, .key_size = 64, .element = element}).value();
    TestCache rows(dense_rows(layout, 32));
    rows.fill_random(random_);  // NaNs and infinities among them
    TestCache turned(layout), copied(layout);
    const auto frequencies = rope_frequencies(10000.0, 64);
    Operation turn(Kind::kRotate);
    turn.rotation = {.rotary_size = 64, .frequencies = frequencies.data()};
    ASSERT_TRUE(backend().permute(turned, Rows::range(), rows, Rows::range(), 32, turn));
    ASSERT_TRUE(backend().permute(copied, Rows::range(), rows, Rows::range(), 32, Operation()));
    ASSERT_TRUE(same_bytes(turned, copied));
  }
}

/// Where features lie side by side several turn at once, elsewhere one by one; NaNs, infinities and rounding are the
/// same.
TEST_P(RotateMatrixTest, EveryBitIsTheSameWhereverFeaturesLie) {
  SCOPED_TRACE(seed_text(seed_));
  for (const Element element : {Element::kBf16, Element::kFp32}) {
    for (const std::int64_t size : {64, 48, 36, 34}) {
      for (const RopeStyle style : {RopeStyle::kNeox, RopeStyle::kGptj}) {
        for (const HostStores stores : {HostStores::kCached, HostStores::kStreaming}) {
          const CacheShape shape{.block_count = 3, .heads = 3, .key_size = 64, .element = element};
          TestCache rows(dense_rows(layouts::nhd(shape).value(), 40));
          rows.fill_random(random_);
          TestCache beside(layouts::hnd(shape).value()), apart(layouts::x_packed(shape).value());
          const auto slots = random_slots(random_, 40, 48, true);
          const auto frequencies = rope_frequencies(10000.0, size);
          std::vector<std::int64_t> deltas(40, 77);  // differences in runs, as modules have them, and singly
          for (std::size_t i = 20; i < deltas.size(); ++i) deltas[i] = static_cast<std::int64_t>(random_() % 3) - 1;
          Operation turn(Kind::kRotate);
          turn.host_stores = stores;
          turn.rotation = {
              .style = style, .rotary_size = size, .frequencies = frequencies.data(), .deltas = deltas.data()};
          for (TestCache* cache : {&beside, &apart})
            ASSERT_TRUE(backend().permute(*cache, Rows::slots(slots.data()), rows, Rows::range(), 40, turn));
          for (std::size_t row = 0; row < slots.size(); ++row) {
            for (std::int64_t head = 0; head < 3 && slots[row] >= 0; ++head) {
              for (std::int64_t f = 0; f < 64; ++f) {
                ASSERT_EQ(beside.code(0, Role::kKey, slots[row], head, f),
                          apart.code(0, Role::kKey, slots[row], head, f))
                    << element_name(element) << " R " << size << " row " << row << " f " << f;
              }
            }
          }
        }
      }
    }
  }
}

/// Int8 and e4m3 with a scale a head: a turned pair may be 1.4 times as large as the larger of the two was.
TEST_P(RotateMatrixTest, KeysWithAScaleAHeadGetANewOne) {
  SCOPED_TRACE(seed_text(seed_));
  for (const Element element : {Element::kInt8, Element::kE4M3}) {
    for (const bool is_inline : {false, true}) {
      for (const RopeStyle style : {RopeStyle::kNeox, RopeStyle::kGptj}) {
        const CacheShape shape{.block_count = 2, .heads = 3, .key_size = 64, .element = element};
        const Layout layout = is_inline ? layouts::inline_scales_nhd(shape).value()
                                        : layouts::with_token_head_scales(layouts::nhd(shape).value()).value();
        const float largest = element_max(element);
        TestCache rows(dense_rows(layout, 6)), cache(layout);
        for (std::int64_t row = 0; row < 6; ++row) {
          for (std::int64_t head = 0; head < 3; ++head) {
            for (const Role role : {Role::kKey, Role::kValue}) {
              for (std::int64_t f = 0; f < 64; ++f)
                rows.set(0, role, row, head, f, f == 0 ? largest : static_cast<float>(random_() % 255) - 127.0F);
            }
            if (row == 0) rows.set(0, Role::kKey, row, head, style == RopeStyle::kNeox ? 16 : 1, -largest);
            rows.set(0, Role::kKeyScale, row, head, 0, 0.01F * static_cast<float>(head + 1));
            rows.set(0, Role::kValueScale, row, head, 0, 0.5F);
          }
        }
        std::vector<double> frequencies = rope_frequencies(10000.0, 32);
        frequencies[0] = std::numbers::pi / 4;  // the first pair by 45 degrees: both parts add up
        const std::vector<std::int64_t> deltas = {1, 0, -3, 70, 1 << 20, 1};
        Operation turn(Kind::kRotate);
        turn.rotation = {.style = style, .rotary_size = 32, .frequencies = frequencies.data(), .deltas = deltas.data()};
        const auto slots = random_slots(random_, 6, cache.layout().slot_count(), false);
        ASSERT_TRUE(backend().permute(cache, Rows::slots(slots.data()), rows, Rows::range(), 6, turn));
        for (std::int64_t row = 0; row < 6; ++row) {
          const std::int64_t slot = slots[static_cast<std::size_t>(row)], delta = deltas[static_cast<std::size_t>(row)];
          for (std::int64_t head = 0; head < 3; ++head) {
            const double old = rows.value(0, Role::kKeyScale, row, head, 0);
            std::vector<double> wanted(64);
            for (std::int64_t f = 0; f < 64; ++f)
              wanted[static_cast<std::size_t>(f)] = rows.value(0, Role::kKey, row, head, f) * old;
            for (std::int64_t i = 0; i < 16 && delta != 0; ++i) {
              double& a = wanted[static_cast<std::size_t>(style == RopeStyle::kNeox ? i : 2 * i)];
              double& b = wanted[static_cast<std::size_t>(style == RopeStyle::kNeox ? i + 16 : 2 * i + 1)];
              const double angle = std::remainder(static_cast<double>(delta) * frequencies[static_cast<std::size_t>(i)],
                                                  2 * std::numbers::pi);
              const double turned_a = a * std::cos(angle) - b * std::sin(angle);
              b = b * std::cos(angle) + a * std::sin(angle);
              a = turned_a;
            }
            double amax = 0;
            for (const double each : wanted) amax = std::max(amax, std::fabs(each));
            const double scale = cache.value(0, Role::kKeyScale, slot, head, 0);
            if (delta == 0) {
              ASSERT_EQ(scale, old);
            } else {
              ASSERT_NEAR(scale, std::max(amax / largest, 1e-6), 1e-5 * scale);
            }
            if (row == 0) {
              ASSERT_GT(amax, 1.41 * largest * old);
            }
            for (std::int64_t f = 0; f < 64; ++f) {
              const double code = cache.value(0, Role::kKey, slot, head, f);
              const double step = element == Element::kInt8 ? 1 : ulp_of(element, code);
              ASSERT_NEAR(code * scale, wanted[static_cast<std::size_t>(f)], (0.5 * step + 1e-3) * scale)
                  << element_name(element) << " row " << row << " f " << f;
              ASSERT_EQ(cache.code(0, Role::kValue, slot, head, f), rows.code(0, Role::kValue, row, head, f));
            }
            ASSERT_EQ(cache.value(0, Role::kValueScale, slot, head, 0), 0.5F);
          }
        }
      }
    }
  }
}

/// What a model stores for x at a position: m * R(position) x.
std::vector<float> key_at(const std::vector<float>& x, double position, RopeStyle style, double m) {
  const auto frequencies = rope_frequencies(10000.0, static_cast<std::int64_t>(x.size()));
  std::vector<float> key(x.size());
  for (std::size_t i = 0; i < x.size() / 2; ++i) {
    const std::size_t first = style == RopeStyle::kNeox ? i : 2 * i;
    const std::size_t second = style == RopeStyle::kNeox ? i + x.size() / 2 : 2 * i + 1;
    const double cosine = std::cos(position * frequencies[i]) * m, sine = std::sin(position * frequencies[i]) * m;
    key[first] = static_cast<float>(x[first] * cosine - x[second] * sine);
    key[second] = static_cast<float>(x[second] * cosine + x[first] * sine);
  }
  return key;
}

TEST_P(RotateMatrixTest, GoldenKeysTurnIntoEachOtherWhateverTheirScalingWas) {
  const std::vector<float> x = {1, 2, 3, 4};
  const std::vector<float> neox_7 = {-1.217058F, 1.715331F, 2.918693F, 4.130090F};
  const std::vector<float> neox_3 = {-1.413353F, 1.879118F, -2.828857F, 4.058191F};
  const std::vector<float> gptj_7 = {-0.560071F, 2.164791F, 2.712882F, 4.200033F};
  const std::vector<float> gptj_3 = {-1.272233F, -1.838865F, 2.878668F, 4.088187F};
  const auto frequencies = rope_frequencies(10000.0, 4);
  const Layout layout = layouts::nhd({.block_count = 1, .heads = 1, .key_size = 4, .element = Element::kFp32}).value();
  for (const RopeStyle style : {RopeStyle::kNeox, RopeStyle::kGptj}) {
    const bool is_neox = style == RopeStyle::kNeox;
    for (const double m : {1.0, 1.2079}) {  // YaRN multiplies cosine and sine by m: turning must not do so again
      const auto at_7 = key_at(x, 7, style, m);
      const auto at_3 = key_at(x, 3, style, m);
      TestCache rows(dense_rows(layout, 1)), cache(layout);
      for (std::int64_t f = 0; f < 4; ++f) {
        const auto i = static_cast<std::size_t>(f);
        if (m == 1.0) {
          EXPECT_NEAR(at_7[i], (is_neox ? neox_7 : gptj_7)[i], 1e-6);
        }
        rows.set(0, Role::kKey, 0, 0, f, at_7[i]);
        rows.set(0, Role::kValue, 0, 0, f, at_7[i]);
      }
      Operation turn(Kind::kRotate);
      turn.rotation = {.style = style, .rotary_size = 4, .frequencies = frequencies.data(), .delta = -4};
      ASSERT_TRUE(backend().permute(cache, Rows::range(3), rows, Rows::range(), 1, turn));
      for (std::int64_t f = 0; f < 4; ++f) {
        const auto i = static_cast<std::size_t>(f);
        if (m == 1.0) {
          EXPECT_NEAR(cache.value(0, Role::kKey, 3, 0, f), (is_neox ? neox_3 : gptj_3)[i], 1e-5);
        }
        EXPECT_NEAR(cache.value(0, Role::kKey, 3, 0, f), at_3[i], 1e-5);
        EXPECT_EQ(cache.value(0, Role::kValue, 3, 0, f), at_7[i]);
      }
    }
  }
}

TEST_P(RotateMatrixTest, RefusesSizesThatCannotTurn) {
  const Layout layout = layouts::nhd({.block_count = 1, .heads = 1, .key_size = 8, .element = Element::kFp32}).value();
  TestCache rows(dense_rows(layout, 1)), cache(layout);
  const auto frequencies = rope_frequencies(10000.0, 16);
  Operation turn(Kind::kRotate);
  for (const std::int64_t size : {0, 3, 10, -2}) {
    turn.rotation = {.rotary_size = size, .frequencies = frequencies.data(), .delta = 1};
    EXPECT_EQ(backend().permute(cache, Rows::range(), rows, Rows::range(), 1, turn).error(), Errc::kMismatch) << size;
  }
}

TEST_P(RotateMatrixTest, RefusesCodesThatWouldLoseTheirScale) {
  const CacheShape shape{.block_count = 1, .heads = 1, .key_size = 64, .element = Element::kInt8};
  CacheShape wide = shape;
  wide.element = Element::kBf16;
  const Layout bare = layouts::nhd(shape).value(), numbers = layouts::nhd(wide).value();
  const Layout scaled = layouts::with_token_head_scales(bare).value();
  const auto frequencies = rope_frequencies(10000.0, 64);
  Operation turn(Kind::kRotate);
  turn.rotation = {.rotary_size = 64, .frequencies = frequencies.data(), .delta = 1};
  const auto outcome = [&](const Layout& to, const Layout& from) {
    TestCache rows(dense_rows(from, 1)), cache(to);
    return backend().permute(cache, Rows::range(), rows, Rows::range(), 1, turn);
  };
  EXPECT_EQ(outcome(bare, scaled).error(), Errc::kMismatch);
  EXPECT_EQ(outcome(numbers, scaled).error(), Errc::kMismatch);
  EXPECT_EQ(outcome(scaled, numbers).error(), Errc::kMismatch);
  EXPECT_TRUE(outcome(scaled, scaled));
  // Two numbers in a byte are not turned, not even when a head is so small that it has one scale.
  CacheShape packed = shape;
  packed.key_size = 16;
  packed.element = Element::kE2M1x2;
  const Layout nvfp4 = layouts::nvfp4(packed, layouts::ScaleOrder::kLinear).value();
  turn.rotation.rotary_size = 16;
  EXPECT_EQ(outcome(nvfp4, nvfp4).error(), Errc::kMismatch);
}

KV_INSTANTIATE_MATRIX(RotateMatrixTest);

}  // namespace
}  // namespace kv
