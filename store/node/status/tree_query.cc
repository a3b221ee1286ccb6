#include "store/node/status/tree_query.h"

#include <charconv>
#include <cstdint>

#include "base/text/quantity.h"
#include "store/node/status/query.h"

namespace kv {

std::optional<LookDesk::TreeScope> read_tree_query(std::string_view text) {
  Query query(text);
  const auto tier = query.take("tier"), space = query.take("space"), top = query.take("top"), name = query.take("name");
  if (!query.is_read() || top.has_value() != name.has_value() || (name && !space)) return std::nullopt;
  LookDesk::TreeScope scope;
  if (tier == "disk") scope.tier = BlockTier::kDisk;
  if (tier && tier != "disk" && tier != "memory") return std::nullopt;
  if (space) {
    const auto id = parse_number<std::uint64_t>(*space);
    if (!id) return std::nullopt;
    scope.space = SpaceId{*id};
  }
  if (!name) return scope;
  const auto id = parse_number<std::uint32_t>(*top);
  const auto [end, error] = std::from_chars(name->data(), name->data() + name->size(), scope.top_name, 16);
  if (!id || BlockId{*id} == kNoBlock || error != std::errc() || end != name->data() + name->size())
    return std::nullopt;
  scope.top = BlockId{*id};
  return scope;
}

}  // namespace kv
