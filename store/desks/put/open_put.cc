#include "store/desks/put/open_put.h"

#include <algorithm>
#include <iterator>

namespace kv {

std::size_t OpenPut::usable_count() const {
  if (groups.empty()) return slots.size();
  const auto cut = std::ranges::upper_bound(groups, slots.size(), {}, &Group::end);
  return cut == groups.begin() ? 0 : std::prev(cut)->end;
}

bool OpenPut::ends_group(std::size_t i) const {
  const auto group = std::ranges::upper_bound(groups, i, {}, &Group::end);
  return group != groups.end() && group->end == i + 1;
}

}  // namespace kv
