#include "gpu/plans/row_plan.h"

#include <algorithm>
#include <cstddef>

#include "gpu/checked.h"

namespace kv {
namespace {
constexpr std::int64_t kBlockTokensMax = std::int64_t{1} << 31;  // ids of 32 bits times this stay within 64
}

Result<std::int64_t> plan_table_rows(std::span<std::int64_t> slots, const BlockTable& table, std::int64_t block_tokens,
                                     std::span<const std::int64_t> starts, std::span<const std::int64_t> lengths,
                                     MissingBlock missing) {
  const auto batch = static_cast<std::int64_t>(lengths.size());
  const auto id_count = static_cast<std::int64_t>(table.ids.size());
  if ((!starts.empty() && starts.size() != lengths.size()) || block_tokens < 1 || block_tokens > kBlockTokensMax ||
      !is_product_within(id_count, {batch, table.width})) {
    return Errc::kBadRequest;
  }
  std::size_t row_count = 0;
  for (std::int64_t s = 0; s < batch; ++s) {
    const std::int64_t start = starts.empty() ? 0 : starts[static_cast<std::size_t>(s)];
    const std::int64_t length = lengths[static_cast<std::size_t>(s)];
    // Otherwise a sequence would run on into the next one's row of the table.
    if (start < 0 || length < 0 || length > table.width * block_tokens - start) return Errc::kBadRequest;
    for (std::int64_t position = start; position < start + length; ++position) {
      const std::int64_t block = table.ids[static_cast<std::size_t>(s * table.width + position / block_tokens)];
      if (block < 0 && missing == MissingBlock::kDropRow) continue;
      // Detected only while writing, since dropped rows are counted on the way. The slots so far are invalid.
      if (row_count == slots.size()) return Errc::kTooLarge;
      // (An id of 32 bits: the product does not wrap. The call itself checks that the cache has such a block.)
      slots[row_count++] = block < 0 ? -1 : block * block_tokens + position % block_tokens;
    }
  }
  return static_cast<std::int64_t>(row_count);
}

Result<void> plan_append_rows(std::span<std::int64_t> slots, const PageTableCsr& table, std::int64_t page_tokens,
                              std::span<const std::int32_t> batch_indices, std::span<const std::int32_t> positions) {
  if (slots.size() != batch_indices.size() || slots.size() != positions.size()) return Errc::kBadRequest;
  if (page_tokens < 1 || page_tokens > kBlockTokensMax) return Errc::kBadRequest;
  const auto page_count = static_cast<std::int64_t>(table.indices.size());
  for (std::size_t e = 0; e < slots.size(); ++e) {
    slots[e] = -1;  // as in the append kernel: rows past the end have no request
    if (batch_indices[e] < 0) continue;
    const auto request = static_cast<std::size_t>(batch_indices[e]);
    if (request + 1 >= table.indptr.size() || positions[e] < 0) return Errc::kBadRequest;
    // A request's pages are entries [indptr[i], indptr[i + 1]); the next request's are out of bounds.
    const std::int64_t entry = table.indptr[request] + positions[e] / page_tokens;
    if (entry < 0 || entry >= std::min<std::int64_t>(table.indptr[request + 1], page_count)) return Errc::kBadRequest;
    slots[e] = table.indices[static_cast<std::size_t>(entry)] * page_tokens + positions[e] % page_tokens;
  }
  return {};
}

Result<void> plan_append_positions(std::span<std::int32_t> batch_indices, std::span<std::int32_t> positions,
                                   std::span<const std::int32_t> append_indptr,
                                   std::span<const std::int32_t> seq_lens) {
  if (batch_indices.size() != positions.size() || append_indptr.size() != seq_lens.size() + 1) return Errc::kBadRequest;
  // Surplus rows have no request: CUDA graphs are captured for a fixed number of rows.
  std::ranges::fill(batch_indices, -1);
  std::ranges::fill(positions, 0);
  for (std::size_t b = 0; b < seq_lens.size(); ++b) {
    const std::int32_t end = append_indptr[b + 1];
    if (append_indptr[b] < 0 || end < 0) return Errc::kBadRequest;
    const std::int32_t count = end - append_indptr[b];
    if (count < 0 || count > seq_lens[b] || static_cast<std::size_t>(end) > positions.size()) {
      return Errc::kBadRequest;
    }
    // Right-aligned: the last new token is the sequence's last.
    for (std::int32_t e = append_indptr[b]; e < end; ++e) {
      batch_indices[static_cast<std::size_t>(e)] = static_cast<std::int32_t>(b);
      positions[static_cast<std::size_t>(e)] = e + seq_lens[b] - end;
    }
  }
  return {};
}

}  // namespace kv
