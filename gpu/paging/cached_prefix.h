// gpu/paging/cached_prefix.h: how much of a sequence the pages still hold.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "gpu/paging/page_pool.h"

namespace kv {

/// How the layers of one cache group read, and so which blocks a prefix must have to be usable.
struct GroupConfig {
  std::size_t block_size;
  /// Every token reads itself and the window_tokens - 1 tokens before it; 0: all before it.
  std::size_t window_tokens = 0;
  /// A draft head (EAGLE) needs the hidden state of the last cached token, and hidden states are not kept: the last
  /// block found is computed again.
  bool drops_last_block = false;
};

/// The first `pages.size()` blocks of a sequence. Pages before the window are kNullPage: nothing will read them.
struct CachedPrefix {
  std::vector<PageId> pages;
  std::size_t token_count = 0;  ///< A multiple of the block size.
};

/// Blocks before a prefix's end that a window reads when the next token is computed: at least one.
std::size_t window_block_count(const GroupConfig& group);

/// The longest cached prefix of a sequence of `token_count` tokens with the given block names. It is always shorter
/// than the sequence: the last token must be computed, since its logits choose the next one; so a sequence that fills
/// its blocks exactly and is cached whole gets all but the last block. No page is touched: take what was found with
/// PagedCache::open() before anything else takes pages.
CachedPrefix find_cached_prefix(const PagePool& pool, const GroupConfig& group, std::span<const BlockName> names,
                                std::size_t token_count);

/// One prefix for several groups: the longest for which every group has what it needs, one element for each group.
/// `names[g]` are the names of group g's blocks. Where block sizes differ, the prefix is a multiple of all of them.
std::vector<CachedPrefix> find_cached_prefix(const PagePool& pool, std::span<const GroupConfig> groups,
                                             std::span<const std::span<const BlockName>> names,
                                             std::size_t token_count);

/// The names of blocks that are `factor` times as large as those named, for another group: a chained hash names all
/// before it, so the last small block's hash names the large one. A chain is hashed once, at the smallest block size.
std::vector<BlockName> names_of_larger_blocks(std::span<const BlockName> names, std::size_t factor,
                                              std::uint32_t group);

}  // namespace kv
