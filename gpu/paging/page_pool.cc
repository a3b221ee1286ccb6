#include "gpu/paging/page_pool.h"

#include <limits>

#include "base/assert.h"

namespace kv {

PagePool::PagePool(std::size_t page_count, std::function<void(const BlockName&)> on_removed)
    : pages_(page_count), on_removed_(std::move(on_removed)) {
  KV_ASSERT(page_count >= 1 && page_count < std::numeric_limits<std::int32_t>::max());
  names_.reserve(page_count);  // at most one name per page: avoids a rehash while an engine waits for its step
  // From 1: page 0 is the null page.
  for (std::size_t i = 1; i < page_count; ++i) free_.push_back(pages_[i]);
}

Result<std::vector<PageId>> PagePool::take(std::size_t count) {
  // All or none: a partly served sequence could not run, and would block others.
  if (count > free_.size()) return Errc::kOutOfMemory;
  std::vector<PageId> taken;
  taken.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const PageId page = id_of(free_.front());
    free_.pop_front();
    KV_ASSERT(page != kNullPage && at(page).user_count == 0);  // 1
    // Only now: a free page can be hit until its memory is needed.
    if (at(page).named) forget_name(page);
    at(page).user_count = 1;
    taken.push_back(page);
  }
  return taken;
}

std::optional<PageId> PagePool::find(const BlockName& name) const {
  const auto it = names_.find(name);
  // The page may be free or used. To keep it, the caller touches it before other pages are taken.
  if (it == names_.end()) return std::nullopt;
  return it->second.first;
}

void PagePool::touch(std::span<const PageId> pages) {
  for (const PageId page : pages) {
    if (page == kNullPage) continue;
    if (at(page).user_count++ == 0) free_.erase(free_.iterator_to(at(page)));
  }
}

/// Backwards, so that a sequence's last page is queued and evicted first (2): others share its beginning.
void PagePool::release(std::span<const PageId> pages) {
  for (std::size_t i = pages.size(); i-- > 0;) {
    if (pages[i] == kNullPage) continue;
    Page& page = at(pages[i]);
    KV_ASSERT(page.user_count > 0);
    if (--page.user_count == 0) free_.push_back(page);
  }
}

void PagePool::set_name(PageId page, const BlockName& name) {
  Page& entry = at(page);
  KV_ASSERT(page != kNullPage && entry.user_count > 0 && !entry.named);
  const auto [it, is_new] = names_.try_emplace(name, Holders{page, page});
  entry.named = &*it;
  if (is_new) return;
  // Behind earlier pages of that name (3). The pages of one name form a list, of which the map has only the ends.
  entry.before = it->second.last;
  at(it->second.last).after = page;
  it->second.last = page;
}

void PagePool::forget_name(PageId page) {
  Page& entry = at(page);
  KV_ASSERT(entry.named);
  Holders& holders = entry.named->second;
  if (holders.first == page && holders.last == page) {
    // The copy outlives the entry. The callback comes last, when the name can no longer be found.
    const BlockName name = entry.named->first;
    names_.erase(name);
    if (on_removed_) on_removed_(name);
  } else {
    (holders.first == page ? holders.first : at(entry.before).after) = entry.after;
    (holders.last == page ? holders.last : at(entry.after).before) = entry.before;
  }
  entry.named = nullptr;
  entry.before = entry.after = kNullPage;
}

/// All or none: a sequence with pages in use would continue with keys of the old weights.
bool PagePool::forget_all_names() {
  if (free_.size() != pages_.size() - 1) return false;
  for (std::size_t i = 1; i < pages_.size(); ++i) {
    if (pages_[i].named) forget_name(page_at(i));
  }
  return true;
}

const BlockName* PagePool::name(PageId page) const {
  const Page& entry = pages_[page_index(page)];
  return entry.named ? &entry.named->first : nullptr;
}

std::vector<PageId> PagePool::free_pages() const {
  std::vector<PageId> pages;
  for (const Page& page : free_) pages.push_back(id_of(page));
  return pages;
}

PagePool::Page& PagePool::at(PageId page) {
  KV_ASSERT(page_index(page) < pages_.size());
  return pages_[page_index(page)];
}

std::string PagePool::check() const {
  if (pages_[0].user_count != 0 || pages_[0].named || pages_[0].is_linked()) return "the null page is in use";
  std::size_t named_count = 0, held_count = 0;
  for (std::size_t i = 1; i < pages_.size(); ++i) {
    if (pages_[i].is_linked() != (pages_[i].user_count == 0)) return "page " + std::to_string(i) + " breaks 1";
    named_count += pages_[i].named != nullptr;
  }
  for (const auto& entry : names_) {
    PageId before = kNullPage, page = entry.second.first;
    for (; page != kNullPage; before = page, page = pages_[page_index(page)].after) {
      if (pages_[page_index(page)].named != &entry || pages_[page_index(page)].before != before) return "3 is broken";
      ++held_count;
    }
    if (before != entry.second.last) return "a list of pages with one name has a wrong end";
  }
  return named_count == held_count ? "" : "a page has a name that does not find it";
}

}  // namespace kv
