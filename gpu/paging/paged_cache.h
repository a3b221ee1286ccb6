// gpu/paging/paged_cache.h: the host side of a paged KV cache. Start here. The folder decides which pages a sequence
// has and which blocks a batch shares, without CUDA; gpu/permute.h moves the bytes. In reading order:
//
//   page.h                 pages and block names
//   page_pool.h            users and names of pages: the prefix cache
//   cached_prefix.h        the cached part of a sequence
//   paged_cache.h          sequences: page tables, slots, copy on write, fork, crop, windows
//   shared_prefix_plan.h   a batch of page tables -> one order, and the tree of its shared blocks
//   cascade_plan.h         the tree as page tables level by level (FlashInfer's cascade attention)
//   chunk_plan.h           the tree chunk first, sequence second (ChunkAttention)
//   packed_mask.h          attention masks of a batch, as bits
//   cache_size.h           size of a model's cache, and when fetching beats computing
//   generation_work.h      operations of generating tokens, with a cache and without
//
//   PagePool pool(page_count);
//   PagedCache cache(pool, {.block_size = 16});
//   const CachedPrefix prefix = cache.find(names, tokens.size());      // names of the full blocks of the prompt
//   auto sequence = cache.open(prefix, tokens.size());                 // kOutOfMemory: let it wait
//   ... compute tokens from prefix.token_count on, writing to cache.slot_mapping(*sequence, ...)
//   cache.name_blocks(*sequence, names);                               // now others can hit them
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "gpu/paging/cached_prefix.h"
#include "gpu/paging/page_pool.h"

namespace kv {

enum class SequenceId : std::uint64_t {};  ///< Never reused.

/// A block to be copied, page to page, in every layer, before other writes to either page.
struct PageCopy {
  PageId from, to;
  friend bool operator==(const PageCopy&, const PageCopy&) = default;
};

/// The sequences of one cache group and the pages that hold their tokens.
///   1. Block i of a sequence lies in page i of its table; a table covers exactly the blocks of its tokens.
///   2. A slot that open() or append() adds to a sequence is in no other sequence's table, and its page is unnamed:
///      other sequences never read it.
///   3. With a window, pages that later tokens do not read are released and replaced by kNullPage.
///   4. A call that fails leaves every sequence's tokens unchanged.
/// Several caches (one per group) may share one pool. Thread safety: none, neither across caches of one pool.
class PagedCache {
 public:
  PagedCache(PagePool& pool, const GroupConfig& group);
  ~PagedCache();  ///< Closes all sequences.
  PagedCache(const PagedCache&) = delete;
  PagedCache& operator=(const PagedCache&) = delete;

  CachedPrefix find(std::span<const BlockName> names, std::size_t token_count) const;

  /// Free pages that open() with the same arguments takes: new ones, and hit ones without users.
  std::size_t pages_needed(const CachedPrefix& prefix, std::size_t token_count) const;

  /// A new sequence of `token_count` tokens that begins with `prefix`. Errors: kOutOfMemory. Requires:
  /// prefix.token_count < token_count unless both are 0; pages were not taken since `prefix` was found.
  Result<SequenceId> open(const CachedPrefix& prefix, std::size_t token_count);

  /// Room for more tokens. Returns the copy to make before they are written: of a shared last page. Errors:
  /// kOutOfMemory.
  Result<std::vector<PageCopy>> append(SequenceId sequence, std::size_t token_count);

  /// A second sequence with the same tokens in the same pages (beam search, parallel samples).
  SequenceId fork(SequenceId sequence);

  /// Cuts the sequence to its first `token_count` tokens (a rejected draft). Errors: kBadRequest if it is shorter, or
  /// if the window has released tokens that the next one would have to read.
  Result<void> crop(SequenceId sequence, std::size_t token_count);

  /// Ends the sequence. Its last page is the first to be reused.
  void close(SequenceId sequence);

  /// Makes the computed full blocks findable, block i under names[i]. Naming a named block changes nothing.
  void name_blocks(SequenceId sequence, std::span<const BlockName> names);

  std::size_t token_count(SequenceId sequence) const { return at(sequence).token_count; }
  std::span<const PageId> page_table(SequenceId sequence) const { return at(sequence).pages; }

  /// page * block_size + offset of the tokens [begin, end); -1 where the window has released the page.
  std::vector<std::int64_t> slot_mapping(SequenceId sequence, std::size_t begin, std::size_t end) const;

  std::size_t sequence_count() const { return sequences_.size(); }
  /// Whether the sequence exists. All calls above require it: a foreign id is the caller's bug.
  bool has(SequenceId sequence) const { return sequences_.contains(sequence); }

 private:
  struct Sequence {
    std::vector<PageId> pages;
    std::size_t token_count = 0;
    std::size_t named_count = 0;  ///< Leading blocks that name_blocks() can skip.
    std::size_t left_count = 0;   ///< Leading pages that the window has released.
  };

  const Sequence& at(SequenceId sequence) const;
  Sequence& at(SequenceId sequence);
  std::size_t block_count(std::size_t token_count) const;
  std::size_t first_block_read(std::size_t token_count) const;
  void leave_behind(Sequence& sequence);

  PagePool& pool_;
  GroupConfig group_;
  std::unordered_map<SequenceId, Sequence> sequences_;
  std::uint64_t next_id_ = 1;
};

}  // namespace kv
