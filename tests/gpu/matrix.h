// tests/gpu/matrix.h: what the cases of the matrix are made of: shapes that meet pairwise, layouts by name, dense
// sources.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "gpu/named_layouts.h"
#include "tests/gpu/test_cache.h"

namespace kv {

struct MatrixShape {
  std::int64_t block_tokens, heads, head_size, tokens, layers, misalign_bytes;
};

/// Shapes in which every two values of two measures meet, unless they are together too large for memory (2 Mi
/// elements).
inline std::vector<MatrixShape> pairwise_shapes(std::uint64_t seed) {
  const std::vector<std::vector<std::int64_t>> values = {{1, 16, 17, 32, 64, 128, 256},
                                                         {1, 2, 3, 8, 40, 64, 128},
                                                         {16, 64, 80, 96, 112, 128, 192, 256, 512, 576},
                                                         {0, 1, 5, 1000},
                                                         {1, 3, 80},
                                                         {0, 2, 4, 8}};
  constexpr std::size_t kMeasures = 6;
  using Row = std::array<std::size_t, kMeasures>;
  const auto is_small = [&](const Row& row) {
    const std::int64_t bs = values[0][row[0]];
    const std::int64_t slots = ((values[3][row[3]] + bs - 1) / bs + 2) * bs;
    return slots * values[1][row[1]] * values[2][row[2]] * values[4][row[4]] <= 2 << 20;
  };
  std::set<std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>> open;  // measure, value, measure, value
  for (std::size_t m = 0; m < kMeasures; ++m) {
    for (std::size_t n = m + 1; n < kMeasures; ++n) {
      for (std::size_t i = 0; i < values[m].size(); ++i) {
        for (std::size_t j = 0; j < values[n].size(); ++j) {
          Row least{};  // the smallest shape that has both: too large even so means that they never meet
          least[m] = i, least[n] = j;
          if (is_small(least)) open.emplace(m, i, n, j);
        }
      }
    }
  }
  std::mt19937_64 random(seed);
  std::vector<MatrixShape> shapes;
  while (!open.empty()) {
    Row best{};
    std::size_t best_count = 0;
    for (int attempt = 0; attempt < 60; ++attempt) {
      Row row{};
      const auto [m, i, n, j] =
          *std::next(open.begin(), static_cast<std::ptrdiff_t>(random() % std::min<std::size_t>(open.size(), 50)));
      if (attempt > 0) {
        for (std::size_t k = 0; k < kMeasures; ++k) row[k] = random() % values[k].size();
      }
      row[m] = i, row[n] = j;
      if (!is_small(row)) continue;
      std::size_t count = 0;
      for (std::size_t a = 0; a < kMeasures; ++a) {
        for (std::size_t b = a + 1; b < kMeasures; ++b) count += open.count({a, row[a], b, row[b]});
      }
      if (count > best_count) best = row, best_count = count;
    }
    if (best_count == 0) {  // no luck: the smallest shape with the first pair that is left
      const auto [m, i, n, j] = *open.begin();
      best = Row{};
      best[m] = i, best[n] = j;
    }
    for (std::size_t a = 0; a < kMeasures; ++a) {
      for (std::size_t b = a + 1; b < kMeasures; ++b) open.erase({a, best[a], b, best[b]});
    }
    shapes.push_back({values[0][best[0]], values[1][best[1]], values[2][best[2]], values[3][best[3]],
                      values[4][best[4]], values[5][best[5]]});
  }
  return shapes;
}

inline std::string to_string(const MatrixShape& s) {
  return "BS " + std::to_string(s.block_tokens) + " H " + std::to_string(s.heads) + " D " +
         std::to_string(s.head_size) + " T " + std::to_string(s.tokens) + " layers " + std::to_string(s.layers) +
         " misaligned by " + std::to_string(s.misalign_bytes);
}

/// The example of docs/kernels.md: four tokens of a feature side by side, so that the token axis has two digits.
inline Checked<Layout> tiled_by_four(const CacheShape& s) {
  const std::array<Tensor, 2> tensors = {
      Tensor{"bhTft", {s.block_count, s.heads, s.block_tokens / 4, s.key_size, 4}, {}, s.element, {Role::kKey}},
      Tensor{"bhTft", {s.block_count, s.heads, s.block_tokens / 4, s.key_size, 4}, {}, s.element, {Role::kValue}}};
  return make_layout("tiled by four", tensors, s.layer_count);
}

struct NamedMaker {
  const char* name;
  std::function<Checked<Layout>(const CacheShape&)> make;
  bool may_differ;  ///< V may have another size and element than K.
};
inline const std::vector<NamedMaker>& copy_layouts() {
  static const std::vector<NamedMaker> makers = {{"L1 NHD", layouts::nhd, true},
                                                 {"L2 HND", layouts::hnd, true},
                                                 {"L3 joint NHD", layouts::joint_nhd, false},
                                                 {"L4 joint HND", layouts::joint_hnd, false},
                                                 {"L5 kv-first NHD", layouts::kv_first_nhd, false},
                                                 {"L6 kv-first HND", layouts::kv_first_hnd, false},
                                                 {"L7 packed HND", layouts::packed_hnd, false},
                                                 {"L8 packed NHD", layouts::packed_nhd, false},
                                                 {"L9 x-packed", layouts::x_packed, true},
                                                 {"L10 NZ", layouts::fractal_nz, true},
                                                 {"L11 MLA", layouts::mla, true},
                                                 {"L12 MLA split", layouts::mla_split, true},
                                                 {"L15 slot pool", layouts::slot_pool, true},
                                                 {"L16 cross-layer", layouts::cross_layer, false},
                                                 {"L19 batched", layouts::batched, true},
                                                 {"L19 chunk", layouts::chunk, false},
                                                 {"tiled by four", tiled_by_four, false}};
  return makers;
}

/// The components of `cache` as plain rows [tokens, heads, features], all in one allocation or each in one of its own.
inline Layout dense_rows(const Layout& cache, std::int64_t tokens) {
  return layouts::store_block(cache, 1, 1, std::max<std::int64_t>(tokens, 1)).value();
}
/// The same with a gap after each token's row, as in a slice of a fused projection.
inline Layout strided_rows(const Layout& cache, std::int64_t tokens) {
  Layout rows = dense_rows(cache, tokens);
  std::int64_t offset = 0;
  for (Component& each : rows.components) {
    each.token.low.stride_bytes = each.token.low.stride_bytes * 3 + element_bytes(each.element) * 4;
    each.offset_bytes = offset;
    each.layer_stride_bytes = each.token.low.stride_bytes * rows.block_tokens;
    each.block_stride_bytes = each.layer_stride_bytes * rows.layer_count;
    offset += each.block_stride_bytes;
  }
  return rows;
}

/// `count` different slots below `slot_count` in random order, about one in eight replaced by -1 if `has_holes`.
inline std::vector<std::int64_t> random_slots(std::mt19937_64& random, std::int64_t count, std::int64_t slot_count,
                                              bool has_holes) {
  std::vector<std::int64_t> slots(static_cast<std::size_t>(slot_count));
  for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<std::int64_t>(i);
  std::ranges::shuffle(slots, random);
  slots.resize(static_cast<std::size_t>(count), -1);  // no slot twice: which row then wins is up to the device
  for (std::int64_t& slot : slots) {
    if (has_holes && random() % 8 == 0) slot = random() % 2 == 0 ? -1 : -1000;
  }
  return slots;
}

}  // namespace kv
