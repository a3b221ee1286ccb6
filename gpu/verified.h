// gpu/verified.h: loading and storing the store's blocks with their checksums (base/checksum.h), each block while it is
// in cache: what enters is a region as a get filled it, what leaves are the engine's pages up to the first block that
// is not what its name says. And back: pages in, blocks and their checksums out.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "gpu/permute.h"

namespace kv {

/// The bytes of one of the store's blocks, or 0 if `layout` is not theirs: everything in one allocation, block after
/// block.
std::int64_t dense_block_bytes(const Layout& layout);

/// Whether the rows of the store's blocks, so many tokens each, begin with rows that Rows::after() can begin with.
bool is_cut_evenly(const Rows& rows, std::int64_t block_tokens);

/// Verifies block i of `blocks` (layouts::store_block) and scatters its tokens, rows [i * block_tokens, (i + 1) *
/// block_tokens), to their slots in `cache`. Returns how many leading blocks verified; from the first that does not,
/// nothing is written. `seeds` has one for each block, `sums` stripe_count(block_bytes) for each. Errors, before
/// anything is written: kMismatch: other layouts, or counts of sums and seeds that do not fit; kBadRequest as permute()
/// has it, and for rows in blocks of which a store's block is no multiple.
Result<std::int64_t> scatter_verified(const BoundLayout& cache, const Rows& rows, const BoundLayout& blocks,
                                      std::span<const std::uint64_t> seeds, std::span<const std::uint64_t> sums,
                                      const Operation& operation = Operation());

/// Gathers rows of `cache` into as many blocks as there are seeds, and computes their checksums. Rows with a negative
/// slot leave what their bytes were before, and the checksums cover that. Errors: as scatter_verified().
Result<void> gather_with_checksums(const BoundLayout& blocks, const BoundLayout& cache, const Rows& rows,
                                   std::span<const std::uint64_t> seeds, std::span<std::uint64_t> sums,
                                   const Operation& operation = Operation());

}  // namespace kv
