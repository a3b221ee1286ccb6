#include "gpu/host/host_copy.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace kv {
namespace {

using Loop = CopyNest::Loop;

constexpr std::int64_t kLongRunBytes = 128;  // two lines: worth a loop of its own
constexpr std::int64_t kPrefetchBytes = CopyNest::kPrefetchBytes;

// A copy is a nest of loops around a run of contiguous bytes. Both sides' axes have up to two digits, whose boundaries
// differ; add_axis() cuts an axis at all of them, so that each loop has one stride on each side. coalesce() then joins
// loops that are contiguous on both sides: nhd to nhd becomes one run, x-packed to nhd two loops.

/// Address change of one step of `index` on an axis, for a step that is a digit boundary.
std::int64_t stride_at(const Axis& axis, std::int64_t index) {
  if (axis.high.extent == 1 || index < axis.low.extent) return index * axis.low.stride_bytes;
  return index / axis.low.extent * axis.high.stride_bytes;
}

std::int64_t low_extent(const Axis& axis) { return axis.high.extent == 1 ? axis.extent() : axis.low.extent; }

/// Adds the loops of one axis: both sides' digits, cut at either side's boundaries.
void add_axis(CopyNest& nest, const Axis& to, const Axis& from, std::int64_t extent) {
  const std::int64_t first = std::min({low_extent(to), low_extent(from), extent});
  const std::int64_t second = std::min(std::max(low_extent(to), low_extent(from)), extent);
  const std::int64_t bounds[] = {1, first, second, extent};
  for (int i = 0; i < 3; ++i) {
    const std::int64_t count = bounds[i + 1] / bounds[i];
    if (count <= 1) continue;
    KV_ASSERT(nest.loop_count < CopyNest::kLoopsMax);
    nest.loops[nest.loop_count++] = {count, stride_at(to, bounds[i]), stride_at(from, bounds[i])};
  }
}

/// Joins loops that continue each other, and those that continue the run into it.
void coalesce(CopyNest& nest) {
  const auto drop = [&](int i) {
    KV_ASSERT(i >= 0 && i < nest.loop_count);
    std::copy(nest.loops + i + 1, nest.loops + nest.loop_count, nest.loops + i);
    --nest.loop_count;
  };
  for (bool is_changed = true; is_changed;) {
    is_changed = false;
    for (int i = 0; i < nest.loop_count && !is_changed; ++i) {
      Loop& inner = nest.loops[i];
      if (inner.to_stride == nest.run_bytes && inner.from_stride == nest.run_bytes) {
        nest.run_bytes *= inner.extent;
        drop(i);
        is_changed = true;
        break;
      }
      for (int j = 0; j < nest.loop_count; ++j) {
        const Loop& outer = nest.loops[j];
        if (i == j || outer.to_stride != inner.to_stride * inner.extent ||
            outer.from_stride != inner.from_stride * inner.extent) {
          continue;
        }
        inner.extent *= outer.extent;
        drop(j);
        is_changed = true;
        break;
      }
    }
  }
}

struct alignas(1) Unit32 {
  std::byte bytes[32];
};
struct alignas(1) Unit16 {
  std::byte bytes[16];
};

/// Two loops over fixed units. `inner` has the smaller target step; tiles keep `outer`'s source lines in cache.
template <class Unit>
void copy_units(std::byte* to, const std::byte* from, const Loop& outer, const Loop& inner) {
  constexpr std::int64_t kTile = 64;
  for (std::int64_t start = 0; start < inner.extent; start += kTile) {
    const std::int64_t end = std::min(inner.extent, start + kTile);
    for (std::int64_t i = 0; i < outer.extent; ++i) {
      std::byte* target = to + i * outer.to_stride + start * inner.to_stride;
      const std::byte* source = from + i * outer.from_stride + start * inner.from_stride;
      for (std::int64_t j = start; j < end; ++j, target += inner.to_stride, source += inner.from_stride) {
        std::memcpy(target, source, sizeof(Unit));
      }
    }
  }
}

void copy_two_loops(std::byte* to, const std::byte* from, const Loop& outer, const Loop& inner, std::int64_t run_bytes,
                    const std::byte* stream_end) {
  switch (run_bytes) {  // with a constant size, memcpy is one load and one store
    case 1: return copy_units<std::uint8_t>(to, from, outer, inner);
    case 2: return copy_units<std::uint16_t>(to, from, outer, inner);
    case 4: return copy_units<std::uint32_t>(to, from, outer, inner);
    case 8: return copy_units<std::uint64_t>(to, from, outer, inner);
    case 16: return copy_units<Unit16>(to, from, outer, inner);
    case 32: return copy_units<Unit32>(to, from, outer, inner);
    default: break;
  }
  for (std::int64_t i = 0; i < outer.extent; ++i) {
    for (std::int64_t j = 0; j < inner.extent; ++j) {
      copy_run(to + i * outer.to_stride + j * inner.to_stride, from + i * outer.from_stride + j * inner.from_stride,
               run_bytes, stream_end);
    }
  }
}

void copy_loops(const CopyNest& nest, int depth, std::byte* to, const std::byte* from, const std::byte* stream_end) {
  const int left = nest.loop_count - depth;
  if (left == 0) return copy_run(to, from, nest.run_bytes, stream_end);
  const Loop& loop = nest.loops[depth];
  if (left == 1) return copy_two_loops(to, from, {}, loop, nest.run_bytes, stream_end);
  if (left == 2) return copy_two_loops(to, from, loop, nest.loops[depth + 1], nest.run_bytes, stream_end);
  for (std::int64_t i = 0; i < loop.extent; ++i) {
    copy_loops(nest, depth + 1, to + i * loop.to_stride, from + i * loop.from_stride, stream_end);
  }
}

}  // namespace

void copy_run(std::byte* to, const std::byte* from, std::int64_t bytes, const std::byte* stream_end) {
#if defined(__SSE2__)
  if (stream_end && bytes >= kLongRunBytes) {
    // Streaming stores need whole lines: a partial one is read from memory first, which costs more than it saves. So
    // the start up to a line's boundary and the rest go through the caches.
    const auto head = static_cast<std::int64_t>(-reinterpret_cast<std::uintptr_t>(to) & 63);
    std::memcpy(to, from, static_cast<std::size_t>(head));
    to += head, from += head, bytes -= head;
    for (; bytes >= 64; to += 64, from += 64, bytes -= 64) {
      if (stream_end - from > kPrefetchBytes) {
        _mm_prefetch(reinterpret_cast<const char*>(from + kPrefetchBytes), _MM_HINT_T0);
      }
      const auto* source = reinterpret_cast<const __m128i*>(from);
      auto* target = reinterpret_cast<__m128i*>(to);
      const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
      const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
      _mm_stream_si128(target, a), _mm_stream_si128(target + 1, b);
      _mm_stream_si128(target + 2, c), _mm_stream_si128(target + 3, d);
    }
  }
#else
  static_cast<void>(stream_end);
#endif
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

void CopyNest::copy(std::byte* to, const std::byte* from, bool is_streaming) const {
  copy_loops(*this, 0, to, from, is_streaming ? from + source_bytes() : nullptr);
}

void CopyNest::prefetch(const std::byte* from) const {
  const std::int64_t bytes = std::min(kPrefetchBytes, source_bytes());
  for (std::int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i);
}

std::int64_t CopyNest::source_bytes() const {
  std::int64_t bytes = run_bytes;
  for (int i = 0; i < loop_count; ++i) bytes += (loops[i].extent - 1) * loops[i].from_stride;
  return bytes;
}

/// Without a fence, a reader that sees the call's end could still read the bytes before the streaming stores.
void finish_streaming() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

bool is_expressible(const Axis& to, const Axis& from) {
  const std::int64_t a = low_extent(to);
  const std::int64_t b = low_extent(from);
  return a % b == 0 || b % a == 0;
}

CopyNest make_copy_nest(const Part& part, std::int64_t token_count, bool is_whole_block) {
  KV_ASSERT(token_count >= 1 && part.to.feature.extent() == part.from.feature.extent());
  CopyNest nest{.run_bytes = element_bytes(part.to.element)};
  add_axis(nest, part.to.feature, part.from.feature, part.to.feature.extent());
  add_axis(nest, part.to.head, part.from.head, part.heads);
  if (is_whole_block) {
    add_axis(nest, part.to.token, part.from.token, token_count);
  } else if (token_count > 1) {  // a run of tokens within one digit: find_token_run() ends it there
    KV_ASSERT(nest.loop_count < CopyNest::kLoopsMax);
    nest.loops[nest.loop_count++] = {token_count, part.to.token.low.stride_bytes, part.from.token.low.stride_bytes};
  }
  coalesce(nest);
  if (nest.run_bytes >= kLongRunBytes) {  // in source order: written lines are whole, so their order costs nothing
    std::ranges::sort(nest.loops, nest.loops + nest.loop_count, std::ranges::greater(), &Loop::from_stride);
    return nest;
  }
  // Outermost the largest step in the target; beside the innermost, the loop that is finest in the source.
  std::ranges::sort(nest.loops, nest.loops + nest.loop_count, std::ranges::greater(), &Loop::to_stride);
  if (nest.loop_count > 2) {
    Loop* last = nest.loops + nest.loop_count - 1;
    Loop* finest = std::ranges::min_element(nest.loops, last, {}, &Loop::from_stride);
    std::rotate(finest, finest + 1, last);
  }
  return nest;
}

TokenRun find_token_run(const PermutePlan& plan, std::int64_t row) {
  TokenRun run{.to_slot = plan.to_rows.slot(row), .from_slot = plan.from_rows.slot(row)};
  if (run.to_slot < 0 || run.from_slot < 0) return run;
  // A run stays within a block on both sides: the next block may be anywhere.
  const std::int64_t to_offset = run.to_slot % plan.to.block_tokens;
  const std::int64_t from_offset = run.from_slot % plan.from.block_tokens;
  const std::int64_t limit =
      std::min({plan.to.block_tokens - to_offset, plan.from.block_tokens - from_offset, plan.row_count - row});
  const auto follows = [row](const Rows& rows, std::int64_t slot, std::int64_t i) {
    return rows.kind == Rows::Kind::kRange || rows.slot(row + i) == slot + i;
  };
  std::int64_t count = 1;
  while (count < limit && follows(plan.to_rows, run.to_slot, count) && follows(plan.from_rows, run.from_slot, count)) {
    ++count;
  }
  run.count = count;
  run.is_whole_block = count == plan.to.block_tokens && count == plan.from.block_tokens;
  if (run.is_whole_block) return run;
  for (int i = 0; i < plan.part_count; ++i) {  // a run must not cross a digit of a token axis that has two
    for (const auto& [axis, offset] :
         {std::pair(&plan.parts[i].to.token, to_offset), std::pair(&plan.parts[i].from.token, from_offset)}) {
      const std::int64_t low = low_extent(*axis);
      run.count = std::min(run.count, low - offset % low);
    }
  }
  KV_ASSERT(run.count >= 1 && run.count <= plan.row_count - row);
  return run;
}

}  // namespace kv
