#include "gpu/paging/paged_cache.h"

#include <algorithm>

#include "base/assert.h"

namespace kv {

PagedCache::PagedCache(PagePool& pool, const GroupConfig& group) : pool_(pool), group_(group) {
  KV_ASSERT(group.block_size > 0);
}

PagedCache::~PagedCache() {
  for (const auto& [id, sequence] : sequences_) pool_.release(sequence.pages);
}

CachedPrefix PagedCache::find(std::span<const BlockName> names, std::size_t token_count) const {
  return find_cached_prefix(pool_, group_, names, token_count);
}

/// A hit page without users leaves the free queue, so it counts as needed though it costs no computation.
std::size_t PagedCache::pages_needed(const CachedPrefix& prefix, std::size_t token_count) const {
  KV_ASSERT(prefix.pages.size() <= block_count(token_count));
  const auto revived = std::count_if(prefix.pages.begin(), prefix.pages.end(),
                                     [&](PageId page) { return page != kNullPage && pool_.user_count(page) == 0; });
  return block_count(token_count) - prefix.pages.size() + static_cast<std::size_t>(revived);
}

Result<SequenceId> PagedCache::open(const CachedPrefix& prefix, std::size_t token_count) {
  KV_ASSERT(prefix.token_count == prefix.pages.size() * group_.block_size);
  KV_ASSERT(prefix.token_count < token_count || token_count == 0);
  if (pages_needed(prefix, token_count) > pool_.free_count()) return Errc::kOutOfMemory;
  pool_.touch(prefix.pages);  // before take(), which could evict them
  const auto fresh = pool_.take(block_count(token_count) - prefix.pages.size());
  KV_ASSERT(fresh);

  const SequenceId id{next_id_++};
  Sequence& sequence = sequences_[id];
  sequence.pages = prefix.pages;
  sequence.pages.insert(sequence.pages.end(), fresh->begin(), fresh->end());
  sequence.token_count = token_count;
  sequence.named_count = prefix.pages.size();
  while (sequence.left_count < prefix.pages.size() && prefix.pages[sequence.left_count] == kNullPage) {
    ++sequence.left_count;
  }
  return id;
}

/// The order matters. Pages behind the window are released first, so that a windowed sequence continues in a full pool.
/// Fresh pages are taken before other changes: if that fails, the sequence's tokens are unchanged (4). Only then is the
/// shared last page released; its other users keep it alive until the caller has copied it.
Result<std::vector<PageCopy>> PagedCache::append(SequenceId id, std::size_t token_count) {
  Sequence& sequence = at(id);
  if (token_count == 0) return std::vector<PageCopy>{};
  if (token_count > SIZE_MAX - sequence.token_count) return Errc::kOutOfMemory;  // the sum would wrap
  leave_behind(sequence);
  const bool has_partial_page = sequence.token_count % group_.block_size != 0;
  const bool copies = has_partial_page && pool_.user_count(sequence.pages.back()) > 1;
  const std::size_t page_count = block_count(sequence.token_count + token_count);
  const auto fresh = pool_.take(page_count - sequence.pages.size() + copies);
  if (!fresh) return fresh.error();

  std::vector<PageCopy> page_copies;
  if (copies) {
    const PageId shared = std::exchange(sequence.pages.back(), fresh->front());
    pool_.release(std::span(&shared, 1));
    page_copies.push_back({shared, fresh->front()});
  } else if (has_partial_page && pool_.name(sequence.pages.back())) {
    pool_.forget_name(sequence.pages.back());  // cropped into a named block, which is about to change
  }
  sequence.pages.insert(sequence.pages.end(), fresh->begin() + copies, fresh->end());
  sequence.token_count += token_count;
  KV_ASSERT(sequence.pages.size() == page_count);  // 1
  return page_copies;
}

SequenceId PagedCache::fork(SequenceId id) {
  const Sequence copy = at(id);
  pool_.touch(copy.pages);
  const SequenceId forked{next_id_++};
  sequences_.emplace(forked, copy);
  return forked;
}

/// A crop cannot undo the window's releases: the next token's window would begin in released pages.
Result<void> PagedCache::crop(SequenceId id, std::size_t token_count) {
  Sequence& sequence = at(id);
  if (token_count > sequence.token_count) return Errc::kBadRequest;
  const std::size_t page_count = block_count(token_count);
  const std::size_t first_read = std::min(first_block_read(token_count), page_count);
  if (first_read < std::min(sequence.left_count, page_count)) return Errc::kBadRequest;
  pool_.release(std::span(sequence.pages).subspan(page_count));
  sequence.pages.resize(page_count);
  sequence.token_count = token_count;
  sequence.named_count = std::min(sequence.named_count, token_count / group_.block_size);
  sequence.left_count = std::min(sequence.left_count, page_count);
  return {};
}

void PagedCache::close(SequenceId id) {
  pool_.release(at(id).pages);
  sequences_.erase(id);
}

/// named_count only moves forward, so a decode step that completes no block costs nothing here. A named page is left
/// alone: it was a hit, or a sequence that shares the page has named it.
void PagedCache::name_blocks(SequenceId id, std::span<const BlockName> names) {
  Sequence& sequence = at(id);
  const std::size_t end = std::min(names.size(), sequence.token_count / group_.block_size);
  for (; sequence.named_count < end; ++sequence.named_count) {
    const PageId page = sequence.pages[sequence.named_count];
    if (page != kNullPage && !pool_.name(page)) pool_.set_name(page, names[sequence.named_count]);
  }
}

std::vector<std::int64_t> PagedCache::slot_mapping(SequenceId id, std::size_t begin, std::size_t end) const {
  const Sequence& sequence = at(id);
  KV_ASSERT(begin <= end && end <= sequence.token_count);
  std::vector<std::int64_t> slots;
  slots.reserve(end - begin);
  for (std::size_t token = begin; token < end; ++token) {
    const PageId page = sequence.pages[token / group_.block_size];
    const std::size_t slot = page_index(page) * group_.block_size + token % group_.block_size;
    slots.push_back(page == kNullPage ? -1 : static_cast<std::int64_t>(slot));
  }
  return slots;
}

/// The window of the next token, at position token_count, begins at token_count + 1 - window_tokens.
std::size_t PagedCache::first_block_read(std::size_t token_count) const {
  if (group_.window_tokens == 0 || token_count + 1 <= group_.window_tokens) return 0;
  return (token_count + 1 - group_.window_tokens) / group_.block_size;
}

void PagedCache::leave_behind(Sequence& sequence) {
  const std::size_t end = std::min(first_block_read(sequence.token_count), sequence.pages.size());
  if (sequence.left_count >= end) return;
  const auto left = std::span(sequence.pages).subspan(sequence.left_count, end - sequence.left_count);
  pool_.release(left);
  std::fill(left.begin(), left.end(), kNullPage);
  sequence.left_count = end;
}

std::size_t PagedCache::block_count(std::size_t token_count) const {
  return token_count / group_.block_size + (token_count % group_.block_size != 0);  // without a wrap for any count
}

const PagedCache::Sequence& PagedCache::at(SequenceId id) const {
  const auto it = sequences_.find(id);
  KV_ASSERT(it != sequences_.end());
  return it->second;
}

PagedCache::Sequence& PagedCache::at(SequenceId id) { return const_cast<Sequence&>(std::as_const(*this).at(id)); }

}  // namespace kv
