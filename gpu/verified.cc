#include "gpu/verified.h"

#include <algorithm>
#include <cstddef>

#include "base/assert.h"
#include "base/checksum.h"

namespace kv {
namespace {

std::span<std::byte> block_at(const BoundLayout& blocks, std::int64_t index, std::int64_t block_bytes) {
  KV_ASSERT(index >= 0 && index < blocks.layout.block_count && block_bytes > 0);
  return {blocks.bases.front() + index * block_bytes, static_cast<std::size_t>(block_bytes)};
}

/// A call's checks, all before its first block: an error leaves everything untouched. Returns the stripes of a block.
Result<std::size_t> check(const BoundLayout& blocks, const BoundLayout& cache, const Rows& rows, bool is_scatter,
                          std::size_t seed_count, std::size_t sum_count, const Operation& operation) {
  const std::int64_t block_bytes = dense_block_bytes(blocks.layout), tokens = blocks.layout.block_tokens;
  const auto block_count = static_cast<std::int64_t>(seed_count);
  const std::size_t stripes = stripe_count(static_cast<std::size_t>(block_bytes));
  if (block_bytes <= 0 || block_count > blocks.layout.block_count || sum_count != seed_count * stripes)
    return Errc::kMismatch;
  if (!is_cut_evenly(rows, tokens)) return Errc::kBadRequest;
  const auto checked = is_scatter ? check_permute(cache, rows, blocks, Rows::range(), block_count * tokens, operation)
                                  : check_permute(blocks, Rows::range(), cache, rows, block_count * tokens, operation);
  if (!checked) return checked.error();
  return stripes;
}

}  // namespace

/// Rows are passed on block by block, so a page must not straddle two of the store's blocks.
bool is_cut_evenly(const Rows& rows, std::int64_t block_tokens) {
  return !rows.is_blocks() || (rows.block_tokens > 0 && block_tokens % rows.block_tokens == 0);
}

/// Checksums cover whole blocks, so blocks must not contain or leave gaps.
std::int64_t dense_block_bytes(const Layout& layout) {
  const std::int64_t bytes = layout.components.front().block_stride_bytes;
  const bool is_dense =
      layout.tensor_count == 1 && layout.has_all_layers_in_tensor && layout.components.front().offset_bytes == 0 &&
      std::ranges::all_of(layout.components, [&](const Component& each) { return each.block_stride_bytes == bytes; });
  return is_dense && layout.tensor_bytes(0) == layout.block_count * bytes ? bytes : 0;
}

Result<std::int64_t> scatter_verified(const BoundLayout& cache, const Rows& rows, const BoundLayout& blocks,
                                      std::span<const std::uint64_t> seeds, std::span<const std::uint64_t> sums,
                                      const Operation& operation) {
  const auto stripes = check(blocks, cache, rows, true, seeds.size(), sums.size(), operation);
  if (!stripes) return stripes.error();
  const std::int64_t block_bytes = dense_block_bytes(blocks.layout), tokens = blocks.layout.block_tokens;
  const auto block_count = static_cast<std::int64_t>(seeds.size());
  Operation streaming = operation;
  streaming.host_stores = HostStores::kStreaming;  // the pages' next reader comes later
  for (std::int64_t i = 0; i < block_count; ++i) {
    const auto index = static_cast<std::size_t>(i);
    if (!verify_block(seeds[index], block_at(blocks, i, block_bytes), sums.subspan(index * *stripes, *stripes)))
      return i;
    // Block by block, so that a block is scattered while its checksum keeps it in the caches.
    if (operation.rotation.deltas) streaming.rotation.deltas = operation.rotation.deltas + i * tokens;
    const auto moved = permute(cache, rows.after(i * tokens), blocks, Rows::range(i * tokens), tokens, streaming);
    if (!moved) return moved.error();
  }
  return block_count;
}

Result<void> gather_with_checksums(const BoundLayout& blocks, const BoundLayout& cache, const Rows& rows,
                                   std::span<const std::uint64_t> seeds, std::span<std::uint64_t> sums,
                                   const Operation& operation) {
  const auto stripes = check(blocks, cache, rows, false, seeds.size(), sums.size(), operation);
  if (!stripes) return stripes.error();
  const std::int64_t block_bytes = dense_block_bytes(blocks.layout), tokens = blocks.layout.block_tokens;
  const auto block_count = static_cast<std::int64_t>(seeds.size());
  Operation cached = operation;
  cached.host_stores = HostStores::kCached;  // read again at once
  for (std::int64_t i = 0; i < block_count; ++i) {
    if (operation.rotation.deltas) cached.rotation.deltas = operation.rotation.deltas + i * tokens;
    const auto moved = permute(blocks, Rows::range(i * tokens), cache, rows.after(i * tokens), tokens, cached);
    if (!moved) return moved.error();
    const auto index = static_cast<std::size_t>(i);
    KV_ASSERT((index + 1) * *stripes <= sums.size());
    block_checksums(seeds[index], block_at(blocks, i, block_bytes), sums.subspan(index * *stripes, *stripes));
  }
  return {};
}

}  // namespace kv
