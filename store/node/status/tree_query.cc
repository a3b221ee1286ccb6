#include "store/node/status/tree_query.h"

#include <charconv>
#include <cstdint>

namespace kv {
namespace {

template <class Number>
bool read_number(std::string_view text, int base, Number& number) {
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number, base);
  return error == std::errc() && at == end && text.front() != '-';
}

}  // namespace

std::optional<LookDesk::TreeScope> read_tree_query(std::string_view query) {
  LookDesk::TreeScope scope;
  bool has_tier = false, has_name = false;
  while (!query.empty()) {
    const std::string_view part = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), part.size() + 1));
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos || equals + 1 == part.size()) return std::nullopt;
    const std::string_view key = part.substr(0, equals), value = part.substr(equals + 1);
    if (key == "tier" && !has_tier && (value == "memory" || value == "disk")) {
      has_tier = true;
      scope.tier = value == "disk" ? BlockTier::kDisk : BlockTier::kMemory;
    } else if (key == "space" && !scope.space) {
      std::uint64_t space = 0;
      if (!read_number(value, 10, space)) return std::nullopt;
      scope.space = SpaceId{space};
    } else if (key == "top" && scope.top == kNoBlock) {
      std::uint32_t top = 0;
      if (!read_number(value, 10, top) || BlockId{top} == kNoBlock) return std::nullopt;
      scope.top = BlockId{top};
    } else if (key == "name" && !has_name) {
      has_name = true;
      if (!read_number(value, 16, scope.top_name)) return std::nullopt;
    } else {
      return std::nullopt;
    }
  }
  if ((scope.top != kNoBlock) != has_name || (has_name && !scope.space)) return std::nullopt;
  return scope;
}

}  // namespace kv
