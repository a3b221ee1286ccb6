// gpu/paging/free_pages.h: the unused pages, in the order of their reuse.
#pragma once

#include <vector>

#include "base/assert.h"
#include "gpu/paging/page.h"

namespace kv {

/// A queue that can lose an element in its middle: pages are pushed on release, popped for memory, and removed by a
/// hit. Thread safety: none. Cost: O(1) each, 8 bytes a page, no allocation after construction.
class FreePages {
 public:
  explicit FreePages(std::size_t page_count) : links_(page_count + 1), end_(page_at(page_count)) {
    links_[page_count] = {end_, end_};
  }

  std::size_t count() const { return count_; }
  PageId front() const { return links_[page_index(end_)].after; }  ///< end() if the queue is empty.
  PageId after(PageId page) const { return links_[page_index(page)].after; }
  PageId end() const { return end_; }
  bool contains(PageId page) const { return links_[page_index(page)].after != kNotHere; }

  void push_back(PageId page) {
    KV_ASSERT(!contains(page));
    const PageId last = links_[page_index(end_)].before;
    links_[page_index(page)] = {last, end_};
    links_[page_index(last)].after = page;
    links_[page_index(end_)].before = page;
    ++count_;
  }

  void remove(PageId page) {
    KV_ASSERT(contains(page) && page != end_);
    const Links links = links_[page_index(page)];
    links_[page_index(links.before)].after = links.after;
    links_[page_index(links.after)].before = links.before;
    links_[page_index(page)] = {};
    --count_;
  }

  PageId pop_front() {
    const PageId page = front();
    remove(page);
    return page;
  }

 private:
  static constexpr PageId kNotHere{-1};
  struct Links {
    PageId before = kNotHere, after = kNotHere;
  };

  std::vector<Links> links_;  ///< One per page, and one that is both ends of the ring.
  PageId end_;
  std::size_t count_ = 0;
};

}  // namespace kv
