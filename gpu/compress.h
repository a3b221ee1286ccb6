// gpu/compress.h: storing a part of a head's tokens. Each (sequence, head) is a row of its own: its kept tokens lie in
// consecutive slots of a head-folded cache (layouts::head_folded), from a first slot that the caller gives.
//
//     kLast      keeps the last `window` tokens
//     kMean      keeps all, but replaces the `window` tokens from `offset` on by their mean
//     kDrop      keeps all other tokens
//
// For n = 5, window 3, offset 1, tokens 0..4:   kLast 2 3 4   kMean 0 (1+2+3)/3 4   kDrop 0 4
// A mean token stands for `window` tokens: attention adds the ln(window) of the kLogCount component to its q.k, after
// scaling. (Ascend calls the modes KVHEAD, KVHEAD_ROPE, OMNI; `window` is "wins" there, kept in the first, dropped in
// the others.)
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "gpu/layout.h"
#include "gpu/plans/permute_plan.h"

namespace kv {

enum class KeepMode : std::uint8_t { kLast, kMean, kDrop };

/// One row of the cache to write: the mean of tokens [token, token + token_count) of one head; mostly a single token.
struct KeepRow {
  std::int64_t slot = 0;
  std::int64_t token = 0;  ///< In the packed source.
  std::int32_t head = 0;
  std::int32_t token_count = 1;
};

/// The tokens to keep of each (sequence b, head h), i = b * head_count + h. A negative first slot keeps none. A window
/// of 0 keeps none in kLast and all in the others, as does an offset of -1 there, whatever the window.
struct KeepRequest {
  KeepMode mode = KeepMode::kLast;
  std::int64_t head_count = 0;
  std::span<const std::int32_t> seq_lens;     ///< [b] new tokens, packed end to end in the source.
  std::span<const std::int32_t> windows;      ///< [i]
  std::span<const std::int32_t> offsets;      ///< [i], not used by kLast.
  std::span<const std::int64_t> first_slots;  ///< [i]
};

/// Errors: kBadRequest: arrays of the wrong length, a window longer than its sequence, an offset beyond it.
Result<std::vector<KeepRow>> plan_keep_rows(const KeepRequest& request);

/// Writes the rows: K, V and, where `cache` has it, the log count (ln(token_count), so 0 for single tokens). Means are
/// summed in float in token order and rounded once. Requires: `cache` with one head, `source` with the plan's heads, of
/// equal elements. int8 has no means.
/// Errors, before any write: kMismatch, kBadRequest (a slot, token or head out of range).
Result<void> scatter_kept(const BoundLayout& cache, std::span<const KeepRow> rows, const BoundLayout& source);

/// The components for the device's version (CudaModule::scatter_kept). kLogCount has no source. Errors: kMismatch.
Result<PermutePlan> make_keep_plan(const BoundLayout& cache, const BoundLayout& source);

}  // namespace kv
