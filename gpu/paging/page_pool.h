// gpu/paging/page_pool.h: users, blocks and eviction order of pages.
#pragma once

#include <boost/intrusive/list.hpp>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "gpu/paging/page.h"

namespace kv {

/// The pages of one device, shared by all sequences and cache groups. A released page keeps its block, and can be hit,
/// until its memory is needed: the prefix cache is the content of the free pages.
///   1. A page is free iff it has no user. kNullPage is neither free nor used.
///   2. Free pages are taken in the order of their release. release() frees a sequence's last page first, so ends of
///      prefixes are evicted before the beginnings that others can share.
///   3. A name finds the earliest of its present pages. Later ones (two sequences computed the same block at once) stay
///      in place, since page tables only grow at their end.
///   4. The bytes of a page with a name never change: forget_name() before writing.
/// Thread safety: none. Cost: O(1) per page.
class PagePool {
 public:
  /// `on_removed` is called with every name that has lost its last page (the engine's "block removed" event); it must
  /// not call back. Requires: page_count >= 1, including kNullPage.
  explicit PagePool(std::size_t page_count, std::function<void(const BlockName&)> on_removed = {});
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  /// The next `count` free pages, each with one user and no name. Errors: kOutOfMemory; then none were taken.
  Result<std::vector<PageId>> take(std::size_t count);

  /// The page that holds this block, free or used.
  std::optional<PageId> find(const BlockName& name) const;

  /// One more user for each page; null pages are skipped.
  void touch(std::span<const PageId> pages);

  /// One user less for each page, from the last to the first; null pages are skipped.
  void release(std::span<const PageId> pages);

  /// Makes a complete page findable. Requires: used, unnamed, not the null page.
  void set_name(PageId page, const BlockName& name);
  void forget_name(PageId page);

  /// Forgets all names (the weights changed). Returns false, without a change, while any page is used.
  [[nodiscard]] bool forget_all_names();

  std::size_t page_count() const { return pages_.size(); }
  std::size_t free_count() const { return free_.size(); }
  std::uint32_t user_count(PageId page) const { return pages_[page_index(page)].user_count; }
  const BlockName* name(PageId page) const;  ///< Null: unnamed.
  std::vector<PageId> free_pages() const;    ///< In the order in which they will be taken.
  std::string check() const;                 ///< For tests: checks 1 and 3. Empty, or a description of the fault.

 private:
  /// The pages of one name, first to last: a list threaded through `pages_`.
  struct Holders {
    PageId first, last;
  };
  using Names = std::unordered_map<BlockName, Holders>;
  struct Page : boost::intrusive::list_base_hook<> {  ///< Linked while it is free.
    std::uint32_t user_count = 0;
    Names::value_type* named = nullptr;  ///< Elements of an unordered_map do not move.
    PageId before = kNullPage, after = kNullPage;
  };

  Page& at(PageId page);
  PageId id_of(const Page& page) const { return page_at(static_cast<std::size_t>(&page - pages_.data())); }

  std::vector<Page> pages_;
  boost::intrusive::list<Page> free_;  ///< In the order of their reuse.
  Names names_;
  std::function<void(const BlockName&)> on_removed_;
};

}  // namespace kv
