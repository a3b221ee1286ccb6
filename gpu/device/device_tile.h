// gpu/device/device_tile.h: transpositions, through a tile in shared memory: one side has contiguous tokens (x-packed
// V), the other contiguous features. Static casts go the same way: numbers are converted as they are loaded.
//
// A tile is 128 columns of 64 bytes of tokens; a column is a feature of a head, counted through all heads. The unit of
// shared memory is a word of 4 / sizeof(T) tokens of one column. Memory is read and written 16 bytes at once on both
// sides, and words are turned in registers, two or four at a time:
//
//      memory, features side by side        words of the tile              memory, tokens side by side
//      token 0  a0 b0 c0 d0 ...             a: [a0 a1] [a2 a3] ...         a0 a1 a2 a3 a4 a5 a6 a7
//      token 1  a1 b1 c1 d1 ...             b: [b0 b1] [b2 b3] ...         b0 b1 b2 b3 ...
//
// A side with random slots, blocks of an odd size or skipped rows falls back to single elements.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/device/device_rows.h"
#include "gpu/device/device_values.h"

namespace kv::device {

inline constexpr std::uint32_t kTileColumns = 128;
inline constexpr std::uint32_t kTileWords = 16;  // of a column
template <class T>
inline constexpr int kTokensOfWord = 4 / sizeof(T);
template <class T>
inline constexpr std::uint32_t kTileTokens = kTileWords* kTokensOfWord<T>;
template <class T>
inline constexpr std::uint32_t kVecElements = 16 / sizeof(T);

struct alignas(16) TileScratch {
  std::uint32_t words[kTileColumns * kTileWords];
  std::int64_t to_offsets[64];    ///< Of each token of the tile, from its component's base; negative: skip it.
  std::int64_t from_offsets[64];  ///< Negative for the same tokens.
  /// Per group of tokens of one access on that side: 1 if the group is broken up.
  std::uint32_t to_breaks[8];
  std::uint32_t from_breaks[8];
};

/// Index of a word. Spread over banks: a warp writes columns from each vector of features at once; four go to quads of
/// their own, the next four to the other half of the banks. Four words of a column stay side by side, in order.
template <class T>
constexpr std::uint32_t tile_word(std::uint32_t column, std::uint32_t word) {
  const std::uint32_t vec = column / kVecElements<T>;
  return (column ^ (vec >> 2 & 1)) * kTileWords + ((word >> 2 ^ (vec & 3)) << 2) + (word & 3);
}
template <class T>
constexpr T* tile_element(TileScratch& scratch, std::uint32_t column, std::uint32_t token) {
  std::uint32_t* word = &scratch.words[tile_word<T>(column, token / kTokensOfWord<T>)];
  return static_cast<T*>(static_cast<void*>(word)) + token % kTokensOfWord<T>;
}

/// Transposes words that are rows of a square of elements. Its own inverse.
template <class T>
constexpr void turn_words(std::uint32_t* words) {
  if constexpr (sizeof(T) == 2) {
    const std::uint32_t a = words[0], b = words[1];
    words[0] = permute_bytes<0x5410>(a, b);
    words[1] = permute_bytes<0x7632>(a, b);
  } else if constexpr (sizeof(T) == 1) {
    const std::uint32_t low01 = permute_bytes<0x5140>(words[0], words[1]);
    const std::uint32_t high01 = permute_bytes<0x7362>(words[0], words[1]);
    const std::uint32_t low23 = permute_bytes<0x5140>(words[2], words[3]);
    const std::uint32_t high23 = permute_bytes<0x7362>(words[2], words[3]);
    words[0] = permute_bytes<0x5410>(low01, low23);
    words[1] = permute_bytes<0x7632>(low01, low23);
    words[2] = permute_bytes<0x5410>(high01, high23);
    words[3] = permute_bytes<0x7632>(high01, high23);
  }
}

/// Offset of a column from its row's start.
constexpr std::int64_t column_offset(const Place& place, std::uint32_t values, std::uint32_t column) {
  const std::uint32_t head = column / values;
  return axis_offset(place.head, head) + axis_offset(place.feature, column - head * values);
}
constexpr bool has_tokens_side_by_side(const Place& place) {
  return place.token.low.extent > 1 && place.token.low.stride_bytes == element_bytes(place.element);
}

/// Tokens of one access: a cast converts eight at a time, a copy has 16 bytes.
template <class T>
constexpr std::uint32_t from_group(const Part& part) {
  return part.kind == Operation::Kind::kCast ? kEight : kVecElements<T>;
}

/// First step: places of a tile's rows.
template <class T, class Plan>
constexpr void find_tile_rows(const Plan& plan, const Part& part, std::int64_t row, TileScratch& scratch,
                              const Worker& worker) {
  for (auto i = static_cast<std::uint32_t>(worker.thread); i < kTileTokens<T>; i += worker.thread_count) {
    std::int64_t to = -1, from = -1;
    if (row + i < plan.row_count) {
      from = row_offset<false>(plan, false, part.from, row + i);
      if (from >= 0) to = row_offset<false>(plan, true, part.to, row + i);
    }
    scratch.to_offsets[i] = to;
    scratch.from_offsets[i] = to < 0 ? -1 : from;
  }
}

/// Whether `count` tokens are one access of `bytes`: contiguous, or all skipped.
constexpr bool is_one_access(const std::int64_t* offsets, std::uint32_t count, std::int64_t unit, std::int64_t bytes) {
  if (offsets[0] >= 0 && offsets[0] % bytes != 0) return false;
  for (std::uint32_t i = 1; i < count; ++i) {
    if (offsets[i] != (offsets[0] < 0 ? -1 : offsets[0] + i * unit)) return false;
  }
  return true;
}

/// Second step: finds the groups of tokens that are one access.
template <class T>
constexpr void find_tile_breaks(const Part& part, TileScratch& scratch, const Worker& worker) {
  for (auto i = static_cast<std::uint32_t>(worker.thread); i < 16; i += worker.thread_count) {
    const bool is_to = i < 8;
    const std::uint32_t each = is_to ? kVecElements<T> : from_group<T>(part), first = i % 8 * each;
    const std::int64_t unit = element_bytes(is_to ? part.to.element : part.from.element);
    const std::int64_t bytes = each * unit < 16 ? each * unit : 16;
    const std::int64_t* offsets = is_to ? scratch.to_offsets : scratch.from_offsets;
    const bool is_whole = first >= kTileTokens<T> || is_one_access(offsets + first, each, unit, bytes);
    (is_to ? scratch.to_breaks : scratch.from_breaks)[i % 8] = is_whole ? 0 : 1;
  }
}
constexpr bool has_breaks(const std::uint32_t* breaks) {
  std::uint32_t any = 0;
  for (int i = 0; i < 8; ++i) any |= breaks[i];
  return any != 0;
}

/// Eight numbers of the source as codes of the target, packed.
template <class T>
constexpr void convert_eight(const Part& part, const std::byte* at, std::uint32_t* words) {
  float values[kEight] = {};
  load_eight(part.from.element, at, values);
  if (part.from_scale != 1.0F) {
    for (int i = 0; i < kEight; ++i) values[i] *= part.from_scale;
  }
  if (part.to_scale != 1.0F) {
    for (int i = 0; i < kEight; ++i) values[i] /= part.to_scale;
  }
  if constexpr (sizeof(T) == 1) {
    encode_bytes<kEight>(part.to.element, values, words, !has_nan<kEight>(values));
  } else if constexpr (sizeof(T) == 2) {
    encode_halves<kEight>(part.to.element, values, words, !has_nan<kEight>(values));
  } else {
    for (int i = 0; i < kEight; ++i) words[i] = encode_fp32(values[i]);
  }
}
template <class T>
constexpr T load_converted(const Part& part, const std::byte* at) {
  if (part.kind == Operation::Kind::kCopy) return load<T>(at);
  float value = 0.0F;
  switch (element_bytes(part.from.element)) {
    case 4: value = load<float>(at); break;
    case 2: value = decode_element(part.from.element, load<std::uint16_t>(at)); break;
    default: value = decode_element(part.from.element, load<std::uint8_t>(at)); break;
  }
  return static_cast<T>(encode_slowly(part.to.element, value * part.from_scale / part.to_scale));
}

/// A thread's word and group of columns, on a side with contiguous features: a warp has eight groups and four of their
/// words, so that it reads 128 bytes of a row in one access and writes every bank once.
struct TileUnit {
  std::uint32_t word = 0;
  std::uint32_t group = 0;
};
constexpr TileUnit tile_unit(std::uint32_t index) {
  return {(index >> 5 & 3) << 2 | (index >> 3 & 3), (index >> 7 << 3) | (index & 7)};
}

template <class T, int kElements>
constexpr void load_feature_vectors(const Part& part, const std::byte* base, std::uint32_t column,
                                    std::uint32_t columns, TileScratch& scratch, const Worker& worker) {
  constexpr std::uint32_t kTokens = kTokensOfWord<T>;
  constexpr std::uint32_t kWords = kElements * sizeof(T) / 4;
  const auto values = static_cast<std::uint32_t>(part.values);
  for (auto i = static_cast<std::uint32_t>(worker.thread); i < kTileWords * kTileColumns / kElements;
       i += worker.thread_count) {
    const TileUnit unit = tile_unit(i);
    const std::uint32_t first = unit.group * kElements;
    if (column + first >= columns) continue;
    const std::byte* at = base + column_offset(part.from, values, column + first);
    std::uint32_t words[kTokens][kWords] = {};
    for_each_index<kTokens>([&](int t) {
      const std::int64_t offset = scratch.from_offsets[unit.word * kTokens + static_cast<std::uint32_t>(t)];
      if (offset < 0) return;
      if (part.kind == Operation::Kind::kCast) {
        convert_eight<T>(part, at + offset, words[t]);
      } else {
        const auto vec = load<Vec<16>>(at + offset);
        for (std::uint32_t k = 0; k < 4 && k < kWords; ++k) words[t][k] = vec.words[k];
      }
    });
    for (std::uint32_t k = 0; k < kWords; ++k) {
      std::uint32_t square[kTokens] = {};
      for (std::uint32_t t = 0; t < kTokens; ++t) square[t] = words[t][k];
      turn_words<T>(square);
      for (std::uint32_t j = 0; j < kTokens; ++j)
        scratch.words[tile_word<T>(first + k * kTokens + j, unit.word)] = square[j];
    }
  }
}

/// Third step: memory to tile. Skipped tokens become zeros, since whole words are read from the tile.
template <class T, class Plan>
constexpr void load_tile(const Plan& plan, const DevicePart& device, std::int64_t layer, std::uint32_t column,
                         std::uint32_t columns, TileScratch& scratch, const Worker& worker) {
  const Part& part = device.part;
  const std::byte* base = plan.from_base(layer, part.from.component);
  const auto values = static_cast<std::uint32_t>(part.values);
  const bool has_tokens = has_tokens_side_by_side(part.from);
  if (!has_tokens && device.has_wide_from) {
    if (part.kind == Operation::Kind::kCast)
      return load_feature_vectors<T, kEight>(part, base, column, columns, scratch, worker);
    return load_feature_vectors<T, kVecElements<T>>(part, base, column, columns, scratch, worker);
  }
  if (has_tokens && device.has_wide_from && !has_breaks(scratch.from_breaks)) {
    const std::uint32_t each = from_group<T>(part), groups = kTileTokens<T> / each;
    for (auto i = static_cast<std::uint32_t>(worker.thread); i < kTileColumns * groups; i += worker.thread_count) {
      const std::uint32_t own = i / groups, group = i % groups;
      const std::int64_t offset = scratch.from_offsets[group * each];
      if (column + own >= columns) continue;
      const std::byte* at = base + column_offset(part.from, values, column + own) + offset;
      if (part.kind == Operation::Kind::kCast) {
        constexpr std::uint32_t kWords = kEight * sizeof(T) / 4;
        std::uint32_t words[kWords] = {};
        if (offset >= 0) convert_eight<T>(part, at, words);
        for (std::uint32_t k = 0; k < kWords; ++k) scratch.words[tile_word<T>(own, group * kWords + k)] = words[k];
      } else {
        *static_cast<Vec<16>*>(static_cast<void*>(&scratch.words[tile_word<T>(own, group * 4)])) =
            offset >= 0 ? load<Vec<16>>(at) : Vec<16>{};
      }
    }
    return;
  }
  for (auto i = static_cast<std::uint32_t>(worker.thread); i < kTileColumns * kTileTokens<T>;
       i += worker.thread_count) {
    const std::uint32_t token = has_tokens ? i % kTileTokens<T> : i / kTileColumns;
    const std::uint32_t own = has_tokens ? i / kTileTokens<T> : i % kTileColumns;
    const std::int64_t offset = scratch.from_offsets[token];
    if (column + own >= columns) continue;
    const std::byte* at = base + column_offset(part.from, values, column + own) + offset;
    *tile_element<T>(scratch, own, token) = offset >= 0 ? load_converted<T>(part, at) : T{};
  }
}

/// Fourth step: tile to memory.
template <class T, class Plan>
constexpr void store_tile(const Plan& plan, const DevicePart& device, std::int64_t layer, std::uint32_t column,
                          std::uint32_t columns, TileScratch& scratch, const Worker& worker) {
  constexpr std::uint32_t kTokens = kTokensOfWord<T>, kElements = kVecElements<T>;
  const Part& part = device.part;
  std::byte* base = plan.to_base(layer, part.to.component);
  const auto values = static_cast<std::uint32_t>(part.values);
  const bool has_tokens = has_tokens_side_by_side(part.to);
  if (!has_tokens && device.has_wide_to) {
    for (auto i = static_cast<std::uint32_t>(worker.thread); i < kTileWords * kTileColumns / kElements;
         i += worker.thread_count) {
      const TileUnit unit = tile_unit(i);
      const std::uint32_t first = unit.group * kElements;
      if (column + first >= columns) continue;
      Vec<16> vecs[kTokens] = {};
      for (std::uint32_t k = 0; k < 4; ++k) {
        std::uint32_t square[kTokens] = {};
        for (std::uint32_t j = 0; j < kTokens; ++j)
          square[j] = scratch.words[tile_word<T>(first + k * kTokens + j, unit.word)];
        turn_words<T>(square);
        for (std::uint32_t t = 0; t < kTokens; ++t) vecs[t].words[k] = square[t];
      }
      std::byte* at = base + column_offset(part.to, values, column + first);
      for (std::uint32_t t = 0; t < kTokens; ++t) {
        const std::int64_t offset = scratch.to_offsets[unit.word * kTokens + t];
        if (offset >= 0) store(at + offset, vecs[t]);
      }
    }
    return;
  }
  if (has_tokens && device.has_wide_to && !has_breaks(scratch.to_breaks)) {
    for (auto i = static_cast<std::uint32_t>(worker.thread); i < kTileColumns * 4; i += worker.thread_count) {
      const std::uint32_t own = i >> 2, group = i & 3;
      const std::int64_t offset = scratch.to_offsets[group * kElements];
      if (column + own >= columns || offset < 0) continue;
      const auto vec =
          *static_cast<const Vec<16>*>(static_cast<const void*>(&scratch.words[tile_word<T>(own, group * 4)]));
      store(base + column_offset(part.to, values, column + own) + offset, vec);
    }
    return;
  }
  for (auto i = static_cast<std::uint32_t>(worker.thread); i < kTileColumns * kTileTokens<T>;
       i += worker.thread_count) {
    const std::uint32_t token = has_tokens ? i % kTileTokens<T> : i / kTileColumns;
    const std::uint32_t own = has_tokens ? i / kTileTokens<T> : i % kTileColumns;
    const std::int64_t offset = scratch.to_offsets[token];
    if (column + own >= columns || offset < 0) continue;
    store(base + column_offset(part.to, values, column + own) + offset, *tile_element<T>(scratch, own, token));
  }
}

/// This block's tiles of a component and layer. `block` runs steps on all of its threads, with a barrier after each.
template <class T, class Plan, class Block>
constexpr void transpose_rows(const Plan& plan, const DevicePart& device, std::int64_t layer, TileScratch& scratch,
                              const Block& block) {
  const Part& part = device.part;
  const auto columns = static_cast<std::uint32_t>(part.heads * part.values);
  for (std::int64_t row = block.index * kTileTokens<T>; row < plan.row_count; row += block.count * kTileTokens<T>) {
    block.together([&](const Worker& worker)
                       __attribute__((always_inline)) { find_tile_rows<T>(plan, part, row, scratch, worker); });
    block.together([&](const Worker& worker)
                       __attribute__((always_inline)) { find_tile_breaks<T>(part, scratch, worker); });
    for (auto column = static_cast<std::uint32_t>(block.slice) * kTileColumns; column < columns;
         column += static_cast<std::uint32_t>(block.slice_count) * kTileColumns) {
      block.together([&](const Worker& worker) __attribute__((always_inline)) {
        load_tile<T>(plan, device, layer, column, columns, scratch, worker);
      });
      block.together([&](const Worker& worker) __attribute__((always_inline)) {
        store_tile<T>(plan, device, layer, column, columns, scratch, worker);
      });
    }
  }
}

}  // namespace kv::device
