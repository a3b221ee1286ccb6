// gpu/plans/row_plan.h: engines' tables (block tables, CSR page tables, positions) as slots, one per row of a call.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"

namespace kv {

/// Block i of sequence s is ids[s * width + i].
struct BlockTable {
  std::span<const std::int32_t> ids;
  std::int64_t width = 0;
};

/// Treatment of a token whose block id is negative.
enum class MissingBlock : std::uint8_t {
  kKeepRow,  ///< Its row stays, with slot -1, and is skipped.
  kDropRow,  ///< Its row is dropped; the next token takes its place. (Ascend's PagedCacheLoad.)
};

/// Slots of tokens [starts[s], starts[s] + lengths[s]) of each sequence s, end to end. Empty `starts` means 0. Returns
/// the number of rows: the sum of the lengths, or fewer with kDropRow. (PagedCacheLoad also rounds starts down to a
/// whole block: pass rounded starts.) Errors: kBadRequest: a token beyond the table's width, a negative length or
/// start, unequal counts, block_tokens out of 1..2^31; kTooLarge: more rows than `slots` holds.
Result<std::int64_t> plan_table_rows(std::span<std::int64_t> slots, const BlockTable& table, std::int64_t block_tokens,
                                     std::span<const std::int64_t> starts, std::span<const std::int64_t> lengths,
                                     MissingBlock missing = MissingBlock::kKeepRow);

/// Pages of request b: indices[indptr[b]] to indices[indptr[b + 1] - 1].
struct PageTableCsr {
  std::span<const std::int32_t> indptr;
  std::span<const std::int32_t> indices;
};

/// Slots of entries e at position positions[e] of request batch_indices[e]. A negative request: slot -1. Errors:
/// kBadRequest: a request or position outside the table, unequal spans, page_tokens out of 1..2^31.
Result<void> plan_append_rows(std::span<std::int64_t> slots, const PageTableCsr& table, std::int64_t page_tokens,
                              std::span<const std::int32_t> batch_indices, std::span<const std::int32_t> positions);

/// Request and position of each appended row: the rows of request b are append_indptr[b] to append_indptr[b + 1] - 1,
/// and its last row is its last token, seq_lens[b] - 1. Rows past append_indptr's end get request -1, position 0.
/// Errors: kBadRequest: a request that appends more than its length.
Result<void> plan_append_positions(std::span<std::int32_t> batch_indices, std::span<std::int32_t> positions,
                                   std::span<const std::int32_t> append_indptr, std::span<const std::int32_t> seq_lens);

}  // namespace kv
