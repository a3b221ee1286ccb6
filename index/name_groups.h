// index/name_groups.h: names of a set whose blocks are of use only together: a layer's state and its convolution
// window, K and V stored apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "index/block_hash.h"

namespace kv {

// A list of names is cut into groups by `counts`: the first counts[0] names are a group, the next counts[1] another.
// Without counts each name is alone. A group is held while all of it is held. Who asks says what belongs together, and
// asks the same each time: nothing is kept of a group but its blocks.

/// In one group. All of a group is looked up, and linked, under one lock, so this bounds the time.
inline constexpr std::size_t kGroupNamesMax = 64;

/// Whether `counts` cut a list of so many names: each from 1 to kGroupNamesMax, and all of it. An empty list always
/// does.
bool are_groups_of(std::span<const std::uint32_t> counts, std::size_t name_count);
/// The same, and that no group has a name twice. Empty, or what is wrong, with the numbers. `field`: what the caller
/// calls its counts.
std::string check_groups(std::span<const BlockHash> names, std::span<const std::uint32_t> counts,
                         const char* field = "group_counts");

/// How much of a list: names, and the groups they are. Without counts no groups are counted.
struct GroupPart {
  std::size_t name_count = 0, group_count = 0;
};
/// The longest leading part of at most `name_count_max` names that cuts no group. Requires are_groups_of().
GroupPart leading_part(std::span<const std::uint32_t> counts, std::size_t name_count, std::size_t name_count_max);

/// Calls visit(first, count) for each group of a list of `name_count` names, in order. Requires are_groups_of().
template <class Visit>
void for_each_group(std::span<const std::uint32_t> counts, std::size_t name_count, Visit&& visit) {
  for (std::size_t first = 0, group = 0; first < name_count; ++group) {
    const std::size_t count = counts.empty() ? 1 : counts[group];
    visit(first, count);
    first += count;
  }
}

}  // namespace kv
