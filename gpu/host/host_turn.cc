#include "gpu/host/host_turn.h"

#include <bit>
#include <cstring>

#include "base/assert.h"
#include "gpu/host/host_copy.h"
#include "gpu/row_math.h"

namespace kv {
namespace {

bool is_dense(const Place& place) {
  return place.token.high.extent == 1 && place.feature.high.extent == 1 &&
         place.feature.low.stride_bytes == element_bytes(place.element);
}

[[gnu::always_inline]] inline std::uint32_t load_word(const std::byte* from, std::int64_t index) {
  std::uint32_t word;
  std::memcpy(&word, from + index * 4, 4);
  return word;
}
[[gnu::always_inline]] inline void store_word(std::byte* to, std::int64_t index, std::uint32_t word) {
  std::memcpy(to + index * 4, &word, 4);
}

// As encode_fp32() and encode_bf16(), without a branch.
[[gnu::always_inline]] inline std::uint32_t fp32_code(float value) {
  return value == value ? std::bit_cast<std::uint32_t>(value) : 0x7FFFFFFF;
}
/// The code in the high half; the low one has what rounding left.
[[gnu::always_inline]] inline std::uint32_t high_bf16_code(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return value == value ? bits + 0x7FFF + ((bits >> 16) & 1) : 0x7FFF0000;
}

struct Pair {
  float a;
  float b;
};
[[gnu::always_inline]] inline Pair turn_pair(float a, float b, float cosine, float sine) {
  return {a * cosine - b * sine, b * cosine + a * sine};
}

/// The angles of pairs 2 * i and 2 * i + 1 apart: two bf16 are taken from one word by shifts, which need no shuffles.
struct SplitTable {
  float cosines[2][kRotarySizeMax / 4];
  float sines[2][kRotarySizeMax / 4];

  SplitTable(const TurnTable& turn, std::int64_t pairs) {
    for (std::int64_t i = 0; i < pairs; ++i) {
      cosines[i % 2][i / 2] = turn.cosines[i];
      sines[i % 2][i / 2] = turn.sines[i];
    }
  }
};

// One head each. To memory of their own, or the compiler could not know that nothing written is read again.

template <RopeStyle style>
[[gnu::always_inline]] inline void turn_fp32(std::int64_t pairs, const TurnTable& turn, std::byte* to,
                                             const std::byte* from) {
  for (std::int64_t i = 0; i < pairs; ++i) {
    const auto [first, second] = rotary_pair(style, i, 2 * pairs);
    const Pair pair = turn_pair(std::bit_cast<float>(load_word(from, first)),
                                std::bit_cast<float>(load_word(from, second)), turn.cosines[i], turn.sines[i]);
    store_word(to, first, fp32_code(pair.a));
    store_word(to, second, fp32_code(pair.b));
  }
}

[[gnu::always_inline]] inline Pair halves(std::uint32_t word) {
  return {std::bit_cast<float>(word << 16), std::bit_cast<float>(word & 0xFFFF0000)};
}
[[gnu::always_inline]] inline std::uint32_t word_of(float low, float high) {
  return high_bf16_code(low) >> 16 | (high_bf16_code(high) & 0xFFFF0000);
}

/// A word has one pair.
[[gnu::always_inline]] inline void turn_bf16_gptj(std::int64_t pairs, const TurnTable& turn, std::byte* to,
                                                  const std::byte* from) {
  for (std::int64_t i = 0; i < pairs; ++i) {
    const Pair old = halves(load_word(from, i));
    const Pair pair = turn_pair(old.a, old.b, turn.cosines[i], turn.sines[i]);
    store_word(to, i, word_of(pair.a, pair.b));
  }
}

/// Two words have two pairs.
[[gnu::always_inline]] inline void turn_bf16_neox(std::int64_t pairs, const SplitTable& turn, std::byte* to,
                                                  const std::byte* from) {
  const std::int64_t words = pairs / 2;
  for (std::int64_t i = 0; i < words; ++i) {
    const Pair a = halves(load_word(from, i)), b = halves(load_word(from, words + i));
    const Pair low = turn_pair(a.a, b.a, turn.cosines[0][i], turn.sines[0][i]);
    const Pair high = turn_pair(a.b, b.b, turn.cosines[1][i], turn.sines[1][i]);
    store_word(to, i, word_of(low.a, high.a));
    store_word(to, words + i, word_of(low.b, high.b));
  }
}

struct RowMove {
  const Part& part;
  std::int64_t turned_bytes;
  std::int64_t row_count;
  std::byte* to;
  const std::byte* from;
  bool is_streaming;
};

template <class Turn>
[[gnu::always_inline]] inline void turn_rows(const RowMove& move, const Turn& turn) {
  const Part& part = move.part;
  const std::int64_t turned_bytes = move.turned_bytes;
  const std::int64_t kept_bytes = part.values * element_bytes(part.to.element) - turned_bytes;
  alignas(64) std::byte turned[kRotarySizeMax * sizeof(float)];
  const std::byte* stream_end = move.is_streaming ? turned + turned_bytes : nullptr;
  std::byte* to = move.to;
  const std::byte* from = move.from;
  for (std::int64_t row = 0; row < move.row_count; ++row) {  // heads inside: the source is read in its order
    for (std::int64_t head = 0; head < part.heads; ++head) {
      std::byte* target = to + part.to.head.offset(head);
      const std::byte* source = from + part.from.head.offset(head);
      turn(turned, source);
      copy_run(target, turned, turned_bytes, stream_end);
      if (kept_bytes > 0) copy_run(target + turned_bytes, source + turned_bytes, kept_bytes, nullptr);
    }
    to += part.to.token.low.stride_bytes;
    from += part.from.token.low.stride_bytes;
  }
}

[[gnu::always_inline]] inline void turn_any(const RowMove& move, const Rotation& rotation, const TurnTable& turn) {
  const std::int64_t pairs = rotation.rotary_size / 2;
  const bool is_neox = rotation.style == RopeStyle::kNeox;
  if (move.part.to.element == Element::kFp32 && is_neox) {
    turn_rows(move, [&](std::byte* to, const std::byte* from) { turn_fp32<RopeStyle::kNeox>(pairs, turn, to, from); });
  } else if (move.part.to.element == Element::kFp32) {
    turn_rows(move, [&](std::byte* to, const std::byte* from) { turn_fp32<RopeStyle::kGptj>(pairs, turn, to, from); });
  } else if (is_neox) {
    const SplitTable split(turn, pairs);
    turn_rows(move, [&](std::byte* to, const std::byte* from) { turn_bf16_neox(pairs, split, to, from); });
  } else {
    turn_rows(move, [&](std::byte* to, const std::byte* from) { turn_bf16_gptj(pairs, turn, to, from); });
  }
}

#if defined(__x86_64__)
// Without FMA (-ffp-contract=off), which rounds once where others round twice.
[[gnu::target("avx2")]] void turn_avx2(const RowMove& move, const Rotation& rotation, const TurnTable& turn) {
  turn_any(move, rotation, turn);
}
#if !defined(__clang__)  // which cannot be told the width of vectors for one function
// bf16 is bound by the arithmetic of rounding: 0.73 of a plain copy's speed instead of 0.64.
[[gnu::target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")]] void turn_avx512(const RowMove& move,
                                                                                               const Rotation& rotation,
                                                                                               const TurnTable& turn) {
  turn_any(move, rotation, turn);
}
#endif
#endif

}  // namespace

bool is_dense_turn(const Part& part, const Rotation& rotation) {
  const Element element = part.to.element;
  const bool has_whole_words =
      element == Element::kFp32 || (element == Element::kBf16 && rotation.rotary_size % 4 == 0);
  return part.kind == Operation::Kind::kRotate && part.values_per_scale == 0 && element == part.from.element &&
         has_whole_words && part.from_scale == 1.0F && part.to_scale == 1.0F && is_dense(part.to) &&
         is_dense(part.from);
}

void turn_dense_rows(const Part& part, const Rotation& rotation, const TurnTable& turn, std::int64_t row_count,
                     std::byte* to, const std::byte* from, bool is_streaming) {
  KV_ASSERT(is_dense_turn(part, rotation) && rotation.rotary_size <= kRotarySizeMax);
  const RowMove move{part, rotation.rotary_size * element_bytes(part.to.element), row_count, to, from, is_streaming};
#if defined(__x86_64__)
#if !defined(__clang__)
  static const bool has_avx512 = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                                 __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0;
  if (has_avx512) return turn_avx512(move, rotation, turn);
#endif
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) return turn_avx2(move, rotation, turn);
#endif
  turn_any(move, rotation, turn);
}

}  // namespace kv
