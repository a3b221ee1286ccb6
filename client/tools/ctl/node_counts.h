// client/tools/ctl/node_counts.h: values that a node tells, by name.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "client/client.h"
#include "client/tools/text_table.h"

namespace kv {

/// A value of a node's stats, of a tenant's or of an erasure; 0 if the node does not report it.
template <class Stats>
double stat(const Stats& stats, std::string_view name) {
  const auto found = std::ranges::find_if(stats.values, [&](const auto& value) { return value.first == name; });
  return found == stats.values.end() ? 0 : found->second;
}
template <class Stats>
bool has_stat(const Stats& stats, std::string_view name) {
  return std::ranges::any_of(stats.values, [&](const auto& value) { return value.first == name; });
}

template <class Stats>
std::string count_text(const Stats& stats, std::string_view name) {
  return format_count(static_cast<std::uint64_t>(stat(stats, name)));
}
template <class Stats>
std::string bytes_text(const Stats& stats, std::string_view name) {
  return format_bytes(static_cast<std::uint64_t>(stat(stats, name)));
}

/// Blocks that clients looked up at a node, and its hits: the meaning of "hit rate" everywhere. A match looks up; gets
/// request a match's hits, so their own share is near 1, and counts only in the absence of matches.
struct LookupCounts {
  double found = 0, asked = 0;
};
inline LookupCounts lookups_between(const NodeStats& before, const NodeStats& now) {
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
inline LookupCounts lookups_since_start(const NodeStats& now) { return lookups_between({}, now); }

}  // namespace kv
