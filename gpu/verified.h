// gpu/verified.h: loading and storing the store's blocks with their checksums (base/checksum.h), each block while it is
// in cache. In: a region filled by a get. Out: the engine's pages, up to the first bad block. And back.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "gpu/permute.h"

namespace kv {

/// The bytes of one of the store's blocks; 0 if `layout` is not the store's: one allocation, block after block.
std::int64_t dense_block_bytes(const Layout& layout);

/// Whether Rows::after() can cut the rows at every `block_tokens` tokens, the size of the store's blocks.
bool is_cut_evenly(const Rows& rows, std::int64_t block_tokens);

/// Verifies block i of `blocks` (layouts::store_block) and scatters its tokens, rows [i * block_tokens, (i + 1) *
/// block_tokens), to their slots in `cache`. Returns the number of leading blocks that verified; later ones are not
/// written. `seeds` has one element per block, `sums` stripe_count(block_bytes) per block. Errors, before any write:
/// kMismatch: other layouts or counts; kBadRequest as permute(), and for rows in blocks that do not divide a store's.
Result<std::int64_t> scatter_verified(const BoundLayout& cache, const Rows& rows, const BoundLayout& blocks,
                                      std::span<const std::uint64_t> seeds, std::span<const std::uint64_t> sums,
                                      const Operation& operation = Operation());

/// Gathers rows of `cache` into as many blocks as there are seeds, and computes their checksums. Rows with a negative
/// slot keep their old bytes, and the checksums cover these. Errors: as scatter_verified().
Result<void> gather_with_checksums(const BoundLayout& blocks, const BoundLayout& cache, const Rows& rows,
                                   std::span<const std::uint64_t> seeds, std::span<std::uint64_t> sums,
                                   const Operation& operation = Operation());

}  // namespace kv
