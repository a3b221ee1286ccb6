#include "client/tools/ctl/node_counts.h"

#include <algorithm>
#include <string>

namespace kv {

double stat(const NodeStats& stats, std::string_view name, double otherwise) {
  const auto found = std::ranges::find_if(stats.values, [&](const auto& value) { return value.first == name; });
  return found == stats.values.end() ? otherwise : found->second;
}

bool has_stat(const NodeStats& stats, std::string_view name) {
  return std::ranges::any_of(stats.values, [&](const auto& value) { return value.first == name; });
}

LookupCounts lookups_between(const NodeStats& before, const NodeStats& now) {
  const auto of = [&](const std::string& verb) {
    const auto made = [&](const char* what) {  // 0 after a restart of the node, which resets its counters
      return std::max(0.0, stat(now, verb + what) - stat(before, verb + what));
    };
    const double found = made("_hit_blocks") + made("_disk_blocks");
    return LookupCounts{found, found + made("_miss_blocks")};
  };
  const LookupCounts matches = of("match");
  return matches.asked > 0 ? matches : of("get");
}

}  // namespace kv
