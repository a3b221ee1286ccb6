#include "gpu/paging/packed_mask.h"

#include <algorithm>
#include <limits>

#include "base/assert.h"

namespace kv {
namespace {

struct Totals {
  std::int64_t bits = 0, bytes = 0;
};
/// Bits are bounded before the next request is added: a product stays below 2^62, so the sum cannot overflow.
Result<Totals> add_up(const MaskShape& shape) {
  if (shape.query_counts.size() != shape.kv_counts.size()) return Errc::kBadRequest;
  Totals all;
  for (std::size_t r = 0; r < shape.query_counts.size(); ++r) {
    if (shape.query_counts[r] < 0 || shape.kv_counts[r] < 0) return Errc::kBadRequest;
    const std::int64_t bits = std::int64_t{shape.query_counts[r]} * shape.kv_counts[r];  // below 2^62
    all.bits += bits;
    all.bytes += (bits + 7) / 8;
    if (all.bits > std::numeric_limits<std::int32_t>::max()) return Errc::kTooLarge;
  }
  return all;
}

}  // namespace

Result<std::size_t> packed_mask_bytes(const MaskShape& shape) {
  const auto all = add_up(shape);
  if (!all) return all.error();
  return static_cast<std::size_t>(all->bytes);
}

Result<void> pack_masks(std::span<std::uint8_t> packed, const MaskShape& shape, std::span<const std::uint8_t> mask,
                        std::span<std::int32_t> bit_indptr, std::span<std::int32_t> byte_indptr) {
  const auto all = add_up(shape);
  if (!all) return all.error();
  const std::size_t request_count = shape.query_counts.size();
  const auto fits = [&](std::span<std::int32_t> indptr) {
    return indptr.empty() || indptr.size() == request_count + 1;
  };
  if (packed.size() != static_cast<std::size_t>(all->bytes) || !fits(bit_indptr) || !fits(byte_indptr) ||
      (!mask.empty() && mask.size() != static_cast<std::size_t>(all->bits))) {
    return Errc::kBadRequest;
  }
  std::ranges::fill(packed, std::uint8_t{0});
  std::size_t bit = 0, byte = 0;
  const auto tell = [&](std::size_t request) {
    if (!bit_indptr.empty()) bit_indptr[request] = static_cast<std::int32_t>(bit);
    if (!byte_indptr.empty()) byte_indptr[request] = static_cast<std::int32_t>(byte);
  };
  for (std::size_t r = 0; r < request_count; ++r) {
    tell(r);
    const std::int64_t queries = shape.query_counts[r], keys = shape.kv_counts[r];
    KV_ASSERT(byte + static_cast<std::size_t>(queries * keys + 7) / 8 <= packed.size());  // before the write
    std::size_t index = 0;
    for (std::int64_t query = 0; query < queries; ++query) {
      for (std::int64_t key = 0; key < keys; ++key, ++index) {
        // Causal: the queries are the last tokens of the request, so query 0 stands at position keys - queries.
        const bool reads = mask.empty() ? key <= keys - queries + query : mask[bit + index] != 0;
        if (reads) packed[byte + index / 8] |= static_cast<std::uint8_t>(1U << index % 8);
      }
    }
    bit += index;
    byte += (index + 7) / 8;
  }
  tell(request_count);
  KV_ASSERT(byte == packed.size());
  return {};
}

}  // namespace kv
