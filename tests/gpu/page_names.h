// tests/gpu/page_names.h: short words for pages and block names, and seeds that can be given again.
#pragma once

#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "gpu/paging/page.h"

namespace kv {

inline std::ostream& operator<<(std::ostream& out, PageId page) { return out << "page " << page_index(page); }

inline std::vector<PageId> pages(std::initializer_list<int> ids) {
  std::vector<PageId> pages;
  for (const int id : ids) pages.push_back(PageId{id});
  return pages;
}

inline BlockName name_of(std::uint64_t content, std::uint32_t group = 0) {
  BlockName name{.hash = {}, .group = group};
  std::memcpy(name.hash.data(), &content, sizeof content);
  return name;
}

inline std::vector<BlockName> names_of(std::initializer_list<std::uint64_t> contents, std::uint32_t group = 0) {
  std::vector<BlockName> names;
  for (const std::uint64_t content : contents) names.push_back(name_of(content, group));
  return names;
}

inline std::uint64_t test_seed() {
  const char* text = std::getenv("KV_SEED");
  return text ? std::stoull(text) : std::random_device{}();
}

}  // namespace kv
