#include "index/name_groups.h"

#include <algorithm>
#include <array>

#include "base/assert.h"

namespace kv {
namespace {

bool has_twice(std::span<const BlockHash> names) {
  KV_ASSERT(names.size() <= kGroupNamesMax);
  if (names.size() < 2) return false;
  std::array<const BlockHash*, kGroupNamesMax> sorted;
  const auto end = std::ranges::transform(names, sorted.begin(), [](const BlockHash& name) { return &name; }).out;
  std::sort(sorted.begin(), end, [](const BlockHash* a, const BlockHash* b) { return *a < *b; });
  return std::adjacent_find(sorted.begin(), end, [](const BlockHash* a, const BlockHash* b) { return *a == *b; }) !=
         end;
}

}  // namespace

bool are_groups_of(std::span<const std::uint32_t> counts, std::size_t name_count) {
  if (counts.empty()) return true;
  std::uint64_t sum = 0;  // of bounded 32-bit numbers: it cannot wrap for a list in memory
  for (const std::uint32_t count : counts) {
    if (count == 0 || count > kGroupNamesMax) return false;
    sum += count;
  }
  return sum == name_count;
}

std::string check_groups(std::span<const BlockHash> names, std::span<const std::uint32_t> counts, const char* field) {
  if (counts.empty()) return {};
  const std::string where(field);
  std::uint64_t sum = 0;
  for (std::size_t group = 0; group < counts.size(); ++group) {
    if (counts[group] == 0 || counts[group] > kGroupNamesMax) {
      return where + "[" + std::to_string(group) + "]: " + std::to_string(counts[group]) + ", 1.." +
             std::to_string(kGroupNamesMax) + " are allowed";
    }
    sum += counts[group];
  }
  if (sum != names.size()) {
    return where + ": " + std::to_string(sum) + " names in all, " + std::to_string(names.size()) + " are given";
  }
  std::size_t first = 0;
  for (std::size_t group = 0; group < counts.size(); first += counts[group++]) {
    if (has_twice(names.subspan(first, counts[group])))
      return where + "[" + std::to_string(group) + "]: the group has a name twice";
  }
  return {};
}

GroupPart leading_part(std::span<const std::uint32_t> counts, std::size_t name_count, std::size_t name_count_max) {
  if (counts.empty()) return {std::min(name_count, name_count_max), 0};
  GroupPart part;
  while (part.group_count < counts.size() && counts[part.group_count] <= name_count_max - part.name_count)
    part.name_count += counts[part.group_count++];
  KV_ASSERT(part.name_count <= name_count);
  return part;
}

}  // namespace kv
