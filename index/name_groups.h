// index/name_groups.h: names of a set whose blocks are useful only together: a layer's state and its convolution
// window, or separate K and V.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "index/block_hash.h"

namespace kv {

// `counts` cut a list of names into groups: the first counts[0] names are a group, the next counts[1] another. Without
// counts each name is alone. A group is held while all of its members are. The caller defines the groups in every
// request: the node stores only their blocks.

/// Per group. A whole group is looked up and linked under one lock, so this bounds the time.
inline constexpr std::size_t kGroupNamesMax = 64;

/// Whether `counts` cut a list of `name_count` names completely, each from 1 to kGroupNamesMax. Empty counts always do.
bool are_groups_of(std::span<const std::uint32_t> counts, std::size_t name_count);
/// The same, and that each group's names differ. Empty, or the fault in words. `field`: the caller's name for `counts`.
std::string check_groups(std::span<const BlockHash> names, std::span<const std::uint32_t> counts,
                         const char* field = "group_counts");

/// A part of a list: its names, and their groups. Without counts, group_count is 0.
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
