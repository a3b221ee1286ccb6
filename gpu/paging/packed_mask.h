// gpu/paging/packed_mask.h: attention masks of a batch as bits, in the form of FlashInfer's custom masks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"

namespace kv {

/// Request r: query_counts[r] rows of kv_counts[r] columns, row after row. A set bit: this query reads this key.
///
///     queries 2, keys 3, causal     110 111        bits, first to last
///     packed                        0x3b           little-endian in bytes; the next request begins in a new byte
struct MaskShape {
  std::span<const std::int32_t> query_counts;
  std::span<const std::int32_t> kv_counts;
};

/// Bytes of all requests together. Errors: kBadRequest for a negative count or spans of unequal lengths; kTooLarge if
/// all bits together exceed 2^31 - 1: kernels count them in int32.
Result<std::size_t> packed_mask_bytes(const MaskShape& shape);

/// Writes packed_mask_bytes() bytes. `mask` has a byte for each bit, 0 or not, requests end to end. An empty mask means
/// causal: the queries are the last tokens of their request. bit_indptr and byte_indptr receive each request's start,
/// in bits and in packed bytes; each has one element more than there are requests, or is empty and skipped. Errors: as
/// packed_mask_bytes(); kBadRequest for a mask or results of another size.
Result<void> pack_masks(std::span<std::uint8_t> packed, const MaskShape& shape, std::span<const std::uint8_t> mask,
                        std::span<std::int32_t> bit_indptr, std::span<std::int32_t> byte_indptr);

}  // namespace kv
