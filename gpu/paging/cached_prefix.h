// gpu/paging/cached_prefix.h: the part of a sequence that is still in pages.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "gpu/paging/page_pool.h"

namespace kv {

/// How a cache group's layers read, which determines the blocks that a usable prefix needs.
struct GroupConfig {
  std::size_t block_size;
  /// Every token reads itself and the window_tokens - 1 tokens before it; 0: all before it.
  std::size_t window_tokens = 0;
  /// A draft head (EAGLE) needs the last token's hidden state, which is not kept: recompute the last block.
  bool drops_last_block = false;
};

/// The first `pages.size()` blocks of a sequence. Pages before the window are kNullPage: they are never read.
struct CachedPrefix {
  std::vector<PageId> pages;
  std::size_t token_count = 0;  ///< A multiple of the block size.
};

/// Blocks at a prefix's end that the next token's window reads: at least one.
std::size_t window_block_count(const GroupConfig& group);

/// The longest cached prefix of a sequence of `token_count` tokens with the given block names. Always shorter than the
/// sequence: the last token must be computed, since its logits choose the next one; so a fully cached sequence of full
/// blocks gets all but the last. Takes no pages: call PagedCache::open() before other calls take pages.
CachedPrefix find_cached_prefix(const PagePool& pool, const GroupConfig& group, std::span<const BlockName> names,
                                std::size_t token_count);

/// One prefix for several groups: the longest that every group can use, one element per group. `names[g]` are the names
/// of group g's blocks. Where block sizes differ, the prefix is a multiple of all.
std::vector<CachedPrefix> find_cached_prefix(const PagePool& pool, std::span<const GroupConfig> groups,
                                             std::span<const std::span<const BlockName>> names,
                                             std::size_t token_count);

}  // namespace kv
